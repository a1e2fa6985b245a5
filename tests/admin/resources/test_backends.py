"""…/backends"""

from typing import Any

import pytest

from app.domain import BackendSpec

PATH = "/api/v1/tenants/acme/backends"
FULL: dict[str, Any] = {
    "name": "full",
    "command": "/usr/bin/env",
    "args": ["cat", "", "ü"],
    "env": {"TOKEN": "s3cret", "EMPTY": ""},
    "isolation": "session",
    "recovery": "respawn",
    "broadcast": True,
    "warm": 3,
    "max_processes": 1000,
    "calls_per_session": 4,
    "cwd": "/srv/x",
    "timeouts": {"initialize_s": 1, "call_s": 0.5, "idle_s": 60, "absolute_s": 600, "reclaim_idle_s": 20, "park_s": 30},
    "sandbox": {
        "mode": "require", "require": ["files", "network"], "read": ["/srv/data"], "write": ["/srv/out"],
        "network": "web",
    },
    "limits": {"memory_mb": 1024, "pids": None, "cpu": 0.5, "files": 256, "disk_mb": 1},
    "state": "none",
    "start": "exec",
    "url": None,
    "transport": "auto",
    "headers": {},
    "connect": {"proxy": None, "proxy_auth": None, "ca": None, "certificate": None, "key": None},
    "include": [],
    "exclude": [],
    "rename": {},
    "describe": {},
    "access": [],
    "pin": "off",
    "pin_minor": "ask",
    "enabled": False,
    "reason": "not yet",
}  # fmt: skip


async def test_a_full_backend_is_stored_told_to_the_node_and_shown_without_its_secrets(rig):
    answer = await rig.ask("POST", PATH, FULL)
    assert answer.status_code == 201
    shown = {**FULL, "tenant": "acme", "version": 1, "env": {"TOKEN": "***", "EMPTY": "***"}, "off_by_platform": True}
    shown |= {"openapi": None, "openapi_made": "", "certificates": [], "package": None}
    made = answer.json()
    assert {name: made[name] for name in made if name != "notes"} == shown
    got = (await rig.ask("GET", answer.headers["Location"])).json()
    assert {name: value for name, value in got.items() if name in shown} == shown
    spec = await rig.admin.backends.get("acme", "full")
    assert rig.heard == [("backend", "acme", "full")]
    assert spec.env == FULL["env"]
    assert spec.args == ("cat", "", "ü")


async def test_what_the_sandbox_names_and_the_node_does_not_have_is_said_at_once_and_kept(rig, tmp_path):
    """It may come later, or be on another node."""
    there, later = str(tmp_path), str(tmp_path / "later")
    body = {"name": "notes", "command": "cat", "sandbox": {"read": [there], "write": [later]}}
    made = await rig.ask("POST", PATH, body)
    (note,) = made.json()["notes"]
    assert (made.status_code, note.startswith(f"sandbox.write: there is no '{later}' on this node")) == (201, True)
    assert (await rig.ask("GET", f"{PATH}/notes")).json()["notes"] == [note]
    assert (await rig.ask("PATCH", f"{PATH}/notes", {"warm": 1})).json()["notes"] == [note]
    (tmp_path / "later").mkdir()
    assert (await rig.ask("PATCH", f"{PATH}/notes", {"warm": 0})).json()["notes"] == []


async def test_the_number_of_warm_processes_may_follow_demand(rig):
    body = {"name": "auto", "command": "cat", "warm": "auto"}
    assert (await rig.ask("POST", PATH, body)).json()["warm"] == "auto"
    shown = (await rig.ask("GET", PATH + "/auto")).json()
    assert (shown["warm"], shown["warm_target"], shown["warm_why"]) == ("auto", 0, [])
    assert (await rig.ask("PATCH", PATH + "/auto", {"warm": 2})).json()["warm"] == 2
    assert (await rig.ask("PATCH", PATH + "/auto", {"warm": "auto"})).json()["warm"] == "auto"
    assert (await rig.ask("PATCH", PATH + "/auto", {"warm": None})).json()["warm"] == 0
    refused = await rig.ask("POST", PATH, {"name": "kept", "command": "cat", "warm": "auto", "state": "keep"})
    assert refused.status_code == 422


