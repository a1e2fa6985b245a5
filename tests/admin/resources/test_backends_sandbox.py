"""`sandbox`, `limits` and `state` of backends."""

from dataclasses import asdict
from typing import Any

import pytest

from app.domain import ProcessLimits, Sandbox

PATH = "/api/v1/tenants/acme/backends"
DEFAULT = {"mode": "auto", "require": [], "read": [], "write": [], "network": "none"}
LIMITS = asdict(ProcessLimits())
EVERY = ["files", "network", "memory", "pids", "processes"]


def allowed(*places: str, web: bool = False) -> dict[str, Any]:
    return {"allow": [*places], "web": web}


async def test_a_new_backend_has_no_network_and_the_default_limits(rig):
    answer = (await rig.ask("POST", PATH, {"name": "x", "command": "cat"})).json()
    assert (answer["sandbox"], answer["limits"], answer["state"]) == (DEFAULT, LIMITS, "none")
    spec = await rig.admin.backends.get("acme", "x")
    assert (spec.sandbox, spec.limits, spec.state) == (Sandbox(), ProcessLimits(), "none")
    document = {"mcpServers": {"imported": {"command": "cat", "sandbox": {"network": "host"}}}}
    assert (await rig.ask("POST", PATH + ":import", {"document": document, "apply": True})).status_code == 200
    assert (await rig.admin.backends.get("acme", "imported")).sandbox == Sandbox()


