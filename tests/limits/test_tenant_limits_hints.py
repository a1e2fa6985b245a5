"""Whoever raises what a refusal names has the same request served: each limit of a tenant's gate, each of the node."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from app.domain import Limits
from app.errors import QuotaExceeded
from app.limits.overload import Overload, Passed
from app.limits.tenant_limits import TenantGate
from app.settings.settings import Settings
from app.telemetry.metrics import Metrics

ALICE = ("acme", "key", "alice")
NOW = 1e9
UNLIMITED = Limits(**dict.fromkeys(("sessions", "processes", "requests_per_second", "burst")))  # type: ignore[arg-type]


def refusal(ask: Callable[[], object]) -> QuotaExceeded:
    """Of one of many requests."""
    try:
        for _ in range(6):
            ask()
    except QuotaExceeded as error:
        return error
    raise AssertionError("nothing was refused")


@pytest.mark.parametrize(
    ("limits", "ask"),
    [
        (replace(UNLIMITED, sessions=0), lambda gate, now: gate.open_session(ALICE)),
        (replace(UNLIMITED, sessions_per_principal=0), lambda gate, now: gate.open_session(ALICE)),
        (replace(UNLIMITED, in_flight=0), lambda gate, now: gate.begin_call(now)),
        (replace(UNLIMITED, in_flight=2), lambda gate, now: gate.require_room(3, 3, now)),
        (replace(UNLIMITED, requests_per_second=0.001, burst=5), lambda gate, now: gate.check_rate(now)),
        (replace(UNLIMITED, requests_per_second=5, burst=5), lambda gate, now: gate.require_room(6, 0, now)),
        (replace(UNLIMITED, requests_per_second=5), lambda gate, now: gate.require_room(6, 0, now)),
    ],
)
def test_a_tenants_limit_that_is_raised_as_the_hint_says_lets_the_request_pass(
    limits: Limits, ask: Callable[[TenantGate, float], object]
) -> None:
    gate = TenantGate(limits, Metrics("test"), tenant="acme")
    (name,) = re.findall(r"limits\.(\w+)\.$", refusal(partial(ask, gate, NOW)).hint or "")
    gate.configure(replace(limits, **{name: 1000}))
    ask(gate, NOW + 10)  # a bucket is not filled at once


@pytest.mark.parametrize("what", ["session", "call"])
@pytest.mark.parametrize("mark", ["loop_lag", "memory", "descriptors"])
def test_what_a_full_node_names_is_a_setting(what: str, mark: str) -> None:
    error = Overload(Metrics("test")).refusal(what, Passed(mark, "why", 85.0, 90.0))  # type: ignore[arg-type]
    assert error.reached is not None
    (name,) = re.findall(r"the setting (\w+),", error.reached.raised_by)
    assert name.lower() in Settings.__dataclass_fields__
