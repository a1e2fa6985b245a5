"""Codes, refresh tokens, revocation and registration, from what is asked to what is answered and stored (RFC 6749,
6750, 7009, 7591, 7636, 8707, 9207, 9700)."""

import json
import random
from dataclasses import replace
from datetime import timedelta

import anyio
import pytest

from app.auth._refusal import CredentialRefused
from app.auth.authorization.clients import ClientRefused
from app.auth.authorization.server import CODE_S, IDLE, LOST_ANSWER_S, NotAsked, RememberedRules
from app.domain import CLIENT_ISSUER, SignIn
from app.domain.resources.fields import Unfit
from app.errors import NotFound
from tests.auth.authorization.rig import (
    ALL,
    ECHO,
    HERE,
    OTHERS,
    TO,
    VERIFIER,
    WEB,
    Rig,
    answer,
    basic,
    fields,
    redemption,
)
from tests.auth.tokens import BASE

JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ODD = ("\0", "é", "\ud7ff", "\ufffd", '"', "\\", "\n", "%00", "=&", " ", "a" * 5000, "[" * 3000, "\U0001f600", "'--")


async def not_asked(rig: Rig, **changes: object) -> NotAsked:
    with pytest.raises(NotAsked) as caught:
        await rig.ask(**changes)
    return caught.value


# --- authorization requests


async def test_a_program_gets_a_code_and_tokens_for_what_the_person_allowed(rig):
    asked = await rig.ask()
    assert (asked.client.client_id, asked.redirect_uri, asked.backend) == ("cli", HERE, "")
    found = answer(await rig.servers.allow(asked, rig.person))
    assert (found["state"], found["iss"]) == ("s t&a=t", TO.issuer)
    answered = await rig.redeem(found["code"])
    assert (answered.status, set(answered.body)) == (
        200,
        {"access_token", "token_type", "expires_in", "scope", "refresh_token"},
    )
    assert (answered.body["token_type"], answered.body["expires_in"], answered.body["scope"]) == (
        "Bearer",
        600,
        "mcp:connect",
    )
    principal = await rig.own.verify(answered.body["access_token"])
    assert (principal.identity, principal.scopes) == (rig.person.identity, {"mcp:connect"})
    assert principal.grant == rig.only.id


async def test_a_query_of_the_redirect_address_is_kept(rig):
    uri = "https://app.example/cb?from=here"
    rig.client(redirect_uris=(uri,))
    location = await rig.servers.refuse(await rig.ask(redirect_uri=uri), rig.person)
    assert location.startswith(uri + "&error=access_denied&")
    assert rig.connections.refused_by == [rig.person.identity]
    assert not rig.connections.rows


@pytest.mark.parametrize(
    "changes",
    [
        {"client_id": "nobody"}, {"client_id": ...}, {"client_id": ""}, {"client_id": "../cli"}, {"client_id": "CLI"},
        {"client_id": "https://nowhere.example/c.json"}, {"client_id": "http://app.example/client.json"},
        {"redirect_uri": ...}, {"redirect_uri": ""}, {"redirect_uri": WEB + "/"}, {"redirect_uri": "//app.example/cb"},
        {"redirect_uri": HERE + "#x"}, {"redirect_uri": "https://evil.example/cb"},
        {"redirect_uri": [HERE, "https://evil.example/"]}, {"client_id": ["cli", "other"]}, {"state": ["a", "b"]},
        {"code_challenge": ["a" * 43, "b" * 43]}, {"response_type": ["code", "token"]}, {"scope": ["a", "a"]},
    ],
)  # fmt: skip
async def test_nobody_is_sent_to_an_address_that_is_not_the_clients(rig, changes):
    """RFC 6749, 4.1.2.1 and RFC 9700, 4.11: no open redirect."""
    error = await not_asked(rig, **changes)
    assert error.location is None
    assert "evil" not in str(error)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"response_type": ...}, "invalid_request"),
        ({"response_type": "token"}, "unsupported_response_type"),
        ({"response_type": "code token"}, "unsupported_response_type"),
        ({"code_challenge": ...}, "invalid_request"),
        ({"code_challenge": "short"}, "invalid_request"),
        ({"code_challenge": "a" * 43 + "\n"}, "invalid_request"),
        ({"code_challenge": "a" * 128}, "invalid_request"),  # no SHA-256
        ({"code_challenge_method": ...}, "invalid_request"),
        ({"code_challenge_method": "plain"}, "invalid_request"),
        ({"code_challenge_method": "s256"}, "invalid_request"),
        ({"resource": f"{BASE}/t/zenith/echo/mcp"}, "invalid_target"),
        ({"resource": "https://evil.example/t/acme"}, "invalid_target"),
        ({"resource": [ALL, ECHO]}, "invalid_target"),
    ],
)
async def test_a_client_is_told_what_is_wrong_with_its_request(rig, changes, name):
    location = (await not_asked(rig, **changes)).location
    assert location is not None
    assert location.startswith(HERE + "?")
    found = answer(location)
    assert (found["error"], found["state"], found["iss"]) == (name, "s t&a=t", TO.issuer)


