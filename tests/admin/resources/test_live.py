"""…/sessions, …/processes, /nodes, :check and :restart: what the endpoints make of what a node shows them."""

import json
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from app.backends.checks._missed import Findings, Missed
from app.backends.checks.backend_check import CheckResult, Failure
from app.backends.checks.steps import Step
from app.backends.failures import Affected, BackendFailure
from app.cluster.node_status.listing import Use
from app.cluster.node_status.views import BackendRunning, FailureView, TenantUse
from app.errors import ShuttingDown
from app.processes.denials import Denial

TENANT = "/api/v1/tenants/acme"
ALL = "/api/v1/tenants/-"
NOTHING = {"resident_bytes": 0, "cpu_s": 0.0, "cpu_percent": None, "calls": 0, "calls_total": 0}


async def test_sessions_are_listed_by_their_public_ids_and_ended(rig):
    for name in ("s1", "s2", "s3"):
        rig.node.add_session("acme", name)
    rig.node.add_session("zenith", "s4")
    listed = (await rig.ask("GET", TENANT + "/sessions")).json()["items"]
    assert [each["id"] for each in listed] == ["s1", "s2", "s3"]
    assert listed[0] == {
        "id": "s1", "tenant": "acme", "backend": "echo", "principal_tenant": "acme", "issuer": "key",
        "subject": "AAAAAAAA", "client_name": "cursor", "client_version": "1.2", "address": "192.0.2.7",
        "transport": "streamable", "state": "open", "protocol_version": "2025-11-25",
        "opened_at": "2026-01-01T00:00:00Z", "age_s": 2.0, "idle_s": 1.0, "process": "p1", "node": "n1", **NOTHING,
    }  # fmt: skip
    assert (await rig.ask("DELETE", TENANT + "/sessions/s2")).status_code == 204
    again = await rig.ask("DELETE", TENANT + "/sessions/s2")
    assert (again.status_code, again.json()["reason"]) == (404, "session_not_found")
    assert (await rig.ask("DELETE", TENANT + "/sessions/s4")).status_code == 404
    assert [view.id for view in rig.node.running["acme"]] == ["s1", "s3"]


async def test_a_session_that_may_be_on_a_silent_node_is_not_said_to_be_gone(rig):
    rig.node.silent = ["n7", "n8"]
    refused = await rig.ask("DELETE", TENANT + "/sessions/s1")
    assert (refused.status_code, refused.json()["reason"]) == (503, "node_unavailable")
    assert "n7, n8" in refused.json()["detail"]
    assert "Retry-After" in refused.headers
    assert await rig.trail() == []


async def test_a_session_that_was_not_ended_after_all_is_not_said_to_be(rig, monkeypatch):
    async def is_gone(tenant: str, session: str) -> bool:
        return False

    monkeypatch.setattr(rig.node, "end_session", is_gone)
    rig.node.add_session("acme", "s1")
    answer = await rig.ask("DELETE", TENANT + "/sessions/s1")
    assert (answer.status_code, answer.json()["reason"]) == (404, "session_not_found")
    assert "hint" not in answer.json()  # that of a client would not help here


async def test_processes_are_listed_and_their_last_words_are_for_administrators(rig):
    rig.node.add_process("acme", "p1")
    (shown,) = (await rig.ask("GET", TENANT + "/processes")).json()["items"]
    assert shown == {
        "id": "p1", "tenant": "acme", "backend": "echo", "pid": 1234, "state": "leased",
        "started_at": "2026-01-01T00:00:00Z", "age_s": 1.0, "sessions": ["s1"], "session_count": 1, "stderr_lines": 3,
        "node": "n1", "tier": "none", "start": "exec", "start_reason": "", "sent_bytes": 0, "received_bytes": 0,
        "denied": 0, **NOTHING,
    }  # fmt: skip
    path = TENANT + "/processes/p1/stderr"
    denials = [{"kind": "file", "what": "/srv/a", "at": "2026-01-01T00:00:00Z"}]
    assert (await rig.ask("GET", path)).json() == {"lines": ["first", "second", "third"], "denials": denials}
    assert (await rig.ask("GET", path + "?lines=1")).json() == {"lines": ["third"], "denials": denials}
    reader = await rig.key("acme", "tenant:read")
    assert (await rig.ask("GET", TENANT + "/processes", key=reader)).status_code == 200
    assert (await rig.ask("GET", path, key=reader)).status_code == 403
    assert (await rig.ask("GET", TENANT + "/processes/p2/stderr")).status_code == 404
    for lines in ("0", "1001", "x"):
        assert (await rig.ask("GET", f"{path}?lines={lines}")).status_code == 422


