"""…/sessions, …/processes, /nodes, :check and :restart: what the endpoints make of what a node shows them."""

import anyio
import pytest

from app.backends.trial import Failure, Step, Trial
from app.errors import ShuttingDown

TENANT = "/api/v1/tenants/acme"


async def test_sessions_are_listed_in_pages_by_their_public_ids_and_ended(rig):
    for name in ("s1", "s2", "s3"):
        rig.node.add_session("acme", name)
    rig.node.add_session("zenith", "s4")
    first = (await rig.ask("GET", TENANT + "/sessions?limit=2")).json()
    second = (await rig.ask("GET", f"{TENANT}/sessions?limit=2&cursor={first['next_cursor']}")).json()
    assert [each["id"] for each in first["items"] + second["items"]] == ["s1", "s2", "s3"]
    assert second["next_cursor"] is None
    assert first["items"][0] == {
        "id": "s1", "backend": "echo", "issuer": "key", "subject": "AAAAAAAA", "transport": "streamable",
        "state": "open", "protocol_version": "2025-11-25", "opened_at": "2026-01-01T00:00:00Z", "idle_s": 1.0,
        "calls": 0, "process": "p1", "node": "n1",
    }  # fmt: skip
    assert (await rig.ask("DELETE", TENANT + "/sessions/s2")).status_code == 204
    again = await rig.ask("DELETE", TENANT + "/sessions/s2")
    assert (again.status_code, again.json()["reason"]) == (404, "session_not_found")
    assert (await rig.ask("DELETE", TENANT + "/sessions/s4")).status_code == 404
    assert [view.id for view in rig.node.running["acme"]] == ["s1", "s3"]


async def test_processes_are_listed_and_their_last_words_are_for_administrators(rig):
    rig.node.add_process("acme", "p1")
    (shown,) = (await rig.ask("GET", TENANT + "/processes")).json()["items"]
    assert shown == {
        "id": "p1", "backend": "echo", "pid": 1234, "state": "leased", "started_at": "2026-01-01T00:00:00Z",
        "age_s": 1.0, "resident_bytes": 4096, "sessions": ["s1"], "stderr_lines": 3, "node": "n1",
    }  # fmt: skip
    path = TENANT + "/processes/p1/stderr"
    assert (await rig.ask("GET", path)).json() == {"lines": ["first", "second", "third"]}
    assert (await rig.ask("GET", path + "?lines=1")).json() == {"lines": ["third"]}
    reader = await rig.key("acme", "tenant:read")
    assert (await rig.ask("GET", TENANT + "/processes", key=reader)).status_code == 200
    assert (await rig.ask("GET", path, key=reader)).status_code == 403
    assert (await rig.ask("GET", TENANT + "/processes/p2/stderr")).status_code == 404
    for lines in ("0", "1001", "x"):
        assert (await rig.ask("GET", f"{path}?lines={lines}")).status_code == 422


async def test_the_node_is_shown(untouched):
    answer = (await untouched.ask("GET", "/api/v1/nodes")).json()
    assert answer["next_cursor"] is None
    (node,) = answer["items"]
    assert set(node) == {"id", "version", "started_at", "sessions", "processes", "draining", "problem"}


async def test_a_check_that_goes_well_says_what_is_offered(rig):
    rig.node.trial = Trial(
        "2025-11-25", {"name": "echo"}, {"tools": {}}, {"tools": 3, "resources": None, "prompts": None},
        [Step("start", 1.5), Step("initialize", 20.0), Step("tools/list", 2.0)],
    )  # fmt: skip
    admin = await rig.key("acme", "tenant:admin")
    answer = await rig.ask("POST", TENANT + "/backends/echo:check", key=admin)
    assert answer.status_code == 200
    assert answer.json() == {
        "ok": True, "protocol_version": "2025-11-25", "server": {"name": "echo"}, "capabilities": {"tools": {}},
        "tools": 3, "resources": None, "prompts": None, "failure": None,
        "steps": [{"step": "start", "ms": 1.5}, {"step": "initialize", "ms": 20.0}, {"step": "tools/list", "ms": 2.0}],
    }  # fmt: skip
    assert [spec.key for spec in rig.node.checked] == [("acme", "echo")]


async def test_a_check_that_fails_says_where_why_and_what_the_backend_said(rig):
    rig.node.trial.failure = Failure("initialize", "backend_exited", "exit status 3", "A hint.", ["no such module"])
    answer = (await rig.ask("POST", TENANT + "/backends/echo:check")).json()
    assert answer["ok"] is False
    assert answer["failure"] == {
        "step": "initialize", "reason": "backend_exited", "detail": "exit status 3", "hint": "A hint.",
        "stderr": ["no such module"],
    }  # fmt: skip


async def test_one_check_of_a_backend_at_a_time_and_none_while_shutting_down(rig, monkeypatch):
    begun, go_on = anyio.Event(), anyio.Event()

    async def slow(*_: object) -> Trial:
        begun.set()
        await go_on.wait()
        return Trial()

    monkeypatch.setattr(rig.node, "check", slow)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.ask, "POST", TENANT + "/backends/echo:check")
        await begun.wait()
        assert (await rig.ask("POST", TENANT + "/backends/echo:check")).status_code == 409
        go_on.set()
    assert (await rig.ask("POST", TENANT + "/backends/echo:check")).status_code == 200

    async def stopping(*_: object) -> Trial:
        raise ShuttingDown

    monkeypatch.setattr(rig.node, "check", stopping)
    for _ in range(2):
        assert (await rig.ask("POST", TENANT + "/backends/echo:check")).status_code == 503


async def test_a_restart_is_told_to_the_node(rig):
    assert (await rig.ask("POST", TENANT + "/backends/echo:restart")).status_code == 204
    assert rig.effects.heard == [("backend_restarted", ("acme", "echo"))]


@pytest.mark.parametrize("name", ["unknown", "echo:check", "UP", "%00"])
async def test_odd_names_are_not_found(untouched, name):
    for action in ("check", "restart"):
        assert (await untouched.ask("POST", f"{TENANT}/backends/{name}:{action}")).status_code == 404
    assert (await untouched.ask("POST", TENANT + "/backends/echo:fly")).status_code in (404, 405)
    assert untouched.effects.heard == []
