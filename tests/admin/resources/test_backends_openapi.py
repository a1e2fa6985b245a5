"""…/backends with `openapi`: who may, what is stored and shown, and what is refused."""

import json
from copy import deepcopy

import pytest

from app.protocol.openapi.api import unpacked
from app.protocol.openapi.document import mark_of
from tests.protocol.openapi.documents import PETS, SHOP

PATH = "/api/v1/tenants/acme/backends"
SECRET = "Bearer s3cret-token"
TEXT = json.dumps(SHOP)


async def add(rig, status=201, key=None, **change):
    body = {"name": "shop", "openapi": TEXT, "headers": {"Authorization": SECRET}, **change}
    answer = await rig.ask("POST", PATH, body, key=key)
    assert answer.status_code == status, answer.text
    assert SECRET not in answer.text
    return answer.json()


async def patch(rig, body, status=200, key=None):
    answer = await rig.ask("PATCH", PATH + "/shop", body, key=key)
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_what_was_made_of_a_document_is_stored_and_what_was_not_is_told(rig):
    made = await add(rig)
    assert (made["command"], made["url"]) == (None, "https://eu.shop.example/v1")
    assert made["openapi"] == mark_of(TEXT.encode())
    assert made["headers"] == {"Authorization": "***"}
    assert len(made["notes"]) == 7
    assert (await rig.ask("GET", PATH + "/shop")).json()["notes"] == made["notes"]
    spec = await rig.admin.backends.get("acme", "shop")
    assert (spec.api, spec.openapi_made) == (None, made["openapi_made"])
    digest, stored = await rig.admin.backends.api("acme", "shop")
    assert digest == made["openapi_made"]
    assert len(unpacked(stored).operations) == 6
    assert not spec.keeps_state
    assert spec.is_respawned
    trail = repr(await rig.trail("acme"))
    assert SECRET not in trail
    assert "List items" not in trail  # not the document
    assert mark_of(TEXT.encode()) in trail
    assert await rig.admin.backends.api("acme", "none") is None


async def test_a_document_that_is_given_again_changes_nothing_but_by_its_text(rig):
    made = await add(rig)
    assert (await patch(rig, {"openapi": TEXT}))["version"] == made["version"]
    assert (await patch(rig, {"openapi": made["openapi"], "pin": "warn"}))["openapi_made"] == made["openapi_made"]
    other = deepcopy(SHOP)
    del other["paths"]["/parts"]
    changed = await patch(rig, {"openapi": json.dumps(other)})
    assert changed["openapi_made"] != made["openapi_made"]
    assert changed["url"] == made["url"]
    assert len(unpacked((await rig.admin.backends.api("acme", "shop"))[1]).operations) == 5
    moved = await patch(rig, {"openapi": json.dumps(PETS)})  # its address is another one, and `url` stays
    assert moved["url"] == made["url"]
    await patch(rig, {"url": "https://evil.example"}, 422)  # the header is not for it


async def test_administrators_of_the_tenant_may_do_it(rig):
    admin, reader = await rig.key("acme", "tenant:admin"), await rig.key("acme", "tenant:read")
    await add(rig, key=admin)
    await add(rig, 403, key=reader, name="other")
    await patch(rig, {"openapi": json.dumps(PETS)}, key=admin)
    await patch(rig, {"openapi": TEXT}, 403, key=reader)
    assert (await rig.ask("DELETE", PATH + "/shop", key=admin)).status_code == 204


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"openapi": "shop.yaml"}, "/openapi", "`openapi` is neither a URL nor a document"),
        ({"openapi": "sha256:" + "0" * 64}, "/openapi", "give the document itself"),
        ({"openapi": "https://far.example/openapi.json"}, "/openapi", "HTTP 404"),
        ({"openapi": "http://far.example/openapi.json"}, "/openapi", "TRUNKLINE_UPSTREAM_ALLOW"),
        ({"openapi": "https://far.example/?api_key=abcdefgh12345678"}, "/openapi", "the address has a credential"),
        ({"openapi": "{}"}, "/openapi", "neither a member `openapi`"),
        ({"openapi": '{"openapi": "3.1.0", "paths": {"/a": {"get": {}}}}'}, "/url", "give `url`"),
        ({"url": "http://127.0.0.1/"}, "/url", "TRUNKLINE_UPSTREAM_ALLOW"),
        ({"transport": "sse"}, "", "with `openapi` there is none"),
        ({"warm": 1}, "", "warm can only be given with `command`"),
        ({"timeouts": {"park_s": 9}}, "", "`timeouts.park_s` needs a `command`"),
    ],
)
async def test_what_does_not_fit_says_what_to_do(rig, change, field, words):
    problem = await add(rig, 422, **change)
    (error,) = problem["errors"]
    assert words in error["detail"]
    assert error["pointer"].endswith(field)


async def test_without_a_url_the_document_has_to_say_where_the_api_is(rig):
    await add(rig, url="https://shop.example/v2")
    assert "or the document again" in json.dumps(await patch(rig, {"url": None}, 422))
    assert "was given for another" in json.dumps(await patch(rig, {"url": None, "openapi": TEXT + " "}, 422))
    given = {"url": None, "openapi": TEXT + " ", "headers": {"Authorization": SECRET}}
    assert (await patch(rig, given))["url"] == "https://eu.shop.example/v1"


async def test_a_server_and_an_api_stay_what_they_are(rig):
    await add(rig)
    assert "register another" in json.dumps(await patch(rig, {"openapi": None}, 422))
    far = {"name": "far", "url": "https://far.example/mcp"}
    assert (await rig.ask("POST", PATH, far)).status_code == 201
    answer = await rig.ask("PATCH", PATH + "/far", {"openapi": TEXT})
    assert answer.status_code == 422


async def test_whoever_lost_the_right_while_the_document_was_read_registers_nothing(rig, monkeypatch):
    key = await rig.key("acme", "tenant:admin")

    async def fetch(_: tuple[str, str], url: str) -> bytes:
        await rig.admin.keys.revoke("acme", key.split("_")[1], rig.admin.now())
        return TEXT.encode()

    monkeypatch.setattr(rig.admin.documents, "_fetch", fetch)
    await add(rig, 401, key=key, openapi="https://far.example/openapi.json")
    assert (await rig.ask("GET", PATH + "/shop")).status_code == 404
