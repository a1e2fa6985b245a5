"""…/problems: what the nodes see, and what the database knows."""

from datetime import UTC, datetime, timedelta

from app.backends.catalog.entries import definition_of
from app.cluster.node_status.problems.problem import Problem
from app.domain import ApiKey
from app.storage.tools.approvals import Approvals, Judgement
from app.storage.tools.catalog import CatalogRepository

PATH = "/api/v1/tenants/acme/problems"
BREAKER = Problem(
    "breaker_open",
    "critical",
    ("backend", "echo"),
    "It ends.",
    "Repair it.",
    ("backend", "echo"),
    "acme",
    60.0,
    ("n1",),
)
REDIS = Problem(
    "redis", "critical", ("redis", "redis"), "10.0.0.7 is away.", "Look.", ("node", "n1"), None, 5.0, ("n1",)
)


async def test_a_problem_says_what_it_is_about_and_which_page_helps(rig):
    rig.node.wrong, rig.node.silent = [BREAKER], ["n2"]
    assert (await rig.ask("GET", PATH)).json() == {
        "items": [
            {
                "kind": "breaker_open", "severity": "critical", "tenant": "acme", "words": "It ends.",
                "do": "Repair it.", "about": {"kind": "backend", "name": "echo"}, "since": "1970-01-01T00:01:00Z",
                "nodes": ["n1"], "see": {"kind": "backend", "name": "echo"},
            }
        ],
        "total": 1,
        "silent_nodes": ["n2"],
    }  # fmt: skip


async def test_a_tenant_sees_no_other_and_nothing_of_the_nodes(rig):
    rig.node.wrong = [BREAKER, REDIS]
    mine = (await rig.ask("GET", "/api/v1/tenants/zenith/problems", key=await rig.key("zenith", "tenant:read"))).text
    assert "redis" in mine
    assert "echo" not in mine
    assert "10.0.0.7" not in mine
    assert '"n1"' not in mine
    assert (await rig.ask("GET", "/api/v1/problems")).json()["total"] == 2


async def add_key(rig, name: str, days: float, *, is_used: bool = True, tenant: str = "acme") -> str:
    made, now = rig.admin.key_maker.make(), datetime.now(UTC)
    used_at = now if is_used else None
    expires_at = now + timedelta(days=days)
    key = ApiKey(made.id, tenant, name, made.digest, 1, frozenset(), now, expires_at, None, used_at)
    await rig.admin.keys.create(tenant, key)
    return made.id


async def test_keys_in_use_that_expire_within_two_weeks_are_named(rig):
    soon, later = await add_key(rig, "ci", 1), await add_key(rig, "desk", 13)
    for days, is_used in ((15, True), (-1, True), (3, False)):
        await add_key(rig, "other", days, is_used=is_used)
    await add_key(rig, "theirs", 3, tenant="zenith")
    found = (await rig.ask("GET", PATH)).json()["items"]
    assert [(each["about"]["name"], each["severity"]) for each in found] == [(soon, "warning"), (later, "info")]
    assert f"The key {soon} (ci) is in use, and expires in 24 hours." == found[0]["words"]
    assert (await rig.ask("GET", "/api/v1/problems")).json()["total"] == 3


async def test_a_key_that_is_off_or_gone_expires_unnoticed(rig):
    off, gone = await add_key(rig, "off", 1), await add_key(rig, "gone", 1)
    assert (await rig.ask("GET", PATH)).json()["total"] == 2
    keys = "/api/v1/tenants/acme/keys"
    assert (await rig.ask("PATCH", f"{keys}/{off}", {"enabled": False})).is_success
    assert (await rig.ask("DELETE", f"{keys}/{gone}")).is_success
    assert (await rig.ask("GET", PATH)).json()["items"] == []
    await rig.ask("PATCH", f"{keys}/{off}", {"enabled": True})
    assert (await rig.ask("GET", PATH)).json()["total"] == 1
    await rig.ask("PATCH", "/api/v1/tenants/acme", {"enabled": False})
    assert (await rig.ask("GET", "/api/v1/problems")).json()["items"] == []


async def test_tools_that_wait_for_approval_are_counted(rig):
    spec = await rig.admin.backends.get("acme", "echo")
    pins = {name: {"status": status} for name, status in (("a", "changed"), ("b", "new"), ("c", "approved"))}
    nothing = Approvals(spec.pin, spec.pin_minor, {})
    catalog = CatalogRepository(rig.admin.backends._database)
    await catalog.put("acme", "echo", definition_of(spec), b"{}", Judgement(pins, nothing), datetime.now(UTC))
    assert (await rig.ask("GET", PATH)).json()["items"] == []  # nobody has pinned them
    await rig.ask("PATCH", "/api/v1/tenants/acme/backends/echo", {"pin": "block"})
    (found,) = (await rig.ask("GET", PATH)).json()["items"]
    assert (found["kind"], found["see"]) == ("tools_wait", {"kind": "backend", "name": "echo"})
    assert "1 is changed and 1 is new" in found["words"]
    for path in ("/api/v1/tenants/acme/backends/echo", "/api/v1/tenants/acme"):
        await rig.ask("PATCH", path, {"enabled": False})
        assert (await rig.ask("GET", "/api/v1/problems")).json()["items"] == []  # nobody is offered them
        await rig.ask("PATCH", path, {"enabled": True})
        assert (await rig.ask("GET", "/api/v1/problems")).json()["total"] == 1
    judged = Judgement({name: {"status": "approved"} for name in "abc"}, Approvals("block", spec.pin_minor, {}))
    await catalog.put("acme", "echo", definition_of(spec), b"{}", judged, datetime.now(UTC))
    assert (await rig.ask("GET", PATH)).json()["items"] == []
