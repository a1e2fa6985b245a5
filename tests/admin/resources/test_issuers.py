"""…/issuers"""

import pytest

from app.auth.issuer_rules import MAX_CLIENT_KEY
from app.auth.provider_client import client_secret_place
from app.auth.tokens import place_of
from app.domain.resources.backends import HIDDEN
from tests.auth.test_client_keys import P256, SHORT, pem, public, with_certificate
from tests.auth.test_jwks import RSA

PATH = "/api/v1/tenants/acme/issuers"
ISS = "https://idp.example.com"
RS = {"issuer": ISS, "algorithms": ["RS256", "ES256"], "jwks_url": ISS + "/jwks"}
SECRET = "correct horse battery staple, all 32 bytes of it"
HS = {"issuer": "hs", "algorithms": ["HS256"], "secret": SECRET}
SCOPES = ["mcp:connect", "mcp:connect:echo", "tenant:read", "tenant:admin", "audit:read", "metrics:read",
          "platform:admin"]  # fmt: skip


async def create(rig, body=None, path=PATH, **more):
    answer = await rig.ask("POST", path, {**(body or RS), **more})
    assert answer.status_code == 201, answer.text
    return answer


async def test_an_issuer_is_made_shown_listed_changed_and_removed_and_the_node_hears_of_each_change(rig):
    made = await create(rig)
    shown = made.json()
    assert shown.pop("warnings") == []
    assert shown == {
        **RS, "id": shown["id"], "tenant": "acme", "discovery_url": None, "audience": [], "version": 1,
        "claims": {"subject": "sub", "scopes": "scope", "tenant": None, "groups": None, "map": None},
        "max_scopes": ["mcp:connect"], "tenants": None, "sign_in": None, "created_at": shown["created_at"],
    }  # fmt: skip
    path = made.headers["Location"]
    assert (await rig.ask("GET", path)).json() == shown
    assert (await rig.ask("GET", PATH)).json() == {"items": [shown], "next_cursor": None}
    changed = (await rig.ask("PATCH", path, {"audience": ["api://gw"], "claims": {"tenant": "org"}})).json()
    assert changed == {
        **shown, "audience": ["api://gw"], "claims": {**shown["claims"], "tenant": "org"}, "version": 2, "warnings": [],
    }  # fmt: skip
    assert (await rig.ask("PATCH", path, {"audience": None, "claims": {"tenant": None}})).json() == {
        **shown,
        "version": 3,
        "warnings": [],
    }
    assert (await rig.ask("PATCH", path, {})).json()["version"] == 3
    assert (await rig.ask("DELETE", path)).status_code == 204
    assert (await rig.ask("GET", path)).status_code == 404
    assert rig.heard == [("issuer", "acme", ISS)] * 4


async def test_a_secret_is_stored_sealed_and_never_shown(rig):
    made = await create(rig, HS)
    path = made.headers["Location"]
    patched = await rig.ask("PATCH", path, {"audience": ["a"]})
    answers = [made, patched, await rig.ask("GET", path), await rig.ask("GET", PATH)]
    assert not [answer for answer in answers if SECRET in answer.text or '"secret"' in answer.text]
    issuers = rig.admin.issuers
    stored = await issuers.get("acme", made.json()["id"])
    assert SECRET.encode() not in stored.sealed_secret
    place = place_of("acme", "hs", stored.id)
    assert rig.admin.sealer.open(stored.sealed_secret, place) == SECRET.encode()
    await rig.ask("PATCH", path, {"secret": SECRET[::-1]})
    again = await issuers.get("acme", stored.id)
    assert rig.admin.sealer.open(again.sealed_secret, place) == SECRET[::-1].encode()
    assert SECRET not in str([vars(act) if hasattr(act, "__dict__") else repr(act) for act in await rig.trail()])


async def test_a_wrong_secret_is_not_repeated_in_the_complaint(rig):
    for secret in ("short", "-----BEGIN PUBLIC KEY-----\nMIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8A\n-----END PUBLIC KEY-----"):
        answer = await rig.ask("POST", PATH, {**HS, "secret": secret})
        assert answer.status_code == 422
        assert secret[:5] not in answer.text.replace("no public key", "")


