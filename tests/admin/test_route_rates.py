"""The REST API per principal: what is written, and what stands in the audit trail for ever, costs more."""

import time

import pytest

from app.admin._route import ACTION_COST, READ_COST, WRITE_COST
from app.auth.api_keys import key_id
from tests.admin.rig import Rig

AT_ONCE = 1000
ENOUGH = 4  # requests that are left to the principal
RESTART = ("POST", "/api/v1/tenants/acme/backends/echo:restart")


@pytest.fixture
def spent(rig: Rig) -> Rig:
    """Time stands still, and the administrator has spent all but a few requests."""
    now = time.monotonic()
    rig.admin.rates._clock = lambda: now
    return rig


def leave(rig: Rig, cost: float) -> None:
    rig.admin.rates.spend(("default", "key", key_id(rig.root)), AT_ONCE - ENOUGH * cost)


@pytest.mark.parametrize(
    ("method", "path", "cost"),
    [
        (*RESTART, ACTION_COST),
        ("POST", "/api/v1/backends/echo:check", ACTION_COST),
        ("POST", "/api/v1/tenants/acme/backends:import", ACTION_COST),
        ("PATCH", "/api/v1/tenants/acme/backends/none", WRITE_COST),
        ("DELETE", "/api/v1/tenants/acme/keys/AAAAAAAA", WRITE_COST),
        ("POST", "/api/v1/tenants", WRITE_COST),
        ("GET", "/api/v1/tenants", READ_COST),
    ],
)
async def test_what_a_request_costs(spent, method, path, cost):
    leave(spent, cost)
    content = b"{}" if method in ("POST", "PATCH") else None
    statuses = [(await spent.ask(method, path, content=content)).status_code for _ in range(ENOUGH + 1)]
    assert 429 not in statuses[:ENOUGH]
    assert statuses[ENOUGH] == 429


async def test_a_refusal_says_why_and_when_to_come_back(spent):
    leave(spent, 0.0)
    answer = await spent.ask(*RESTART)
    assert (answer.status_code, answer.json()["reason"]) == (429, "rate_limited")
    assert answer.headers["Retry-After"] == "1"


async def test_restarts_leave_no_more_rows_than_were_let_through_and_others_go_on(spent):
    leave(spent, ACTION_COST)
    before = len(await spent.trail("acme"))
    for _ in range(3 * ENOUGH):
        await spent.ask(*RESTART)
    assert len(await spent.trail("acme")) - before == ENOUGH
    other = await spent.key("acme", "tenant:admin")
    assert (await spent.ask(*RESTART, key=other)).status_code == 204
    assert (await spent.ask("GET", "/livez")).status_code == 200