async def test_a_process_is_restarted_and_its_sessions_are_accounted_for(rig):
    rig.node.add_process("acme", "p1")
    rig.node.add_process("zenith", "p2")
    path = TENANT + "/processes/p1:restart"
    reader = await rig.key("acme", "tenant:read")
    assert (await rig.ask("POST", path, key=reader)).status_code == 403
    assert (await rig.ask("POST", TENANT + "/processes/p2:restart")).status_code == 404
    answer = await rig.ask("POST", path, key=await rig.key("acme", "tenant:admin"))
    assert (answer.status_code, answer.json()) == (
        200,
        {
            "process": "p1",
            "backend": "echo",
            "node": "n1",
            "was": "leased",
            "sessions_ended": 1,
            "sessions_going_on": 2,
        },
    )
    assert [view.id for views in rig.node.started.values() for view in views] == ["p2"]
    again = await rig.ask("POST", path)
    assert (again.status_code, again.json()["detail"]) == (404, "Process not found")
    rig.node.silent = ["n7"]
    lost = await rig.ask("POST", path)
    assert (lost.status_code, lost.json()["reason"]) == (503, "node_unavailable")
    assert [(each.action, each.target) for each in await rig.trail("acme")] == [("process.restart", "processes/p1")]


async def test_the_node_is_shown(untouched):
    answer = (await untouched.ask("GET", "/api/v1/nodes")).json()
    assert answer["next_cursor"] is None
    (node,) = answer["items"]
    assert set(node) == {
        "id", "url", "version", "started_at", "sessions", "processes", "draining", "problem", "load", "sandbox",
    }  # fmt: skip
    assert node["url"] == "http://10.0.0.1:8080"
    assert (node["load"]["host"], node["load"]["connections"], node["load"]["descriptors_limit"]) == ("host", 5, 4)


async def test_nothing_else_is_of_all_tenants(rig):
    assert (await rig.ask("GET", "/api/v1/use", key=await rig.key("acme", "tenant:admin"))).status_code == 403
    for method, path in (
        ("DELETE", "/sessions/s1"),
        ("GET", "/processes/p1/stderr"),
        ("GET", "/backends"),
        ("GET", ""),
    ):
        assert (await rig.ask(method, ALL + path)).status_code == 404


async def test_a_check_that_goes_well_says_what_is_offered(rig):
    rig.node.check_result = CheckResult(
        "2025-11-25", {"name": "echo"}, {"tools": {}}, {"tools": 3, "resources": None, "prompts": None},
        [Step("start", 1.5), Step("initialize", 20.0), Step("tools/list", 2.0)],
    )  # fmt: skip
    admin = await rig.key("acme", "tenant:admin")
    answer = await rig.ask("POST", TENANT + "/backends/echo:check", key=admin)
    assert answer.status_code == 200
    found = answer.json()
    assert found["steps"].pop()["step"] == "catalog"
    assert found.pop("tag") == (await rig.ask("GET", TENANT + "/backends/echo", key=admin)).headers["etag"]
    assert found == {
        "ok": True, "protocol_version": "2025-11-25", "server": {"name": "echo"}, "capabilities": {"tools": {}},
        "tools": 3, "resources": None, "prompts": None, "failure": None, "missed": [], "unwatched": None,
        "patch": None, "start_used": "exec", "start_reason": "", "left_out": [],
        "steps": [{"step": "start", "ms": 1.5}, {"step": "initialize", "ms": 20.0}, {"step": "tools/list", "ms": 2.0}],
    }  # fmt: skip
    assert [spec.key for spec in rig.node.checked] == [("acme", "echo")]


def events_in(text: str) -> list[tuple[str, Any]]:
    """Kind and data of each."""
    fields = [dict(line.split(": ", 1) for line in block.splitlines()) for block in text.split("\n\n") if block]
    return [(each["event"], json.loads(each["data"])) for each in fields]


async def test_the_steps_of_a_check_are_told_to_whom_accepts_only_a_stream(rig):
    rig.node.check_result = CheckResult(server={"name": "e\u2028cho"}, steps=[Step("start", 1.5)])
    path, events = TENANT + "/backends/echo:check", {"Accept": "text/event-stream"}
    told = await rig.ask("POST", path, headers=events)
    assert (told.status_code, told.headers["content-type"]) == (200, "text/event-stream")
    *steps, (kind, answer) = events_in(told.text)
    assert [(kind, {**step, "ms": 0} if "ms" in step else step) for kind, step in steps] == [
        ("begun", {"step": "start", "number": 1, "of": 2}), ("taken", {"step": "start", "ms": 0}),
        ("begun", {"step": "catalog", "number": 2, "of": 2}), ("taken", {"step": "catalog", "ms": 0}),
    ]  # fmt: skip
    assert (kind, answer["ok"], answer["server"]) == ("result", True, {"name": "e\u2028cho"})
    assert [each["step"] for each in answer["steps"]] == ["start", "catalog"]
    for other in (
        {"Accept": "*/*"},
        {"Accept": "application/json, text/event-stream"},
        {**events, "Idempotency-Key": "k"},
    ):
        plain = await rig.ask("POST", path, headers=other)
        assert (plain.headers["content-type"], plain.json()["ok"]) == ("application/json", True)
    assert [each.action for each in await rig.trail("acme")] == ["backend.check"] * 4


