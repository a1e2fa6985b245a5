"""Whether the person behind a connection is still there: by key, issuer, switch, and their own provider."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from app.auth.authorization.people import PersonGone, connecting
from app.auth.outbound_urls import FetchFailed
from app.auth.provider_client import ProviderRefused, ProviderTokens
from app.domain import Connection, Principal
from app.errors import ProviderUnavailable
from tests.auth.authorization.rig import TO, Rig, sealer
from tests.auth.tokens import BASE, ISS, NOW, T, token

ALICE = Principal("acme", ISS, "alice", frozenset({"mcp:connect"}))
CONNECTION = Connection(
    "0" * 16, "acme", "cli", "", ISS, "alice", "", ALICE.scopes, BASE, "uri", "c", NOW, NOW, NOW
)  # fmt: skip
TEN_MINUTES, HOUR = 600, 3600


def given(rig: Rig, refresh_token: str | None = None, **claims: Any) -> ProviderTokens:
    """What the provider answers now."""
    now = T + int(rig.elapsed_s)
    claims = {"aud": f"{BASE}/api/v1/tenants/acme", "iat": now, "exp": now + 600, **claims}
    return ProviderTokens(token(**claims), refresh_token)


async def gone(rig: Rig, connection: Connection = CONNECTION) -> PersonGone:
    with pytest.raises(PersonGone) as caught:
        await rig.people.confirmed(connection)
    return caught.value


async def of_key(rig: Rig) -> Connection:
    await rig.connected()
    return rig.only


async def test_somebody_with_a_key_is_there_while_the_key_is(rig):
    connection = await of_key(rig)
    assert await rig.people.confirmed(connection) == connection
    assert await rig.people.can_be_asked_about(connection)
    rig.off.add(connection.identity)
    assert not (await gone(rig, connection)).for_good  # it may be switched on again
    rig.off.clear()
    key = rig.keys.records[connection.subject]
    for changed in (
        replace(key, revoked_at=rig.now()),
        replace(key, expires_at=rig.now()),
        replace(key, tenant="zenith"),
    ):
        rig.keys.records[connection.subject] = changed
        assert (await gone(rig, connection)).for_good
    rig.keys.records.clear()
    assert (await gone(rig, connection)).for_good
    assert rig.asked == []


async def test_a_refresh_for_somebody_who_is_gone_gives_nothing_and_ends_what_is_over(rig):
    tokens = await rig.connected()
    rig.off.add(rig.person.identity)
    assert (await rig.refresh(tokens["refresh_token"])).body["error"] == "invalid_grant"
    rig.off.clear()
    tokens = (await rig.refresh(tokens["refresh_token"])).body  # not used up
    rig.keys.records.clear()
    assert (await rig.refresh(tokens["refresh_token"])).body["error"] == "invalid_grant"
    assert list(rig.connections.ended_by.values()) == ["its person's credential is gone: unknown"]


async def test_without_an_issuer_nobody_of_it_is_there(rig):
    await rig.people.signed_in(ALICE, None)
    assert await rig.people.confirmed(CONNECTION) == CONNECTION
    assert not await rig.people.can_be_asked_about(CONNECTION)
    rig.idp.records.clear()
    assert (await gone(rig)).for_good


async def test_a_provider_is_asked_once_in_ten_minutes(rig):
    await rig.people.signed_in(ALICE, "one")
    assert await rig.people.can_be_asked_about(CONNECTION)
    assert b"one" not in (rig.persons.rows[ALICE.identity].sealed or b"")
    rig.elapsed_s = TEN_MINUTES - 1
    await rig.people.confirmed(CONNECTION)
    assert rig.asked == []
    rig.elapsed_s = TEN_MINUTES
    rig.answers = [given(rig, "two")]
    for _ in range(3):
        await rig.people.confirmed(CONNECTION)
    rig.elapsed_s += TEN_MINUTES
    rig.answers = [given(rig)]  # a provider that does not rotate
    await rig.people.confirmed(CONNECTION)
    rig.elapsed_s += TEN_MINUTES
    rig.answers = [given(rig)]
    await rig.people.confirmed(CONNECTION)
    assert rig.asked == ["one", "two", "two"]


async def test_of_many_who_refresh_at_once_one_asks_and_the_others_trust(rig):
    await rig.people.signed_in(ALICE, "one")
    rig.elapsed_s = TEN_MINUTES
    person = rig.persons.rows[ALICE.identity]
    assert await rig.persons.take_question(person, rig.now())
    found = await rig.people._asked(person, BASE)
    assert (found, rig.asked) == (person, [])


@pytest.mark.parametrize(("scope", "backend", "found"), [
    ("mcp:connect", "", {"mcp:connect"}), ("mcp:connect", "echo", {"mcp:connect:echo"}),
    ("mcp:connect:echo mcp:connect:files", "echo", {"mcp:connect:echo"}), ("mcp:connect:files", "echo", None),
    ("", "", None), ("tenant:read", "", None),
])  # fmt: skip
async def test_what_a_person_may_use_is_what_the_provider_says_by_now(rig, scope, backend, found):
    await rig.people.signed_in(ALICE, "one")
    rig.elapsed_s = TEN_MINUTES
    rig.answers = [given(rig, scope=scope)]
    scopes = {f"mcp:connect:{backend}"} if backend else {"mcp:connect"}
    connection = replace(CONNECTION, backend=backend, scopes=frozenset(scopes))
    if found is None:
        assert not (await gone(rig, connection)).for_good
    else:
        assert (await rig.people.confirmed(connection)).scopes == found


async def test_a_connection_never_gets_more_than_its_person_has_allowed_it(rig):
    """RFC 6749, 6: not what the person was given since."""
    await rig.people.signed_in(ALICE, "one")
    rig.elapsed_s = TEN_MINUTES
    rig.answers = [given(rig, scope="mcp:connect")]
    narrow = replace(CONNECTION, scopes=frozenset({"mcp:connect:echo", "mcp:connect:files"}))
    assert (await rig.people.confirmed(narrow)).scopes == narrow.scopes
    rig.elapsed_s += TEN_MINUTES
    rig.answers = [given(rig, scope="mcp:connect:files mcp:connect:payroll")]
    assert (await rig.people.confirmed(narrow)).scopes == {"mcp:connect:files"}


async def test_a_provider_that_refuses_ends_it(rig):
    for answer in (
        ProviderRefused("the token is over", is_final=True),
        lambda: given(rig, sub="mallory"),
        lambda: given(rig, aud="https://other.example"),
        lambda: given(rig, iat=T - 9000, exp=T - 8000),
    ):
        await rig.people.signed_in(ALICE, "one")
        rig.elapsed_s += TEN_MINUTES
        for _ in range(2):  # who asks next is refused as well
            rig.answers = [answer() if callable(answer) else answer]
            assert (await gone(rig)).for_good


async def test_a_provider_that_people_cannot_sign_in_with_any_more_ends_it(rig):
    await rig.people.signed_in(ALICE, "one")
    rig.elapsed_s = TEN_MINUTES
    rig.idp.set(replace(rig.idp.records["acme", ISS], sign_in=None))
    assert (await gone(rig)).for_good
    rig.idp.set(replace(rig.idp.records["acme", ISS], sign_in=None, jwks_url="https://x"))
    await rig.people.signed_in(ALICE, "one")
    rig.persons.rows[ALICE.identity] = replace(
        rig.persons.rows[ALICE.identity], sealed=sealer.seal(b"one", "people|zenith"), asked_at=NOW
    )
    assert (await gone(rig)).for_good


@pytest.mark.parametrize("away", [
    FetchFailed("no answer"), ProviderRefused("the client secret has expired"), ProviderRefused("it has sent no token"),
])  # fmt: skip
async def test_a_provider_that_is_away_or_does_not_know_us_is_trusted_for_an_hour_and_ends_nothing(rig, away):
    await rig.people.signed_in(ALICE, "one")
    for rig.elapsed_s in (TEN_MINUTES, TEN_MINUTES + 1, HOUR - 1):
        rig.answers = [away]
        assert await rig.people.confirmed(CONNECTION) == CONNECTION
    rig.elapsed_s = HOUR
    rig.answers = [away]
    with pytest.raises(ProviderUnavailable):  # not that it is over: the client would throw its token away
        await rig.people.confirmed(CONNECTION)
    rig.answers = [given(rig)]
    assert await rig.people.confirmed(CONNECTION) == CONNECTION
    assert set(rig.asked) == {"one"}


async def test_the_next_refresh_token_is_kept_where_the_providers_keys_are_away(rig):
    await rig.people.signed_in(ALICE, "one")
    rig.elapsed_s = TEN_MINUTES
    rig.idp.host.is_down = True
    rig.answers = [given(rig, "two")]
    assert await rig.people.confirmed(CONNECTION) == CONNECTION
    rig.idp.host.is_down = False
    rig.idp.host.now_s += 60
    rig.answers = [given(rig)]
    assert await rig.people.confirmed(CONNECTION) == CONNECTION
    assert rig.asked == ["one", "two"]


async def test_an_answer_does_not_undo_a_sign_in_that_came_meanwhile(rig):
    await rig.people.signed_in(ALICE, "one")
    rig.elapsed_s = TEN_MINUTES

    async def refreshed(*_: object) -> ProviderTokens:
        rig.elapsed_s += 1
        await rig.people.signed_in(ALICE, "newest")
        return given(rig, "two")

    rig.refreshed = refreshed
    await rig.people.confirmed(CONNECTION)
    sealed = rig.persons.rows[ALICE.identity].sealed
    assert sealer.open(sealed or b"", "people|" + "|".join(ALICE.identity)) == b"newest"


async def test_whose_provider_gives_nothing_to_ask_with_is_known_by_what_it_said(rig):
    await rig.people.signed_in(replace(ALICE, scopes=frozenset({"mcp:connect:echo"})), None)
    rig.elapsed_s = 5 * TEN_MINUTES
    assert (await rig.people.confirmed(CONNECTION)).scopes == {"mcp:connect:echo"}
    assert rig.asked == []


async def test_a_tenant_without_an_authorization_server_keeps_nothing_of_people(rig):
    rig.rules["acme"] = None
    await rig.servers.signed_in(ALICE, "one")
    assert not rig.persons.rows
    rig.rules["acme"] = rig.rules["zenith"]
    await rig.servers.signed_in(ALICE, "one")
    assert list(rig.persons.rows) == [ALICE.identity]


def test_what_connects_of_the_scopes_of_somebody():
    for scopes, found in (
        ({"mcp:connect", "tenant:read"}, {"mcp:connect"}), ({"mcp:connect:echo", "tenant:read"}, {"mcp:connect:echo"}),
        ({"tenant:read"}, set()), (set(), set()),
    ):  # fmt: skip
        assert connecting(Principal("acme", ISS, "alice", frozenset(scopes))) == found
    assert TO.tenant == "acme"


async def test_a_connection_never_gets_more_than_its_issuer_may_confer_by_now(rig):
    """Nor where its provider gives nothing to ask with."""
    tokens = await rig.connected(ALICE)
    rig.idp.set(replace(rig.idp.records["acme", ISS], max_scopes=frozenset({"mcp:connect:echo"})))
    tokens = (await rig.refresh(tokens["refresh_token"])).body
    assert tokens["scope"] == "mcp:connect:echo"
    rig.idp.set(replace(rig.idp.records["acme", ISS], max_scopes=frozenset({"tenant:read"})))
    assert (await rig.refresh(tokens["refresh_token"])).body["error"] == "invalid_grant"


async def test_who_has_to_sign_in_again_gets_no_token_that_is_over(rig):
    tokens = await rig.connected(ALICE)
    rig.connections.rows[rig.only.id] = replace(rig.only, created_at=NOW - timedelta(days=8))
    assert (await rig.refresh(tokens["refresh_token"])).body["error"] == "invalid_grant"
    assert list(rig.connections.ended_by.values()) == ["its person has to sign in again"]
