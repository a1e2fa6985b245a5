"""The audit trail: each act is in it, with who did it, and nothing secret; who may read it."""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.auth.api_keys import key_id
from app.errors import StorageUnavailable
from app.storage import engine
from tests.admin.resources.test_connections import allow, sign_people_in
from tests.admin.rig import Rig, shared_api
from tests.protocol.toolset.offers import offer, tool

SECRET = "a secret that is at least 32 bytes long"
ISSUER = {"issuer": "https://idp.example", "algorithms": ["HS256"], "secret": SECRET}

# For each route that changes something: a body, and what the trail says of it. `{…}` is filled in from answers.
ACTS = {
    ("POST", "/tenants"): ({"name": "new"}, "tenant.create", "", ""),
    ("PATCH", "/tenants/{tenant}"): ({"limits": {"burst": 5}}, "tenant.change", "", "limits"),
    ("POST", "/tenants/{tenant}/backends"): (
        {"name": "b", "command": "cat", "env": {"T": SECRET}}, "backend.create", "backends/b", "",
    ),
    ("PATCH", "/tenants/{tenant}/backends/{backend}"): (
        {"env": {"T": SECRET}, "warm": 1}, "backend.change", "backends/echo", "env warm",
    ),
    ("POST", "/tenants/{tenant}/backends:import"): (
        {"document": {"mcpServers": {"imported": {"command": "cat", "env": {"T": SECRET}}}}, "apply": True},
        "backend.create", "backends/imported", "",
    ),
    ("POST", "/tenants/{tenant}/backends/{backend}:check"): (None, "backend.check", "backends/echo", ""),
    ("POST", "/tenants/{tenant}/backends/{backend}:compare"): (
        {"env": {"T": SECRET}, "headers": {"X-T": SECRET}}, "backend.compare", "backends/echo", "env.T headers.X-T",
    ),
    ("POST", "/tenants/{tenant}/backends/{backend}:update"): ({}, "backend.update", "backends/packaged", "dry run"),
    ("POST", "/tenants/{tenant}/backends/{backend}:restart"): (None, "backend.restart", "backends/echo", ""),
    ("POST", "/tenants/{tenant}/backends/{backend}/tools:approve"): (
        {"tools": ["a", "b"], "revision": 1}, "tool.approve", "backends/echo", "a b",
    ),
    ("POST", "/tenants/{tenant}/backends/{backend}/tools:reject"): (
        {}, "tool.reject", "backends/echo", "those that wait",
    ),
    ("POST", "/tenants/{tenant}/recipes"): (
        {"name": "r", "toolset": "all", "steps": [{"id": "a", "tool": "echo_say"}]}, "recipe.create", "recipes/r", "",
    ),
    ("PATCH", "/tenants/{tenant}/recipes/{recipe}"): (
        {"title": "New", "deadline_s": 10.0}, "recipe.change", "recipes/twice", "deadline_s title",
    ),
    ("DELETE", "/tenants/{tenant}/recipes/{recipe}"): (None, "recipe.delete", "recipes/twice", ""),
    ("POST", "/tenants/{tenant}/toolsets"): (
        {"name": "more", "members": [{"backend": "echo"}]}, "toolset.create", "toolsets/more", "",
    ),
    ("PATCH", "/tenants/{tenant}/toolsets/{toolset}"): (
        {"title": "All", "members": []}, "toolset.change", "toolsets/all", "members title",
    ),
    ("DELETE", "/tenants/{tenant}/toolsets/{toolset}"): (None, "toolset.delete", "toolsets/all", ""),
    ("POST", "/tenants/{tenant}/guides"): ({"name": "g", "text": "x"}, "guide.create", "guides/g", ""),
    ("PATCH", "/tenants/{tenant}/guides/{guide}"): (
        {"title": "New", "text": "y"}, "guide.change", "guides/style", "text title",
    ),
    ("DELETE", "/tenants/{tenant}/guides/{guide}"): (None, "guide.delete", "guides/style", ""),
    ("POST", "/tenants/{tenant}/keys"): (
        {"scopes": ["tenant:read", "mcp:connect"]}, "key.create", "keys/{id}", "mcp:connect tenant:read",
    ),
    ("PATCH", "/tenants/{tenant}/keys/{key}"): (
        {"enabled": False, "reason": "lost"}, "key.change", "keys/{key}", "enabled reason",
    ),
    ("PATCH", "/tenants/{tenant}/principals"): (
        {"issuer": "https://i", "subject": "al/ice", "enabled": False}, "principal.change", None, "https://i al/ice",
    ),
    ("DELETE", "/tenants/{tenant}/keys/{key}"): (None, "key.revoke", "keys/{key}", ""),
    ("POST", "/tenants/{tenant}/issuers"): (ISSUER, "issuer.create", "issuers/{id}", None),
    ("PATCH", "/tenants/{tenant}/issuers/{issuer}"): ({"audience": ["x"]}, "issuer.change", "issuers/{issuer}", None),
    ("POST", "/tenants/{tenant}/issuers/{issuer}:check"): (
        {"token": SECRET}, "issuer.check", "issuers/{issuer}", None,
    ),
    ("POST", "/tenants/{tenant}/issuers/{issuer}:compare"): (
        {"secret": SECRET}, "issuer.compare", "issuers/{issuer}", None,
    ),
    ("DELETE", "/tenants/{tenant}/issuers/{issuer}"): (None, "issuer.delete", "issuers/{issuer}", None),
    ("POST", "/tenants/{tenant}/clients"): (
        {"name": "c", "scopes": ["mcp:connect"], "authentication": "secret"}, "client.create", "clients/c", "",
    ),
    ("PATCH", "/tenants/{tenant}/clients/{client}"): ({"title": "New"}, "client.change", "clients/desk", "title"),
    ("DELETE", "/tenants/{tenant}/clients/{client}"): (None, "client.delete", "clients/desk", ""),
    ("DELETE", "/tenants/{tenant}/connections/{connection}"): (
        None, "connection.end", "connections/{connection}", "https://idp.example alice tool",
    ),
    ("POST", "/tenants/{tenant}/inspections"): (
        {"session": "s1", "reason": "why", "minutes": 5}, "inspection.open", "inspections/{id}", None,
    ),
    ("DELETE", "/tenants/{tenant}/inspections/{inspection}"): (
        None, "inspection.close", "inspections/{inspection}", "closed",
    ),
    ("POST", "/tenants/{tenant}/processes/{process}:restart"): (None, "process.restart", "processes/p1", "echo"),
    ("DELETE", "/tenants/{tenant}/sessions/{session}"): (None, "session.end", "sessions/s1", ""),
    ("DELETE", "/tenants/{tenant}/backends/{backend}"): (None, "backend.delete", "backends/echo", ""),
    ("DELETE", "/tenants/{tenant}"): (None, "tenant.delete", "", ""),
}  # fmt: skip