async def test_a_stream_that_is_refused_has_a_status_and_one_that_fails_later_a_problem(rig, monkeypatch):
    path, events = TENANT + "/backends/echo:check", {"Accept": "text/event-stream"}
    begun, go_on = anyio.Event(), anyio.Event()

    async def stopping(*_: object) -> CheckResult:
        begun.set()
        await go_on.wait()
        raise ShuttingDown

    monkeypatch.setattr(rig.node, "check", stopping)
    answers: list[Any] = []

    async def ask() -> None:
        answers.append(await rig.ask("POST", path, headers=events))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await begun.wait()
        refused = await rig.ask("POST", path, headers=events)
        assert (refused.status_code, refused.json()["reason"]) == (409, "conflict")
        go_on.set()
    ((kind, problem),) = events_in(answers[0].text)
    assert (kind, problem["status"], problem["reason"]) == ("problem", 503, "shutting_down")
    reader = await rig.key("acme", "tenant:read")
    assert (await rig.ask("POST", path, key=reader, headers=events)).status_code == 403
    assert (await rig.ask("POST", TENANT + "/backends/none:check", headers=events)).status_code == 404


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_a_key_that_is_revoked_during_a_check_gets_no_result(rig, monkeypatch, accept):
    key, check = await rig.key("acme", "tenant:admin"), rig.node.check

    async def revoked_meanwhile(*asked: Any) -> CheckResult:
        await rig.admin.keys.revoke("acme", key.split("_")[1], rig.admin.now())  # nobody has told this node
        return await check(*asked)

    monkeypatch.setattr(rig.node, "check", revoked_meanwhile)
    answer = await rig.ask("POST", TENANT + "/backends/echo:check", key=key, headers={"Accept": accept})
    kind, problem = events_in(answer.text)[-1] if accept == "text/event-stream" else ("problem", answer.json())
    assert (kind, problem["status"]) == ("problem", 401)
    assert "tools" not in problem


async def test_a_key_that_is_revoked_during_a_check_hears_of_no_further_step_and_the_check_ends(rig, monkeypatch):
    key, ended = await rig.key("acme", "tenant:admin"), anyio.Event()

    async def revoked_meanwhile(spec: Any, limits: Any, steps: Any) -> CheckResult:
        steps.begin("start")
        await anyio.wait_all_tasks_blocked()
        await rig.admin.keys.revoke("acme", key.split("_")[1], rig.admin.now())  # nobody has told this node
        steps.took("start", 0.1)
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()
        raise AssertionError

    monkeypatch.setattr(rig.node, "check", revoked_meanwhile)
    with anyio.fail_after(10):
        headers = {"Accept": "text/event-stream"}
        answer = await rig.ask("POST", TENANT + "/backends/echo:check", key=key, headers=headers)
    found = events_in(answer.text)
    assert [(kind, each.get("step"), each.get("status")) for kind, each in found] == [
        ("begun", "start", None), ("problem", None, 401),
    ]  # fmt: skip
    assert ended.is_set()


async def test_who_leaves_the_stream_of_a_check_ends_it(rig, monkeypatch, caplog):
    """And the next one is not refused, nor does the log have an error."""
    begun, ended = anyio.Event(), anyio.Event()

    async def forever(spec: Any, limits: Any, steps: Any) -> CheckResult:
        with steps.timed("start"):
            begun.set()
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):  # as a process is returned: by then nobody hears of the step
                    await anyio.sleep(0.05)
                ended.set()
        raise AssertionError

    check = rig.node.check
    monkeypatch.setattr(rig.node, "check", forever)
    path = TENANT + "/backends/echo:check"
    with anyio.fail_after(10):
        await leaving(rig, path, begun)
        assert ended.is_set()
        assert not [record for record in caplog.records if record.levelname == "ERROR"]
        monkeypatch.setattr(rig.node, "check", check)
        assert (await rig.ask("POST", path)).status_code == 200


