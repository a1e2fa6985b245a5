"""…/issuers with `tenants`: who makes them, what each tenant sees of them, and whom a change concerns"""

import time
from typing import Any

import pytest

from tests.admin.rig import Rig
from tests.auth import tokens
from tests.auth.tokens import ISS

PATH = "/api/v1/issuers"
IN_ACME, IN_ZENITH = "/api/v1/tenants/acme/issuers", "/api/v1/tenants/zenith/issuers"
BODY = {
    "issuer": ISS, "algorithms": ["RS256"], "jwks_url": ISS + "/jwks", "audience": ["api://gw"],
    "max_scopes": ["mcp:connect", "tenant:admin"],
    "tenants": {
        "claim": "groups",
        "map": {"z": "zenith", "a": {"tenant": "acme"}, "aa": {"tenant": "acme", "scopes": ["tenant:admin"]}},
    },
}  # fmt: skip
SHOWN = {
    "a": {"tenant": "acme", "scopes": []},
    "aa": {"tenant": "acme", "scopes": ["tenant:admin"]},
    "z": {"tenant": "zenith", "scopes": []},
}


async def made(rig: Rig, **more: Any) -> dict[str, Any]:
    answer = await rig.ask("POST", PATH, {**BODY, **more})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def heard(rig: Rig) -> list[str]:
    """The tenants in which the node was told to look at the issuer anew, since the last time."""
    told = [about[0] for kind, *about in rig.heard if kind == "issuer" and about[1] == ISS]
    rig.heard.clear()
    return told


async def test_it_is_shown_as_it_was_made_and_each_tenant_sees_what_concerns_it(rig):
    answer = await rig.ask("POST", PATH, BODY)
    whole = answer.json()
    assert whole["tenants"] == {"claim": "groups", "map": SHOWN}
    shown = await rig.ask("GET", f"{PATH}/{whole['id']}")
    assert shown.headers["ETag"] == answer.headers["ETag"]
    assert {**shown.json(), "warnings": []} == whole
    for path, tenant in ((IN_ACME, "acme"), (IN_ZENITH, "zenith")):
        reader = await rig.key(tenant, "tenant:read")
        (seen,) = (await rig.ask("GET", path, key=reader)).json()["items"]
        assert seen == (await rig.ask("GET", f"{path}/{whole['id']}", key=reader)).json()
        assert seen["tenant"] == "default"
        assert seen["tenants"]["map"] == {value: each for value, each in SHOWN.items() if each["tenant"] == tenant}
        other = "zenith" if tenant == "acme" else "acme"
        assert other not in str(seen)
    reader = await rig.key("default", "tenant:read")
    assert (await rig.ask("GET", PATH, key=reader)).json()["items"][0]["tenants"]["map"] == {}
    await rig.ask("POST", "/api/v1/tenants", {"name": "third"})
    third = await rig.key("third", "tenant:admin")
    assert (await rig.ask("GET", "/api/v1/tenants/third/issuers", key=third)).json()["items"] == []
    unseen = [f"/api/v1/tenants/third/issuers/{each}" for each in (whole["id"], "0" * 16)]
    answers = [await rig.ask("GET", each, key=third) for each in unseen]
    assert {(each.status_code, each.content) for each in answers} == {(404, answers[0].content)}


@pytest.mark.parametrize(
    ("tenant", "held", "status"),
    [
        ("default", ["platform:admin"], 201),
        ("default", ["tenant:admin"], 403),
        ("default", ["tenant:admin", "tenant:read", "metrics:read"], 403),
        ("acme", ["tenant:admin"], 403),
        ("acme", ["tenant:admin", "platform:admin"], 403),
    ],
)
async def test_only_the_platforms_administrators_make_one(rig, tenant, held, status):
    key = await rig.key(tenant, *held)
    body = {**BODY, "max_scopes": ["mcp:connect"], "tenants": {"claim": "groups", "map": {"a": "acme"}}}
    answer = await rig.ask("POST", f"/api/v1/tenants/{tenant}/issuers", body, key=key)
    assert answer.status_code == status, answer.text
    assert bool(heard(rig)) is (status == 201)


async def test_it_stands_in_the_default_tenant_only(rig):
    answer = await rig.ask("POST", IN_ACME, BODY)
    assert (answer.status_code, "/api/v1/issuers" in answer.text) == (422, True)


async def test_who_administers_a_tenant_that_it_opens_can_neither_change_nor_remove_nor_replace_it(rig):
    issuer = (await made(rig))["id"]
    heard(rig)
    for tenant, path in (("acme", IN_ACME), ("default", PATH)):
        admin = await rig.key(tenant, "tenant:admin")
        for patch in (
            {"audience": ["x"]},
            {"tenants": {"map": {"evil": tenant}}},
            {"jwks_url": "https://evil.example.com/"},
        ):
            assert (await rig.ask("PATCH", f"{path}/{issuer}", patch, key=admin)).status_code == 403
        assert (await rig.ask("DELETE", f"{path}/{issuer}", key=admin)).status_code == 403
        own = {"issuer": ISS, "algorithms": ["HS256"], "secret": "s" * 32}
        answer = await rig.ask("POST", path, own, key=admin)
        assert answer.status_code == 409, answer.text
    for method, body in (("PATCH", {"audience": ["x"]}), ("DELETE", None)):
        assert (await rig.ask(method, f"{IN_ACME}/{issuer}", body)).status_code == 422
    assert (await rig.ask("GET", f"{PATH}/{issuer}")).json()["version"] == 1
    assert heard(rig) == []


