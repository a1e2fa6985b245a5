"""…/inspections: who may open one, what it shows to whom, the trail, and the tenant's own word."""

import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from app.admin.resources.now import inspections
from app.admin.resources.now.inspections import PAGE_OF_FILE
from app.cluster.node_status.inspection_views import Opened
from app.domain import Scope
from app.errors import GatewayError, NotFound
from app.telemetry.capture.captured_message import InspectedMessage
from app.telemetry.capture.inspections import Inspections

PATH = "/api/v1/tenants/acme/inspections"
BODY = {"session": "a1b2c3d4e5f6", "reason": "ticket 4711", "payloads": True}


@pytest.fixture
def rig(rig):
    rig.node.add_session("acme", "a1b2c3d4e5f6")
    return rig


async def opened(rig, **fields):
    return (await rig.ask("POST", PATH, {**BODY, **fields})).json()


def say(rig, id: str, text: str) -> None:
    inspection = rig.node.looked.find("acme", id)
    number, line = inspection.numbers.next(), json.dumps({"text": text}).encode()
    inspection.add(
        InspectedMessage(number, 5.0, "client", "to_server", "request", "tools/call", "7", "echo", "", len(line)), line
    )


async def test_one_is_opened_listed_and_closed_and_the_trail_says_why(rig):
    answer = await rig.ask("POST", PATH, BODY)
    assert answer.status_code == 201
    about = answer.json()
    assert answer.headers["location"] == f"{PATH}/{about['id']}"
    assert (about["session"], about["backend"], about["reason"]) == ("a1b2c3d4e5f6", "echo", "ticket 4711")
    assert (about["opener_tenant"], about["issuer"], about["ending"]) == ("default", "key", None)
    assert (await rig.ask("GET", PATH)).json() == {
        "items": [about], "next_cursor": None, "total": 1, "silent_nodes": [],
    }  # fmt: skip
    assert (await rig.ask("GET", f"{PATH}/{about['id']}")).json() == about
    assert (await rig.ask("DELETE", f"{PATH}/{about['id']}")).status_code == 204
    assert (await rig.ask("DELETE", f"{PATH}/{about['id']}")).status_code == 404
    trail = [(act.action, act.target, act.detail) for act in await rig.trail("acme")]
    target = f"inspections/{about['id']}"
    assert trail[:2] == [
        ("inspection.open", target, "session a1b2c3d4e5f6 of echo, with payloads, 15 min: ticket 4711"),
        ("inspection.close", target, "closed"),
    ]
    assert sum(action == "inspection.close" for action, _, _ in trail) == 1


async def test_what_one_that_ran_out_has_seen_can_be_removed_once(rig):
    about = await opened(rig)
    say(rig, about["id"], "x")
    rig.node.looked.end(rig.node.looked.find("acme", about["id"]), 1.0, "time")
    assert len((await rig.ask("GET", f"{PATH}/{about['id']}/messages")).json()["items"]) == 1
    assert (await rig.ask("DELETE", f"{PATH}/{about['id']}")).status_code == 204
    assert (await rig.ask("GET", f"{PATH}/{about['id']}/messages")).json()["items"] == []
    assert (await rig.ask("DELETE", f"{PATH}/{about['id']}")).status_code == 404
    assert sum(act.action == "inspection.close" for act in await rig.trail("acme")) == 1


async def test_a_file_breaks_off_when_its_reader_may_not_read_any_more(rig):
    """Whoever reads slowly follows the session: each page is asked for when the one before was taken."""
    about, key = await opened(rig), await rig.key("acme", "tenant:admin")
    for number in range(PAGE_OF_FILE + 1):
        say(rig, about["id"], f"text {number}")
    ask, pages = rig.node.inspected, 0

    async def revoked_meanwhile(*asked):
        nonlocal pages
        pages += 1
        if pages == 2:
            await rig.admin.keys.revoke("acme", key.split("_")[1], rig.admin.now())  # nobody has told this node
        return ask(*asked)

    rig.node.inspected = revoked_meanwhile
    answer = await rig.ask("GET", f"{PATH}/{about['id']}/messages?format=jsonl", key=key)
    assert len(answer.text.splitlines()) == PAGE_OF_FILE
    assert len((await rig.ask("GET", f"{PATH}/{about['id']}/messages?format=jsonl")).text.splitlines()) > PAGE_OF_FILE


