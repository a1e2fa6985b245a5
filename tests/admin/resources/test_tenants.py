"""/api/v1/tenants"""

import pytest

from app.cluster.node_status.limits_use import LimitsUse

NO_LIMITS = dict.fromkeys(
    (
        "sessions",
        "processes",
        "in_flight",
        "requests_per_second",
        "burst",
        "memory_mb",
        "spawns_per_minute",
        "parked_sessions",
        "frozen_sessions",
    )
)
ON = {
    "enabled": True,
    "reason": "",
    "sandbox_exempt": False,
    "registry": "off",
    "inspections": "allowed",
    "network_allow": [],
    "packages_allow": [],
    "sign_in": None,
}
DEFAULTS = {
    "sessions": 100,
    "sessions_per_principal": None,
    "processes": 50,
    "in_flight": None,
    "requests_per_second": 50.0,
    "burst": 100,
    "memory_mb": None,
    "spawns_per_minute": None,
    "parked_sessions": 1000,
    "frozen_sessions": 1000,
}

UNUSED = {
    "sessions": 0, "sessions_per_principal": 0, "processes": 0, "in_flight": 0, "memory_mb": 0.0,
    "spawns_per_minute": 0, "parked_sessions": 0, "frozen_sessions": 0, "silent_nodes": [],
}  # fmt: skip


async def test_creating_answers_201_with_the_object_and_its_address(rig):
    answer = await rig.ask("POST", "/api/v1/tenants", {"name": "bench", "limits": NO_LIMITS})
    assert answer.status_code == 201
    limits = {**NO_LIMITS, "sessions_per_principal": None}
    assert answer.json() == {"name": "bench", "limits": limits, **ON, "version": 1}
    assert (await rig.ask("GET", answer.headers["Location"])).json() == {**answer.json(), "use": UNUSED}


async def test_what_is_taken_of_the_limits_stands_beside_them_and_changes_no_tag(rig):
    before = await rig.ask("GET", "/api/v1/tenants/acme")
    rig.node.taken["acme"] = LimitsUse(3, 2, 1, 3 << 19, (("a", 2), ("b", 1)), 7, 1, 2)
    rig.node.silent.append("n2")
    answer = await rig.ask("GET", "/api/v1/tenants/acme")
    assert answer.json()["use"] == {
        "sessions": 3, "sessions_per_principal": 2, "processes": 2, "in_flight": 1, "memory_mb": 1.5,
        "spawns_per_minute": 7, "parked_sessions": 1, "frozen_sessions": 2,
        "silent_nodes": ["n2"],
    }  # fmt: skip
    assert answer.headers["etag"] == before.headers["etag"]
    changed = await rig.ask(
        "PATCH", "/api/v1/tenants/acme", {"limits": {"burst": 1}}, headers={"If-Match": answer.headers["etag"]}
    )
    assert changed.status_code == 200
    assert "use" not in changed.json()


async def test_what_is_left_out_has_its_default(rig):
    answer = await rig.ask("POST", "/api/v1/tenants", {"name": "new", "limits": {"sessions": None, "burst": 7}})
    assert answer.json()["limits"] == {**DEFAULTS, "sessions": None, "burst": 7}


async def test_a_taken_name_is_409(rig):
    answer = await rig.ask("POST", "/api/v1/tenants", {"name": "acme"})
    assert (answer.status_code, answer.json()["reason"]) == (409, "conflict")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "#/name"),
        ({"name": "UPPER"}, "#/name"),
        ({"name": "a\n"}, "#/name"),
        ({"name": "a" * 64}, "#/name"),
        ({"name": 1}, "#/name"),
        ({"name": "a", "nmae": 1}, "#/nmae"),
        ({"name": "a", "limits": {"sessions": "5"}}, "#/limits/sessions"),
        ({"name": "a", "limits": {"sessions": 1.0}}, "#/limits/sessions"),
        ({"name": "a", "limits": {"sessions": True}}, "#/limits/sessions"),
        ({"name": "a", "limits": {"sessions": -1}}, "#/limits/sessions"),
        ({"name": "a", "limits": {"processes": 10**30}}, "#/limits/processes"),
        ({"name": "a", "limits": {"requests_per_second": float("inf")}}, "#/limits/requests_per_second"),
        ({"name": "a", "limits": {"requests_per_second": float("nan")}}, "#/limits/requests_per_second"),
        ({"name": "a", "limits": None}, "#/limits"),
        ([], "#"),
    ],
)
async def test_a_body_that_does_not_fit_is_422_and_says_where(untouched, body, pointer):
    answer = await untouched.ask("POST", "/api/v1/tenants", body)
    assert answer.status_code == 422
    assert pointer in [error["pointer"] for error in answer.json()["errors"]]


