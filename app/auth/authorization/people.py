"""People: whether the person behind a connection is still there, by key, issuer, switch, and their own provider."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from app.auth._refusal import CredentialRefused
from app.auth.api_keys import ApiKeys
from app.auth.authenticator import Switches
from app.auth.authorization.access_tokens import narrowed
from app.auth.outbound_urls import FetchFailed, UrlRefused
from app.auth.policy import has_scope
from app.auth.provider_client import ProviderClient, ProviderRefused
from app.auth.sealing import SealBroken, Sealer
from app.auth.tokens import IssuerStore, Target, Tokens
from app.domain import KEY_ISSUER, Connection, Principal, Scope
from app.errors import Disabled

ASK_EVERY = timedelta(minutes=10)
TRUST = timedelta(hours=1)  # while the provider does not answer


class PersonGone(Exception):
    """There is no token for this person now; `for_good`: nor later, so that the connection is over."""

    def __init__(self, words: str, *, for_good: bool) -> None:
        super().__init__(words)
        self.for_good = for_good


class Questions(Protocol):
    """Keeps what providers have said (`storage.access.connections.ConnectionRepository`)."""

    async def take_question(self, connection: Connection, before: datetime, now: datetime) -> bool: ...
    async def told(self, connection: Connection, **values: Any) -> None: ...


@dataclass(frozen=True)
class People:
    """Asks a provider at most once in ten minutes for each connection, over all nodes."""

    keys: ApiKeys
    tokens: Tokens
    switches: Switches
    issuers: IssuerStore
    provider: ProviderClient
    sealer: Sealer
    questions: Questions
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def can_ask(self, connection: Connection) -> bool:
        """Whether it can be known later that the person is still there."""
        return connection.issuer == KEY_ISSUER or connection.sealed is not None

    def with_token(self, connection: Connection, refresh_token: str) -> Connection:
        """The connection with the refresh token that the person's provider gave for it."""
        sealed = self.sealer.seal(refresh_token.encode(), _place(connection))
        return replace(connection, sealed=sealed, asked_at=connection.created_at)

    async def confirmed(self, connection: Connection) -> Connection:
        """The connection as it is now.

        Raises:
            PersonGone: it gives no token.
            StorageUnavailable: it cannot be looked up.
        """
        principal = Principal(*connection.identity, connection.scopes)
        try:
            if connection.issuer == KEY_ISSUER:
                await self.keys.confirm(principal)
            else:
                await self.tokens.confirm(principal)
            await self.switches.require_on(principal)
        except CredentialRefused as refusal:
            raise PersonGone(f"its person's credential is gone: {refusal}", for_good=True) from None
        except Disabled as off:
            raise PersonGone(str(off), for_good=False) from None
        return connection if connection.sealed is None else await self._asked(connection, connection.sealed)

    async def _asked(self, connection: Connection, sealed: bytes) -> Connection:
        now = self.now()
        asked_at = connection.asked_at or connection.created_at
        if asked_at > now - ASK_EVERY or not await self.questions.take_question(connection, now - ASK_EVERY, now):
            return connection
        issuer = await self.issuers.find(connection.tenant, connection.issuer)
        try:
            if issuer is None or issuer.sign_in is None:
                raise PersonGone("people cannot sign in with their provider here any more", for_good=True)
            refresh_token = self.sealer.open(sealed, _place(connection)).decode()
            found = await self.provider.refreshed(issuer, issuer.sign_in, refresh_token)
            scopes = await self._scopes(connection, found.token)
        except SealBroken:
            raise PersonGone("its provider's token cannot be decrypted with this SECRET_KEY", for_good=True) from None
        except (ProviderRefused, CredentialRefused) as refusal:
            raise PersonGone(f"its person's provider refuses: {refusal}", for_good=True) from None
        except (FetchFailed, UrlRefused) as error:
            if asked_at <= now - TRUST:
                await self.questions.told(connection, asked_at=asked_at)
                raise PersonGone(f"its person's provider does not answer: {error}", for_good=False) from None
            await self.questions.told(connection, asked_at=asked_at)
            return connection
        changed: dict[str, Any] = {"asked_at": now, "scopes": scopes}
        if found.refresh_token is not None:
            changed["sealed"] = self.sealer.seal(found.refresh_token.encode(), _place(connection))
        await self.questions.told(connection, **changed)
        return replace(connection, **changed)

    async def _scopes(self, connection: Connection, token: str) -> frozenset[str]:
        """What the person may use by now, of what was allowed. Raises CredentialRefused."""
        principal = await self.tokens.verify(token, Target(connection.tenant, "", connection.base_url))
        if principal.identity != connection.identity:
            raise PersonGone("its provider names another person", for_good=True)
        own = {Scope.CONNECT.value} if has_scope(principal, connection.tenant, Scope.CONNECT) else principal.scopes
        scopes = narrowed(own, connection.backend)
        if not scopes:
            raise PersonGone("its person may not use this any more", for_good=False)
        return scopes


def _place(connection: Connection) -> str:
    return f"connections/{connection.tenant}/{connection.id}"