async def leaving(rig: Any, path: str, when: anyio.Event) -> None:
    """POSTs for a stream, as a client that goes away then; returns when the application has."""
    has_asked = False

    async def receive() -> dict[str, Any]:
        nonlocal has_asked
        if not has_asked:
            has_asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await when.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        """Nobody is there."""

    headers = [
        (b"host", b"gateway"),
        (b"authorization", f"Bearer {rig.root}".encode()),
        (b"accept", b"text/event-stream"),
    ]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers,
        "client": ("127.0.0.1", 1), "server": ("gateway", 80),
    }  # fmt: skip
    await rig.app(scope, receive, send)


async def test_a_check_that_fails_says_where_why_and_what_the_backend_said(rig):
    rig.node.check_result = CheckResult(
        failure=Failure("initialize", "backend_exited", "exit status 3", "A hint.", ["no such module"])
    )
    answer = (await rig.ask("POST", TENANT + "/backends/echo:check")).json()
    assert answer["ok"] is False
    assert answer["failure"] == {
        "step": "initialize", "reason": "backend_exited", "detail": "exit status 3", "hint": "A hint.",
        "stderr": ["no such module"],
    }  # fmt: skip


async def test_a_check_says_what_the_sandbox_kept_from_the_backend(rig):
    missed = Missed("file", "/srv/data", "read", 2, {"read": ["/srv/data"]})
    rig.node.check_result = CheckResult(findings=Findings((missed,), "the kernel refuses"))
    answer = (await rig.ask("POST", TENANT + "/backends/echo:check")).json()
    assert answer["missed"] == [
        {
            "kind": "file",
            "what": "/srv/data",
            "access": "read",
            "count": 2,
            "proposal": {"read": ["/srv/data"]},
            "granted_by": "platform:admin",
            "may_grant": True,
            "uid": None,
            "note": None,
        }
    ]
    assert answer["patch"] == {"sandbox": {"read": ["/srv/data"]}}
    admin = await rig.key("acme", "tenant:admin")
    of_tenant = (await rig.ask("POST", TENANT + "/backends/echo:check", key=admin)).json()
    assert (of_tenant["missed"][0]["may_grant"], of_tenant["patch"]) == (False, None)
    assert answer["unwatched"] == "the kernel refuses"


async def test_one_check_of_a_backend_at_a_time_and_none_while_shutting_down(rig, monkeypatch):
    begun, go_on = anyio.Event(), anyio.Event()

    async def slow(*_: object) -> CheckResult:
        begun.set()
        await go_on.wait()
        return CheckResult()

    monkeypatch.setattr(rig.node, "check", slow)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.ask, "POST", TENANT + "/backends/echo:check")
        await begun.wait()
        assert (await rig.ask("POST", TENANT + "/backends/echo:check")).status_code == 409
        go_on.set()
    assert (await rig.ask("POST", TENANT + "/backends/echo:check")).status_code == 200

    async def stopping(*_: object) -> CheckResult:
        raise ShuttingDown

    monkeypatch.setattr(rig.node, "check", stopping)
    for _ in range(2):
        assert (await rig.ask("POST", TENANT + "/backends/echo:check")).status_code == 503


async def test_a_restart_is_told_to_the_node(rig):
    assert (await rig.ask("POST", TENANT + "/backends/echo:restart")).status_code == 204
    assert rig.heard == [("restart", "acme", "echo")]


@pytest.mark.parametrize("name", ["unknown", "echo:check", "UP", "%00"])
async def test_odd_names_are_not_found(untouched, name):
    for action in ("check", "restart"):
        assert (await untouched.ask("POST", f"{TENANT}/backends/{name}:{action}")).status_code == 404
    assert (await untouched.ask("POST", TENANT + "/backends/echo:fly")).status_code in (404, 405)
    assert untouched.heard == []


def failure(node: str, day: int, **more: Any) -> BackendFailure:
    at = datetime(2026, 1, day, tzinfo=UTC)
    return BackendFailure("exited", "exit status 3", True, 1, at, at, node, **more)


async def test_a_backend_is_what_it_is_on_all_nodes(rig):
    path = TENANT + "/backends/echo"
    assert (await rig.ask("GET", path)).json()["status"] == "idle"
    for numbers, status in (
        ({"starting": 1}, "starting"), ({"starting": 1, "warm": 1}, "running"), ({"leased": 1}, "running"),
        ({"leased": 1, "breaker_open": True, "retry_after_s": 9.0}, "breaker_open"), ({"stopping": 1}, "idle"),
    ):  # fmt: skip
        rig.node.ran["acme"] = [
            BackendRunning(name="echo", node="n1", **numbers),
            BackendRunning(name="echo", node="n2", waiting=2),
        ]
        for answer in ((await rig.ask("GET", path)).json(), (await rig.ask("GET", TENANT + "/backends")).json()):
            (shown,) = answer.get("items", [answer])
            assert (shown["status"], shown["waiting"]) == (status, 2)
            assert (shown["breaker_open_until"] is not None) == (status == "breaker_open")
    await rig.ask("PATCH", path, {"enabled": False})
    assert (await rig.ask("GET", path)).json()["status"] == "disabled"


