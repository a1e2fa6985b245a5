"""…/issuers/{issuer}:check, and the warnings of an issuer whose keys cannot be had"""

import logging
import time
from typing import Any

import anyio
import pytest

from app.auth.issuer_check import Asked
from app.auth.outbound_urls import ALLOW_SETTING, FetchFailed, UrlRefused
from app.storage.idempotency import IdempotencyRepository
from tests.admin.rig import Rig
from tests.auth import tokens
from tests.auth.test_jwks import OTHER, RSA, SHORT, document, jwk
from tests.auth.test_tokens_refused import BAD_CLAIMS, BAD_HEADERS, forged
from tests.auth.tokens import ISS, SECRET

PATH = "/api/v1/tenants/acme/issuers"
RS = {"issuer": ISS, "algorithms": ["RS256"], "jwks_url": ISS + "/jwks", "audience": ["api://gw"]}
HS = {"issuer": "hs", "algorithms": ["HS256"], "secret": SECRET, "audience": ["api://gw"]}
DISCOVERY = ISS + "/.well-known/openid-configuration"
RULES = [
    "form", "header", "issuer", "algorithm", "key", "signature", "required", "audience", "lifetime", "expiry",
    "not before", "subject", "tenant", "groups", "scopes", "switched on",
]  # fmt: skip


def token(algorithm: str = "RS256", header: dict[str, Any] | None = None, **changes: Any) -> str:
    """A good one, by the clock of this machine."""
    now = int(time.time())
    return tokens.token(algorithm, header, **{"iat": now, "exp": now + 600, "aud": "api://gw", **changes})


async def made(rig: Rig, body: dict[str, Any] | None = None, **more: Any) -> str:
    answer = await rig.ask("POST", PATH, {**(body or RS), **more})
    assert answer.status_code == 201, answer.text
    return str(answer.headers["Location"])