async def test_the_body_of_the_benchmark_fits(rig):
    body = {"name": "e", "command": "cat", "args": [], "isolation": "session", "warm": 0, "max_processes": 1000}
    answer = (await rig.ask("POST", PATH, body)).json()
    assert answer["timeouts"] == {
        "initialize_s": 30.0, "call_s": 60.0, "idle_s": 1800.0, "absolute_s": 86400.0, "reclaim_idle_s": 300.0,
        "park_s": None,
    }  # fmt: skip
    assert answer["enabled"] is True


async def test_paths_without_tenant_are_the_default_tenants(rig):
    answer = await rig.ask("POST", "/api/v1/backends", {"name": "e", "command": "cat"})
    assert answer.headers["Location"] == "/api/v1/tenants/default/backends/e"
    short = await rig.ask("GET", "/api/v1/backends/e")
    assert short.json() == (await rig.ask("GET", answer.headers["Location"])).json()
    (listed,) = (await rig.ask("GET", "/api/v1/backends")).json()["items"]
    assert {**short.json(), **listed} == short.json()


async def test_a_taken_name_is_409_and_an_unknown_tenant_404(rig):
    assert (await rig.ask("POST", PATH, {"name": "echo", "command": "cat"})).status_code == 409
    body = {"name": "echo", "command": "cat"}
    assert (await rig.ask("POST", "/api/v1/tenants/nobody/backends", body)).status_code == 404
    assert (await rig.ask("GET", "/api/v1/tenants/nobody/backends")).status_code == 404


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"command": ""}, "#/command"),
        ({"command": "a\0b"}, "#/command"),
        ({"command": "\ud800"}, "#/command"),
        ({"command": ["cat"]}, "#/command"),
        ({"command": None}, "#"),
        ({"args": ["a\0"]}, "#/args/0"),
        ({"args": ["ok", 1]}, "#/args/1"),
        ({"args": [""] * 257}, "#/args"),
        ({"args": ["a" * 65_000, "b" * 600]}, "#"),
        ({"args": ["ü" * 33_000]}, "#"),
        ({"args": "cat"}, "#/args"),
        ({"env": {"1A": ""}}, "#/env"),
        ({"env": {"A=B": ""}}, "#/env"),
        ({"env": {"A/~": ""}}, "#/env"),
        ({"env": {"A": "\0"}}, "#/env/A"),
        ({"env": {"A": 1}}, "#/env/A"),
        ({"env": {f"A{number}": "" for number in range(129)}}, "#/env"),
        ({"env": {"A": "x" * 60_000, "B": "x" * 6_000}}, "#"),
        ({"env": {"A": "***"}}, "#"),
        ({"env": {"OPTIND": "x"}}, "#"),
        ({"warm": "some"}, "#/warm"),
        ({"timeouts": {"park_s": 60}, "isolation": "shared"}, "#"),
        ({"timeouts": {"park_s": 60}, "command": None, "url": "https://example.com/mcp"}, "#"),
        ({"timeouts": {"park_s": 0.5}, "recovery": "respawn"}, "#/timeouts/park_s"),
        ({"cwd": ""}, "#/cwd"),
        ({"cwd": "a\0"}, "#/cwd"),
        ({"cwd": "~/notes"}, "#/cwd"),
        ({"cwd": "notes/../.."}, "#/cwd"),
        ({"cwd": ["/srv"]}, "#/cwd"),
        ({"cwd": "/" + "x" * 4096}, "#/cwd"),
        ({"warm": -1}, "#/warm"),
        ({"warm": 1001}, "#/warm"),
        ({"warm": 1.0}, "#/warm"),
        ({"warm": False}, "#/warm"),
        ({"max_processes": 0}, "#/max_processes"),
        ({"max_processes": 10_001}, "#/max_processes"),
        ({"calls_per_session": 0}, "#/calls_per_session"),
        ({"calls_per_session": 1025}, "#/calls_per_session"),
        ({"timeouts": {"call_s": 86401}}, "#/timeouts/call_s"),
        ({"timeouts": {"call_s": 0}}, "#/timeouts/call_s"),
        ({"timeouts": {"initialize_s": float("nan")}}, "#/timeouts/initialize_s"),
        ({"timeouts": {"idle_s": float("inf")}}, "#/timeouts/idle_s"),
        ({"timeouts": {"absolute_s": "60"}}, "#/timeouts/absolute_s"),
        ({"timeouts": {"never_s": 1}}, "#/timeouts/never_s"),
        ({"enabled": 1}, "#/enabled"),
        ({"version": 1}, "#/version"),
        ({"name": "../x"}, "#/name"),
    ],
)
async def test_a_body_that_does_not_fit_is_422_says_where_and_repeats_nothing(untouched, change, pointer):
    answer = await untouched.ask("POST", PATH, {"name": "x", "command": "cat", "env": {"TOKEN": "hunter2"}, **change})
    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
    assert "hunter2" not in answer.text
    assert untouched.heard == []


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"name": "My tools"}, "must be lower-case letters, digits and hyphens, 63 at most, beginning with a letter"),
        ({"name": "x\n"}, "must be lower-case letters"),
        ({"env": {"A B": "x"}}, "must be letters, digits, `_`, no digit first"),
    ],
)
async def test_how_a_name_is_spelled_is_said_in_words(untouched, change, rule):
    (error,) = (await untouched.ask("POST", PATH, {"name": "x", "command": "cat", **change})).json()["errors"]
    assert rule in error["detail"]