async def test_failures_of_all_nodes_come_newest_first_and_their_details_are_for_administrators(rig):
    affected = (Affected("s1", "acme", "key", "AAAA"),)
    denied = {"denials": (Denial("file", "/srv/a", datetime(2026, 1, 1, tzinfo=UTC)),)}
    details: dict[str, Any] = {"stderr": ("oh no",), "affected": affected, "affected_count": 1, "tool": "dig", **denied}
    rig.node.ran["acme"] = [
        BackendRunning(name="echo", node="n1", failures=(failure("n1", 3), failure("n1", 1))),
        BackendRunning(name="echo", node="n2", failures=(failure("n2", 2, **details),)),
    ]
    rig.node.silent = ["n3"]
    shown = (await rig.ask("GET", TENANT + "/backends/echo")).json()
    assert [each["node"] for each in shown["failures"]] == ["n1", "n2", "n1"]
    assert (shown["last_failure"]["node"], shown["silent_nodes"]) == ("n1", ["n3"])
    second = shown["failures"][1]
    assert (second["stderr"], second["tool"], second["affected"][0]["subject"]) == (["oh no"], "dig", "AAAA")
    assert [each["what"] for each in second["denials"]] == ["/srv/a"]
    reader = await rig.key("acme", "tenant:read")
    second = (await rig.ask("GET", TENANT + "/backends/echo", key=reader)).json()["failures"][1]
    assert (second["stderr"], second["tool"], second["affected"], second["affected_count"]) == ([], None, [], 1)
    assert second["denials"] == []


async def test_what_went_wrong_anywhere_comes_newest_first(rig):
    details: dict[str, Any] = {"stderr": ("oh no",), "tool": "dig"}
    for day, tenant in ((2, "acme"), (5, "zenith"), (3, "acme"), (4, "acme")):
        rig.node.failed.append(FailureView(tenant, "echo", failure("n1", day, **details)))
    found, cursor = [], ""
    while cursor is not None:
        page = (await rig.ask("GET", f"{ALL}/failures?limit=2&cursor={cursor}")).json()
        found += [(each["at"][:10], each["tenant"], each["backend"], each["stderr"]) for each in page["items"]]
        assert page["total"] == 4
        cursor = page["next_cursor"]
    assert found == [
        ("2026-01-05", "zenith", "echo", ["oh no"]), ("2026-01-04", "acme", "echo", ["oh no"]),
        ("2026-01-03", "acme", "echo", ["oh no"]), ("2026-01-02", "acme", "echo", ["oh no"]),
    ]  # fmt: skip
    reader, admin = await rig.key("acme", "tenant:read"), await rig.key("acme", "tenant:admin")
    shown = (await rig.ask("GET", TENANT + "/failures", key=reader)).json()
    assert (shown["total"], shown["items"][0]["stderr"], shown["items"][0]["tool"]) == (3, [], None)
    assert (await rig.ask("GET", TENANT + "/failures", key=admin)).json()["items"][0]["stderr"] == ["oh no"]
    assert (await rig.ask("GET", ALL + "/failures", key=admin)).status_code == 404


async def test_pages_go_on_behind_the_longest_names(rig):
    names = [letter * 63 for letter in "abc"]
    rig.node.used = [TenantUse(name, 1, 1, Use(calls=1, calls_total=2)) for name in names]
    found, cursor = [], ""
    while cursor is not None:
        answer = await rig.ask("GET", f"/api/v1/use?sort=calls&limit=1&cursor={cursor}")
        found += [each["tenant"] for each in answer.json()["items"]]
        cursor = answer.json()["next_cursor"]
    assert found == names


async def test_what_runs_does_not_change_the_tag_of_a_backend(rig):
    path = TENANT + "/backends/echo"
    before = (await rig.ask("GET", path)).headers["etag"]
    rig.node.ran["acme"] = [BackendRunning(name="echo", node="n1", warm=1, failures=(failure("n1", 3),))]
    assert (await rig.ask("GET", path)).headers["etag"] == before
    assert (await rig.ask("PATCH", path, {"warm": 2}, headers={"If-Match": before})).status_code == 200