async def test_a_tenant_with_an_issuer_of_this_name_is_not_taken_over_unseen(rig):
    own = {"issuer": ISS, "algorithms": ["HS256"], "secret": "s" * 32}
    assert (await rig.ask("POST", IN_ACME, own)).status_code == 201
    answer = await rig.ask("POST", PATH, BODY)
    assert (answer.status_code, "acme" in answer.json()["detail"]) == (409, True)
    assert (await rig.ask("GET", PATH)).json()["items"] == []


@pytest.mark.parametrize(
    "tenants",
    [
        {},
        {"claim": "groups"},
        {"map": {"a": "acme"}},
        {"claim": "", "map": {}},
        {"claim": "groups", "map": {"a": "nobody"}},
        {"claim": "groups", "map": {"a": "NO"}},
        {"claim": "groups", "map": {"a": 7}},
        {"claim": "groups", "map": {"a": ["acme"]}},
        {"claim": "groups", "map": {"": "acme"}},
        {"claim": "groups", "map": {"a" * 257: "acme"}},
        {"claim": "groups", "map": {"a": {"tenant": "acme", "scopes": ["everything"]}}},
        {"claim": "groups", "map": {"a": {"tenant": "acme", "scopes": ["audit:read", "metrics:read"]}}},
        {"claim": "groups", "map": {"a": {"tenant": "acme", "scopes": ["platform:admin"]}}},
        {"claim": "groups", "map": {"a": {"scopes": []}}},
        {"claim": "groups", "map": {"a": {"tenant": "acme", "more": 1}}},
        {"claim": "groups", "map": {str(number): "acme" for number in range(201)}},
        "groups",
    ],
)
async def test_a_list_that_does_not_fit_is_422(rig, tenants):
    answer = await rig.ask("POST", PATH, {**BODY, "max_scopes": ["mcp:connect", "platform:admin"], "tenants": tenants})
    assert answer.status_code == 422, answer.text


async def test_platform_scopes_are_conferred_in_the_default_tenant_only(rig):
    tenants = {"claim": "groups", "map": {"r": {"tenant": "default", "scopes": ["platform:admin"]}}}
    await made(rig, tenants=tenants, max_scopes=["platform:admin"])


async def test_one_tenant_in_a_claim_does_not_go_with_a_list(rig):
    answer = await rig.ask("POST", PATH, {**BODY, "claims": {"tenant": "org"}})
    assert answer.status_code == 422


async def test_what_it_is_it_stays(rig):
    platforms = await made(rig)
    answer = await rig.ask("PATCH", f"{PATH}/{platforms['id']}", {"tenants": None})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "#/tenants")
    plain = await rig.ask("POST", PATH, {**BODY, "issuer": ISS + "/2", "tenants": None})
    assert plain.status_code == 201
    path = f"{PATH}/{plain.json()['id']}"
    assert (await rig.ask("PATCH", path, {"tenants": BODY["tenants"]})).status_code == 422
    assert (await rig.ask("GET", path)).json()["tenants"] is None


# --- whom a change concerns


@pytest.mark.parametrize(
    ("patch", "told", "word"),
    [
        ({"tenants": {"map": {"z": None}}}, ["zenith"], "issuer.tenants"),
        ({"tenants": {"map": {"a2": "acme"}}}, ["acme"], "issuer.tenants"),
        ({"tenants": {"map": {"aa": {"scopes": []}}}}, ["acme"], "issuer.tenants"),
        ({"tenants": {"map": {"z": "acme"}}}, ["acme", "zenith"], "issuer.tenants"),
        ({"tenants": {"map": {"d": "default"}}}, ["default"], "issuer.change"),
        ({"tenants": {"claim": "roles"}}, ["default", "acme", "zenith"], "issuer.change"),
        ({"audience": ["x"]}, ["default", "acme", "zenith"], "issuer.change"),
        ({"claims": {"groups": "g", "map": {}}}, ["default", "acme", "zenith"], "issuer.change"),
        ({"tenants": {"map": {"z": {"tenant": "zenith"}}}}, [], None),
    ],
)
async def test_a_change_is_told_to_the_tenants_that_it_concerns_and_to_no_other(rig, patch, told, word):
    issuer = (await made(rig))["id"]
    assert heard(rig) == ["default", "acme", "zenith"]
    before = await rig.trail()
    assert (await rig.ask("PATCH", f"{PATH}/{issuer}", patch)).status_code == 200
    assert heard(rig) == told
    acts = (await rig.trail())[len(before) :]
    written = {act.tenant: act for act in acts}
    assert set(written) == ({"default", *told} if word else set())
    for tenant, act in written.items():
        assert (act.target, act.detail) == (f"issuers/{issuer}", ISS)
        assert act.action == (word if tenant == "default" else "issuer.change")
        others = {"acme", "zenith"} - {tenant}
        assert tenant == "default" or not [each for each in others if each in str(act.changes)]