@pytest.mark.parametrize("query", ["", "?format=jsonl"])
async def test_whoever_lost_the_right_while_nodes_were_asked_sees_nothing(rig, query):
    about, key = await opened(rig), await rig.key("acme", "tenant:admin")
    say(rig, about["id"], "afterwards")
    ask = rig.node.inspected

    async def revoked_meanwhile(*asked):
        await rig.admin.keys.revoke("acme", key.split("_")[1], rig.admin.now())
        return ask(*asked)

    rig.node.inspected = revoked_meanwhile
    answer = await rig.ask("GET", f"{PATH}/{about['id']}/messages{query}", key=key)
    assert answer.status_code == 401
    assert "afterwards" not in answer.text


async def test_beside_a_silent_node_nothing_counts_as_whole_or_closed(rig):
    about = await opened(rig, backend="echo", session=None)
    rig.node.silent = ["n9"]
    path = f"{PATH}/{about['id']}/messages"
    assert (await rig.ask("GET", path)).json()["silent_nodes"] == ["n9"]
    refused = await rig.ask("GET", path + "?format=jsonl")
    assert (refused.status_code, "n9" in refused.json()["detail"]) == (503, True)
    assert (await rig.ask("DELETE", f"{PATH}/{about['id']}")).status_code == 503


def part(numbers: range, *, is_over: bool = False, nodes: tuple[str, ...] = ("n1", "n2"), silent=()) -> Any:
    view = SimpleNamespace(nodes=nodes, ended_at=datetime.now(UTC) if is_over else None, last=10)
    return SimpleNamespace(view=view, messages=[SimpleNamespace(number=each) for each in numbers], silent=silent)


@pytest.mark.parametrize(("second", "asks"), [
    (part(range(6, 8), silent=("n2",)), 1), (part(range(6, 8), nodes=("n1",)), 1), (NotFound("gone"), 1),
])  # fmt: skip
async def test_a_file_breaks_off_where_a_part_of_it_is_gone(monkeypatch, second, asks):
    asked, still = [], []

    async def seen(*which):
        asked.append(which)
        if isinstance(second, Exception):
            raise second
        return second

    async def require_still(scope):
        still.append(scope)

    monkeypatch.setattr(inspections, "seen", seen)
    monkeypatch.setattr(inspections, "_as_lines", lambda page, **_: [f"{each.number}\n" for each in page.messages])
    access: Any = SimpleNamespace(require_still=require_still)
    lines = inspections._lines(access, "i", part(range(6)), Scope.TENANT_ADMIN)
    assert await anext(lines) == "".join(f"{number}\n" for number in range(6))
    with pytest.raises(GatewayError):
        await anext(lines)
    assert len(asked) == asks
    whole = inspections._lines(access, "i", part(range(11), is_over=True), Scope.TENANT_ADMIN)
    assert len([each async for each in whole]) == 1
    assert len(asked) == asks  # it has all that there is


@pytest.mark.parametrize("body", [
    {"session": "a1b2c3d4e5f6"}, {**BODY, "reason": ""}, {**BODY, "reason": "  \t "}, {**BODY, "backend": "echo"},
    {"reason": "neither"}, {**BODY, "reason": "two\nlines"}, {**BODY, "minutes": 61},
    {**BODY, "minutes": 0}, {**BODY, "reason": "x" * 301}, {**BODY, "more": 1},
    {**BODY, "reason": "\u3164\u2800"}, {**BODY, "reason": "\ufe0f"},
])  # fmt: skip
async def test_a_reason_and_a_bounded_time_are_needed(rig, body):
    assert (await rig.ask("POST", PATH, body)).status_code == 422
    assert await rig.trail("acme") == []