async def test_a_secret_can_be_exchanged_for_a_url_and_back(rig):
    path = (await create(rig, HS)).headers["Location"]
    repository = rig.admin.issuers
    urls = {"algorithms": ["EdDSA"], "secret": None, "discovery_url": ISS + "/.well-known/openid-configuration"}
    assert (await rig.ask("PATCH", path, urls)).json()["discovery_url"] == urls["discovery_url"]
    assert (await repository.find("acme", "hs")).sealed_secret is None
    back = {"algorithms": ["HS256"], "secret": SECRET, "discovery_url": None}
    assert (await rig.ask("PATCH", path, back)).json()["discovery_url"] is None
    assert (await repository.find("acme", "hs")).sealed_secret is not None


WRONG = [
    ({"algorithms": []}, "#/algorithms"),
    ({"algorithms": ["none"]}, "#/algorithms/0"),
    ({"algorithms": ["HS512"]}, "#/algorithms/0"),
    ({"algorithms": ["ES256K"]}, "#/algorithms/0"),
    ({"algorithms": "RS256"}, "#/algorithms"),
    ({"algorithms": ["HS256"]}, "#"),
    ({"algorithms": ["HS256", "RS256"]}, "#"),
    ({"secret": SECRET}, "#"),
    ({"jwks_url": None}, "#"),
    ({"discovery_url": ISS}, "#"),
    ({"jwks_url": ""}, "#/jwks_url"),
    ({"jwks_url": "http://idp.example.com/jwks"}, "#/jwks_url"),
    ({"jwks_url": "https://127.0.0.1/jwks"}, "#/jwks_url"),
    ({"jwks_url": "https://2130706433/"}, "#/jwks_url"),
    ({"jwks_url": "https://[::ffff:169.254.169.254]/"}, "#/jwks_url"),
    ({"jwks_url": "https://[64:ff9b::a9fe:a9fe]/"}, "#/jwks_url"),
    ({"jwks_url": "https://a@idp.example.com/"}, "#/jwks_url"),
    ({"jwks_url": "file:///etc/passwd"}, "#/jwks_url"),
    ({"jwks_url": None, "discovery_url": "https://10.0.0.1/"}, "#/discovery_url"),
    ({"audience": "api://gw"}, "#/audience"),
    ({"audience": [""]}, "#/audience/0"),
    ({"audience": ["a"] * 17}, "#/audience"),
    ({"claims": {"subject": ""}}, "#/claims/subject"),
    ({"claims": {"subject": None}}, "#/claims/subject"),
    ({"claims": {"other": "x"}}, "#/claims/other"),
    ({"max_scopes": []}, "#/max_scopes"),
    ({"max_scopes": ["mcp:*"]}, "#/max_scopes/0"),
    ({"tenant": "zenith"}, "#/tenant"),
    ({"id": "x"}, "#/id"),
]


@pytest.mark.parametrize(("change", "pointer"), WRONG)
async def test_a_body_that_does_not_fit_is_422_and_says_where(rig, change, pointer):
    answer = await rig.ask("POST", PATH, {**RS, **change})
    assert answer.status_code == 422, answer.text
    errors = answer.json()["errors"]
    assert [error["pointer"] for error in errors] == [pointer]
    assert set(errors[0]) == {"detail", "pointer"}


@pytest.mark.parametrize("issuer", ["", "key", "cli", "a b", "é", "a\n", "a\0", "a" * 513, 7, None])
async def test_what_cannot_be_an_issuer_is_refused(rig, issuer):
    answer = await rig.ask("POST", PATH, {**RS, "issuer": issuer})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "#/issuer")
    assert ("is reserved" in answer.json()["errors"][0]["detail"]) is (issuer in ("key", "cli"))