async def test_its_removal_is_told_to_all(rig):
    issuer = (await made(rig))["id"]
    heard(rig)
    assert (await rig.ask("DELETE", f"{PATH}/{issuer}")).status_code == 204
    assert heard(rig) == ["default", "acme", "zenith"]
    for tenant in ("default", "acme", "zenith"):
        assert (await rig.trail(tenant))[-1].action == "issuer.delete"
    assert (await rig.ask("GET", IN_ACME)).json()["items"] == []


async def test_a_removed_tenant_is_gone_from_the_list_and_the_rest_can_be_changed(rig):
    issuer = (await made(rig))["id"]
    assert (await rig.ask("DELETE", "/api/v1/tenants/zenith")).status_code == 204
    assert set((await rig.ask("GET", f"{PATH}/{issuer}")).json()["tenants"]["map"]) == {"a", "aa"}
    assert (await rig.ask("PATCH", f"{PATH}/{issuer}", {"audience": ["x"]})).status_code == 200
    assert (await rig.ask("DELETE", "/api/v1/tenants/acme")).status_code == 204
    assert (await rig.ask("PATCH", f"{PATH}/{issuer}", {"audience": ["y"]})).json()["tenants"]["map"] == {}


# --- its check


def token(**changes: Any) -> str:
    now = int(time.time())
    return tokens.token(**{"iat": now, "exp": now + 600, "aud": "api://gw", **changes})


async def test_who_administers_a_tenant_checks_what_a_token_opens_there(rig):
    issuer, admin = (await made(rig))["id"], await rig.key("acme", "tenant:admin")
    path = f"{IN_ACME}/{issuer}:check"
    answer = (await rig.ask("POST", path, {"token": token(groups=["aa", "z"])}, key=admin)).json()
    assert (answer["ok"], answer["granted_scopes"], answer["tenants"]) == (True, ["mcp:connect", "tenant:admin"], None)
    answer = (await rig.ask("POST", path, {"token": token(groups=["z"])}, key=admin)).json()
    (wrong,) = [rule for rule in answer["rules"] if rule["passed"] is False]
    assert (wrong["rule"], wrong["expected"], wrong["actual"]) == ("tenant", {"groups": ["a", "aa"]}, ["z"])
    assert answer["granted_scopes"] is None
    assert "zenith" not in str(answer)
    answer = (await rig.ask("POST", path, {"token": token(_claim_names={"groups": "src1"})}, key=admin)).json()
    assert "too many" in next(rule["hint"] for rule in answer["rules"] if rule["rule"] == "tenant")


async def test_who_administers_the_platform_sees_each_tenant_that_a_token_opens(rig):
    path = f"{PATH}/{(await made(rig))['id']}:check"
    answer = (await rig.ask("POST", path, {"token": token(groups=["aa", "z", "x"])})).json()
    assert answer["ok"] is True
    assert answer["tenants"] == {"acme": ["mcp:connect", "tenant:admin"], "zenith": ["mcp:connect"]}
    assert answer["granted_scopes"] is None
    for groups in (["x"], [], 7):
        answer = (await rig.ask("POST", path, {"token": token(groups=groups)})).json()
        (wrong,) = [rule for rule in answer["rules"] if rule["passed"] is False]
        assert (wrong["rule"], wrong["expected"]) == ("tenant", {"groups": ["a", "aa", "z"]})
        assert answer["tenants"] is None
    reader = await rig.key("default", "tenant:admin")
    answer = (await rig.ask("POST", path, {"token": token(groups=["z"])}, key=reader)).json()
    assert (answer["ok"], "zenith" in str(answer)) == (False, False)


async def test_a_tenant_in_which_somebody_is_switched_off_is_none_that_the_token_opens(rig):
    path, text = f"{PATH}/{(await made(rig))['id']}:check", token(groups=["a", "z"])
    for tenant, opened in (("zenith", {"acme"}), ("acme", set())):
        off = {"issuer": ISS, "subject": "alice", "enabled": False}
        assert (await rig.ask("PATCH", f"/api/v1/tenants/{tenant}/principals", off)).status_code == 200
        answer = (await rig.ask("POST", path, {"token": text})).json()
        assert (answer["ok"], set(answer["tenants"])) == (bool(opened), opened)
        assert tenant in answer["rules"][-1]["actual"]


async def test_without_an_audience_it_is_asked_below_a_tenant(rig):
    issuer = (await made(rig, audience=[]))["id"]
    answer = await rig.ask("POST", f"{PATH}/{issuer}:check", {"token": token(groups=["a"])})
    assert (answer.status_code, "/tenants/{tenant}/" in answer.text) == (422, True)
    assert (await rig.ask("POST", f"{PATH}/{issuer}:check")).json()["ok"] is True
    mine = token(groups=["a"], aud="/t/acme/echo/mcp")
    assert (await rig.ask("POST", f"{IN_ACME}/{issuer}:check", {"token": mine})).json()["ok"] is True