async def test_a_merge_patch_changes_what_it_names_and_null_is_no_limit(rig):
    path = "/api/v1/tenants/acme"
    changed = (await rig.ask("PATCH", path, {"limits": {"sessions": None, "burst": 5}})).json()
    assert changed == {"name": "acme", "limits": {**DEFAULTS, "sessions": None, "burst": 5}, **ON, "version": 2}
    assert (await rig.ask("GET", path)).json() == {**changed, "use": UNUSED}
    assert (await rig.ask("PATCH", path, {})).json() == changed
    assert (await rig.ask("PATCH", path, {"limits": {"burst": 5}})).json() == changed
    assert (await rig.ask("PATCH", path, {"limits": None})).json()["limits"] == DEFAULTS
    assert rig.heard == [("tenant", "acme")] * 2


async def test_a_platform_administrator_exempts_a_tenant_from_the_rule_about_sandboxes(rig):
    path = "/api/v1/tenants/acme"
    key = await rig.key("acme", "tenant:admin", "metrics:read")
    for value in (True, False, None):
        refused = await rig.ask("PATCH", path, {"sandbox_exempt": value}, key=key)
        assert (refused.status_code, refused.json()["reason"]) == (403, "insufficient_scope")
        assert "platform:admin" in refused.text
    assert (await rig.ask("PATCH", path, {"sandbox_exempt": True})).json()["sandbox_exempt"] is True
    assert (await rig.ask("GET", path, key=key)).json()["sandbox_exempt"] is True
    assert (await rig.ask("PATCH", path, {"limits": {"burst": 5}})).json()["sandbox_exempt"] is True
    assert (await rig.ask("PATCH", path, {"sandbox_exempt": None})).json()["sandbox_exempt"] is False
    (pointer,) = (await rig.ask("PATCH", path, {"sandbox_exempt": 1})).json()["errors"]
    assert pointer["pointer"] == "#/sandbox_exempt"
    on, _, off = (act.changes for act in await rig.trail("acme") if act.action == "tenant.change")
    assert [(each.member, each.old, each.new) for each in (*on, *off)] == [
        ("sandbox_exempt", False, True),
        ("sandbox_exempt", True, False),
    ]
    made = await rig.ask("POST", "/api/v1/tenants", {"name": "new", "sandbox_exempt": True})
    assert made.json()["sandbox_exempt"] is True


async def test_the_media_type_of_merge_patches_is_understood(rig):
    headers = {"Content-Type": "application/merge-patch+json"}
    answer = await rig.ask("PATCH", "/api/v1/tenants/acme", {"limits": {"burst": 1}}, headers=headers)
    assert answer.json()["limits"]["burst"] == 1


async def test_a_name_cannot_be_changed(untouched):
    assert (await untouched.ask("PATCH", "/api/v1/tenants/acme", {"name": "b"})).status_code == 422


async def test_deleting_takes_everything_along_and_tells_the_node(rig):
    assert (await rig.ask("DELETE", "/api/v1/tenants/acme")).status_code == 204
    assert (await rig.ask("GET", "/api/v1/tenants/acme")).status_code == 404
    assert (await rig.ask("DELETE", "/api/v1/tenants/acme")).status_code == 404
    assert rig.heard == [("tenant gone", "acme")]


async def test_the_default_tenant_stays(rig):
    assert (await rig.ask("DELETE", "/api/v1/tenants/default")).status_code == 409
    assert rig.heard == []


async def test_pages_follow_each_other_by_cursor(rig):
    first = (await rig.ask("GET", "/api/v1/tenants?limit=2")).json()
    assert [tenant["name"] for tenant in first["items"]] == ["acme", "default"]
    second = (await rig.ask("GET", f"/api/v1/tenants?limit=2&cursor={first['next_cursor']}")).json()
    assert [tenant["name"] for tenant in second["items"]] == ["zenith"]
    assert second["next_cursor"] is None


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=201", "limit=x", "cursor=!", "cursor=YQ=", "cursor=AA", "cursor=_w", "cursor=" + "a" * 129],
)
async def test_a_wrong_page_is_422(untouched, query):
    answer = await untouched.ask("GET", f"/api/v1/tenants?{query}")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["parameter"] == query.partition("=")[0]


async def test_a_tenants_reader_sees_its_own(rig):
    reader = await rig.key("acme", "tenant:read")
    assert (await rig.ask("GET", "/api/v1/tenants/acme", key=reader)).json()["name"] == "acme"
    assert (await rig.ask("GET", "/api/v1/tenants", key=reader)).status_code == 403


async def test_a_deleted_tenants_keys_die_with_it(rig):
    admin = await rig.key("acme", "tenant:admin")
    assert (await rig.ask("GET", "/api/v1/tenants/acme", key=admin)).status_code == 200
    assert (await rig.ask("DELETE", "/api/v1/tenants/acme")).status_code == 204
    assert (await rig.ask("GET", "/api/v1/tenants/acme", key=admin)).status_code == 401