@pytest.mark.parametrize(
    ("change", "pointer", "words"),
    [
        ({"sandbox": {"mode": "on"}}, "#/sandbox/mode", "auto"),
        ({"sandbox": {"mode": "require", "require": ["file"]}}, "#/sandbox/require/0", "processes"),
        ({"sandbox": {"mode": "require", "require": ["pids", "pids"]}}, "#/sandbox/require", "only once"),
        ({"sandbox": {"mode": "require", "require": [*EVERY, "pids"]}}, "#/sandbox/require", "only once"),
        ({"sandbox": {"require": ["files"]}}, "#/sandbox", "goes with `mode: require`"),
        ({"sandbox": {"mode": "off", "require": ["files"]}}, "#/sandbox", "goes with `mode: require`"),
        ({"sandbox": {"mode": "require", "network": "host"}}, "#/sandbox", "confines no network"),
        (
            {"sandbox": {"mode": "require", "require": ["network"], "network": "host"}},
            "#/sandbox",
            "confines no network",
        ),
        ({"sandbox": {"network": "internet"}}, "#/sandbox/network", "web"),
        *(
            ({"sandbox": {"network": network}}, "#/sandbox/network", words)
            for network, words in (
                (["10.0.0.1:5432"], "object with `allow`"),
                ({}, "has `allow`"),
                ({"web": True}, "has `allow`"),
                ({"allow": []}, "1 to 32"),
                ({"allow": "db.internal:5432"}, "1 to 32"),
                ({"allow": [f"10.0.0.1:{port}" for port in range(1, 34)]}, "1 to 32"),
                ({"allow": [5432]}, "texts"),
                ({"allow": ["db.internal"]}, "'db.internal' is not HOST:PORT"),
                ({"allow": ["a:1", "a:1"]}, "only once"),
                ({"allow": ["a:1"], "web": "yes"}, "true or false"),
                ({"allow": ["a:1"], "udp": True}, "no such member: 'udp'"),
                ({"allow": ["0.0.0.0/0:443"]}, "at least /8"),
            )
        ),
        ({"sandbox": {"network": {"allow": ["a:3128"], "web": True}}}, "#/sandbox", "port 3128"),
        ({"sandbox": {"files": []}}, "#/sandbox/files", ""),
        ({"sandbox": None}, "#/sandbox", ""),
        ({"sandbox": "off"}, "#/sandbox", ""),
        ({"sandbox": {"read": ["srv"]}}, "#/sandbox/read/0", "absolute"),
        ({"sandbox": {"read": ["~/x"]}}, "#/sandbox/read/0", "absolute"),
        ({"sandbox": {"read": [""]}}, "#/sandbox/read/0", ""),
        ({"sandbox": {"read": ["/srv", "/a/../b"]}}, "#/sandbox/read/1", "`..`"),
        ({"sandbox": {"read": ["/srv/"]}}, "#/sandbox/read/0", "at its end"),
        ({"sandbox": {"read": ["//srv"]}}, "#/sandbox/read/0", "twice"),
        ({"sandbox": {"read": ["/srv/./x"]}}, "#/sandbox/read/0", "no `.`"),
        ({"sandbox": {"write": ["/a\0b"]}}, "#/sandbox/write/0", "NUL"),
        ({"sandbox": {"write": ["/"]}}, "#/sandbox/write/0", "cannot be opened"),
        ({"sandbox": {"write": ["///"]}}, "#/sandbox/write/0", "cannot be opened"),
        ({"sandbox": {"write": ["/proc"]}}, "#/sandbox/write/0", "cannot be opened"),
        ({"sandbox": {"write": ["/proc/self/root"]}}, "#/sandbox/write/0", "cannot be opened"),
        ({"sandbox": {"write": ["//proc/1/root"]}}, "#/sandbox/write/0", "cannot be opened"),
        ({"sandbox": {"read": ["/sys"]}}, "#/sandbox/read/0", "cannot be opened"),
        ({"sandbox": {"read": ["/dev/"]}}, "#/sandbox/read/0", "cannot be opened"),
        ({"sandbox": {"write": ["/dev/shm"]}}, "#/sandbox/write/0", "cannot be opened"),
        ({"sandbox": {"read": ["/dev/dri"]}}, "#/sandbox/read/0", "cannot be opened"),
        ({"sandbox": {"read": ["/sys/class/net"]}}, "#/sandbox/read/0", "cannot be opened"),
        ({"sandbox": {"read": ["/run/docker.sock"]}}, "#/sandbox/read/0", "cannot be opened"),
        ({"sandbox": {"read": ["/etc"]}}, "#/sandbox/read/0", "`/etc/shadow` is in it"),
        ({"sandbox": {"write": ["/tmp"]}}, "#/sandbox/write/0", "has its own"),
        ({"sandbox": {"write": ["/var/tmp"]}}, "#/sandbox/write/0", "has its own"),
        ({"sandbox": {"write": ["/tmp/home"]}}, "#/sandbox/write/0", "has its own"),
        ({"sandbox": {"read": ["/" + "x" * 4096]}}, "#/sandbox/read/0", "4096"),
        ({"sandbox": {"read": [f"/{number}" for number in range(65)]}}, "#/sandbox/read", "64"),
        ({"limits": {"memory_mb": 15}}, "#/limits/memory_mb", "16"),
        ({"limits": {"memory_mb": 64.0}}, "#/limits/memory_mb", ""),
        ({"limits": {"pids": 0}}, "#/limits/pids", "1"),
        ({"limits": {"cpu": 0}}, "#/limits/cpu", "0.01"),
        ({"limits": {"cpu": float("inf")}}, "#/limits/cpu", ""),
        ({"limits": {"files": 15}}, "#/limits/files", "16"),
        ({"limits": {"disk_mb": 0}}, "#/limits/disk_mb", "1"),
        ({"limits": {"memory": 64}}, "#/limits/memory", ""),
        ({"limits": None}, "#/limits", ""),
        ({"state": "lost"}, "#/state", "keep"),
        ({"start": "spoon"}, "#/start", "fork"),
        ({"state": "keep", "warm": 1}, "#", "needs `warm: 0`"),
        ({"state": "keep", "isolation": "shared"}, "#", "`isolation: shared`"),
    ],
)
async def test_what_cannot_be_is_422_and_says_where_and_why(untouched, change, pointer, words):
    answer = await untouched.ask("POST", PATH, {"name": "x", "command": "cat", **change})
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["pointer"] == pointer
    assert words in error["detail"]


async def test_what_is_odd_and_allowed(rig):
    odd: list[dict[str, Any]] = [
        {"sandbox": {"mode": "require", "require": EVERY, "network": "web"}},
        {"sandbox": {"mode": "require", "require": ["files"], "network": "host"}},
        {"sandbox": {"mode": "off", "network": "host"}},
        {"sandbox": {"mode": "require", "require": ["network"], "network": allowed("db.internal:5432")}},
        {
            "sandbox": {
                "network": allowed("10.20.0.0/16:443", "[fd00::7]:1", "db.example.com:5432@10.20.0.0/16", web=True)
            }
        },
        {
            "sandbox": {
                "read": ["/tmp/homes", "/process", "/srv/..x", "/ü", "/etc/ssl"],
                "write": [f"/{each}" for each in range(64)],
            }
        },
        {"limits": dict.fromkeys(LIMITS)},
        {"limits": {"memory_mb": 16, "pids": 1, "cpu": 1, "files": 16, "disk_mb": 1}},
        {"state": "keep", "recovery": "respawn"},
    ]
    for number, members in enumerate(odd):
        answer = await rig.ask("POST", PATH, {"name": f"x{number}", "command": "cat", **members})
        assert answer.status_code == 201, answer.text
        for name, value in members.items():
            shown = answer.json()[name]
            assert shown == ({**DEFAULT, **value} if name == "sandbox" else value)
            assert (await rig.ask("GET", f"{PATH}/x{number}")).json()[name] == shown