async def test_the_next_sessions_of_a_backend_or_toolset_can_be_named(rig):
    for name in ("echo", "all"):
        answer = await rig.ask("POST", PATH, {"backend": name, "reason": "x"})
        about = answer.json()
        assert (answer.status_code, about["session"], about["transport"], about["backend"]) == (201, None, None, name)
        assert (about["nodes"], about["sessions"], about["missed"]) == (["n1"], 0, 0)
    refused = await rig.ask("POST", PATH, {"backend": "unknown", "reason": "x"})
    assert (refused.status_code, refused.json()["reason"]) == (404, "backend_not_found")
    assert (await rig.ask("POST", PATH, {"backend": "echo", "reason": "x"})).status_code == 409
    details = [act.detail for act in await rig.trail("acme") if act.action == "inspection.open"]
    assert details[:2] == [f"next sessions of {name}, without payloads, 15 min: x" for name in ("echo", "all")]


async def test_one_that_is_over_and_forgotten_is_not_found_and_says_so(rig):
    about = await opened(rig)
    rig.node.looked = Inspections(8 << 20)  # its node has ended
    gone = await rig.ask("GET", f"{PATH}/{about['id']}/messages")
    assert (gone.status_code, "its node has ended" in gone.json()["detail"]) == (404, True)
    for id in ("0123456789abcdef", "*", "%00", "%ff", "a" * 100):
        assert (await rig.ask("GET", f"{PATH}/{id}")).json()["detail"] == "Inspection not found"


async def test_a_session_of_others_or_of_nobody_is_not_found(rig):
    rig.node.add_session("zenith", "ffffffffffff")
    for session in ("ffffffffffff", "unknown"):
        answer = await rig.ask("POST", PATH, {**BODY, "session": session})
        assert (answer.status_code, answer.json()["reason"]) == (404, "session_not_found")
    rig.node.silent = ["n2"]
    assert (await rig.ask("POST", PATH, {**BODY, "session": "unknown"})).status_code == 503


async def test_who_may_read_sees_that_it_is_there_and_no_payload(rig):
    about = await opened(rig)
    say(rig, about["id"], "hello <script>")
    reader, administrator = await rig.key("acme", "tenant:read"), await rig.key("acme", "tenant:admin")
    assert (await rig.ask("GET", PATH, key=reader)).json()["items"][0]["reason"] == "ticket 4711"
    shown = (await rig.ask("GET", f"{PATH}/{about['id']}/messages", key=reader)).json()["items"]
    assert [(each["method"], each["payload"]) for each in shown] == [("tools/call", None)]
    lines = (await rig.ask("GET", f"{PATH}/{about['id']}/messages?format=jsonl", key=reader)).text
    assert "hello" not in lines
    shown = (await rig.ask("GET", f"{PATH}/{about['id']}/messages", key=administrator)).json()["items"]
    assert "hello <script>" in shown[0]["payload"]
    for method, path in (("POST", PATH), ("DELETE", f"{PATH}/{about['id']}")):
        refused = await rig.ask(method, path, BODY if method == "POST" else None, key=reader)
        assert (refused.status_code, refused.json()["reason"]) == (403, "insufficient_scope")
    assert (await rig.ask("POST", PATH, BODY, key=await rig.key("acme", "mcp:connect"))).status_code == 403


async def test_another_tenant_is_refused_as_for_an_unknown_one(rig):
    about = await opened(rig)
    key = await rig.key("zenith", "tenant:admin")
    for path in (PATH, f"{PATH}/{about['id']}", f"{PATH}/{about['id']}/messages"):
        theirs = await rig.ask("GET", path, key=key)
        unknown = await rig.ask("GET", path.replace("acme", "unknown"), key=key)
        assert (theirs.status_code, theirs.json()["detail"]) == (404, unknown.json()["detail"])
    own = await rig.ask("GET", f"{PATH.replace('acme', 'zenith')}/{about['id']}", key=key)
    assert (own.status_code, own.json()["detail"]) == (404, "Inspection not found")


