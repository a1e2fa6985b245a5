"""Assertions (RFC 7523): of clients that sign who they are, and of a provider about a person (ID-JAG)."""

from dataclasses import replace
from typing import Any

import pytest

from app.auth.authorization.assertions import MAX_LIFE_S, PERSON_TYPE
from tests.auth.authorization.rig import ALL, ECHO, OTHERS, TO, Rig
from tests.auth.test_jwks import OTHER, document, jwk
from tests.auth.tokens import BASE, ISS, T, token

JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ASSERTED = {
    "grant_type": "client_credentials",
    "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
}


def of_client(algorithm: str = "RS256", header: dict[str, Any] | None = None, **changes: Any) -> str:
    good = {"iss": "job", "sub": "job", "aud": TO.endpoint("token"), "iat": T, "exp": T + 60, "scope": ..., "jti": "1"}
    return token(algorithm, header, **{**good, **changes})


def of_person(header: dict[str, Any] | None = None, **changes: Any) -> str:
    good = {"aud": TO.issuer, "client_id": "agent", "jti": "1"}
    return token("RS256", {"typ": PERSON_TYPE, **(header or {})}, **{**good, **changes})


@pytest.fixture
def job(rig: Rig) -> Rig:
    for tenant in ("acme", "zenith"):
        more: Any = {"authentication": "private_key_jwt", "jwks_url": "https://job.example/jwks"}
        rig.client("job", tenant, scopes=("mcp:connect",), **more)
    rig.client("agent", authentication="secret")
    return rig


async def test_a_client_signs_who_it_is(job):
    for assertion in (
        of_client(),
        of_client(aud=TO.issuer),
        of_client(aud=[TO.issuer, "x"]),
        of_client(exp=T + MAX_LIFE_S),
    ):
        for named in ({}, {"client_id": "job"}):
            answered = await job.post(**ASSERTED, **named, client_assertion=assertion)
            assert answered.status == 200, answered
            assert (await job.own.verify(answered.body["access_token"])).subject == "job"


@pytest.mark.parametrize("assertion", [
    of_client(aud=OTHERS.issuer), of_client(aud=BASE), of_client(aud=TO.endpoint("token") + "/"), of_client(aud=...),
    of_client(iss="other"), of_client(iss=...), of_client(sub="cli"), of_client(sub=...), of_client(sub=["job"]),
    of_client(exp=T - 60, iat=T - 100), of_client(exp=...), of_client(iat=...), of_client(exp=T + MAX_LIFE_S + 1),
    of_client(iat=T + 120, exp=T + 180), of_client(nbf=T + 120), of_client(exp=str(T + 60)), of_client(jti=1),
    of_client("ES256"), of_client("HS256"), of_client(header={"alg": "none"}), of_client(header={"kid": "b"}),
    of_client(header={"jwk": {}}), of_client(header={"jku": "https://evil.example"}), of_client()[:-8] + "AAAAAAAA",
    "", "a.b.c", "\0", "é", "x" * 100_000,
])  # fmt: skip
async def test_a_client_that_does_not_is_refused(job, assertion):
    for named in ({}, {"client_id": "job"}):
        answered = await job.post(**ASSERTED, **named, client_assertion=assertion)
        assert answered.body["error"] == "invalid_client"
    assert (
        await job.servers.revoke(TO, {"token": ["x"], "client_id": ["job"], "client_assertion": [assertion]})
        is not None
    )


async def test_an_assertion_is_of_one_client_with_its_own_keys_and_of_its_own_kind(job):
    job.client("other", authentication="secret", scopes=("mcp:connect",))
    good = of_client()
    for more in ({"client_id": "other"}, {"client_assertion_type": "x"}, {"client_assertion_type": ...}):
        answered = await job.post(**{**ASSERTED, **more}, client_assertion=good)
        assert answered.body["error"] == "invalid_client", more
    theirs = of_client(iss="other", sub="other")
    assert (await job.post(**ASSERTED, client_assertion=theirs)).body["error"] == "invalid_client"
    assert (await job.post(client_id="job", client_secret="x", grant_type="client_credentials")).status == 401
    assert (await job.post(OTHERS, **ASSERTED, client_assertion=good)).body["error"] == "invalid_client"
    job.idp.host.document, job.idp.host.now_s = document(jwk(OTHER, "a")), job.idp.host.now_s + 4000
    assert (await job.post(**ASSERTED, client_assertion=good)).body["error"] == "invalid_client"


# --- of a provider