@pytest.mark.parametrize(
    "patch",
    [
        {"issuer": "https://other.example.com"},
        {"jwks_url": None},
        {"secret": SECRET},
        {"algorithms": ["HS256"]},
        {"jwks_url": "http://127.0.0.1/"},
        {"jwks_url": None, "discovery_url": "https://169.254.169.254/"},
        {"max_scopes": ["everything"]},
    ],
)
async def test_a_patch_that_does_not_fit_the_rest_changes_nothing(rig, patch):
    made = await create(rig)
    answer = await rig.ask("PATCH", made.headers["Location"], patch)
    assert answer.status_code == 422, answer.text
    assert {**(await rig.ask("GET", made.headers["Location"])).json(), "warnings": []} == made.json()
    assert len(rig.heard) == 1


GROUPS = {"groups": "realm_access.roles", "map": {"team": ["mcp:connect"], "ops": ["tenant:read"]}}


@pytest.mark.parametrize(
    "claims",
    [
        {"groups": "groups"},
        {"map": {"a": ["mcp:connect"]}},
        {"groups": "groups", "map": {"a": ["everything"]}},
        {"groups": "groups", "map": {"a": "mcp:connect"}},
        {"groups": "groups", "map": {"": ["mcp:connect"]}},
        {"groups": "groups", "map": {"a\n": ["mcp:connect"]}},
        {"groups": "groups", "map": {"a" * 257: ["mcp:connect"]}},
        {"groups": "groups", "map": {str(n): [] for n in range(101)}},
        {"groups": "groups", "map": {"a": ["mcp:connect"] * 17}},
        {"groups": "groups", "map": {f"{n:0255}": ["mcp:connect:" + "a" * 63] * 16 for n in range(40)}},
        {"groups": "groups", "map": {"a": ["tenant:admin"]}},
        {"groups": "groups", "map": {"a": ["mcp:connect", "platform:admin"]}},
        {"groups": 7, "map": {}},
    ],
)
async def test_groups_that_do_not_fit_are_422(rig, claims):
    answer = await rig.ask("POST", PATH, {**RS, "claims": claims})
    assert answer.status_code == 422, answer.text


async def test_a_map_of_groups_is_kept_and_patched_member_by_member(rig):
    made = await create(rig, claims=GROUPS, max_scopes=["mcp:connect", "tenant:read"])
    path = made.headers["Location"]
    assert {**GROUPS}.items() <= made.json()["claims"].items()
    patch = {"claims": {"map": {"ops": None, "new": ["mcp:connect:echo"]}}}
    changed = (await rig.ask("PATCH", path, patch)).json()
    assert changed["claims"]["map"] == {"team": ["mcp:connect"], "new": ["mcp:connect:echo"]}
    assert (await rig.ask("PATCH", path, {"max_scopes": ["tenant:read"]})).status_code == 422
    assert (await rig.ask("PATCH", path, {"claims": {"map": None}})).status_code == 422
    without = (await rig.ask("PATCH", path, {"claims": {"map": None, "groups": None}})).json()
    assert without["claims"]["map"] is without["claims"]["groups"] is None
    assert (await rig.ask("PATCH", path, {"claims": GROUPS})).json()["claims"]["map"] == GROUPS["map"]


async def test_an_issuer_of_before_there_were_groups_is_not_changed_by_an_empty_patch(rig):
    path = (await create(rig)).headers["Location"]
    repository = rig.admin.issuers
    assert set((await repository.find("acme", ISS)).claims) == {"subject", "scopes", "tenant"}
    assert (await rig.ask("PATCH", path, {"claims": {}})).json()["version"] == 1


async def test_one_name_stands_once_in_a_tenant(rig):
    await create(rig)
    assert (await rig.ask("POST", PATH, RS)).status_code == 409
    await create(rig, path="/api/v1/tenants/zenith/issuers")
    await create(rig, path="/api/v1/issuers")


# --- who may let an issuer confer what