async def test_a_merge_patch_changes_what_it_names_and_makes_a_new_version(rig):
    steps: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"sandbox": {"mode": "off"}}, {"sandbox": {**DEFAULT, "mode": "off"}}),
        ({"sandbox": {"read": ["/a"]}}, {"sandbox": {**DEFAULT, "mode": "off", "read": ["/a"]}}),
        ({"sandbox": {"read": ["/b"], "mode": None}}, {"sandbox": {**DEFAULT, "read": ["/b"]}}),
        ({"sandbox": {"read": None, "network": "web"}}, {"sandbox": {**DEFAULT, "network": "web"}}),
        ({"sandbox": {"network": {"allow": ["a:1"]}}}, {"sandbox": {**DEFAULT, "network": allowed("a:1")}}),
        ({"sandbox": {"network": {"web": True}}}, {"sandbox": {**DEFAULT, "network": allowed("a:1", web=True)}}),
        ({"sandbox": {"network": {"allow": ["b:2"]}}}, {"sandbox": {**DEFAULT, "network": allowed("b:2", web=True)}}),
        ({"sandbox": {"network": {"web": None}}}, {"sandbox": {**DEFAULT, "network": allowed("b:2")}}),
        ({"sandbox": {"network": "none"}}, {"sandbox": DEFAULT}),
        ({"sandbox": {"network": {"allow": ["a:1"]}}}, {"sandbox": {**DEFAULT, "network": allowed("a:1")}}),
        ({"sandbox": None}, {"sandbox": DEFAULT}),
        ({"limits": {"memory_mb": None, "pids": 9}}, {"limits": {**LIMITS, "memory_mb": None, "pids": 9}}),
        ({"limits": {"cpu": 2}}, {"limits": {**LIMITS, "memory_mb": None, "pids": 9, "cpu": 2.0}}),
        ({"limits": None}, {"limits": LIMITS}),
        ({"state": "keep"}, {"state": "keep"}),
        ({"start": "auto"}, {"start": "auto"}),
        ({"state": None}, {"state": "none"}),
    ]
    for version, (patch, shown) in enumerate(steps, start=2):
        answer = (await rig.ask("PATCH", PATH + "/echo", patch)).json()
        assert answer["version"] == version
        assert {name: answer[name] for name in shown} == shown
        assert (await rig.ask("PATCH", PATH + "/echo", patch)).json() == answer
    assert len(rig.heard) == len(steps)


async def test_what_does_not_go_together_is_refused_after_a_patch_too(rig):
    await rig.ask("PATCH", PATH + "/echo", {"state": "keep", "limits": {"pids": None}})
    before = await rig.admin.backends.get("acme", "echo")
    for patch in ({"warm": 1}, {"isolation": "shared"}, {"sandbox": {"require": ["files"]}}, {"limits": {"pids": 0}}):
        assert (await rig.ask("PATCH", PATH + "/echo", patch)).status_code == 422
    assert await rig.admin.backends.get("acme", "echo") == before
    await rig.ask("PATCH", PATH + "/echo", {"warm": 2, "state": "none"})
    assert (await rig.admin.backends.get("acme", "echo")).limits.pids is None