# --- sign_in

SIGN_IN = {"registration": True, "documents": True, "allow_hosts": [], "block_hosts": [], "again_after_days": 7}


async def test_sign_in_is_off_until_it_is_there_and_null_turns_it_off(rig):
    path = "/api/v1/tenants/acme"
    assert (await rig.ask("GET", path)).json()["sign_in"] is None
    assert (await rig.ask("PATCH", path, {"sign_in": {}})).json()["sign_in"] == SIGN_IN
    assert (await rig.ask("GET", path)).json()["sign_in"] == SIGN_IN
    assert (await rig.ask("PATCH", path, {"sign_in": None})).json()["sign_in"] is None
    assert rig.heard == [("tenant", "acme")] * 2
    made = await rig.ask("POST", "/api/v1/tenants", {"name": "new", "sign_in": {"registration": False}})
    assert made.json()["sign_in"] == {**SIGN_IN, "registration": False}


async def test_members_of_sign_in_merge_and_null_is_their_default(rig):
    path = "/api/v1/tenants/acme"
    hosts = {"allow_hosts": ["claude.ai", "*.example.com"], "again_after_days": 30}
    assert (await rig.ask("PATCH", path, {"sign_in": hosts})).json()["sign_in"] == {**SIGN_IN, **hosts}
    less = (await rig.ask("PATCH", path, {"sign_in": {"documents": False, "again_after_days": None}})).json()
    assert less["sign_in"] == {**SIGN_IN, "allow_hosts": hosts["allow_hosts"], "documents": False}
    assert (await rig.ask("PATCH", path, {"limits": {"burst": 5}})).json()["sign_in"] == less["sign_in"]
    on, off, _ = (act.changes for act in await rig.trail("acme") if act.action == "tenant.change")
    assert {each.member for each in on} == {f"sign_in.{name}" for name in SIGN_IN}
    assert [(each.member, each.old, each.new) for each in off] == [
        ("sign_in.documents", True, False),
        ("sign_in.again_after_days", 30, 7),
    ]


@pytest.mark.parametrize(
    ("sign_in", "pointer"),
    [
        ({"again_after_days": 0}, "#/sign_in/again_after_days"),
        ({"again_after_days": 366}, "#/sign_in/again_after_days"),
        ({"allow_hosts": ["https://claude.ai"]}, "#/sign_in/allow_hosts/0"),
        ({"block_hosts": ["UPPER.example"]}, "#/sign_in/block_hosts/0"),
        ({"allow_hosts": ["a.example"] * 101}, "#/sign_in/allow_hosts"),
        ({"registration": "yes"}, "#/sign_in/registration"),
        ({"open": True}, "#/sign_in/open"),
        (True, "#/sign_in"),
    ],
)
async def test_what_cannot_be_sign_in_is_422_and_says_where(untouched, sign_in, pointer):
    for method, path, body in (("PATCH", "/acme", {}), ("POST", "", {"name": "new"})):
        answer = await untouched.ask(method, f"/api/v1/tenants{path}", {**body, "sign_in": sign_in})
        assert answer.status_code == 422
        assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]


async def test_administrators_of_a_tenant_change_its_sign_in_and_inspections_and_nothing_else(rig):
    path, admin = "/api/v1/tenants/acme", await rig.key("acme", "tenant:admin")
    sign_in = {"allow_hosts": ["claude.ai"]}
    assert (await rig.ask("PATCH", path, {"sign_in": sign_in}, key=admin)).json()["sign_in"] == {**SIGN_IN, **sign_in}
    both = {"sign_in": {"documents": False}, "inspections": "metadata"}
    assert (await rig.ask("PATCH", path, both, key=admin)).json()["inspections"] == "metadata"
    for body in (
        {"sign_in": None, "inspections": "allowed"},
        {"sign_in": None, "limits": {"burst": 1}},
        {"sign_in": None, "enabled": True},
        {"sign_in": None, "registry": "public"},
        {},
    ):
        refused = await rig.ask("PATCH", path, body, key=admin)
        assert (refused.status_code, refused.json()["reason"]) == (403, "insufficient_scope"), body
    assert (await rig.ask("GET", path)).json()["sign_in"] == {**SIGN_IN, **sign_in, "documents": False}
    assert (await rig.ask("PATCH", path, {"sign_in": None}, key=admin)).json()["sign_in"] is None
    for key in (await rig.key("acme", "tenant:read"), await rig.key("acme", "mcp:connect")):
        assert (await rig.ask("PATCH", path, {"sign_in": {}}, key=key)).status_code == 403
    elsewhere = await rig.key("zenith", "tenant:admin")
    assert (await rig.ask("PATCH", path, {"sign_in": {}}, key=elsewhere)).status_code == 404