@pytest.mark.parametrize(
    ("tenant", "held", "granted"),
    [
        ("acme", ["tenant:admin"], SCOPES[:5]),
        ("acme", ["tenant:admin", "metrics:read"], SCOPES[:6]),
        ("default", ["tenant:admin"], SCOPES[:5]),
        ("default", ["platform:admin"], SCOPES),
    ],
)
async def test_nobody_lets_an_issuer_confer_what_they_do_not_hold(rig, tenant, held, granted):
    granter = await rig.key(tenant, *held)
    path = f"/api/v1/tenants/{tenant}/issuers"
    mine = (await create(rig, path=path)).headers["Location"]
    for number, scope in enumerate(SCOPES):
        refused = 422 if scope == "platform:admin" and tenant != "default" else 403
        wish = {"issuer": f"{ISS}/{number}", "max_scopes": [scope]}
        made = await rig.ask("POST", path, {**RS, **wish}, key=granter)
        assert made.status_code == (201 if scope in granted else refused), scope
        # Back to a small one by somebody who may, so that each change begins at the same place.
        changed = await rig.ask("PATCH", mine, {"max_scopes": [scope]}, key=granter)
        assert changed.status_code == (200 if scope in granted else refused), scope
        await rig.ask("PATCH", mine, {"max_scopes": ["mcp:connect"]})


@pytest.mark.parametrize(
    "patch", [{"jwks_url": "https://evil.example.com/jwks"}, {"max_scopes": ["mcp:connect"]}, {"audience": ["x"]}]
)
async def test_who_may_not_confer_what_an_issuer_can_does_not_get_at_its_keys_either(rig, patch):
    strong = (await create(rig, path="/api/v1/issuers", max_scopes=["platform:admin"])).headers["Location"]
    admin = await rig.key("default", "tenant:admin")
    assert (await rig.ask("PATCH", strong, patch, key=admin)).status_code == 403
    assert (await rig.ask("DELETE", strong, key=admin)).status_code == 403
    assert (await rig.ask("DELETE", strong)).status_code == 204


async def test_a_platform_administrator_makes_no_platform_issuers_elsewhere(rig):
    answer = await rig.ask("POST", PATH, {**RS, "max_scopes": ["platform:admin"]})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "#/max_scopes")


async def test_people_sign_in_where_a_discovery_document_names_the_place(rig):
    client = {"client_id": "console"}
    refused = await rig.ask("POST", PATH, {**RS, "sign_in": client})
    assert refused.status_code == 422
    assert "discovery_url" in refused.text


# --- the client secret of sign_in

CLIENT_SECRET = "of the provider's client"
DISCOVERY = ISS + "/.well-known/openid-configuration"
WEB = {
    "issuer": ISS, "algorithms": ["RS256"], "discovery_url": DISCOVERY,
    "sign_in": {"client_id": "gw", "client_secret": CLIENT_SECRET},
}  # fmt: skip


async def client_secret(rig, issuer_id, tenant="acme"):
    """As the provider would get it."""
    found = await rig.admin.issuers.get(tenant, issuer_id)
    if found.sealed_client_secret is None:
        return None
    return rig.admin.sealer.open(found.sealed_client_secret, client_secret_place(found)).decode()


async def test_a_client_secret_is_stored_sealed_and_never_shown(rig):
    made = await create(rig, WEB)
    path, issuer_id = made.headers["Location"], made.json()["id"]
    sign_in = {
        "client_id": "gw",
        "scope": "openid",
        "token": "access_token",
        "has_client_secret": True,
        "parameters": {},
    }
    answers = [made, await rig.ask("GET", path), await rig.ask("PATCH", path, {"audience": ["a"]})]
    assert [answer.json()["sign_in"] for answer in answers] == [sign_in] * 3
    answers += [await rig.ask("GET", PATH), await rig.ask("GET", "/api/v1/tenants/acme/audit")]
    assert not [answer.text for answer in answers if CLIENT_SECRET in answer.text]
    assert await client_secret(rig, issuer_id) == CLIENT_SECRET
    assert CLIENT_SECRET.encode() not in (await rig.admin.issuers.get("acme", issuer_id)).sealed_client_secret
    assert CLIENT_SECRET not in repr(await rig.trail())