async def exchanged(rig: Rig, assertion: object, client_id: str = "agent", **more: Any) -> Any:
    secret = (
        {"client_secret": rig.secret(client_id)} if rig.clients["acme", client_id].authentication == "secret" else {}
    )
    return await rig.post(grant_type=JWT_BEARER, client_id=client_id, assertion=assertion, **{**secret, **more})


async def test_a_provider_vouches_for_a_person(job):
    answered = await exchanged(job, of_person())
    assert answered.status == 200, answered
    assert "refresh_token" not in answered.body
    principal = await job.own.verify(answered.body["access_token"])
    assert (principal.identity, principal.scopes) == (("acme", ISS, "alice"), {"mcp:connect"})
    narrow = await exchanged(job, of_person(), resource=ECHO)
    assert narrow.body["scope"] == "mcp:connect:echo"
    del job.clients["acme", "agent"]
    assert await job.connections.standing("acme", [principal.grant], job.now()) == set()


@pytest.mark.parametrize(("resource", "asked", "found"), [
    (ECHO, ..., "mcp:connect:echo"), (ECHO, ECHO, "mcp:connect:echo"), ([ECHO], ALL, "mcp:connect:echo"),
    (ECHO, f"{ALL}/files", None), (f"{BASE}/t/zenith", ..., None), ("https://evil.example", ALL, None), (1, ..., None),
    ([], ..., None), ([ECHO, f"{ALL}/files"], ..., "mcp:connect:echo mcp:connect:files"), (ALL, ..., "mcp:connect"),
])  # fmt: skip
async def test_an_assertion_about_one_resource_is_for_no_other(job, resource, asked, found):
    answered = await exchanged(job, of_person(resource=resource), resource=asked)
    assert answered.body.get("scope") == found
    assert answered.body.get("error") == (None if found else "invalid_target")


@pytest.mark.parametrize("assertion", [
    of_person({"typ": "JWT"}), of_person({"typ": "at+jwt"}), of_person({"typ": None}), of_person(client_id="job"),
    of_person(client_id=...), of_person(client_id=["agent"]), of_person(aud=OTHERS.issuer),
    of_person(aud=TO.endpoint("token")),
    of_person(aud=ALL), of_person(aud=f"{BASE}/api/v1/tenants/acme"), of_person(aud=[]),
    of_person(iss="https://other.example"),
    of_person(iss=TO.issuer), of_person(exp=T - 60, iat=T - 100), of_person(sub=...),
    of_person(iat=T + 120, exp=T + 200),
    of_person({"kid": "b"}), of_person({"alg": "none"}), of_person()[:-8] + "AAAAAAAA", "x", "a.b.c", "\0",
    "x" * 100_000,
])  # fmt: skip
async def test_what_vouches_for_nobody_here_is_refused(job, assertion):
    assert (await exchanged(job, assertion)).body["error"] == "invalid_grant"


async def test_only_a_client_that_an_administrator_knows_and_that_proves_it_sends_assertions(job):
    good = of_person()
    assert (await exchanged(job, good, client_secret="wrong")).body["error"] == "invalid_client"
    job.client("r-theirs")
    answered = await exchanged(job, of_person(client_id="r-theirs"), "r-theirs")
    assert answered.body["error"] == "unauthorized_client"
    job.client("public")
    answered = await exchanged(job, of_person(client_id="public"), "public")
    assert answered.body["error"] == "unauthorized_client"
    url = job.document()
    answered = await job.post(grant_type=JWT_BEARER, client_id=url, assertion=of_person(client_id=url))
    assert answered.body["error"] == "unauthorized_client"
    tokens = await job.connected()
    for each in (tokens["access_token"], tokens["refresh_token"], ..., ""):
        assert (await exchanged(job, each)).body["error"] in ("invalid_grant", "invalid_request")


async def test_an_assertion_about_somebody_who_may_nothing_gives_nothing(job):
    for scope in ("", "tenant:read"):
        assert (await exchanged(job, of_person(scope=scope))).body["error"] == "invalid_target"
    job.idp.records.clear()
    assert (await exchanged(job, of_person())).body["error"] == "invalid_grant"


async def test_a_token_for_a_person_has_the_groups_of_the_assertion(job):
    claims = {"groups": "groups", "map": {"analysts": []}}
    job.idp.set(replace(job.idp.records["acme", ISS], claims=claims))
    for sent, found in ((["analysts", "unknown"], {"analysts"}), ([], set())):
        answered = await exchanged(job, of_person(groups=sent))
        assert (await job.own.verify(answered.body["access_token"])).groups == found