async def test_a_wrong_request_of_whoever_has_registered_leads_to_no_other_site(rig):
    """RFC 9700, 4.11.2: else the address of the gateway leads wherever somebody likes, without a word to anybody."""
    registered, _ = await rig.servers.register(TO, {"redirect_uris": [WEB, HERE]})
    for client_id, is_sent in ((rig.document(), False), (registered["client_id"], False), ("cli", True)):
        error = await not_asked(rig, client_id=client_id, redirect_uri=WEB, response_type="token")
        assert (error.location is not None) is is_sent
        assert (await not_asked(rig, client_id=client_id, response_type="token")).location is not None
    shouting = "HTTPS://evil.example/cb"
    mine = rig.document("https://evil.example/c.json", redirect_uris=[shouting])
    assert (await not_asked(rig, client_id=mine, redirect_uri=shouting, response_type="token")).location is None


async def test_a_client_without_redirect_addresses_asks_nobody(rig):
    rig.client("job", scopes=("mcp:connect",), authentication="secret")
    assert (await not_asked(rig, client_id="job")).location is None


@pytest.mark.parametrize(("resource", "backend"), [
    (..., ""), (ALL, ""), (ALL + "/", ""), (ECHO, "echo"), (f"{ALL}/echo", "echo"), ([ECHO, f"{ALL}/echo/sse"], "echo"),
])  # fmt: skip
async def test_what_is_asked_for_is_named_by_resource(rig, resource, backend):
    assert (await rig.ask(resource=resource)).backend == backend


async def test_a_tenant_without_an_authorization_server_has_none(rig):
    code = await rig.code()
    for rules in ({"acme": None}, {}):
        rig.rules.clear()
        rig.rules.update(rules)
        for asked in (rig.ask(), rig.redeem(code), rig.servers.revoke(TO, {}), rig.servers.register(TO, {}),
                      rig.servers.metadata(TO), rig.servers.jwks(TO)):  # fmt: skip
            with pytest.raises(NotFound):
                await asked


async def test_somebody_of_another_tenant_may_use_nothing(rig):
    asked = await rig.ask()
    assert rig.servers.may_use(asked, replace(rig.person, tenant="zenith")) == frozenset()
    assert rig.servers.may_use(asked, rig.key("tenant:read")) == frozenset()
    assert rig.servers.may_use(await rig.ask(resource=ECHO), rig.key("mcp:connect:files")) == frozenset()
    assert rig.servers.may_use(await rig.ask(resource=ECHO), rig.person) == {"mcp:connect:echo"}


async def test_only_what_nobody_else_can_be_is_remembered(rig):
    """RFC 8252, 8.6: anything on this machine can say that it is the program."""
    for uri, is_remembered in ((HERE, False), (WEB, True)):
        await rig.code(redirect_uri=uri)
        assert await rig.servers.was_allowed(await rig.ask(redirect_uri=uri), rig.person) is is_remembered
    assert not await rig.servers.was_allowed(await rig.ask(redirect_uri=WEB, resource=ECHO), rig.person)
    assert not await rig.servers.was_allowed(await rig.ask(redirect_uri=WEB), rig.key())


# --- codes