async def test_messages_come_in_pages_and_as_lines(rig):
    about = await opened(rig)
    for number in range(5):
        say(rig, about["id"], f"<b>{number}</b>")
    path = f"{PATH}/{about['id']}/messages"
    first = (await rig.ask("GET", f"{path}?limit=3")).json()
    assert [each["number"] for each in first["items"]] == [1, 2, 3]
    rest = (await rig.ask("GET", f"{path}?limit=3&after={first['next_after']}")).json()
    assert [each["number"] for each in rest["items"]] == [4, 5]
    assert (await rig.ask("GET", f"{path}?after=5")).json()["next_after"] == 5
    answer = await rig.ask("GET", f"{path}?format=jsonl")
    assert answer.headers["content-type"].startswith("application/jsonl")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-disposition"] == f'attachment; filename="inspection-{about["id"]}.jsonl"'
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [each["number"] for each in lines] == [1, 2, 3, 4, 5]
    assert lines[0] == first["items"][0]


async def test_a_node_that_refuses_says_why_and_the_trail_that_it_was_not_opened(rig):
    rig.node.refusal = Opened(refusal="this session is inspected already: x")
    assert (await rig.ask("POST", PATH, BODY)).status_code == 409
    rig.node.refusal = Opened(refusal="too many", is_limit=True)
    assert (await rig.ask("POST", PATH, BODY)).status_code == 429
    details = [act.detail for act in await rig.trail("acme") if act.action == "inspection.close"]
    assert details == ["not opened: this session is inspected already: x", "not opened: too many"]


async def test_a_tenant_tightens_its_own_rule_and_only_the_platform_loosens_it(rig):
    tenant, key = "/api/v1/tenants/acme", await rig.key("acme", "tenant:admin")

    async def patch(mode, key=None, **more):
        return (await rig.ask("PATCH", tenant, {"inspections": mode, **more}, key=key)).status_code

    assert await patch("metadata", key) == 200
    refused = await rig.ask("POST", PATH, BODY)
    assert (refused.status_code, "without payloads only" in refused.json()["detail"]) == (409, True)
    assert (await rig.ask("POST", PATH, {**BODY, "payloads": False})).status_code == 201
    assert await patch("forbidden", key) == 200
    assert (await rig.ask("POST", PATH, {**BODY, "payloads": False})).status_code == 409
    assert [await patch(mode, key) for mode in ("forbidden", "metadata", "allowed", None)] == [200, 403, 403, 403]
    assert await patch("forbidden", key, registry="public") == 403
    assert (await rig.ask("PATCH", tenant, {"limits": {"sessions": 1}}, key=key)).status_code == 403
    assert await patch("forbidden", await rig.key("acme", "tenant:read")) == 403
    assert await patch("allowed") == 200
    changes = [act.changes[0] for act in await rig.trail("acme") if act.action == "tenant.change"]
    assert [(each.old, each.new) for each in changes] == [
        ("allowed", "metadata"), ("metadata", "forbidden"), ("forbidden", "allowed"),
    ]  # fmt: skip


async def test_one_that_was_forbidden_while_it_was_opened_is_closed(rig):
    administrator = await rig.key("acme", "tenant:admin")
    inspect_session = rig.node.inspect_session

    async def forbidden_meanwhile(tenant, asked):
        assert (
            await rig.ask("PATCH", "/api/v1/tenants/acme", {"inspections": "forbidden"}, key=administrator)
        ).is_success
        return inspect_session(tenant, asked)

    rig.node.inspect_session = forbidden_meanwhile
    assert (await rig.ask("POST", PATH, BODY)).status_code == 409
    assert [each.ending for each in rig.node.looked.of("acme")] == ["closed"]


