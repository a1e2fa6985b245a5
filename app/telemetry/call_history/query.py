"""Which calls are asked for, and their sums by group. Durations are counted in buckets 9 % wide, so that the sums of
several nodes can be added."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from app.telemetry.call_history.history import CallRecord

GroupBy = Literal["backend", "tool", "outcome", "subject", "client"]
GROUPS: tuple[str, ...] = get_args(GroupBy)
ANY_ERROR = "error"  # as the outcome that is asked for: everything but "ok"
OK = "ok"
PER_DOUBLING = 8  # buckets


@dataclass(frozen=True)
class CallFilter:
    """Calls must match every member that is set. `since` (inclusive) and `until` are Unix time."""

    backend: str = ""
    method: str = ""
    tool: str = ""
    outcome: str = ""
    subject: str = ""
    client_name: str = ""
    session: str = ""
    request_id: str = ""
    since: float = 0.0
    until: float = math.inf
    min_ms: float = 0.0

    def matches(self, call: CallRecord) -> bool:
        origin, outcome = call.origin, call.outcome
        return (
            self.since <= call.at < self.until
            and call.seconds * 1000 >= self.min_ms
            and self.backend in ("", origin.backend)
            and self.method in ("", call.method)
            and self.tool in ("", call.tool)
            and (self.outcome in ("", outcome) or (self.outcome == ANY_ERROR and outcome != OK))
            and self.subject in ("", origin.subject)
            and self.client_name in ("", origin.client_name)
            and self.session in ("", origin.session)
            and (not self.request_id or (call.ids is not None and call.ids.names()[0] == self.request_id))
        )


@dataclass(frozen=True, slots=True)
class CallGroup:
    """The sums of some calls. `name` is what they have in common; `within` its backend or its issuer, where calls are
    grouped by tool or by subject. `buckets` count durations, by `bucket_of`."""

    name: str
    within: str = ""
    count: int = 0
    errors: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    buckets: Mapping[int, int] = field(default_factory=dict)

    def percentile_ms(self, share: float) -> float:
        """The duration that this share of the calls does not exceed, to about 5 %."""
        left = share * self.count
        for bucket in sorted(self.buckets):
            left -= self.buckets[bucket]
            if left <= 0:
                return middle_ms(bucket)
        return 0.0

    def __add__(self, other: "CallGroup") -> "CallGroup":
        buckets = dict(self.buckets)
        for bucket, count in other.buckets.items():
            buckets[bucket] = buckets.get(bucket, 0) + count
        return CallGroup(
            self.name,
            self.within,
            self.count + other.count,
            self.errors + other.errors,
            self.bytes_in + other.bytes_in,
            self.bytes_out + other.bytes_out,
            buckets,
        )


def bucket_of(seconds: float) -> int:
    """The bucket of a duration; 0 up to a microsecond."""
    return 0 if seconds <= 1e-6 else min(400, math.ceil(math.log2(seconds * 1e6) * PER_DOUBLING))


def middle_ms(bucket: int) -> float:
    """A duration in the middle of a bucket."""
    return round(2 ** ((bucket - 0.5) / PER_DOUBLING) / 1000, 3) if bucket else 0.0


def grouped(calls: Iterable[CallRecord], by: str) -> list[CallGroup]:
    """The sums of these calls, in no order."""
    by_key: dict[tuple[str, str], list[CallRecord]] = {}
    for call in calls:
        by_key.setdefault(_key(call, by), []).append(call)
    return [_summed(key, found) for key, found in by_key.items()]


def _summed(key: tuple[str, str], calls: Sequence[CallRecord]) -> CallGroup:
    return CallGroup(
        *key,
        count=len(calls),
        errors=sum(each.outcome != OK for each in calls),
        bytes_in=sum(each.bytes_in for each in calls),
        bytes_out=sum(each.bytes_out for each in calls),
        buckets=Counter(bucket_of(each.seconds) for each in calls),
    )


def added(groups: Iterable[CallGroup]) -> list[CallGroup]:
    """Groups of several nodes, those of one thing added; the most calls first."""
    sums: dict[tuple[str, str], CallGroup] = {}
    for each in groups:
        key = (each.name, each.within)
        sums[key] = sums[key] + each if key in sums else each
    return sorted(sums.values(), key=lambda each: (-each.count, each.name, each.within))


def _key(call: CallRecord, by: str) -> tuple[str, str]:
    origin = call.origin
    match by:
        case "backend":
            return origin.backend, ""
        case "tool":
            return call.tool or call.method, origin.backend
        case "outcome":
            return call.outcome, ""
        case "subject":
            return origin.subject, origin.issuer
        case _:
            return f"{origin.client_name} {origin.client_version}".strip(), ""