def test_every_route_that_changes_something_is_listed_here():
    routes = {
        (method.upper(), path.removeprefix("/api/v1"))
        for path, methods in shared_api().openapi()["paths"].items()
        for method in methods
    }
    without_tenant = {(method, path.replace("/tenants/{tenant}", "", 1)) for method, path in ACTS}
    assert {route for route in routes if route[0] != "GET"} <= {*ACTS} | without_tenant


async def objects(rig: Rig) -> dict[str, str]:
    for session in ("s1", "s2"):
        rig.node.add_session("acme", session)
    rig.offers.known["acme", "echo"] = offer("echo", tools=[tool("say")])
    packaged = {"name": "packaged", "command": "npx", "args": ["notes-mcp"]}
    assert (await rig.ask("POST", "/api/v1/tenants/acme/backends", packaged)).status_code == 201
    issuer = await rig.ask("POST", "/api/v1/tenants/acme/issuers", {**ISSUER, "issuer": "https://other"})
    key = key_id(await rig.key("acme", "mcp:connect")) or ""
    known = {
        "tenant": "acme",
        "backend": "echo",
        "toolset": "all",
        "guide": "style",
        "recipe": "twice",
        "session": "s1",
        "process": "p1",
    }
    await sign_people_in(rig)
    desk = {"name": "desk", "redirect_uris": ["https://desk.example/callback"]}
    assert (await rig.ask("POST", "/api/v1/tenants/acme/clients", desk)).status_code == 201
    connection = (await allow(rig, client_id="tool")).id
    rig.node.add_process("acme", "p1")
    opened = await rig.ask("POST", "/api/v1/tenants/acme/inspections", {"session": "s2", "reason": "x", "minutes": 5})
    own = {"client": "desk", "connection": connection}
    return {**known, **own, "key": key, "issuer": issuer.json()["id"], "inspection": opened.json()["id"]}