ROLES = {
    "platform": ("default", "platform:admin"), "admin": ("acme", "tenant:admin"), "reader": ("acme", "tenant:read"),
    "auditor": ("acme", "audit:read"), "client": ("acme", "mcp:connect"), "other": ("zenith", "tenant:admin"),
    "metrics": ("default", "metrics:read"), "default": ("default", "tenant:admin"),
}  # fmt: skip
WAYS = {
    "list": ("GET", ""), "show": ("GET", "/{id}"), "messages": ("GET", "/{id}/messages"),
    "close": ("DELETE", "/{id}"), "open": ("POST", ""),
}  # fmt: skip
MAY = {"platform": frozenset(WAYS), "admin": frozenset(WAYS), "reader": frozenset({"list", "show", "messages"})}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("way", WAYS)
async def test_every_role_may_do_what_it_may_with_an_inspection_and_nothing_else(rig, role, way):
    tenant, scope = ROLES[role]
    key = await rig.key(tenant, scope)
    about = await opened(rig, backend="echo", session=None)
    inspection = rig.node.looked.find("acme", about["id"])
    line = b'{"params":{"name":"say"}}'
    message = InspectedMessage(
        inspection.numbers.next(), 5.0, "backend", "to_server", "request", "tools/call", "7", "say", "", len(line)
    )
    inspection.add(message, line)
    method, path = WAYS[way]
    body = {"session": "a1b2c3d4e5f6", "reason": "x"} if way == "open" else {} if method == "POST" else None
    answer = await rig.ask(method, PATH + path.format(id=about["id"]), body, key=key)
    if way in MAY.get(role, ()):
        assert answer.is_success
    elif tenant == "acme":
        assert (answer.status_code, answer.json()["reason"]) == (403, "insufficient_scope")
    else:
        assert (answer.status_code, answer.json()["detail"]) == (404, "Tenant not found")
    if way == "messages" and answer.is_success:
        (shown,) = answer.json()["items"]
        assert (shown["payload"] is None) == (role == "reader")
    is_closed = way == "close" and way in MAY.get(role, ())
    assert [each.ending for each in rig.node.looked.of("acme")][-1] == ("closed" if is_closed else None)
    if tenant != "acme" and role != "platform":  # nor in its own tenant
        own = await rig.ask(method, PATH.replace("acme", tenant) + path.format(id=about["id"]), body, key=key)
        assert not own.is_success or way == "list"
        assert about["id"] not in own.text


async def lost_meanwhile(rig, lose, **fields):
    """An inspection whose opener loses its right when it is open on its node, as far as this node knows not yet."""
    key = await rig.key("acme", "tenant:admin")
    assert (await rig.ask("GET", PATH, key=key)).status_code == 200  # it is remembered
    inspect_session = rig.node.inspect_session

    async def opened_then_lost(tenant, asked):
        found = inspect_session(tenant, asked)
        await lose(key)
        return found

    rig.node.inspect_session = opened_then_lost
    answer = await rig.ask("POST", PATH, {**BODY, **fields}, key=key)
    (inspection,) = rig.node.looked.of("acme")
    details = [act.detail for act in await rig.trail("acme") if act.action == "inspection.close"]
    return answer, inspection, details


async def test_a_key_that_is_revoked_while_it_opens_one_leaves_nothing_open(rig):
    async def revoke(key):
        await rig.admin.keys.revoke("acme", key.split("_")[1], rig.admin.now())  # nobody has told this node

    answer, inspection, details = await lost_meanwhile(rig, revoke)
    assert (answer.status_code, inspection.ending) == (401, "closed")
    assert len(details) == 1
    assert details[0].startswith("not opened: ")


async def test_one_that_ends_before_it_is_confirmed_is_not_shown_as_open(rig):
    async def end(_key):
        rig.node.looked.end(rig.node.looked.of("acme")[0], 1.0, "revoked")

    answer, inspection, _ = await lost_meanwhile(rig, end)
    assert (answer.status_code, inspection.ending) == (409, "revoked")
    assert "before it could be confirmed" in answer.json()["detail"]


async def test_a_request_that_is_cancelled_half_way_leaves_nothing_open(rig):
    is_open = anyio.Event()

    async def hang(*_):
        is_open.set()
        await anyio.sleep_forever()

    rig.node.confirm_inspection = hang
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.ask, "POST", PATH, BODY)
        await is_open.wait()
        assert [each.is_open for each in rig.node.looked.of("acme")] == [True]
        tasks.cancel_scope.cancel()
    assert [each.ending for each in rig.node.looked.of("acme")] == ["closed"]
    assert [act.action for act in await rig.trail("acme")][:2] == ["inspection.open", "inspection.close"]
