"""The fields that say what a caller has left (draft-ietf-httpapi-ratelimit-headers)."""

import pytest

from app.domain.resources.access import AccessEntry, CallLimits, Who
from app.http.transports import _rate_limit_fields as module
from app.http.transports._rate_limit_fields import rate_limit_fields
from app.limits.caller_limits import Allowance, CallerLimits
from app.telemetry.metrics import Metrics

NOON = 20_000 * 86_400 + 43_200
BOB = ("acme", "key", "bob")


class Clock:
    now = NOON + 10.5

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def limits(clock: Clock) -> CallerLimits:
    return CallerLimits(Metrics("test").rate_limited, clock.time)


def of(limits: CallerLimits, place: str = "backends/db", **more: int) -> Allowance:
    return limits.of("acme", place, BOB, AccessEntry(Who(everyone=True), ("*",), limits=CallLimits(**more)))


def test_nothing_is_said_where_nothing_is_limited(limits):
    assert rate_limit_fields([]) == []
    assert rate_limit_fields([of(limits)]) == []


def test_each_limit_has_its_quota_its_window_what_is_left_and_until_when(limits, clock):
    both = of(limits, requests_per_minute=3, calls_per_day=100)
    for _ in range(2):
        limits.spend([both])
    assert rate_limit_fields([both]) == [
        (b"ratelimit-policy", b'"requests_per_minute";q=3;w=60, "calls_per_day";q=100;w=86400'),
        (b"ratelimit", b'"requests_per_minute";r=1;t=50, "calls_per_day";r=98;t=43190'),
    ]
    clock.now += 60
    (_, (_, left)) = rate_limit_fields([both])
    assert left == b'"requests_per_minute";r=3;t=50, "calls_per_day";r=98;t=43130'


def test_those_of_a_backend_and_of_its_toolset_are_both_said(limits):
    found = rate_limit_fields([of(limits, "toolsets/all", calls_per_day=5), of(limits, requests_per_minute=7)])
    assert found == [
        (b"ratelimit-policy", b'"calls_per_day";q=5;w=86400, "requests_per_minute";q=7;w=60'),
        (b"ratelimit", b'"calls_per_day";r=5;t=43190, "requests_per_minute";r=7;t=50'),
    ]


def test_what_is_left_is_never_less_than_nothing(limits):
    before = of(limits, calls_per_day=9)
    for _ in range(5):
        limits.spend([before])
    (_, (_, left)) = rate_limit_fields([of(limits, calls_per_day=2)])
    assert left == b'"calls_per_day";r=0;t=43190'