@pytest.mark.parametrize(
    ("changes", "name", "status"),
    [
        ({"code_verifier": ...}, "invalid_request", 400),
        ({"code_verifier": "short"}, "invalid_request", 400),
        ({"code_verifier": "w" * 43}, "invalid_grant", 400),
        ({"code_verifier": VERIFIER + "\n"}, "invalid_grant", 400),
        ({"redirect_uri": ...}, "invalid_grant", 400),
        ({"redirect_uri": WEB}, "invalid_grant", 400),
        ({"redirect_uri": "http://127.0.0.1:4321/cb"}, "invalid_grant", 400),
        ({"code": ...}, "invalid_request", 400),
        ({"code": "tlc_" + "0" * 16 + ".0." + "A" * 32}, "invalid_grant", 400),
        ({"client_id": ...}, "invalid_client", 401),
        ({"client_id": "nobody"}, "invalid_client", 401),
        ({"client_id": "other"}, "invalid_grant", 400),
        ({"client_secret": "x"}, "invalid_client", 401),
        ({"grant_type": ...}, "invalid_request", 400),
        ({"grant_type": "password"}, "unsupported_grant_type", 400),
        ({"grant_type": "client_credentials"}, "invalid_client", 401),
        ({"resource": f"{BASE}/t/zenith"}, "invalid_target", 400),
        ({"code": ["{code}", "x"]}, "invalid_request", 400),
    ],
)
async def test_a_code_is_redeemed_by_who_has_asked_for_it_only(rig, changes, name, status):
    """And whoever tries has not used it up: the right one still gets its tokens."""
    code = await rig.code()
    rig.client("other")
    changes = {key: [code if each == "{code}" else each for each in value] if isinstance(value, list) else value
               for key, value in changes.items()}  # fmt: skip
    answered = await rig.redeem(code, **changes)
    assert (answered.body["error"], answered.status) == (name, status)
    assert "access_token" not in answered.body
    assert (await rig.redeem(code)).status == 200


async def test_a_code_of_another_tenant_is_none(rig):
    rig.client(tenant="zenith")
    code = await rig.code()
    assert (await rig.redeem(code, OTHERS)).body["error"] == "invalid_grant"
    assert not rig.connections.ended_by


async def test_a_secret_for_one_thing_is_none_for_another(rig):
    code = await rig.code()
    assert (await rig.refresh(code)).body["error"] == "invalid_grant"
    tokens = (await rig.redeem(code)).body
    assert (await rig.redeem(tokens["refresh_token"])).body["error"] == "invalid_grant"
    assert (await rig.refresh(tokens["access_token"])).body["error"] == "invalid_grant"
    assert not rig.connections.ended_by


async def test_a_code_is_good_for_two_minutes(rig):
    early, late = await rig.code(), await rig.code()
    rig.elapsed_s = CODE_S - 0.1
    assert (await rig.redeem(early)).status == 200
    rig.elapsed_s = CODE_S
    assert (await rig.redeem(late)).body["error"] == "invalid_grant"


async def test_a_code_that_is_used_twice_ends_what_came_from_it(rig):
    """RFC 6749, 4.1.2."""
    code = await rig.code()
    tokens = (await rig.redeem(code)).body
    assert (await rig.redeem(code)).body["error"] == "invalid_grant"
    assert not rig.connections.rows
    assert (await rig.refresh(tokens["refresh_token"])).body["error"] == "invalid_grant"
    with pytest.raises(CredentialRefused):
        await rig.own.verify(tokens["access_token"])


async def test_who_has_an_old_code_and_does_not_prove_to_be_its_client_ends_nothing(rig):
    rig.client("web", authentication="secret")
    code = await rig.code(client_id="web")
    good = {"client_id": "web", "client_secret": rig.secret("web")}
    tokens = (await rig.redeem(code, **good)).body
    assert (await rig.redeem(code, client_id="web")).body["error"] == "invalid_client"
    assert (await rig.redeem(code, **{**good, "code_verifier": "w" * 43})).body["error"] == "invalid_grant"
    assert (await rig.refresh(tokens["refresh_token"], **good)).status == 200


async def test_who_has_an_old_code_or_token_and_cannot_prove_to_be_its_client_ends_nothing(rig):
    rig.client("web", authentication="secret")
    code, good = await rig.code(client_id="web"), {"client_id": "web", "client_secret": rig.secret("web")}
    first = (await rig.redeem(code, **good)).body["refresh_token"]
    await rig.refresh((await rig.refresh(first, **good)).body["refresh_token"], **good)
    for wrong in ({}, {"client_secret": "tls_wrong"}):
        assert (await rig.redeem(code, client_id="web", **wrong)).body["error"] == "invalid_client"
        assert (await rig.refresh(first, "web", **wrong)).body["error"] == "invalid_client"
    assert rig.only.turn == 3
    assert (await rig.redeem(code, **good)).body["error"] == "invalid_grant"
    assert not rig.connections.rows


