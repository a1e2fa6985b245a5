"""The REST API in the tenants' shares of the event loop."""

import json
from collections import defaultdict

import pytest

from app.admin.resources.now.inspections import PAGE_OF_FILE
from app.auth.api_keys import key_id
from app.limits.loop_shares import MAX_DEBT_S
from tests.admin.resources.now.test_inspections import BODY, opened, say
from tests.admin.rig import Rig

GUIDES, SECONDS = "/api/v1/tenants/acme/guides", MAX_DEBT_S
LARGE = json.dumps({"text": [[]] * 200_000}).encode()


@pytest.fixture
def turns(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Who has waited for one."""
    given = list[str]()

    async def noted(tenant: str) -> None:
        given.append(tenant)

    monkeypatch.setattr(rig.admin.shares, "turn", noted)
    return given


@pytest.fixture
def charged(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """How many seconds each tenant has used."""
    seconds = defaultdict[str, float](float)

    def charge(tenant: str, used: float) -> None:
        seconds[tenant] += used

    monkeypatch.setattr(rig.admin.shares, "charge", charge)
    return seconds


async def test_requests_of_a_tenant_over_its_share_wait_but_not_those_who_can_stop_it(rig, turns):
    own, other = await rig.key("acme", "tenant:read"), await rig.key("zenith", "tenant:read")
    assert (await rig.ask("GET", GUIDES, key=own)).status_code == 200
    assert turns == []
    rig.admin.shares.charge("acme", SECONDS)
    assert (await rig.ask("GET", GUIDES, key=other)).status_code == 404
    assert (await rig.ask("GET", GUIDES)).status_code == 200
    assert turns == []
    assert (await rig.ask("GET", GUIDES, key=own)).status_code == 200
    assert (await rig.ask("GET", "/api/v1/me", key=own)).status_code == 200
    assert turns == ["acme", "acme"]


async def test_what_a_request_does_on_the_loop_is_charged_also_where_it_is_refused(rig, charged):
    own = await rig.key("acme", "tenant:admin")
    assert (await rig.ask("POST", GUIDES, key=own, content=LARGE)).status_code == 422
    assert charged["acme"] > 0.001
    before = charged["acme"]
    await rig.ask("POST", GUIDES, content=LARGE)
    assert charged["acme"] > before + 0.001
    assert set(charged) == {"acme"}


async def test_nobody_uses_up_the_share_of_others(rig, charged):
    theirs = await rig.key("zenith", "tenant:admin")
    assert (await rig.ask("POST", GUIDES, key=theirs, content=LARGE)).status_code == 404
    assert set(charged) == {"zenith"}


async def test_a_key_that_was_revoked_during_the_wait_is_refused(rig, monkeypatch):
    own = await rig.key("acme", "tenant:read")
    assert (await rig.ask("GET", GUIDES, key=own)).status_code == 200
    rig.admin.shares.charge("acme", SECONDS)

    async def revoked(tenant: str) -> None:
        await rig.admin.keys.revoke("acme", key_id(own), rig.admin.now())  # nobody has told this node

    monkeypatch.setattr(rig.admin.shares, "turn", revoked)
    assert (await rig.ask("GET", GUIDES, key=own)).status_code == 401


async def test_each_page_of_a_file_has_a_turn(rig, turns):
    rig.node.add_session("acme", BODY["session"])
    about, own = await opened(rig), await rig.key("acme", "tenant:read")
    for number in range(PAGE_OF_FILE + 1):
        say(rig, about["id"], f"text {number}")
    path = f"/api/v1/tenants/acme/inspections/{about['id']}/messages?format=jsonl"
    assert len((await rig.ask("GET", path, key=own)).text.splitlines()) > PAGE_OF_FILE
    assert turns == ["acme"] * 3  # the last one finds that there is no more