async def test_a_client_secret_stays_until_another_one_or_null_is_sent(rig):
    made = await create(rig, WEB)
    path, issuer_id = made.headers["Location"], made.json()["id"]
    for patch in ({"audience": ["a"]}, {"sign_in": {"client_id": "other"}}, {"sign_in": {"scope": None}}):
        changed = await rig.ask("PATCH", path, patch)
        assert changed.json()["sign_in"]["has_client_secret"] is True
        assert await client_secret(rig, issuer_id) == CLIENT_SECRET
    await rig.ask("PATCH", path, {"sign_in": {"client_secret": "another one"}})
    assert await client_secret(rig, issuer_id) == "another one"
    gone = (await rig.ask("PATCH", path, {"sign_in": {"client_secret": None}})).json()["sign_in"]
    left = {"client_id": "other", "scope": "openid", "token": "access_token", "parameters": {}}
    assert gone == {**left, "has_client_secret": False}
    assert await client_secret(rig, issuer_id) is None
    await rig.ask("PATCH", path, {"sign_in": {"client_secret": "a third one"}})
    assert await client_secret(rig, issuer_id) == "a third one"


async def test_a_client_secret_goes_with_sign_in(rig):
    made = await create(rig, WEB)
    path, issuer_id = made.headers["Location"], made.json()["id"]
    assert (await rig.ask("PATCH", path, {"sign_in": None})).json()["sign_in"] is None
    assert await client_secret(rig, issuer_id) is None
    again = (await rig.ask("PATCH", path, {"sign_in": {"client_id": "gw"}})).json()["sign_in"]
    assert again["has_client_secret"] is False


async def test_a_client_secret_goes_nowhere_else_than_it_was_given_for(rig):
    made = await create(rig, WEB)
    path, issuer_id, elsewhere = made.headers["Location"], made.json()["id"], "https://other.example.com/discovery"
    refused = await rig.ask("PATCH", path, {"discovery_url": elsewhere})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "#/sign_in/client_secret")
    assert (await rig.ask("GET", path)).json()["discovery_url"] == DISCOVERY
    for secret in ("another one", None):
        moved = {"discovery_url": elsewhere, "sign_in": {"client_secret": secret}}
        assert (await rig.ask("PATCH", path, moved)).json()["discovery_url"] == elsewhere
        assert await client_secret(rig, issuer_id) == secret
    assert (await rig.ask("PATCH", path, {"discovery_url": DISCOVERY})).status_code == 200


async def test_the_trail_says_that_there_is_another_client_secret_and_not_which(rig):
    path = (await create(rig, WEB)).headers["Location"]
    patches = ({"client_secret": "another one"}, {"client_secret": None}, {"client_id": "x"}, {"client_secret": "y"})
    for patch in patches:
        await rig.ask("PATCH", path, {"sign_in": patch})
    made, *changed = (act.changes for act in await rig.trail("acme"))
    name = "sign_in.client_secret"
    assert [(each.old, each.new) for each in made if each.member == name] == [(None, HIDDEN)]
    assert [[(each.member, each.old, each.new) for each in changes] for changes in changed] == [
        [(name, HIDDEN, HIDDEN)],
        [(name, HIDDEN, None)],
        [("sign_in.client_id", "gw", "x")],
        [(name, None, HIDDEN)],
    ]


@pytest.mark.parametrize("secret", ["", "x" * 1025, "a\nb", "a\0b", 7])
async def test_a_wrong_client_secret_is_refused_and_not_repeated(untouched, secret):
    answer = await untouched.ask("POST", PATH, {**WEB, "sign_in": {"client_id": "gw", "client_secret": secret}})
    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == ["#/sign_in/client_secret"]
    assert "xxx" not in answer.text


