"""People: whether the person behind a connection is still there, by key, issuer, switch, and their own provider."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Protocol

from app.auth._refusal import CredentialRefused
from app.auth.api_keys import ApiKeys
from app.auth.authenticator import Switches
from app.auth.authorization.access_tokens import narrowed
from app.auth.issuer_rules import capped
from app.auth.outbound_urls import FetchFailed
from app.auth.policy import CONNECT_ONE, has_scope
from app.auth.provider_client import ProviderClient, ProviderRefused
from app.auth.sealing import SealBroken, Sealer
from app.auth.tokens import IssuerStore, Target, Tokens
from app.domain import KEY_ISSUER, Connection, Person, Principal, Scope
from app.errors import Disabled, ProviderUnavailable

ASK_EVERY = timedelta(minutes=10)
TRUST = timedelta(hours=1)  # while the provider does not answer


class PersonGone(Exception):
    """There is no token for this person now; `for_good`: nor later, so that the connection is over."""

    def __init__(self, words: str, *, for_good: bool) -> None:
        super().__init__(words)
        self.for_good = for_good


class PersonStore(Protocol):
    """Where it is kept what providers have said (`storage.access.people.PersonRepository`)."""

    async def find(self, identity: tuple[str, str, str]) -> Person | None: ...
    async def put(self, person: Person) -> None: ...
    async def take_question(self, person: Person, now: datetime) -> bool: ...
    async def told(self, person: Person, asked_at: datetime) -> None: ...


@dataclass(frozen=True)
class People:
    """Asks a provider about a person at most once in ten minutes, over all nodes and connections."""

    keys: ApiKeys
    tokens: Tokens
    switches: Switches
    issuers: IssuerStore
    provider: ProviderClient
    sealer: Sealer
    store: PersonStore
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    async def signed_in(self, principal: Principal, refresh_token: str | None) -> None:
        """Somebody has signed in with a provider, which gave this refresh token for them, or none."""
        place = _place(principal.identity)
        sealed = None if refresh_token is None else self.sealer.seal(refresh_token.encode(), place)
        await self.store.put(Person(*principal.identity, connecting(principal), self.now(), sealed))

    async def can_be_asked_about(self, connection: Connection) -> bool:
        """Whether it can be known later that the person is still there."""
        if connection.issuer == KEY_ISSUER:
            return True
        person = await self.store.find(connection.identity)
        return person is not None and person.sealed is not None

    async def confirmed(self, connection: Connection) -> Connection:
        """The connection with what its person may use of it by now.

        Raises:
            PersonGone: it gives no token.
            ProviderUnavailable: its provider has not answered for longer than it is trusted.
            StorageUnavailable: it cannot be looked up.
        """
        principal = Principal(*connection.identity, connection.scopes)
        try:
            if connection.issuer == KEY_ISSUER:
                await self.keys.confirm(principal)
            else:
                await self.tokens.confirm(principal)
                connection = await self._capped(connection)
            await self.switches.require_on(principal)
        except CredentialRefused as refusal:
            raise PersonGone(f"its person's credential is gone: {refusal}", for_good=True) from None
        except Disabled as off:
            raise PersonGone(str(off), for_good=False) from None
        if not connection.scopes:
            raise PersonGone("its person may not use this any more", for_good=False)
        person = await self.store.find(connection.identity)
        if person is None:
            return connection
        allowed = narrowed((await self._asked(person, connection.base_url)).scopes, connection.backend)
        scopes = _in_both(allowed, connection.scopes)  # never more than the person has allowed (RFC 6749, 6)
        if not scopes:
            raise PersonGone("its person may not use this any more", for_good=False)
        return replace(connection, scopes=scopes)

    async def _capped(self, connection: Connection) -> Connection:
        """The connection with what its issuer may confer by now."""
        issuer = await self.issuers.find(connection.tenant, connection.issuer)
        cap: frozenset[str] = frozenset() if issuer is None else issuer.max_scopes
        return replace(connection, scopes=capped(connection.scopes, connection.tenant, cap))

    async def _asked(self, person: Person, base_url: str) -> Person:
        """The person after its provider was asked, if that is due. Raises PersonGone, ProviderUnavailable."""
        now, sealed = self.now(), person.sealed
        is_due = sealed is not None and person.asked_at <= now - ASK_EVERY
        if sealed is None or not is_due or not await self.store.take_question(person, now):
            return person
        try:
            token, sealed = await self._answered(person, sealed)
            person = replace(person, sealed=sealed)  # the next one is kept, whatever follows
            principal = await self.tokens.verify(token, Target(person.tenant, "", base_url))
            if principal.identity != person.identity:
                raise ProviderRefused("it names another person", is_final=True)
        except (FetchFailed, ProviderRefused, CredentialRefused) as error:
            await self.store.told(person, now)  # it was not asked: who asks next is answered alike
            if _is_final(error):
                raise PersonGone(f"its person's provider refuses: {error}", for_good=True) from None
            if person.asked_at <= now - TRUST:
                raise ProviderUnavailable from None  # not `invalid_grant`: the client would throw its token away
            return person
        told = replace(person, scopes=connecting(principal), asked_at=now)
        await self.store.told(told, now)
        return told

    async def _answered(self, person: Person, sealed: bytes) -> tuple[str, bytes]:
        """A token, and the refresh token with which to ask next, sealed.

        Raises FetchFailed, ProviderRefused."""
        issuer, place = await self.issuers.find(person.tenant, person.issuer), _place(person.identity)
        if issuer is None or issuer.sign_in is None:
            raise ProviderRefused("people cannot sign in with it here any more", is_final=True)
        try:
            refresh_token = self.sealer.open(sealed, place).decode()
        except SealBroken:
            words = "its token cannot be decrypted with this SECRET_KEY"
            raise ProviderRefused(words, is_final=True) from None
        found = await self.provider.refreshed(issuer, issuer.sign_in, refresh_token)
        if found.refresh_token is None:
            return found.token, sealed
        return found.token, self.sealer.seal(found.refresh_token.encode(), place)


def connecting(principal: Principal) -> frozenset[str]:
    """Of the scopes of somebody, those that connect; `mcp:connect` where another implies it."""
    if has_scope(principal, principal.tenant, Scope.CONNECT):
        return frozenset({Scope.CONNECT.value})
    return frozenset(each for each in principal.scopes if each.startswith(CONNECT_ONE))


def _in_both(some: frozenset[str], others: frozenset[str]) -> frozenset[str]:
    """What both of these scopes, which connect, imply."""
    if Scope.CONNECT in some:
        return others
    return some if Scope.CONNECT in others else some & others


def _is_final(error: Exception) -> bool:
    """Whether it is about the person, and not about the provider's host, its keys, or the gateway as its client."""
    if isinstance(error, CredentialRefused):
        return error.facts["failure"] not in ("keys_unavailable", "unknown_key", "not_yet_valid")
    return isinstance(error, ProviderRefused) and error.is_final


def _place(identity: tuple[str, str, str]) -> str:
    return "people|" + "|".join(identity)
