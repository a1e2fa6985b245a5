"""AuthorizationServers: the authorization servers of all tenants. Looks up what a request is about, has it decided
(`decisions.py`), and stores what follows before it answers."""

import secrets
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote_plus, urlencode

from app.auth._refusal import CredentialRefused
from app.auth.authorization.access_tokens import Holder, OwnTokens, SigningKeys, narrowed
from app.auth.authorization.addresses import GRANTS, JWT_BEARER, METHODS, Addresses
from app.auth.authorization.assertions import Assertions
from app.auth.authorization.clients import (
    Client,
    ClientRefused,
    Clients,
    ClientSecrets,
    read_metadata,
    require_hosts,
    same_program,
)
from app.auth.authorization.connection_secrets import ConnectionSecrets, Presented
from app.auth.authorization.people import People, PersonGone, connecting
from app.auth.issuer_rules import ALGORITHMS
from app.concurrency.single_flight import SingleFlight
from app.domain import Connection, Principal, Scope, SignIn
from app.errors import NotFound

if TYPE_CHECKING:
    from app.auth.authorization.decisions import Ask, Asked, Decision, Fields, Known

CODE_S = 120.0  # for a client to redeem a code
LOST_ANSWER_S = 30.0  # so long a refresh token that was used is answered once more: the first answer may be lost
IDLE = timedelta(days=90)  # a connection that nobody uses ends
REMEMBER_S = 2.0  # a tenant's settings
MAX_REMEMBERED = 1000

Actor = tuple[str, str, str]


class ConnectionStore(Protocol):
    """Where connections and registered clients are kept (`storage.access.connections.ConnectionRepository`)."""

    async def find(self, tenant: str, connection_id: str, now: datetime) -> Connection | None: ...
    async def allowed(self, connection: Connection, now: datetime) -> bool: ...
    async def turn(self, old: Connection, new: Connection) -> bool: ...
    async def register(self, tenant: str, values: Mapping[str, Any], now: datetime) -> bool: ...


class Trail(Protocol):
    """Stores what has happened to a connection, with its line of the audit trail (`node.parts.authorization`)."""

    async def added(self, connection: Connection) -> None: ...
    async def refused(self, ask: "Ask", person: Principal) -> None: ...
    async def ended(self, connection: Connection, why: str) -> None: ...


class NotAsked(Exception):
    """Nobody is asked: the request is not valid. `location`: where the client is told so; None: only the person may be
    told, in these words."""

    def __init__(self, words: str, location: str | None = None) -> None:
        super().__init__(words)
        self.location = location