async def check(rig: Rig, path: str, text: str | None = None, **more: Any) -> dict[str, Any]:
    answer = await rig.ask("POST", path + ":check", None if text is None else {"token": text, **more})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def failed(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {rule["rule"]: rule for rule in answer["rules"] if not rule["passed"]}


# --- the keys


async def test_without_a_token_the_keys_are_fetched_anew_and_shown(rig):
    path = await made(rig)
    rig.idp.document = document(
        jwk(RSA, "a", alg="RS256"), jwk(OTHER), jwk(SHORT, "short"), jwk(RSA, "enc", use="enc"),
        {"kty": "oct", "k": "AAAA", "kid": "secret"}, {"kty": "XYZ", "kid": "odd\x1b"}, {"kid": 7},
    )  # fmt: skip
    rig.idp.fetched.clear()
    answer = await check(rig, path)
    assert answer["ok"] is True
    assert (answer["problem"], answer["rules"], answer["granted_scopes"]) == (None, [], None)
    keys = answer["keys"]
    assert keys["urls"] == rig.idp.fetched == [ISS + "/jwks"]
    assert keys["ms"] >= 0
    assert [(key["kid"], key["algorithms"]) for key in keys["found"][:2]] == [
        ("a", ["RS256"]),
        (None, ["PS256", "PS384", "PS512", "RS256", "RS384", "RS512"]),
    ]
    problems = {key["kid"]: key["problem"] for key in keys["found"][2:]}
    assert set(problems) == {"short", "enc", "secret", "odd\\x1b", None}
    assert all(problems.values())
    assert "2048" in problems["short"]
    assert "AAAA" not in str(answer)


async def test_discovery_is_followed_and_what_is_wrong_with_it_is_said(rig):
    path = await made(rig, jwks_url=None, discovery_url=DISCOVERY)
    rig.idp.others[DISCOVERY] = b'{"issuer": "%s", "jwks_uri": "%s/keys"}' % (ISS.encode(), ISS.encode())
    answer = await check(rig, path)
    assert (answer["ok"], answer["keys"]["urls"]) == (True, [DISCOVERY, ISS + "/keys"])
    rig.idp.others[DISCOVERY] = b'{"issuer": "%s/", "jwks_uri": "%s/keys"}' % (ISS.encode(), ISS.encode())
    answer = await check(rig, path)
    assert (answer["ok"], answer["keys"]["urls"]) == (False, [DISCOVERY])
    assert ISS + "/'" in answer["problem"]
    assert answer["problem"] == answer["keys"]["error"]


@pytest.mark.parametrize(
    ("problem", "setting"),
    [(FetchFailed("no answer within 5 s"), None), (UrlRefused("not public", setting=ALLOW_SETTING), ALLOW_SETTING)],
)
async def test_an_error_says_which_setting_could_change_it(rig, monkeypatch, problem, setting):
    path = await made(rig)

    async def fails(url: str) -> bytes:
        raise problem

    monkeypatch.setattr(rig.admin.issuer_check, "_fetch", fails)
    answer = await check(rig, path, token())
    assert (answer["ok"], answer["keys"]["error"], answer["keys"]["setting"]) == (False, str(problem), setting)
    assert set(failed(answer)) == {"key", "signature", "switched on"}
    assert answer["granted_scopes"] == ["mcp:connect"]


async def test_an_issuer_without_a_key_for_its_algorithms_is_a_problem(rig):
    path = await made(rig, algorithms=["ES256"])
    answer = await check(rig, path)
    assert (answer["ok"], answer["problem"]) == (False, "among 1 keys there is none for ES256")


async def test_a_secret_that_does_not_open_is_a_problem(rig, monkeypatch):
    path = await made(rig, HS)
    assert (await check(rig, path))["ok"] is True
    monkeypatch.setattr(rig.admin.issuer_check._tokens, "secret_of", lambda issuer: None)
    answer = await check(rig, path, token("HS256", iss="hs"))
    assert (answer["ok"], answer["keys"]["setting"]) == (False, "TRUNKLINE_SECRET_KEY")
    assert set(failed(answer)) == {"key", "signature", "switched on"}


# --- a token


@pytest.mark.parametrize("algorithm", ["RS256", "HS256"])
async def test_a_good_token_passes_every_rule_in_the_order_of_a_sign_in(rig, algorithm):
    path = await made(rig, HS if algorithm == "HS256" else RS)
    answer = await check(rig, path, token(algorithm, iss="hs" if algorithm == "HS256" else ISS))
    assert answer["ok"] is True
    assert [(rule["rule"], rule["passed"]) for rule in answer["rules"]] == [(name, True) for name in RULES]
    assert all(rule["expected"] for rule in answer["rules"])
    assert answer["granted_scopes"] == ["mcp:connect"]
    assert answer["expires_at"].endswith("Z")


async def test_everything_that_is_wrong_is_shown_at_once_with_what_was_expected(rig):
    path = await made(rig, claims={"tenant": "org"})
    bad = token(iss=ISS + "/", aud="api://other", iat=1000, exp=1600, org="zenith", scope="openid mcp:connect")
    answer = await check(rig, path, bad)
    wrong = failed(answer)
    assert set(wrong) == {"issuer", "audience", "expiry", "tenant", "switched on"}
    assert wrong["switched on"]["passed"] is None
    assert (wrong["issuer"]["expected"], wrong["issuer"]["actual"]) == (ISS, ISS + "/")
    assert "slash" in wrong["issuer"]["hint"]
    assert (wrong["audience"]["expected"], wrong["audience"]["actual"]) == (["api://gw"], "api://other")
    assert (wrong["tenant"]["expected"], wrong["tenant"]["actual"]) == ({"org": "acme"}, "zenith")
    assert "expired" in wrong["expiry"]["hint"]
    assert answer["granted_scopes"] is None


async def test_who_is_switched_off_passes_every_rule_but_the_last(rig):
    path = await made(rig)
    off = {"issuer": ISS, "subject": "alice", "enabled": False, "reason": "left on Monday"}
    assert (await rig.ask("PATCH", "/api/v1/tenants/acme/principals", off)).status_code == 200
    answer = await check(rig, path, token())
    assert (answer["ok"], set(failed(answer))) == (False, {"switched on"})
    assert "left on Monday" in answer["rules"][-1]["actual"]["acme"]
    assert (await check(rig, path, token(sub="bob")))["ok"] is True


async def test_times_are_shown_as_people_read_them_and_those_of_no_year_as_they_are(rig):
    answer = await check(rig, await made(rig), token(iat=2**39, exp=2**39 + 600, nbf=0))
    rules = {rule["rule"]: rule["actual"] for rule in answer["rules"]}
    assert (rules["expiry"], rules["not before"]["nbf"]) == (2**39 + 600, "1970-01-01T00:00:00Z")


async def test_a_token_of_other_keys_shows_the_ids_that_there_are(rig):
    path = await made(rig)
    answer = await check(rig, path, token(header={"kid": "z"}))
    wrong = failed(answer)
    assert (wrong["key"]["expected"], wrong["key"]["actual"]) == ({"kid": ["a"]}, {"kid": "z", "alg": "RS256"})
    assert wrong["signature"]["passed"] is None
    rig.idp.document = document(jwk(OTHER, "a"))
    assert set(failed(await check(rig, path, token()))) == {"signature", "switched on"}


async def test_what_is_no_token_is_said_to_be_none_and_the_rest_is_not_asked(rig):
    path = await made(rig)
    for text in ("hunter2", "", "tlk_" + "A" * 57, "Bearer " + token()):
        answer = await check(rig, path, text)
        assert [rule["passed"] for rule in answer["rules"]] == [False] + [None] * 15
        assert [rule["rule"] for rule in answer["rules"]] == RULES
        assert not text or text not in str(answer)
    assert (await check(rig, path, f"  {token()}\n"))["ok"] is True


@pytest.mark.parametrize("algorithm", ["RS256", "HS256"])
async def test_what_a_sign_in_refuses_passes_no_check_and_is_not_repeated(rig, algorithm, caplog, monkeypatch):
    """All forged tokens: the check must not say of one that it is good, and is no place to get it back from."""
    caplog.set_level(logging.DEBUG, "app")
    monkeypatch.setattr(rig.admin.rates, "spend", lambda *_: None)  # an action costs 25
    body = {**(HS if algorithm == "HS256" else RS), "issuer": ISS}
    path = await made(rig, body)
    issuers = rig.admin.issuers
    found = await issuers.find("acme", ISS)
    sent = {**forged(algorithm), **{name: tokens.token(algorithm, bad) for name, bad in BAD_HEADERS.items()}}
    # As of the moment that those tokens are made for; `aud` is that of the endpoint.
    sent |= {name: tokens.token(algorithm, **bad) for name, bad in BAD_CLAIMS.items()}
    for name, text in sent.items():
        checked = await rig.admin.issuer_check.run(found, Asked(text, "acme", (), tokens.T))
        assert not checked.ok, name
        answer = await rig.ask("POST", path + ":check", {"token": text[:16_000]})
        assert answer.status_code == 200, (name, answer.text)
        assert answer.json()["ok"] is False, name
        parts = [part for part in text.split(".") if len(part) > 20]
        assert not [part for part in parts if part in answer.text or part in caplog.text], name
    assert not [act for act in await rig.trail() if any(text in repr(act) for text in sent.values() if text)]


@pytest.mark.parametrize(
    ("sent", "granted", "hint"),
    [
        ({"groups": ["team", "x"]}, ["mcp:connect"], None),
        ({"groups": ["x"]}, [], "no group"),
        ({}, [], "no group"),
        ({"_claim_names": {"groups": "src1"}}, [], "too many"),
        ({"hasgroups": True}, [], "too many"),
        ({"groups": {"team": 1}}, None, "list of texts"),
    ],
)
async def test_what_the_groups_of_a_token_confer_and_why_they_confer_nothing(rig, sent, granted, hint):
    path = await made(rig, claims={"groups": "groups", "map": {"team": ["mcp:connect"]}})
    answer = await check(rig, path, token(scope=..., **sent))
    (rule,) = [each for each in answer["rules"] if each["rule"] == "groups"]
    assert answer["granted_scopes"] == granted
    assert (rule["passed"], rule["expected"]) == (granted is not None, {"groups": ["team"]})
    assert rule["hint"] is None if hint is None else hint in rule["hint"]


async def test_a_good_token_that_confers_nothing_says_how_it_could(rig):
    path = await made(rig)
    answer = await check(rig, path, token(scope="openid tenant:admin"))
    assert (answer["ok"], answer["granted_scopes"]) == (True, [])
    assert answer["rules"][-2]["actual"] == "openid tenant:admin"
    assert "mcp:connect" in answer["rules"][-2]["hint"]


async def test_for_which_backend_a_token_is_can_be_asked(rig):
    path = await made(rig, audience=[])
    mine = token(aud="/t/acme/echo/mcp")  # no front in this test, so no base URL
    assert (await check(rig, path, mine))["ok"] is True
    assert (await check(rig, path, mine, backend="echo"))["ok"] is True
    wrong = failed(await check(rig, path, mine, backend="other"))
    assert wrong["audience"]["expected"] == ["/t/acme/other/mcp"]
    assert (await check(rig, path, token(aud="/api/v1/tenants/acme")))["ok"] is True
    assert failed(await check(rig, path, token(aud="/t/zenith/echo/mcp"))).keys() == {"audience", "switched on"}


# --- who may, how often


async def test_who_administers_the_tenant_may_check_and_nobody_else(rig):
    path = await made(rig)
    admin, reader = await rig.key("acme", "tenant:admin"), await rig.key("acme", "tenant:read", "mcp:connect")
    theirs = await rig.key("zenith", "tenant:admin")
    statuses = [
        (await rig.ask("POST", path + ":check", {}, key=key)).status_code for key in (admin, reader, theirs, "")
    ]
    assert statuses == [200, 403, 404, 401]
    elsewhere = path.replace("acme", "zenith")
    assert (await rig.ask("POST", elsewhere + ":check", {"token": token()}, key=theirs)).status_code == 404
    assert (await rig.ask("POST", PATH + "/unknown:check")).status_code == 404


async def test_one_check_of_an_issuer_at_a_time(rig):
    path = await made(rig)
    rig.idp.gate = anyio.Event()
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(check, rig, path)
            while rig.idp.fetched[1:] != [ISS + "/jwks"]:
                await anyio.sleep(0.01)
            assert (await rig.ask("POST", path + ":check")).status_code == 409
            rig.idp.gate.set()
    rig.idp.gate = None
    assert (await check(rig, path))["ok"] is True


@pytest.mark.parametrize("body", [{"token": 7}, {"token": "a" * 16_385}, {"tokens": "x"}, {"backend": "NO"}, []])
async def test_a_body_that_does_not_fit_is_422_and_not_repeated(rig, body):
    answer = await rig.ask("POST", await made(rig) + ":check", body)
    assert answer.status_code == 422
    assert "aaaa" not in answer.text


async def test_a_repeated_check_is_answered_from_memory_in_which_there_is_no_token(rig, monkeypatch):
    path, text = await made(rig), token()
    kept: list[bytes] = []
    really = IdempotencyRepository.begin

    async def begin(self: Any, *given: Any) -> Any:
        kept.extend(each for each in given if isinstance(each, bytes))
        return await really(self, *given)

    monkeypatch.setattr(IdempotencyRepository, "begin", begin)
    rig.idp.fetched.clear()
    answers = [
        await rig.ask("POST", path + ":check", {"token": text}, headers={"Idempotency-Key": "k"}) for _ in range(2)
    ]
    assert answers[0].content == answers[1].content
    assert len(rig.idp.fetched) == 1
    assert kept
    assert all(len(each) == 32 for each in kept)


# --- warnings


async def test_an_issuer_whose_keys_cannot_be_had_is_made_with_a_warning(rig):
    rig.idp.is_down = True
    answer = await rig.ask("POST", PATH, RS, headers={"Idempotency-Key": "k"})
    assert answer.status_code == 201
    (warning,) = answer.json()["warnings"]
    assert "down" in warning
    rig.idp.is_down = False
    again = await rig.ask("POST", PATH, RS, headers={"Idempotency-Key": "k"})
    assert (again.content, again.headers["Idempotency-Replayed"]) == (answer.content, "true")
    shown = await rig.ask("GET", answer.headers["Location"])
    assert "warnings" not in shown.json()
    assert shown.headers["ETag"] == answer.headers["ETag"]
    assert (await rig.ask("POST", PATH, {**HS})).json()["warnings"] == []


async def test_a_change_of_where_the_keys_are_is_looked_at_and_no_other(rig):
    path = await made(rig)
    rig.idp.is_down = True
    rig.idp.fetched.clear()
    assert (await rig.ask("PATCH", path, {"audience": ["x"]})).json()["warnings"] == []
    assert rig.idp.fetched == []
    changed = await rig.ask("PATCH", path, {"jwks_url": ISS + "/new"})
    assert (changed.status_code, rig.idp.fetched) == (200, [ISS + "/new"])
    assert changed.json()["warnings"]
    assert (
        await rig.ask("PATCH", path, {"algorithms": ["RS512"]}, headers={"If-Match": changed.headers["ETag"]})
    ).json()["warnings"]


async def test_a_slow_host_holds_nothing_up_but_its_own_request(rig, monkeypatch):
    monkeypatch.setattr("app.admin.resources.issuers.LOOK_S", 0.05)
    rig.idp.gate = anyio.Event()
    with anyio.fail_after(20):
        answer = await rig.ask("POST", PATH, RS)
    assert (answer.status_code, "does not answer" in answer.json()["warnings"][0]) == (201, True)
    assert rig.admin.under_way == set()


async def test_one_look_at_a_time_for_a_tenant_and_the_others_say_that_they_did_not(rig):
    rig.idp.gate = anyio.Event()
    answers: list[Any] = []

    async def make(number: int) -> None:
        answers.append((await rig.ask("POST", PATH, {**RS, "issuer": f"{ISS}/{number}"})).json()["warnings"])

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(make, 0)
            while not rig.idp.fetched:
                await anyio.sleep(0.01)
            await make(1)
            rig.idp.gate.set()
    assert [len(each) for each in answers] == [1, 0]
    assert ":check" in answers[0][0]
    assert len(rig.idp.fetched) == 1


async def test_a_key_that_is_revoked_during_a_check_gets_no_result(rig, monkeypatch):
    key, run = await rig.key("acme", "tenant:admin"), rig.admin.issuer_check.run

    async def revoked_meanwhile(*asked):
        await rig.admin.keys.revoke("acme", key.split("_")[1], rig.admin.now())  # nobody has told this node
        return await run(*asked)

    path = await made(rig, HS)
    monkeypatch.setattr(rig.admin.issuer_check, "run", revoked_meanwhile)
    answer = await rig.ask("POST", path + ":check", {"token": token("HS256", iss="hs")}, key=key)
    assert (answer.status_code, "rules" in answer.json()) == (401, False)