def address(path: str, names: dict[str, str]) -> str:
    """Only a package is updated."""
    return "/api/v1" + path.format(**names | ({"backend": "packaged"} if path.endswith(":update") else {}))


async def test_every_act_is_written_down_once_with_who_what_and_when_and_no_secret(rig):
    names = await objects(rig)
    for (method, path), (body, action, target, detail) in ACTS.items():
        before = len(await rig.trail())
        headers = {"X-Request-Id": f"req-{before}"}
        answer = await rig.ask(method, address(path, names), body, headers=headers)
        assert answer.is_success, (path, answer.text)
        shown = answer.json() if answer.content and isinstance(answer.json(), dict) else {}
        (act,) = (await rig.trail())[before:]
        assert act.actor == ("default", "key", key_id(rig.root))
        assert (act.action, act.tenant) == (action, "new" if action == "tenant.create" else "acme")
        assert target is None or act.target == target.format(**{**names, "id": shown.get("id")})
        assert act.request_id == f"req-{before}"
        assert detail is None or act.detail == detail
        assert abs(act.at - datetime.now(UTC)) < timedelta(seconds=30)
        assert act.at.tzinfo is not None
        assert (shown.get("key") or shown.get("secret") or SECRET) not in repr(act)
        assert SECRET not in repr(act)


async def test_what_fails_or_changes_nothing_is_not_written_down(rig):
    await objects(rig)
    before = len(await rig.trail())
    small = await rig.key("acme", "tenant:admin")
    for method, path, body in (
        ("POST", "/tenants", {"name": "acme"}),
        ("POST", "/tenants/acme/backends", {"name": "echo", "command": "cat"}),
        ("POST", "/tenants/acme/keys", {"scopes": ["metrics:read"]}),
        ("PATCH", "/tenants/acme/backends/echo", {"command": "/bin/cat"}),
        ("PATCH", "/tenants/acme", {"limits": {"burst": 100}}),
        ("DELETE", "/tenants/acme/backends/unknown", None),
        ("DELETE", "/tenants/acme/keys/AAAAAAAA", None),
        ("DELETE", "/tenants/acme/sessions/unknown", None),
        ("POST", "/tenants/acme/backends/unknown:check", None),
        ("DELETE", "/tenants/default", None),
    ):
        key = small if "keys" in path and method == "POST" else None
        assert (await rig.ask(method, "/api/v1" + path, body, key=key)).status_code in (200, 403, 404, 409), path
    assert len(await rig.trail()) == before


async def test_a_key_that_is_revoked_already_is_not_written_down_again(rig):
    path = f"/api/v1/tenants/acme/keys/{key_id(await rig.key('acme', 'tenant:read'))}"
    before = len(await rig.trail())
    for _ in range(3):
        assert (await rig.ask("DELETE", path)).status_code == 204
    assert len(await rig.trail()) == before + 1


async def test_without_a_record_there_is_no_act(rig, monkeypatch):
    names = await objects(rig)
    heard, trail = list(rig.heard), await rig.trail()

    async def away(*_: object) -> None:
        raise StorageUnavailable

    monkeypatch.setattr(engine, "record", away)
    for (method, path), (body, *_) in ACTS.items():
        answer = await rig.ask(method, address(path, names), body)
        assert answer.status_code == 503, path
    monkeypatch.undo()
    assert rig.heard == heard
    assert rig.node.running["acme"]
    assert not rig.node.checked
    assert await rig.trail() == trail
    assert (await rig.ask("GET", "/api/v1/tenants/acme/backends/echo")).json()["version"] == 1
    assert (await rig.ask("GET", "/api/v1/tenants/new")).status_code == 404


