"""…/connections"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from secrets import token_hex
from typing import Any

import pytest

from app.auth.api_keys import key_id
from app.domain import Connection, SignIn
from tests.admin.rig import Rig

PATH = "/api/v1/tenants/acme/connections"
ALICE = ("https://idp.example", "alice")
SHOWN = {
    "id", "client_id", "client_title", "client_host", "issuer", "subject", "backend", "scopes", "created_at", "used_at",
    "ends_at",
}  # fmt: skip


async def sign_people_in(rig: Rig, tenant: str = "acme") -> None:
    """Gives the tenant an authorization server, without which there are no connections."""
    known = await rig.admin.tenants.get(tenant)
    await rig.admin.tenants.replace(replace(known, sign_in=SignIn()))
    rig.heard.clear()


async def allow(rig: Rig, person: tuple[str, str] = ALICE, **more: Any) -> Connection:
    """What a person allows a program."""
    now = datetime.now(UTC)
    connection = Connection(
        id=more.pop("id", token_hex(8)), tenant=more.pop("tenant", "acme"), client_id=more.pop("client_id", "desk"),
        client_title="Desk", issuer=person[0], subject=person[1], backend="", scopes=frozenset({"mcp:connect"}),
        base_url="https://gw.example", redirect_uri="https://desk.example/callback", challenge="c" * 43,
        created_at=now, turned_at=now, ends_at=now + timedelta(days=7), turn=1,
    )  # fmt: skip
    connection = replace(connection, **more)
    await rig.admin.connections.add(connection)
    return connection


@pytest.fixture
async def signing(rig: Rig) -> Rig:
    await sign_people_in(rig)
    return rig


async def mine(rig: Rig, *scopes: str, tenant: str = "acme") -> tuple[str, tuple[str, str]]:
    """A key, and whom it is about."""
    key = await rig.key(tenant, *scopes)
    return key, ("key", key_id(key) or "")


async def ids(rig: Rig, key: str, query: str = "") -> list[str]:
    return [each["id"] for each in (await rig.ask("GET", PATH + query, key=key)).json()["items"]]


async def test_a_connection_is_shown_with_what_was_allowed_and_nothing_that_opens_anything(signing):
    url = "https://editor.example/client.json"
    allowed = await allow(signing, client_id=url, backend="echo", scopes=frozenset({"mcp:connect:echo"}))
    (shown,) = (await signing.ask("GET", PATH)).json()["items"]
    assert set(shown) == SHOWN
    assert (shown["client_id"], shown["client_title"], shown["client_host"]) == (url, "Desk", "editor.example")
    assert (shown["issuer"], shown["subject"]) == ALICE
    assert (shown["backend"], shown["scopes"]) == ("echo", ["mcp:connect:echo"])
    assert datetime.fromisoformat(shown["used_at"]) == allowed.turned_at
    assert (await signing.ask("GET", f"{PATH}/{allowed.id}")).json() == shown


async def test_a_client_that_is_a_name_has_no_host(signing):
    allowed = await allow(signing)
    assert (await signing.ask("GET", f"{PATH}/{allowed.id}")).json()["client_host"] == ""


async def test_everybody_sees_and_ends_their_own_and_others_are_not_found(signing):
    key, me = await mine(signing, "mcp:connect")
    own, other = await allow(signing, me), await allow(signing)
    assert await ids(signing, key) == [own.id]
    assert (await signing.ask("GET", f"{PATH}/{own.id}", key=key)).status_code == 200
    unknown = await signing.ask("GET", f"{PATH}/{'0' * 16}", key=key)
    assert unknown.status_code == 404
    for method in ("GET", "DELETE"):
        answer = await signing.ask(method, f"{PATH}/{other.id}", key=key)
        assert (answer.status_code, answer.content) == (404, unknown.content)
    assert (await signing.ask("DELETE", f"{PATH}/{own.id}", key=key)).status_code == 204
    assert (await signing.ask("DELETE", f"{PATH}/{own.id}", key=key)).status_code == 404
    assert await ids(signing, signing.root) == [other.id]


async def test_readers_see_all_of_the_tenant_and_end_only_their_own(signing):
    key, me = await mine(signing, "tenant:read")
    own, other = sorted(
        [await allow(signing, me), await allow(signing)], key=lambda each: each.identity != ("acme", *me)
    )
    assert await ids(signing, key) == sorted([own.id, other.id])
    assert await ids(signing, key, "?mine=true") == [own.id]
    assert (await signing.ask("GET", f"{PATH}/{other.id}", key=key)).status_code == 200
    assert (await signing.ask("DELETE", f"{PATH}/{other.id}", key=key)).status_code == 404
    assert (await signing.ask("DELETE", f"{PATH}/{own.id}", key=key)).status_code == 204


async def test_administrators_end_any_and_it_is_in_the_trail_and_the_nodes_hear_of_it(signing):
    key, me = await mine(signing, "tenant:admin")
    allowed = await allow(signing)
    assert (await signing.ask("DELETE", f"{PATH}/{allowed.id}", key=key)).status_code == 204
    assert await ids(signing, key) == []
    (act,) = [each for each in await signing.trail("acme") if each.action == "connection.end"]
    assert act.actor == ("acme", *me)
    assert (act.target, act.detail) == (f"connections/{allowed.id}", "https://idp.example alice desk")
    assert signing.heard == [("grants", "acme")]


async def test_the_same_person_elsewhere_is_another_one(signing):
    await sign_people_in(signing, "zenith")
    key, me = await mine(signing, "tenant:admin", tenant="zenith")
    ours = await allow(signing, me)
    for method, path in (("GET", PATH), ("GET", f"{PATH}/{ours.id}"), ("DELETE", f"{PATH}/{ours.id}")):
        assert (await signing.ask(method, path, key=key)).status_code == 404
    for method in ("GET", "DELETE"):
        path = f"/api/v1/tenants/zenith/connections/{ours.id}"
        assert (await signing.ask(method, path, key=key)).status_code == 404
    assert await ids(signing, signing.root) == [ours.id]


async def test_pages_follow_each_other_by_cursor(signing):
    made = sorted([(await allow(signing)).id for _ in range(5)])
    found, cursor = list[str](), ""
    while cursor is not None:
        page = (await signing.ask("GET", f"{PATH}?limit=2&cursor={cursor}")).json()
        found += [each["id"] for each in page["items"]]
        cursor = page["next_cursor"]
    assert found == made


async def test_a_page_of_ones_own_has_none_of_others_between(signing):
    key, me = await mine(signing, "mcp:connect")
    own = sorted([(await allow(signing, me if number % 2 else ALICE)).id for number in range(6)][1::2])
    first = (await signing.ask("GET", f"{PATH}?limit=2", key=key)).json()
    assert [each["id"] for each in first["items"]] == own[:2]
    assert await ids(signing, key, f"?limit=2&cursor={first['next_cursor']}") == own[2:]


async def test_what_is_over_is_not_there(signing):
    allowed = await allow(signing, ends_at=datetime.now(UTC) - timedelta(seconds=1))
    assert await ids(signing, signing.root) == []
    assert (await signing.ask("DELETE", f"{PATH}/{allowed.id}")).status_code == 404


async def test_without_sign_in_there_are_none(signing):
    allowed = await allow(signing)
    assert (await signing.ask("PATCH", "/api/v1/tenants/acme", {"sign_in": None})).json()["sign_in"] is None
    assert await ids(signing, signing.root) == []
    assert (await signing.ask("GET", f"{PATH}/{allowed.id}")).status_code == 404


@pytest.mark.parametrize("name", ["0", "A" * 16, "0" * 17, "%00", "0123456789abcde%0a"])
async def test_what_is_no_id_is_not_found(untouched, name):
    assert (await untouched.ask("DELETE", f"{PATH}/{name}")).status_code == 404


async def test_without_a_tenant_in_the_path_it_is_the_default_one(signing):
    await sign_people_in(signing, "default")
    allowed = await allow(signing, tenant="default")
    assert [each["id"] for each in (await signing.ask("GET", "/api/v1/connections")).json()["items"]] == [allowed.id]
    assert (await signing.ask("DELETE", f"/api/v1/connections/{allowed.id}")).status_code == 204