@pytest.mark.parametrize(
    "member",
    [
        *({"sandbox": {"mode": mode}} for mode in ("off", "auto", "require")),
        *({"sandbox": {"network": network}} for network in ("none", "web", "host")),
        {"sandbox": {"read": ["/srv"]}}, {"sandbox": {"write": ["/srv"]}}, {"sandbox": None}, {"sandbox": {}},
        {"limits": {"memory_mb": 16}}, {"limits": None}, {"state": "keep"}, {"state": None},
        {"command": "sh"}, {"args": []}, {"env": {}}, {"cwd": "/"},
    ],
)  # fmt: skip
async def test_only_the_platform_says_what_runs_and_how_it_is_confined(untouched, member):
    before = await untouched.admin.backends.get("acme", "echo")
    key = await untouched.key("acme", "tenant:admin", "metrics:read")
    new = {"name": "x", "command": "cat", **member}
    asked = [("PATCH", "/echo", member)] + [("POST", "", new)] * (None not in member.values())
    for method, path, body in asked:
        answer = await untouched.ask(method, PATH + path, body, key=key)
        problem = answer.json()
        assert (answer.status_code, problem["reason"]) == (403, "insufficient_scope")
        assert "platform:admin" in problem["detail"]
    assert await untouched.admin.backends.get("acme", "echo") == before


async def test_a_tenant_s_administrator_allows_what_the_platform_lists_for_the_tenant(rig):
    key, path = await rig.key("acme", "tenant:admin", "metrics:read"), PATH + "/echo"
    listed = ["db.internal:5432", "10.20.0.0/16:443", "127.0.0.0/8:6000"]

    async def asked(network: Any, **more: Any) -> tuple[int, str]:
        answer = await rig.ask("PATCH", path, {"sandbox": {"network": network}, **more}, key=key)
        return answer.status_code, answer.json().get("detail", "")

    assert (await asked(allowed("db.internal:5432")))[0] == 403
    refused = await rig.ask("PATCH", "/api/v1/tenants/acme", {"network_allow": listed}, key=key)
    assert refused.status_code == 403
    assert (await rig.ask("PATCH", "/api/v1/tenants/acme", {"network_allow": listed})).json()["network_allow"] == listed
    given = ("db.internal:5432", "10.20.3.0/24:443", "127.0.0.1:6000")
    assert await asked(allowed(*given)) == (200, "")
    for network, lacking in (
        (allowed("db.internal:5433"), "db.internal:5433"),
        (allowed("db.internal:5432", "10.0.0.0/8:443"), "10.0.0.0/8:443"),
        (allowed("db.internal:5432@10.0.0.0/8"), "db.internal:5432@10.0.0.0/8"),
        (allowed("localhost:6000"), "localhost:6000"),
    ):
        status, detail = await asked(network)
        assert (status, detail) == (
            403, f"this needs the scope platform:admin: the tenant's `network_allow` does not have {lacking}",
        )  # fmt: skip
    for other in ("web", "host", allowed("db.internal:5432", web=True)):
        assert (await asked(other))[0] == 403
    assert (await asked(allowed("db.internal:5432"), state="keep"))[0] == 403
    assert (
        await rig.ask("PATCH", path, {"sandbox": {"network": "none", "read": ["/srv"]}}, key=key)
    ).status_code == 403
    await rig.ask("PATCH", "/api/v1/tenants/acme", {"network_allow": None})
    assert await asked(allowed("db.internal:5432")) == (200, "")  # what it has may stay, and be taken away
    assert await asked("none") == (200, "")
    assert (await asked(allowed("db.internal:5432")))[0] == 403
    changes = [each for act in await rig.trail("acme") if act.action == "backend.change" for each in act.changes]
    assert ("sandbox.network.allow", None, [*given]) in [(each.member, each.old, each.new) for each in changes]


async def test_the_audit_trail_names_each_member_that_changed(rig):
    patch = {"sandbox": {"network": "web", "read": ["/srv"]}, "limits": {"memory_mb": 1000}, "state": "keep"}
    await rig.ask("PATCH", PATH + "/echo", patch)
    (act,) = await rig.trail("acme")
    assert {each.member: (each.old, each.new) for each in act.changes} == {
        "sandbox.network": ("none", "web"),
        "sandbox.read": ([], ["/srv"]),
        "limits.memory_mb": (LIMITS["memory_mb"], 1000),
        "state": ("none", "keep"),
    }


async def test_a_backend_knows_whether_its_tenant_is_exempt(rig):
    await rig.ask("PATCH", "/api/v1/tenants/acme", {"sandbox_exempt": True})
    await rig.ask("PATCH", PATH + "/echo", {"limits": {"pids": 9}})
    spec = await rig.admin.backends.get("acme", "echo")
    assert (spec.sandbox_exempt, spec.version) == (True, 3)
    assert (await rig.ask("PATCH", PATH + "/echo", {"limits": {"pids": 9}})).json()["version"] == 3
    assert "sandbox_exempt" not in (await rig.ask("GET", PATH + "/echo")).json()