async def test_the_platform_reads_everything_newest_first_and_filters(rig):
    for tenant in ("acme", "zenith", "acme"):
        await rig.ask("POST", f"/api/v1/tenants/{tenant}/keys", {"scopes": ["mcp:connect"]})
    await rig.ask("DELETE", "/api/v1/tenants/zenith")
    everything = (await rig.ask("GET", "/api/v1/audit")).json()["items"]
    assert [(each["tenant"], each["action"]) for each in everything] == [
        ("zenith", "tenant.delete"), ("acme", "key.create"), ("zenith", "key.create"), ("acme", "key.create"),
    ]  # fmt: skip
    assert everything[0]["actor"] == {"tenant": "default", "issuer": "key", "subject": key_id(rig.root)}
    assert [each["id"] for each in everything] == sorted((each["id"] for each in everything), reverse=True)
    gone = (await rig.ask("GET", "/api/v1/audit?tenant=zenith")).json()["items"]
    assert [each["action"] for each in gone] == ["tenant.delete", "key.create"]


async def test_pages_go_back_in_time_by_cursor(rig):
    for _ in range(5):
        await rig.ask("POST", "/api/v1/tenants/acme/keys", {"scopes": ["mcp:connect"]})
    for base in ("/api/v1/audit?limit=2", "/api/v1/tenants/acme/audit?limit=2"):
        found, cursor = list[int](), ""
        while cursor is not None:
            page = (await rig.ask("GET", f"{base}&cursor={cursor}")).json()
            found += [each["id"] for each in page["items"]]
            cursor = page["next_cursor"]
        assert len(found) == 5
        assert found == sorted(found, reverse=True)
    for wrong in ("YWNtZQ", "LTE", "OTk5OTk5OTk5OTk5OTk5OTk5OTk5OQ"):
        assert (await rig.ask("GET", f"/api/v1/audit?cursor={wrong}")).status_code == 422


async def test_a_tenants_auditor_sees_its_own_trail_only(rig):
    for tenant in ("acme", "zenith", "default"):
        await rig.ask("POST", f"/api/v1/tenants/{tenant}/keys", {"scopes": ["mcp:connect"]})
    auditor = await rig.key("acme", "audit:read")
    mine = await rig.ask("GET", "/api/v1/tenants/acme/audit", key=auditor)
    assert {each["tenant"] for each in mine.json()["items"]} == {"acme"}
    assert (await rig.ask("GET", "/api/v1/tenants/zenith/audit", key=auditor)).status_code == 404
    # Whoever administers `default` without being the platform's administrator reads what concerns `default`.
    for scope in ("audit:read", "tenant:admin"):
        key = await rig.key("default", scope)
        assert (await rig.ask("GET", "/api/v1/audit", key=key)).status_code == 403
        assert (await rig.ask("GET", "/api/v1/tenants/default/audit", key=key)).status_code == 200


@pytest.mark.parametrize("given", ["", "x" * 65, "a b", "a\tb"])
async def test_a_request_id_that_is_none_is_replaced(rig, given):
    headers = {"X-Request-Id": given}
    await rig.ask("POST", "/api/v1/tenants/acme/keys", {"scopes": ["mcp:connect"]}, headers=headers)
    (act,) = await rig.trail()
    assert re.fullmatch("[0-9a-f]{32}", act.request_id)


# --- filters


async def found(rig: Rig, query: str, base: str = "/api/v1/audit") -> list[dict[str, Any]]:
    answer = await rig.ask("GET", f"{base}?{query}")
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