async def test_of_two_that_redeem_a_code_at_once_one_at_most_gets_tokens(rig):
    code, won = await rig.code(), []

    async def other() -> None:
        won.append((await rig.redeem(code)).status)

    rig.connections.faster = other
    assert (await rig.redeem(code)).body["error"] == "invalid_grant"
    assert won == [200]


async def test_a_confidential_client_proves_who_it_is_and_needs_pkce_as_well(rig):
    rig.client("web", authentication="secret")
    code, good = await rig.code(client_id="web"), {"client_id": "web"}
    secret = rig.secret("web")
    for header, form, name in (
        ("", {}, "invalid_client"),
        ("", {"client_secret": "tls_wrong"}, "invalid_client"),
        (basic("web", "wrong"), {}, "invalid_client"),
        (basic("cli", secret), {}, "invalid_client"),
        ("Basic ?", {}, "invalid_client"),
        ("Bearer " + secret, {}, "invalid_client"),
        (basic("web", secret), {"code_verifier": ...}, "invalid_request"),
    ):
        answered = await rig.post(TO, header, **redemption(code, **{**good, **form}))
        assert answered.body["error"] == name, (header, form)
        assert answered.status == (401 if name == "invalid_client" else 400), (header, form)
    answered = await rig.post(TO, basic("web", secret), **redemption(code, client_id=...))
    assert answered.status == 200
    refused = await rig.refresh(answered.body["refresh_token"], "web")
    assert refused.body["error"] == "invalid_client"
    assert (await rig.refresh(answered.body["refresh_token"], "web", client_secret=secret)).status == 200


async def test_a_token_is_for_less_where_the_client_asks_for_less_and_never_for_more(rig):
    """RFC 8707."""
    all_of_it = await rig.connected()
    narrow = (await rig.refresh(all_of_it["refresh_token"], resource=ECHO)).body
    assert narrow["scope"] == "mcp:connect:echo"
    assert (await rig.own.verify(narrow["access_token"])).scopes == {"mcp:connect:echo"}
    wide = (await rig.refresh(narrow["refresh_token"])).body
    assert wide["scope"] == "mcp:connect"
    one = await rig.connected(resource=ECHO)
    for resource in (ALL, f"{ALL}/files/mcp", [ECHO, f"{ALL}/files"], "", "x"):
        assert (await rig.refresh(one["refresh_token"], resource=resource)).body["error"] == "invalid_target"
    assert (await rig.refresh(one["refresh_token"], scope="mcp:connect tenant:admin")).body["scope"] == (
        "mcp:connect:echo"
    )


# --- refresh tokens


async def test_each_refresh_token_takes_the_place_of_the_one_before(rig):
    tokens = await rig.connected()
    seen = {tokens["refresh_token"]}
    for _ in range(5):
        rig.elapsed_s += 3600
        tokens = (await rig.refresh(tokens["refresh_token"])).body
        assert tokens["refresh_token"] not in seen
        seen.add(tokens["refresh_token"])
        assert rig.only.ends_at == rig.now() + IDLE
    rig.elapsed_s += IDLE.total_seconds()
    assert (await rig.refresh(tokens["refresh_token"])).body["error"] == "invalid_grant"


async def test_a_lost_answer_is_given_again_for_half_a_minute(rig):
    first = (await rig.connected())["refresh_token"]
    rig.elapsed_s += 100
    second = (await rig.refresh(first)).body["refresh_token"]
    for _ in range(2):
        rig.elapsed_s += LOST_ANSWER_S / 2
        assert (await rig.refresh(first)).body["refresh_token"] == second
    assert rig.only.turn == 2


@pytest.mark.parametrize("turns", [1, 2])
async def test_a_refresh_token_that_comes_again_ends_the_connection(rig, turns):
    """RFC 9700, 4.14.2: after the grace, or at once where there were more since."""
    tokens = [(await rig.connected())["refresh_token"]]
    for _ in range(turns):
        tokens.append((await rig.refresh(tokens[-1])).body["refresh_token"])
    rig.elapsed_s += LOST_ANSWER_S + 1 if turns == 1 else 0
    for each in (tokens[0], tokens[-1]):
        assert (await rig.refresh(each)).body["error"] == "invalid_grant"
    assert list(rig.connections.ended_by.values()) == ["its code or a refresh token was used twice"]