@dataclass(frozen=True)
class AuthorizationServers:
    """`rules`: the `sign_in` of a tenant, None where it has no authorization server."""

    rules: Callable[[str], Awaitable[SignIn | None]]
    clients: Clients
    connections: ConnectionStore
    trail: Trail
    people: People
    assertions: Assertions
    signing: SigningKeys
    tokens: OwnTokens
    secrets: ConnectionSecrets
    client_secrets: ClientSecrets
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    # --- authorization: a browser

    async def asked(self, to: Addresses, fields: "Fields") -> "Ask":
        """What a person is to be asked by an authorization request.

        Raises:
            NotFound: the tenant has no authorization server.
            NotAsked: the request is not valid.
        """
        from app.auth.authorization import decisions  # noqa: PLC0415 - Authlib, where there are requests

        rules = await self._rules(to.tenant)
        request = decisions.Asked("GET", fields)
        client_id, uri = request.form.get("client_id", ""), request.form.get("redirect_uri", "")
        if request.repeated:
            raise NotAsked(f"The program's request has `{request.repeated[0][:50]}` twice.")
        try:
            client = await self.clients.find(to.tenant, client_id, rules)
        except ClientRefused as refusal:
            raise NotAsked(f"The program that sent you here cannot be used: {refusal}.") from None
        if not client.redirects_to(uri):
            raise NotAsked(f"The program that sent you here ({client.host or client.title}) asks for answers at an "
                           "address that it has not registered.")  # fmt: skip
        known = self._known(to, client)
        try:
            return decisions.decide_authorization(request, known)
        except (decisions.OAuth2Error, ValueError) as error:
            name = getattr(error, "error", None) or "invalid_request"
            words = getattr(error, "description", None) or "The request is not valid."
            # Whoever has registered: no open redirect (RFC 9700, 4.11.2).
            if uri[:6].lower() == "https:" and not client.is_administrators:
                raise NotAsked(f"The request of {client.host or client.title} is not valid: {words}") from None
            location = _location(to, uri, request.form.get("state", ""), error=name, error_description=words)
            raise NotAsked(words, location) from None

    def may_use(self, ask: "Ask", person: Principal) -> frozenset[str]:
        """What of what a client asks for the person may use itself: scopes, none if nothing."""
        tenant = ask.to.tenant
        return narrowed(connecting(person), ask.backend) if person.tenant == tenant else frozenset()

    async def signed_in(self, person: Principal, refresh_token: str | None) -> None:
        """Somebody has signed in to the console with a provider; a tenant without authorization server forgets it."""
        if await self.rules(person.tenant) is not None:
            await self.people.signed_in(person, refresh_token)

    async def was_allowed(self, ask: "Ask", person: Principal) -> bool:
        """Whether the person has allowed this before, to a client that nobody else can be: to programs on people's
        machines it is said each time (RFC 8252, 8.6)."""
        is_host = ask.redirect_uri.startswith("https:")
        return is_host and await self.connections.allowed(self._connection(ask, person), self.now())

    async def allow(self, ask: "Ask", person: Principal) -> str:
        """The person allows it; returns where the browser goes, with a code."""
        connection = self._connection(ask, person)
        await self.trail.added(connection)
        return _location(ask.to, ask.redirect_uri, ask.state, code=self.secrets.of(connection))

    async def refuse(self, ask: "Ask", person: Principal) -> str:
        """The person does not; returns where the browser goes."""
        await self.trail.refused(ask, person)
        words = "The person has refused."
        return _location(ask.to, ask.redirect_uri, ask.state, error="access_denied", error_description=words)

    def _connection(self, ask: "Ask", person: Principal) -> Connection:
        now = self.now()
        return Connection(
            id=secrets.token_hex(8),
            tenant=ask.to.tenant,
            client_id=ask.client.client_id,
            client_title=ask.client.title[:200],
            issuer=person.issuer,
            subject=person.subject,
            backend=ask.backend,
            scopes=self.may_use(ask, person),
            base_url=ask.to.base_url,
            redirect_uri=ask.redirect_uri,
            challenge=ask.challenge,
            created_at=now,
            turned_at=now,
            ends_at=now + timedelta(seconds=CODE_S),  # until the code has come back
        )

    async def _ends_at(self, connection: Connection, rules: SignIn, now: datetime) -> datetime:
        """A connection goes on while it is used, and its provider is asked; where that cannot be asked, for a while."""
        if await self.people.can_be_asked_about(connection):
            return now + IDLE
        return connection.created_at + timedelta(days=rules.again_after_days)

    # --- tokens: a program

    async def token(self, to: Addresses, fields: "Fields", authorization: str = "") -> "Decision":
        """The answer of the token endpoint. Raises NotFound, StorageUnavailable, ProviderUnavailable."""
        from app.auth.authorization import decisions  # noqa: PLC0415 - as above

        rules, request = await self._rules(to.tenant), decisions.Asked("POST", fields, authorization)
        client, known = await self._client(to, request, rules)
        if client is not None and request.form.get("grant_type") == JWT_BEARER:
            person = await self.assertions.person(client, to, request.form.get("assertion", ""))
            return decisions.decide_token(request, replace(known, person=person))
        presented = _presented(request)
        if presented is None:
            return decisions.decide_token(request, known)
        for _ in range(2):  # once more where another request was faster
            old = await self._presented(to, presented)
            if old is None or client is None or old.client_id != client.client_id:
                return decisions.decide_token(request, known)
            if presented.turn < old.turn:
                trial = decisions.decide_token(request, replace(known, connection=old))
                if trial.is_error:  # who does not prove to be the client ends nothing by what is used already
                    return trial
            new = await self._turned(old, presented, rules)
            decision = decisions.decide_token(request, replace(known, connection=new))
            if new is None or decision.is_error or new.turn == old.turn or await self.connections.turn(old, new):
                return decision
        return decisions.decide_token(request, known)

    async def _presented(self, to: Addresses, presented: Presented) -> Connection | None:
        """The connection of a code or refresh token that was made here."""
        found = await self.connections.find(to.tenant, presented.connection_id, self.now())
        return found if found is not None and self.secrets.is_of(presented, found) else None

    async def _turned(self, old: Connection, presented: Presented, rules: SignIn) -> Connection | None:
        """The connection after this turn; None where it has come to its end, or the code has."""
        now = self.now()
        age_s = (now - old.turned_at).total_seconds()
        is_again = presented.turn == old.turn - 1 and presented.turn > 0 and age_s <= LOST_ANSWER_S
        if presented.turn != old.turn and not is_again:
            await self.trail.ended(old, "its code or a refresh token was used twice")
            return None
        try:
            known = await self.people.confirmed(old)
        except PersonGone as gone:
            if gone.for_good:
                await self.trail.ended(old, str(gone))
            return None
        if is_again:
            return known
        ends_at = await self._ends_at(known, rules, now)
        if ends_at <= now:
            await self.trail.ended(old, "its person has to sign in again")
            return None
        return replace(known, turn=old.turn + 1, turned_at=now, ends_at=ends_at)

    async def revoke(self, to: Addresses, fields: "Fields", authorization: str = "") -> "Decision | None":
        """Ends a connection by one of its tokens (RFC 7009); None: the token, if it was one, is not valid any more.
        Raises NotFound."""
        from app.auth.authorization import decisions  # noqa: PLC0415 - as above

        rules, request = await self._rules(to.tenant), decisions.Asked("POST", fields, authorization)
        client, known = await self._client(to, request, rules)
        if (error := decisions.decide_revocation(request, known)) is not None:
            return error
        found = await self._of_token(to, request.form.get("token", ""))
        if found is not None and client is not None and found.client_id == client.client_id:
            await self.trail.ended(found, "its client has revoked it")
        return None

    async def _of_token(self, to: Addresses, text: str) -> Connection | None:
        presented = self.secrets.read(text)
        if presented is not None:
            return await self._presented(to, presented)
        try:
            principal = self.tokens.read(text)
        except CredentialRefused:
            return None
        if principal.tenant != to.tenant:
            return None
        return await self.connections.find(to.tenant, principal.grant, self.now())

    # --- clients

    async def register(self, to: Addresses, metadata: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
        """Registers a public client (RFC 7591); the same program gets the same `client_id` again. Returns the answer,
        and whether the client is new.

        Raises:
            NotFound: the tenant has no authorization server, or no place.
            Unfit: the metadata cannot be used; `kind` says what of it.
            ClientRefused: the tenant lets nobody register, or nobody of that host.
        """
        rules = await self._rules(to.tenant)
        if not rules.registration:
            raise ClientRefused("this tenant does not let programs register themselves")
        client = read_metadata(metadata)
        require_hosts(client.redirect_uris, rules)
        now, name = self.now(), self.client_secrets.name_of(to.tenant, same_program(client))
        values = {
            "name": name, "title": client.title, "redirect_uris": list(client.redirect_uris), "scopes": [],
            "authentication": "none", "jwks_url": None, "salt": "", "changed_at": now, "version": 1,
        }  # fmt: skip
        is_new = await self.connections.register(to.tenant, values, now)
        answer = {
            "client_id": name,
            "client_id_issued_at": int(now.timestamp()),
            "client_name": client.title,
            "redirect_uris": list(client.redirect_uris),
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": "none",
        }
        return answer, is_new

    async def metadata(self, to: Addresses) -> Mapping[str, Any]:
        """RFC 8414; also as OpenID Connect Discovery has it. Raises NotFound."""
        rules = await self._rules(to.tenant)
        return {
            "issuer": to.issuer,
            "authorization_endpoint": to.endpoint("authorize"),
            "token_endpoint": to.endpoint("token"),
            **({"registration_endpoint": to.endpoint("register")} if rules.registration else {}),
            "revocation_endpoint": to.endpoint("revoke"),
            "jwks_uri": to.endpoint("jwks"),
            "scopes_supported": [Scope.CONNECT],
            "response_types_supported": ["code"],
            "response_modes_supported": ["query"],
            "grant_types_supported": list(GRANTS),
            "token_endpoint_auth_methods_supported": list(METHODS),
            "token_endpoint_auth_signing_alg_values_supported": sorted(ALGORITHMS),
            "revocation_endpoint_auth_methods_supported": list(METHODS),
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
            "client_id_metadata_document_supported": rules.documents,
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["EdDSA"],  # required of OpenID documents; there are no id tokens
        }

    async def jwks(self, to: Addresses) -> Mapping[str, Any]:
        """The keys of access tokens. Raises NotFound."""
        await self._rules(to.tenant)
        return {"keys": self.signing.published(to.tenant, self.now().timestamp())}

    # ---

    async def _rules(self, tenant: str) -> SignIn:
        rules = await self.rules(tenant)
        if rules is None:
            raise NotFound("There is nothing at this address")
        return rules

    async def _client(self, to: Addresses, request: "Asked", rules: SignIn) -> "tuple[Client | None, Known]":
        """Whom a request says that it comes from, which is not proven, and what is known for the decision."""
        form, basic = request.form, _basic_user(request.headers)
        client_id = form.get("client_id") or basic or self.assertions.subject(form)
        try:
            client = await self.clients.find(to.tenant, client_id, rules) if client_id else None
        except ClientRefused:
            client = None
        known = self._known(to, client)
        if client is None or "client_assertion" not in form:
            return client, known
        return client, replace(known, is_proven=await self.assertions.are_of(client, to, form["client_assertion"]))

    def _known(self, to: Addresses, client: Client | None) -> "Known":
        from app.auth.authorization import decisions  # noqa: PLC0415 - as above

        def is_right(secret: str) -> bool:
            stored = None if client is None else client.stored
            return stored is not None and self.client_secrets.is_right(to.tenant, stored, secret)

        return decisions.Known(to, client, is_right, self.tokens.make, self.secrets.of)


class RememberedRules:
    """A tenant's `sign_in`, looked up at most once in REMEMBER_S. `ask` raises NotFound for a tenant that is none."""

    def __init__(
        self, ask: Callable[[str], Awaitable[SignIn | None]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask, self._clock = ask, clock
        self._flight = SingleFlight[str]()
        self._known: dict[str, tuple[SignIn | None, float]] = {}  # the oldest is first

    async def of(self, tenant: str) -> SignIn | None:
        """Raises StorageUnavailable."""
        async with self._flight.turn(tenant):
            found, until = self._known.get(tenant, (None, 0.0))
            if until > self._clock():
                return found
            try:
                found = await self._ask(tenant)
            except NotFound:
                found = None
            self._known.pop(tenant, None)
            if len(self._known) >= MAX_REMEMBERED:
                del self._known[next(iter(self._known))]
            self._known[tenant] = found, self._clock() + REMEMBER_S
            return found


def _presented(request: "Asked") -> Presented | None:
    name = {"authorization_code": "code", "refresh_token": "refresh_token"}.get(request.form.get("grant_type", ""))
    found = ConnectionSecrets.read(request.form.get(name, "")) if name is not None else None
    return found if found is None or (found.turn == 0) == (name == "code") else None


def _basic_user(headers: Mapping[str, str]) -> str | None:
    scheme, _, value = headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        return unquote_plus(b64decode(value, validate=True).decode().partition(":")[0])
    except ValueError:
        return None


def _location(to: Addresses, uri: str, state: str, **answer: str) -> str:
    """The redirect address with an answer, which says who gives it (RFC 9207)."""
    query = urlencode({**answer, **({"state": state} if state else {}), "iss": to.issuer})
    return uri + ("&" if "?" in uri else "?") + query


__all__ = ["AuthorizationServers", "Holder", "NotAsked", "RememberedRules"]