async def test_so_it_is_of_a_filter(untouched):
    (error,) = (await untouched.ask("GET", "/api/v1/tenants/acme/calls?backend=My+tools")).json()["errors"]
    assert error["detail"] == "must be lower-case letters, digits and hyphens, 63 at most"


@pytest.mark.parametrize(
    "query",
    ["calls?backend=", "calls?tool=", "calls:grouped?by=tool&session=", "sessions?backend=", "processes?process=",
     "failures?backend=", "activity?node="],
)  # fmt: skip
async def test_an_empty_filter_is_refused_instead_of_ignored(untouched, query):
    answer = await untouched.ask("GET", f"/api/v1/tenants/acme/{query}")
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["parameter"] == query.rpartition("?")[2].rpartition("&")[2].removesuffix("=")


@pytest.mark.parametrize(("member", "value"), [("isolation", "shared"), ("recovery", "respawn")])
async def test_a_server_without_state_may_be_said_to_have_none(rig, member, value):
    answer = await rig.ask("POST", PATH, {"name": "x", "command": "cat", member: value})
    assert answer.json()[member] == value
    assert (await rig.ask("GET", PATH + "/x")).json()[member] == value
    assert (await rig.ask("PATCH", PATH + "/x", {member: None})).json()[member] in ("session", "end")
    (error,) = (await rig.ask("POST", PATH, {"name": "y", "command": "cat", member: "none"})).json()["errors"]
    assert error["pointer"] == f"#/{member}"


SPLIT = 'write "npx", and "-y", "a b" at the beginning of `args`'


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        ("npx -y 'a b'", SPLIT),
        (" npx\t-y\u00a0'a b' ", SPLIT),
        ("npx ", 'arguments: write "npx"'),
        (
            "/no/such/Program Files/node",
            "no file on the gateway's machine; if it has arguments, it must be one program",
        ),
        ("C:\\Program Files\\nodejs\\node.exe", "a path of Windows: name the program as it is called on the gateway's"),
        ('"C:\\Program Files\\x.exe"', "a path of Windows"),
        ("d:/x.exe", "a path of Windows"),
        ("~/bin/x", "no shell replaces here: write the whole path"),
        ("don't do", "without its arguments"),
        ("  ", "without its arguments"),
        ("x {message} %s", 'write "x", and "{message}", "%s"'),
    ],
)
async def test_a_command_line_is_told_to_be_split(rig, command, advice):
    created = await rig.ask("POST", PATH, {"name": "x", "command": command})
    await rig.ask("POST", PATH, {"name": "y", "command": "cat"})
    for answer in (created, await rig.ask("PATCH", PATH + "/y", {"command": command})):
        assert answer.status_code == 422
        (error,) = answer.json()["errors"]
        assert error["pointer"] == "#/command"
        assert advice in error["detail"]


async def test_a_path_with_a_space_is_one_program_if_it_is_there(rig, tmp_path):
    program = tmp_path / "my program"
    program.write_text("#!/bin/sh\n")
    assert (await rig.ask("POST", PATH, {"name": "x", "command": str(program)})).status_code == 201
    assert (await rig.ask("POST", PATH, {"name": "y", "command": str(tmp_path)[1:] + "/my program"})).status_code == 422
    (tmp_path / "a folder").mkdir()
    assert (await rig.ask("POST", PATH, {"name": "z", "command": f"{tmp_path}/a folder"})).status_code == 422