@pytest.mark.parametrize("text", [pem(RSA), with_certificate(RSA), pem(P256), "kid: one\n" + pem(P256)])
async def test_a_client_secret_may_be_a_key(rig, text):
    made = await create(rig, {**WEB, "sign_in": {"client_id": "gw", "client_secret": text}})
    path, issuer_id = made.headers["Location"], made.json()["id"]
    assert made.json()["sign_in"]["has_client_secret"] is True
    assert await client_secret(rig, issuer_id) == text
    await rig.ask("PATCH", path, {"sign_in": {"client_secret": "a secret"}})
    assert await client_secret(rig, issuer_id) == "a secret"
    changed = await rig.ask("PATCH", path, {"sign_in": {"client_secret": text}})
    assert await client_secret(rig, issuer_id) == text
    compared = await rig.ask("POST", f"{path}:compare", {"sign_in": {"client_secret": text}})
    assert compared.json() == {"different": []}
    trail = await rig.ask("GET", "/api/v1/tenants/acme/audit")
    secret = text.splitlines()[4]
    assert secret not in made.text + changed.text + trail.text + (await rig.ask("GET", path)).text


@pytest.mark.parametrize(("text", "words"), [
    (public(RSA), "is a key that cannot be used: it is no private key"), (pem(RSA, password=b"x"), "it is encrypted"),
    (pem(SHORT), "RSA must have 2048 to 4096 bits"), (pem(RSA)[:1000], "it cannot be read"),
    (pem(RSA) + " " * MAX_CLIENT_KEY, "8192 characters"),
])  # fmt: skip
async def test_a_key_that_cannot_sign_is_refused_and_not_repeated(rig, text, words):
    refused = [await rig.ask("POST", PATH, {**WEB, "sign_in": {"client_id": "gw", "client_secret": text}})]
    path = (await create(rig, WEB)).headers["Location"]
    refused += [await rig.ask("PATCH", path, {"sign_in": {"client_secret": text}})]
    for answer in refused:
        assert answer.status_code == 422
        [error] = answer.json()["errors"]
        assert error["pointer"] == "#/sign_in/client_secret"
        assert words in error["detail"]
        assert text.splitlines()[1] not in answer.text


async def test_a_sign_in_has_parameters_which_a_patch_adds_and_removes(rig):
    offline = {"access_type": "offline", "prompt": "consent"}
    made = await create(rig, {**WEB, "sign_in": {"client_id": "gw", "parameters": offline}})
    assert made.json()["sign_in"]["parameters"] == offline
    path = made.headers["Location"]
    assert (await rig.ask("GET", path)).json()["sign_in"]["parameters"] == offline
    for patch, left in (
        ({"prompt": None, "hd": "example.com"}, {"access_type": "offline", "hd": "example.com"}),
        ({}, {"access_type": "offline", "hd": "example.com"}),
        (None, {}),
    ):
        changed = await rig.ask("PATCH", path, {"sign_in": {"parameters": patch}})
        assert changed.json()["sign_in"]["parameters"] == left


@pytest.mark.parametrize(("name", "value"), [
    ("state", "x"), ("redirect_uri", "https://evil.example"), ("response_mode", "form_post"), ("Prompt", "x"),
    ("a b", "x"), ("prompt", ""), ("prompt", "x" * 257), ("prompt", "a\nb"), ("prompt", 1),
])  # fmt: skip
async def test_a_parameter_that_the_gateway_sets_or_that_is_none_is_refused(untouched, name, value):
    answer = await untouched.ask("POST", PATH, {**WEB, "sign_in": {"client_id": "gw", "parameters": {name: value}}})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"].startswith("#/sign_in/parameters")


async def test_nobody_sends_whether_there_is_a_client_secret(untouched):
    body = {**WEB, "sign_in": {"client_id": "gw", "has_client_secret": True}}
    assert (await untouched.ask("POST", PATH, body)).status_code == 422


async def test_an_issuer_of_the_platform_shows_a_tenant_no_client_secret_either(rig):
    tenants = {"claim": "groups", "map": {"a": "acme"}}
    made = await create(rig, WEB, "/api/v1/issuers", tenants=tenants)
    assert await client_secret(rig, made.json()["id"], "default") == CLIENT_SECRET
    seen = await rig.ask("GET", f"{PATH}/{made.json()['id']}", key=await rig.key("acme", "tenant:admin"))
    assert seen.json()["sign_in"]["has_client_secret"] is True
    assert CLIENT_SECRET not in seen.text + (await rig.ask("GET", "/api/v1/tenants/acme/audit")).text