async def test_of_two_that_refresh_at_once_both_get_the_same_next_token(rig):
    token, won = (await rig.connected())["refresh_token"], []

    async def other() -> None:
        won.append((await rig.refresh(token)).body["refresh_token"])

    rig.connections.faster = other
    assert (await rig.refresh(token)).body["refresh_token"] == won[0]
    assert rig.only.turn == 2


async def test_a_refresh_token_is_of_one_client_and_one_tenant(rig):
    token = (await rig.connected())["refresh_token"]
    rig.client("other")
    rig.client(tenant="zenith")
    assert (await rig.refresh(token, "other")).body["error"] == "invalid_grant"
    theirs = await rig.servers.token(
        OTHERS, fields({"grant_type": "refresh_token", "refresh_token": token, "client_id": "cli"})
    )
    assert theirs.body["error"] == "invalid_grant"
    for changed in (token[:-1] + ("A" if token[-1] != "A" else "B"), token.replace(".1.", ".2."), token + "\n", ""):
        assert (await rig.refresh(changed)).body["error"] in ("invalid_grant", "invalid_request"), changed
    assert not rig.connections.ended_by
    for _ in range(2):
        newest = (await rig.refresh(token)).body["refresh_token"]
        rig.elapsed_s += 60
        assert (await rig.refresh(token, "other")).body["error"] == "invalid_grant"
        token = newest
    assert not rig.connections.ended_by  # by who is not the client


async def test_a_connection_of_a_client_that_is_gone_or_not_let_in_any_more_gets_nothing(rig):
    mine = rig.document()
    tokens = await rig.connected(client_id=mine, redirect_uri=WEB)
    rig.rules["acme"] = SignIn(block_hosts=("app.example",))
    assert (await rig.refresh(tokens["refresh_token"], mine)).body["error"] == "invalid_client"
    registered = (await rig.connected())["refresh_token"]
    del rig.clients["acme", "cli"]
    assert (await rig.refresh(registered)).body["error"] == "invalid_client"


async def test_a_connection_without_a_way_to_ask_the_provider_ends_after_some_days(rig):
    person = replace(rig.person, issuer="https://idp.example.com", subject="alice")
    tokens = await rig.connected(person)
    for _ in range(2):
        rig.elapsed_s += 3 * 86400
        tokens = (await rig.refresh(tokens["refresh_token"])).body
    assert rig.only.ends_at == rig.only.created_at + timedelta(days=7)
    rig.elapsed_s += 86400
    assert (await rig.refresh(tokens["refresh_token"])).body["error"] == "invalid_grant"


# --- programs


async def test_a_program_gets_a_token_for_itself_by_its_secret(rig):
    rig.client("job", scopes=("mcp:connect:echo",), authentication="secret")
    secret, form = rig.secret("job"), {"grant_type": "client_credentials"}
    for header, more in ((basic("job", secret), {}), ("", {"client_id": "job", "client_secret": secret})):
        answered = await rig.post(TO, header, **form, **more)
        assert answered.status == 200
        assert "refresh_token" not in answered.body
        principal = await rig.own.verify(answered.body["access_token"])
        assert (principal.issuer, principal.subject, principal.scopes) == (CLIENT_ISSUER, "job", {"mcp:connect:echo"})
    for header, more, name in (
        ("", {"client_id": "job"}, "invalid_client"),
        (basic("job", secret[:-1]), {}, "invalid_client"),
        (basic("job", secret), {"client_id": "cli"}, "invalid_client"),
        (basic("job", secret), {"resource": f"{ALL}/files"}, "invalid_target"),
        (basic("job", secret), {"client_id": ["job", "job"]}, "invalid_request"),
    ):
        assert (await rig.post(TO, header, **form, **more)).body["error"] == name, more
    rig.clients["acme", "job"] = replace(rig.clients["acme", "job"], salt="another")
    assert (await rig.post(TO, basic("job", secret), **form)).body["error"] == "invalid_client"
    rig.client("web", authentication="secret")  # acts for people only
    answered = await rig.post(TO, basic("web", rig.secret("web")), **form)
    assert answered.body["error"] == "unauthorized_client"