async def test_a_backend_of_before_keeps_its_command_line(rig):
    await rig.admin.backends.create("acme", BackendSpec("acme", "old", "npx -y foo"))
    answer = await rig.ask("PATCH", PATH + "/old", {"warm": 1, "cwd": "notes"})
    assert answer.status_code == 200, answer.text
    assert (answer.json()["command"], answer.json()["warm"], answer.json()["cwd"]) == ("npx -y foo", 1, "notes")


async def test_a_working_directory_is_set_and_taken_away(rig):
    created = await rig.ask("POST", PATH, {"name": "x", "command": "cat", "cwd": "notes/./a..b"})
    assert created.json()["cwd"] == "notes/./a..b"
    changed = await rig.ask("PATCH", PATH + "/x", {"cwd": "/srv/.."})
    assert changed.json()["cwd"] == (await rig.ask("GET", PATH + "/x")).json()["cwd"] == "/srv/.."
    assert (await rig.ask("PATCH", PATH + "/x", {"cwd": None})).json()["cwd"] is None
    for body in ({"cwd": "/srv"}, {"cwd": None}):
        assert (await rig.ask("PATCH", PATH + "/x", body, key=await rig.key("acme", "tenant:admin"))).status_code == 403


async def test_a_merge_patch_changes_what_it_names_and_null_is_the_default(rig):
    await rig.ask("POST", PATH, FULL)
    patch = {"warm": None, "args": ["new"], "timeouts": {"call_s": None, "idle_s": 5}, "enabled": True}
    answer = await rig.ask("PATCH", PATH + "/full", patch)
    assert answer.status_code == 200
    spec = await rig.admin.backends.get("acme", "full")
    assert (spec.warm, spec.args, spec.enabled, spec.version) == (0, ("new",), True, 2)
    assert (spec.reason, spec.off_by_platform) == ("", False)
    assert (spec.timeouts.call_s, spec.timeouts.idle_s, spec.timeouts.initialize_s) == (60, 5, 1)
    assert spec.env == FULL["env"]
    assert rig.heard[1:] == [("backend", "acme", "full")]
    await rig.ask("PATCH", PATH + "/full", {"timeouts": None})
    assert (await rig.admin.backends.get("acme", "full")).timeouts.initialize_s == 30


async def test_a_patch_of_env_sets_removes_and_keeps_what_was_read_back(rig):
    await rig.ask("POST", PATH, FULL)
    answer = await rig.ask("PATCH", PATH + "/full", {"env": {"TOKEN": "***", "EMPTY": None, "NEW": "1"}})
    assert answer.json()["env"] == {"TOKEN": "***", "NEW": "***"}
    assert (await rig.admin.backends.get("acme", "full")).env == {"TOKEN": "s3cret", "NEW": "1"}
    await rig.ask("PATCH", PATH + "/full", {"env": None})
    assert (await rig.admin.backends.get("acme", "full")).env == {}


async def test_a_patch_that_changes_nothing_makes_no_new_version(rig):
    answer = await rig.ask("PATCH", PATH + "/echo", {"command": "/bin/cat", "env": {"TOKEN": "***"}})
    assert answer.json()["version"] == 1
    assert rig.heard == []


@pytest.mark.parametrize(
    ("patch", "pointer"),
    [
        ({"command": None}, "#"),
        ({"name": "other"}, "#/name"),
        ({"env": {"UNKNOWN": "***"}}, "#"),
        ({"env": {"BIG": "x" * 65_536}}, "#"),
        ({"warm": "1"}, "#/warm"),
        ({"tenant": "zenith"}, "#/tenant"),
    ],
)
async def test_a_patch_that_does_not_fit_is_422_and_changes_nothing(untouched, patch, pointer):
    before = await untouched.admin.backends.get("acme", "echo")
    answer = await untouched.ask("PATCH", PATH + "/echo", patch)
    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
    assert "s3cret" not in answer.text
    assert await untouched.admin.backends.get("acme", "echo") == before


async def test_deleted_is_gone_and_the_node_knows(rig):
    assert (await rig.ask("DELETE", PATH + "/echo")).status_code == 204
    assert (await rig.ask("DELETE", PATH + "/echo")).status_code == 404
    assert rig.heard == [("backend", "acme", "echo")]
    assert (await rig.ask("GET", "/api/v1/tenants/zenith/backends/echo")).status_code == 200