async def some_acts(rig: Rig) -> str:
    """Makes acts of four kinds in two tenants by two people; returns the second one's key id."""
    small = await rig.key("acme", "tenant:admin", "mcp:connect")
    headers = {"X-Request-Id": "the-one"}
    await rig.ask("POST", "/api/v1/tenants/acme/keys", {"scopes": ["mcp:connect"]}, key=small, headers=headers)
    await rig.ask("POST", "/api/v1/tenants/acme/backends", {"name": "time", "command": "cat"})
    await rig.ask("PATCH", "/api/v1/tenants/acme/backends/time", {"warm": 1})
    await rig.ask("PATCH", "/api/v1/tenants/zenith/backends/echo", {"warm": 1})
    await rig.ask("PATCH", "/api/v1/tenants/acme", {"limits": {"burst": 5}})
    return key_id(small) or ""


async def test_each_filter_finds_what_fits_and_nothing_else(rig):
    actor = await some_acts(rig)
    for query, actions in {
        "action=backend.change": ["backend.change", "backend.change"],
        "action=backend.*": ["backend.change", "backend.change", "backend.create"],
        "action=BACKEND.*": [],
        "action=backend": [],
        "target=backends/time": ["backend.change", "backend.create"],
        "target=backends/*": ["backend.change", "backend.change", "backend.create"],
        "target=": ["tenant.change"],
        "target=backends/t%25": [],
        f"actor={actor}": ["key.create"],
        f"actor={actor[:3]}*": ["key.create"],
        "actor=uid *": [],
        "request_id=the-one": ["key.create"],
        "request_id=the": [],
        "action=backend.change&tenant=zenith": ["backend.change"],
        "action=backend.change&target=backends/time": ["backend.change"],
        f"action=backend.change&actor={actor}": [],
    }.items():
        assert [each["action"] for each in await found(rig, query)] == actions, query
    mine = await found(rig, "action=backend.change", "/api/v1/tenants/acme/audit")
    assert [(each["tenant"], each["target"]) for each in mine] == [("acme", "backends/time")]


async def test_since_belongs_to_the_time_and_until_does_not(rig):
    await some_acts(rig)
    first, *_, last = reversed(await found(rig, ""))
    for query, count in {
        f"since={last['at']}": 1,
        f"until={last['at']}": 4,
        f"since={first['at']}&until={last['at']}": 4,
        f"until={first['at']}": 0,
        "since=2020-01-01T00:00:00Z": 5,
        "since=2020-01-01T02:00:00%2B02:00&until=9999-12-31T23:59:59Z": 5,
        "since=9999-12-31T00:00:00Z": 0,
    }.items():
        assert len(await found(rig, query)) == count, query


@pytest.mark.parametrize(
    "query",
    ["since=yesterday", "since=2026-01-01T00:00:00", "until=0001-01-01T00:00:00%2B14:00", "since=2026-01-01",
     "action=" + "x" * 66, "target=" + "x" * 257, "actor=a%00b", "request_id=%0a"],
)  # fmt: skip
async def test_a_filter_that_cannot_be_meant_is_refused_by_its_name(rig, query):
    answer = await rig.ask("GET", f"/api/v1/audit?{query}")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["parameter"] == query.partition("=")[0]


async def test_pages_of_a_filter_stay_as_they_are_while_the_trail_grows(rig):
    for number in range(5):
        await rig.ask("PATCH", "/api/v1/tenants/acme/backends/echo", {"warm": number + 1})
        await rig.ask("PATCH", "/api/v1/tenants/zenith/backends/echo", {"warm": number + 1})
    before, seen, cursor = await found(rig, "action=backend.*&tenant=acme"), list[int](), ""
    while cursor is not None:
        page = (await rig.ask("GET", f"/api/v1/audit?action=backend.*&tenant=acme&limit=2&cursor={cursor}")).json()
        seen += [each["id"] for each in page["items"]]
        cursor = page["next_cursor"]
        await rig.ask("PATCH", "/api/v1/tenants/acme/backends/echo", {"warm": 100 + len(seen)})
    assert seen == [each["id"] for each in before]


# --- what was before, and after