async def test_a_refusal_of_a_header_says_how_to_authenticate(rig):
    """RFC 6749, 5.2."""
    answered = await rig.post(TO, basic("job", "x"), grant_type="client_credentials")
    assert answered.status == 401
    assert next(iter(answered.headers.values())).startswith("Basic")


# --- revocation


async def test_a_client_revokes_by_a_refresh_or_an_access_token_what_is_its_own(rig):
    rig.client("other")
    rig.client(tenant="zenith")
    for kind in ("refresh_token", "access_token"):
        tokens = await rig.connected()
        form = {"token": tokens[kind], "client_id": "cli"}
        assert await rig.servers.revoke(TO, fields({**form, "client_id": "other"})) is None
        assert await rig.servers.revoke(OTHERS, fields(form)) is None
        assert rig.only.turn == 1
        assert await rig.servers.revoke(TO, fields({**form, "token_type_hint": "nonsense"})) is None
        assert not rig.connections.rows
        assert await rig.servers.revoke(TO, fields(form)) is None  # again


async def test_a_revocation_of_what_is_no_token_is_answered_as_one(rig):
    for token in ("x", "tlr_x", "a.b.c", *ODD):
        assert await rig.servers.revoke(TO, fields({"token": token, "client_id": "cli"})) is None


async def test_a_revocation_needs_a_client_and_a_token(rig):
    for form, name in (
        ({"token": "x"}, "invalid_client"),
        ({"token": "x", "client_id": "no"}, "invalid_client"),
        ({"client_id": "cli"}, "invalid_request"),
        ({"token": ["a", "b"], "client_id": "cli"}, "invalid_request"),
    ):
        error = await rig.servers.revoke(TO, fields(form))
        assert error is not None
        assert error.body["error"] == name, form


# --- registration


async def test_a_program_registers_once_whatever_its_port(rig):
    async def register(*uris: str, **more: object) -> str:
        made, _ = await rig.servers.register(TO, {"client_name": "Inspector", "redirect_uris": list(uris), **more})
        return str(made["client_id"])

    mine = await register("http://localhost:1111/cb")
    assert mine == await register("http://localhost:2222/cb") == await register("http://localhost/cb", scope="x")
    others = [await register("http://localhost:1111/other"), await register("http://127.0.0.1:1111/cb"),
              await register("https://localhost:1111/cb"), await register("http://localhost:1111/cb", client_name="B"),
              ]  # fmt: skip
    metadata = {"client_name": "Inspector", "redirect_uris": ["http://localhost/cb"]}
    made = [await rig.servers.register(OTHERS, metadata) for _ in range(2)]
    assert [is_new for _, is_new in made] == [True, False]
    others.append(made[0][0]["client_id"])
    assert len({mine, *others}) == 6
    assert (await rig.ask(client_id=mine, redirect_uri="http://localhost:3333/cb")).client.title == "Inspector"


async def test_what_is_registered_is_public_whatever_it_asks_for(rig):
    made, _ = await rig.servers.register(
        TO,
        {
            "redirect_uris": [WEB],
            "token_endpoint_auth_method": "client_secret_basic",
            "grant_types": ["client_credentials"],
            "client_id": "cli",
        },
    )
    assert made["token_endpoint_auth_method"] == "none"
    assert "client_secret" not in made
    assert made["client_id"].startswith("r-")
    answered = await rig.post(client_id=made["client_id"], grant_type="client_credentials")
    assert answered.body["error"] == "invalid_client"


async def test_what_nobody_may_register_is_refused(rig):
    for metadata, kind in (
        ({}, "redirect_uri"), ({"redirect_uris": []}, "redirect_uri"), ({"redirect_uris": WEB}, "redirect_uri"),
        ({"redirect_uris": [WEB, 1]}, "redirect_uri"), ({"redirect_uris": [WEB] * 51}, "redirect_uri"),
        ({"redirect_uris": ["http://app.example/cb"]}, "redirect_uri"),
        ({"redirect_uris": [WEB], "client_name": 1}, "client_name"),
    ):  # fmt: skip
        with pytest.raises(Unfit) as caught:
            await rig.servers.register(TO, metadata)
        assert caught.value.kind == kind, metadata
    for rules in (SignIn(registration=False), SignIn(block_hosts=("*.example",)), SignIn(allow_hosts=("claude.ai",))):
        rig.rules["acme"] = rules
        with pytest.raises(ClientRefused):
            await rig.servers.register(TO, {"redirect_uris": [WEB]})
    assert list(rig.clients) == [("acme", "cli")]


