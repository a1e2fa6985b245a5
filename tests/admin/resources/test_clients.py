"""…/clients"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from app.domain.resources.clients import CLIENTS, OAuthClient
from tests.admin.resources.test_connections import allow, sign_people_in
from tests.admin.rig import Rig

PATH = "/api/v1/tenants/acme/clients"
DESK = {"name": "desk", "redirect_uris": ["https://desk.example/callback"]}
BATCH = {"name": "batch", "scopes": ["mcp:connect:echo"], "authentication": "secret"}
SIGNED = {**BATCH, "authentication": "private_key_jwt", "jwks_url": "https://batch.example/jwks"}


async def stored(rig: Rig, name: str) -> OAuthClient:
    return await rig.admin.stored.of(CLIENTS).get("acme", name)


async def register(rig: Rig, name: str = "r-0123") -> str:
    """As a program that registers itself; returns its path."""
    values = {
        "name": name, "title": "", "redirect_uris": ["http://127.0.0.1/"], "scopes": [], "authentication": "none",
        "jwks_url": None, "salt": "0" * 32, "changed_at": datetime.now(UTC), "version": 1,
    }  # fmt: skip
    assert await rig.admin.connections.register("acme", values, datetime.now(UTC))
    return f"{PATH}/{name}"


async def test_a_client_is_made_shown_listed_changed_and_removed_and_the_nodes_hear_of_what_may_end(rig):
    made = await rig.ask("POST", PATH, DESK)
    assert made.status_code == 201, made.text
    shown = made.json()
    assert shown.pop("secret") is None
    assert shown == {
        **DESK, "title": "", "scopes": [], "authentication": "none", "jwks_url": None,
        "changed_at": shown["changed_at"], "version": 1,
    }  # fmt: skip
    path = made.headers["Location"]
    assert (await rig.ask("GET", path)).json() == {**shown, "secret": None}
    assert (await rig.ask("GET", PATH)).json() == {"items": [shown], "next_cursor": None}
    changed = (await rig.ask("PATCH", path, {"title": "The desk"})).json()
    assert changed == {**shown, "title": "The desk", "secret": None, "version": 2, "changed_at": changed["changed_at"]}
    assert (await rig.ask("DELETE", path)).status_code == 204
    assert (await rig.ask("GET", path)).status_code == 404
    assert rig.heard == [("grants", "acme")] * 2


async def test_a_secret_is_in_the_answer_to_its_creation_and_nowhere_else(rig):
    made = await rig.ask("POST", PATH, BATCH)
    assert made.headers["Cache-Control"] == "no-store"
    secret, path = made.json()["secret"], made.headers["Location"]
    assert secret == rig.admin.client_secrets.of("acme", await stored(rig, "batch"))
    salt = (await stored(rig, "batch")).salt
    later = [
        await rig.ask("GET", path),
        await rig.ask("GET", PATH),
        await rig.ask("PATCH", path, {"title": "Nightly"}),
        await rig.ask("GET", "/api/v1/tenants/acme/audit"),
    ]
    assert [answer.status_code for answer in later] == [200] * 4
    assert not [answer.text for answer in later if secret in answer.text]
    assert not [answer.text for answer in (made, *later) if salt in answer.text or "salt" in answer.text]
    assert secret not in repr(await rig.trail())
    assert salt not in repr(await rig.trail())


async def test_a_change_leaves_the_secret_as_it_is(rig):
    await rig.ask("POST", PATH, BATCH)
    before = await stored(rig, "batch")
    for patch in ({"title": "Nightly"}, {"scopes": ["mcp:connect"]}, {"redirect_uris": DESK["redirect_uris"]}):
        assert (await rig.ask("PATCH", f"{PATH}/batch", patch)).status_code == 200
        after = await stored(rig, "batch")
        assert after.salt == before.salt
        assert rig.admin.client_secrets.of("acme", after) == rig.admin.client_secrets.of("acme", before)


async def test_a_client_that_is_made_again_has_another_secret(rig):
    first = (await rig.ask("POST", PATH, BATCH)).json()["secret"]
    await rig.ask("DELETE", f"{PATH}/batch")
    assert (await rig.ask("POST", PATH, BATCH)).json()["secret"] != first


async def test_a_client_gets_no_secret_later_which_nobody_would_see(rig):
    path = (await rig.ask("POST", PATH, SIGNED)).headers["Location"]
    answer = await rig.ask("PATCH", path, {"authentication": "secret", "jwks_url": None})
    assert (answer.status_code, answer.json()["reason"]) == (409, "conflict")
    assert (await rig.ask("PATCH", path, {"title": "Signed"})).json()["authentication"] == "private_key_jwt"


async def test_nobody_chooses_the_salt(rig):
    for method, path, body in (("POST", PATH, {**BATCH, "salt": "0" * 32}), ("PATCH", f"{PATH}/desk", {"salt": "0"})):
        await rig.ask("POST", PATH, DESK)
        answer = await rig.ask(method, path, body)
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "#/salt")


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"name": "x"}, "redirect_uris"),
        ({"name": "x", "scopes": ["mcp:connect"]}, "authentication"),
        ({**SIGNED, "jwks_url": None}, "jwks_url"),
        ({**BATCH, "jwks_url": SIGNED["jwks_url"]}, "jwks_url"),
        ({**DESK, "jwks_url": SIGNED["jwks_url"]}, "jwks_url"),
        ({**DESK, "name": "r-0123"}, "r-"),
        ({**DESK, "redirect_uris": ["http://desk.example/callback"]}, "redirect_uri"),
        ({**DESK, "redirect_uris": ["javascript:alert(1)"]}, "redirect_uri"),
        ({**BATCH, "scopes": ["tenant:admin"]}, "scope"),
        ({**BATCH, "authentication": "password"}, "authentication"),
    ],
)
async def test_what_cannot_be_a_client_is_refused_in_words(untouched, body, word):
    answer = await untouched.ask("POST", PATH, body)
    assert answer.status_code == 422
    assert any(word in error["pointer"] + error["detail"] for error in answer.json()["errors"])
    assert untouched.heard == []


async def test_a_change_keeps_the_rules_too(rig):
    path = (await rig.ask("POST", PATH, DESK)).headers["Location"]
    for patch in ({"redirect_uris": None}, {"scopes": ["mcp:connect"]}, {"authentication": "private_key_jwt"}):
        assert (await rig.ask("PATCH", path, patch)).status_code == 422, patch
    assert (await rig.ask("PATCH", path, {"name": "other"})).status_code == 422


@pytest.mark.parametrize("way", ["PATCH", "DELETE"])
async def test_what_a_client_has_connected_ends_when_it_is_changed_or_removed(rig, way):
    await sign_people_in(rig)
    for body in (DESK, {**DESK, "name": "other"}):
        await rig.ask("POST", PATH, body)
    of_desk, of_other = await allow(rig, client_id="desk"), await allow(rig, client_id="other")
    answer = await rig.ask(way, f"{PATH}/desk", {"title": "New"} if way == "PATCH" else None)
    assert answer.is_success
    listed = (await rig.ask("GET", "/api/v1/tenants/acme/connections")).json()["items"]
    assert [each["id"] for each in listed] == [of_other.id] != [of_desk.id]


async def test_a_change_that_is_none_ends_nothing(rig):
    await sign_people_in(rig)
    path = (await rig.ask("POST", PATH, DESK)).headers["Location"]
    allowed = await allow(rig, client_id="desk")
    assert (await rig.ask("PATCH", path, {"title": ""})).json()["version"] == 1
    assert (await rig.ask("GET", f"/api/v1/tenants/acme/connections/{allowed.id}")).status_code == 200


async def test_a_client_that_has_registered_itself_is_listed_and_removed_but_not_changed(rig):
    path = await register(rig)
    assert [each["name"] for each in (await rig.ask("GET", PATH)).json()["items"]] == ["r-0123"]
    for patch in ({"title": "Mine"}, {"authentication": "secret", "scopes": ["mcp:connect"]}):
        refused = await rig.ask("PATCH", path, patch)
        assert (refused.status_code, refused.json()["reason"]) == (409, "conflict")
    assert (await stored(rig, "r-0123")).title == ""
    assert (await rig.ask("DELETE", path)).status_code == 204
    assert (await rig.ask("GET", path)).status_code == 404


async def test_administrators_of_a_tenant_register_clients_and_readers_read_them(rig):
    admin, reader = await rig.key("acme", "tenant:admin"), await rig.key("acme", "tenant:read")
    assert (await rig.ask("POST", PATH, BATCH, key=reader)).status_code == 403
    assert (await rig.ask("POST", PATH, BATCH, key=admin)).json()["secret"]
    assert (await rig.ask("GET", f"{PATH}/batch", key=reader)).json()["secret"] is None
    assert (await rig.ask("DELETE", f"{PATH}/batch", key=reader)).status_code == 403
    assert (await rig.ask("GET", PATH, key=await rig.key("zenith", "tenant:admin"))).status_code == 404


async def test_the_same_name_in_two_tenants_has_two_secrets(rig):
    ours = (await rig.ask("POST", PATH, BATCH)).json()["secret"]
    theirs = (await rig.ask("POST", PATH.replace("acme", "zenith"), BATCH)).json()["secret"]
    assert ours != theirs
    client = replace(await stored(rig, "batch"))
    assert not rig.admin.client_secrets.is_right("zenith", client, ours)
    assert client.changed_at - datetime.now(UTC) < timedelta(minutes=1)