def changes_of(entry: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {each["member"]: (each["old"], each["new"]) for each in entry["changes"]}


async def newest(rig: Rig) -> dict[str, Any]:
    return (await found(rig, "limit=1"))[0]


async def test_a_change_shows_what_was_and_what_is(rig):
    body = {"command": "/bin/tac", "args": ["-s", ","], "timeouts": {"call_s": 5.0}, "warm": 2}
    await rig.ask("PATCH", "/api/v1/tenants/acme/backends/echo", body)
    assert changes_of(await newest(rig)) == {
        "command": ("/bin/cat", "/bin/tac"),
        "args": ([], ["-s", ","]),
        "timeouts.call_s": (60.0, 5.0),
        "warm": (0, 2),
    }
    await rig.ask("PATCH", "/api/v1/tenants/acme", {"limits": {"burst": 5, "sessions": None}})
    assert changes_of(await newest(rig)) == {"limits.burst": (100, 5), "limits.sessions": (100, None)}


async def test_of_variables_the_names_are_shown_and_no_value(rig):
    await rig.ask("PATCH", "/api/v1/tenants/acme/backends/echo", {"env": {"TOKEN": SECRET, "MORE": SECRET}})
    assert changes_of(await newest(rig)) == {"env.TOKEN": ("***", "***"), "env.MORE": (None, "***")}
    await rig.ask("PATCH", "/api/v1/tenants/acme/backends/echo", {"env": {"MORE": None}})
    assert changes_of(await newest(rig)) == {"env.MORE": ("***", None)}
    everything = (await rig.ask("GET", "/api/v1/audit?limit=200")).text
    assert SECRET not in everything
    assert "s3cret" not in everything


async def test_what_is_made_and_what_is_removed_shows_what_it_is_and_was(rig):
    made = await rig.ask("POST", "/api/v1/tenants/acme/keys", {"name": "laptop", "scopes": ["mcp:connect"]})
    created = changes_of(await newest(rig))
    assert created["scopes"] == (None, ["mcp:connect"])
    assert created["name"] == (None, "laptop")
    assert made.json()["key"] not in str(created)
    await rig.ask("DELETE", f"/api/v1/tenants/acme/keys/{made.json()['id']}")
    ((was, now),) = [changes_of(await newest(rig))["revoked_at"]]
    assert was is None
    assert now is not None
    await rig.ask("DELETE", "/api/v1/tenants/acme/backends/echo")
    assert changes_of(await newest(rig))["command"] == ("/bin/cat", None)


async def test_a_new_secret_of_an_issuer_is_a_change_and_not_shown(rig):
    made = await rig.ask("POST", "/api/v1/tenants/acme/issuers", ISSUER)
    assert changes_of(await newest(rig))["secret"] == (None, "***")
    path = f"/api/v1/tenants/acme/issuers/{made.json()['id']}"
    await rig.ask("PATCH", path, {"secret": SECRET + "!", "claims": {"subject": "email"}})
    changes = changes_of(await newest(rig))
    assert changes.pop("secret") == ("***", "***")
    assert [(member, new) for member, (_, new) in changes.items()] == [("claims.subject", "email")]
    assert SECRET not in (await rig.ask("GET", "/api/v1/audit?limit=200")).text


async def test_what_an_entry_keeps_is_bounded(rig):
    env, args = {f"V{number:03}": "x" for number in range(127)}, ["a" * 1000] * 60
    body = {"args": args, "env": env, "command": "c" * 4096}
    answer = await rig.ask("PATCH", "/api/v1/tenants/acme/backends/echo", body)
    assert answer.is_success, answer.text
    entry = await newest(rig)
    assert len(json.dumps(entry)) < 12_000
    changes = changes_of(entry)
    assert changes["command"] == ("/bin/cat", "c" * 500 + "…")
    assert changes["args"][1] == '["' + "a" * 498 + "…"
    many = {f"W{number:03}{'x' * 100}": "x" for number in range(128)}
    await rig.ask("PATCH", "/api/v1/tenants/acme/backends/echo", {"env": None})
    await rig.ask("PATCH", "/api/v1/tenants/acme/backends/echo", {"env": many})
    entry = await newest(rig)
    assert len(entry["changes"]) + entry["changes_left_out"] == 128
    assert entry["changes_left_out"] > 0
    assert len(json.dumps(entry["changes"])) < 16_000