# --- whatever is sent


async def test_odd_bytes_are_answered_properly(rig):
    """A form or query with anything in any place: a decision whose error is one of the specifications, or NotAsked."""
    rng = random.Random(36)
    tokens = await rig.connected()
    good = [
        redemption(await rig.code()),
        {"grant_type": "refresh_token", "refresh_token": tokens["refresh_token"], "client_id": "cli"},
        {"grant_type": "client_credentials", "client_id": "cli", "client_secret": "x", "scope": "a"},
        {"grant_type": JWT_BEARER, "client_id": "cli", "assertion": tokens["access_token"]},
        {"client_assertion_type": "x", "client_assertion": "a.b.c", "grant_type": "client_credentials"},
    ]
    known = {"invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type",
             "invalid_target", "invalid_scope"}  # fmt: skip
    for form in good:
        for name in (*form, "resource", "é", '"', "\n"):
            for odd in (*ODD, "", ["a", "b"]):
                header = rng.choice(("", "Basic " + rng.choice(ODD), basic("cli", rng.choice(ODD)), "Basic Og=="))
                changed = fields({**form, name: odd})
                answered = await rig.servers.token(TO, changed, header)
                error = answered.body.get("error")
                assert (error in known) if answered.status != 200 else error is None, (form, name, odd)
                text = answered.body.get("error_description", "")
                assert all(" " <= each <= "~" and each not in '"\\' for each in text), (name, odd)
                json.dumps(answered.body)
                await rig.servers.revoke(TO, changed, header)
    for name in ("client_id", "redirect_uri", "state", "scope", "response_type", "code_challenge", "resource", "é"):
        for odd in (*ODD, "", ["a", "b"]):
            try:
                location = await rig.servers.refuse(await rig.ask(**{name: odd}), rig.person)
            except NotAsked as error:
                location = error.location or HERE + "?"
            assert location.startswith((HERE + "?", WEB + "?"))
            assert location.isascii()
            assert "\n" not in location


# --- what is published


async def test_metadata_says_what_there_is(rig):
    found = await rig.servers.metadata(TO)
    assert found["issuer"] == f"{BASE}/oauth/acme"
    assert found["registration_endpoint"] == f"{BASE}/oauth/acme/register"
    assert found["code_challenge_methods_supported"] == ["S256"]
    assert found["client_id_metadata_document_supported"] is True
    rig.rules["acme"] = SignIn(registration=False, documents=False)
    found = await rig.servers.metadata(TO)
    assert "registration_endpoint" not in found
    assert found["client_id_metadata_document_supported"] is False


async def test_a_tenants_rules_are_asked_for_once_in_two_seconds():
    asked, elapsed_s = list[str](), 100.0

    async def ask(tenant: str) -> SignIn | None:
        asked.append(tenant)
        if tenant == "nobody":
            raise NotFound
        return SignIn()

    rules = RememberedRules(ask, lambda: elapsed_s)
    for _ in range(3):
        assert await rules.of("acme") == SignIn()
        assert await rules.of("nobody") is None
    elapsed_s += 2
    await rules.of("acme")
    assert asked == ["acme", "nobody", "acme"]
    for number in range(1000):
        await rules.of(f"t{number}")
    elapsed_s += 0
    await rules.of("nobody")
    assert asked[-1] == "nobody"  # the oldest were forgotten


async def test_of_many_that_need_a_tenants_rules_at_once_one_asks():
    asked = list[str]()

    async def ask(tenant: str) -> SignIn | None:
        asked.append(tenant)
        await anyio.lowlevel.checkpoint()
        return SignIn()

    rules = RememberedRules(ask)
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(rules.of, "acme")
    assert asked == ["acme"]


async def test_what_was_allowed_at_one_address_is_not_allowed_at_another(rig):
    """Else a client with a good address and a bad one would get silently what it asked for openly."""
    uris = ["https://claude.example/cb", "https://evil.example/cb"]
    made, _ = await rig.servers.register(TO, {"redirect_uris": uris})
    good, bad = [{"client_id": made["client_id"], "redirect_uri": each} for each in uris]
    await rig.connected(**good)
    assert await rig.servers.was_allowed(await rig.ask(**good), rig.person)
    assert not await rig.servers.was_allowed(await rig.ask(**bad), rig.person)
