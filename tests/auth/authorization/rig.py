"""The authorization server of tenant acme, with everything around it in memory: what is stored, the hosts of clients'
documents, the identity provider, and the clock."""

import json
from base64 import b64encode
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from app.auth.api_keys import ApiKeys, KeyMaker
from app.auth.authorization.access_tokens import OwnTokens, SigningKeys
from app.auth.authorization.addresses import Addresses
from app.auth.authorization.assertions import Assertions
from app.auth.authorization.clients import ClientDocuments, Clients, ClientSecrets
from app.auth.authorization.connection_secrets import ConnectionSecrets
from app.auth.authorization.people import People
from app.auth.authorization.server import AuthorizationServers
from app.auth.jwks import KeySets
from app.auth.outbound_urls import FetchFailed
from app.auth.provider_client import ProviderTokens
from app.auth.sealing import Sealer
from app.auth.tokens import Tokens
from app.domain import CLIENT_GRANT, KEY_ISSUER, Connection, Person, Principal, SignIn, SignInClient
from app.domain.resources.clients import OAuthClient
from app.errors import Disabled, NotFound
from tests.auth.fakes import FakeStore
from tests.auth.tokens import BASE, ISS, NOW, Record, b64
from tests.auth.tokens import Rig as Provider

TO, OTHERS = Addresses(BASE, "acme"), Addresses(BASE, "zenith")
ALL, ECHO = f"{BASE}/t/acme", f"{BASE}/t/acme/echo/mcp"
HERE = "http://127.0.0.1:1234/cb"
WEB = "https://app.example/cb"
VERIFIER = "v" * 43
CHALLENGE = b64(sha256(VERIFIER.encode()).digest())
SECRET_KEY = b"k" * 32
sealer = Sealer(b"s" * 32)
maker = KeyMaker(b"s" * 32)
Form = dict[str, Any]


@dataclass
class Connections:
    """A ConnectionStore that compares, and the Trail of it."""

    rig: "Rig"
    rows: dict[str, Connection] = field(default_factory=dict)
    ended_by: dict[str, str] = field(default_factory=dict)
    refused_by: list[tuple[str, str, str]] = field(default_factory=list)
    faster: Any = None  # called once before a turn, as another request that is faster

    async def find(self, tenant: str, connection_id: str, now: datetime) -> Connection | None:
        found = self.rows.get(connection_id)
        return found if found is not None and found.tenant == tenant and found.ends_at > now else None

    async def standing(self, tenant: str, grants: Collection[str], now: datetime) -> set[str]:
        return {
            each
            for each in grants
            if (tenant, each.removeprefix(CLIENT_GRANT).partition(" ")[0]) in self.rig.clients
            or await self.find(tenant, each, now) is not None
        }

    async def allowed(self, connection: Connection, now: datetime) -> bool:
        return any(
            (each.client_id, each.identity, each.backend, each.redirect_uri)
            == (connection.client_id, connection.identity, connection.backend, connection.redirect_uri)
            and connection.scopes <= each.scopes
            for each in self.rows.values()
        )

    async def turn(self, old: Connection, new: Connection) -> bool:
        faster, self.faster = self.faster, None
        if faster is not None:
            await faster()
        if self.rows.get(old.id, new).turn != old.turn or old.id not in self.rows:
            return False
        self.rows[old.id] = new
        return True

    async def register(self, tenant: str, values: Mapping[str, Any], now: datetime) -> bool:
        is_new = (tenant, values["name"]) not in self.rig.clients
        self.rig.clients.setdefault((tenant, values["name"]), OAuthClient(**dict(values)))
        return is_new

    async def added(self, connection: Connection) -> None:
        self.rows[connection.id] = connection

    async def refused(self, ask: Any, person: Principal) -> None:
        self.refused_by.append(person.identity)

    async def ended(self, connection: Connection, why: str) -> None:
        if self.rows.pop(connection.id, None) is not None:
            self.ended_by[connection.id] = why


@dataclass
class Persons:
    """A PersonStore."""

    rows: dict[tuple[str, str, str], Person] = field(default_factory=dict)

    async def find(self, identity: tuple[str, str, str]) -> Person | None:
        return self.rows.get(identity)

    async def put(self, person: Person) -> None:
        self.rows[person.identity] = person

    async def take_question(self, person: Person, now: datetime) -> bool:
        if self.rows[person.identity].asked_at != person.asked_at:
            return False
        self.rows[person.identity] = replace(self.rows[person.identity], asked_at=now)
        return True

    async def told(self, person: Person, asked_at: datetime) -> None:
        if self.rows[person.identity].asked_at == asked_at:
            self.rows[person.identity] = person


@dataclass
class Rig:
    """`answers`: what the provider gives for the next refresh tokens, an exception or a token; `asked` are those."""

    idp: Provider
    sets: KeySets
    elapsed_s: float = 0.0
    keys: FakeStore = field(default_factory=FakeStore)
    clients: dict[tuple[str, str], OAuthClient] = field(default_factory=dict)
    documents: dict[str, bytes | Exception] = field(default_factory=dict)
    fetched: list[str] = field(default_factory=list)
    rules: dict[str, SignIn | None] = field(default_factory=lambda: {"acme": SignIn(), "zenith": SignIn()})
    persons: Persons = field(default_factory=Persons)
    off: set[tuple[str, str, str]] = field(default_factory=set)
    answers: list[Any] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.idp.set(replace(self.idp.records["acme", ISS], sign_in=SignInClient("gateway", "openid", "access_token")))
        self.connections = Connections(self)
        self.tokens = Tokens(self.idp, sealer, self.sets, self.now)
        self.api_keys = ApiKeys(self.keys, maker, self.now)
        self.signing = SigningKeys(SECRET_KEY)
        self.own = OwnTokens(self.signing, self.connections, self.api_keys, self.tokens, self.now)
        self.client_secrets = ClientSecrets(SECRET_KEY)
        self.secrets = ConnectionSecrets(SECRET_KEY)
        provider: Any = self
        self.people = People(self.api_keys, self.tokens, self, self.idp, provider, sealer, self.persons, self.now)
        self.client_documents = ClientDocuments(self.fetch, lambda: 1000 + self.elapsed_s)
        self.servers = AuthorizationServers(
            rules=self.rules_of,
            clients=Clients(self, self.client_documents),
            connections=self.connections,
            trail=self.connections,
            people=self.people,
            assertions=Assertions(self.tokens, self.sets, self.now),
            signing=self.signing,
            tokens=self.own,
            secrets=self.secrets,
            client_secrets=self.client_secrets,
            now=self.now,
        )
        self.person = self.key()

    # --- what it stands on

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.elapsed_s)

    async def rules_of(self, tenant: str) -> SignIn | None:
        return self.rules.get(tenant)

    async def get(self, tenant: str, name: str) -> OAuthClient:
        if (tenant, name) not in self.clients:
            raise NotFound
        return self.clients[tenant, name]

    async def fetch(self, url: str) -> bytes:
        self.fetched.append(url)
        found = self.documents.get(url, FetchFailed("the answer is HTTP 404"))
        if isinstance(found, Exception):
            raise found
        return found

    async def require_on(self, principal: Principal) -> None:
        if principal.identity in self.off:
            raise Disabled("principal", principal.subject, "")

    async def refreshed(self, issuer: Record, client: SignInClient, refresh_token: str) -> ProviderTokens:
        self.asked.append(refresh_token)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, ProviderTokens) else ProviderTokens(answer, None)

    # --- who takes part

    def key(self, *scopes: str) -> Principal:
        """Somebody with a key of acme."""
        self.keys.add(maker, scopes=frozenset(scopes or {"mcp:connect"}))
        identifier = next(reversed(self.keys.records))
        return Principal("acme", KEY_ISSUER, identifier, self.keys.records[identifier].scopes)

    def client(self, name: str = "cli", tenant: str = "acme", **more: Any) -> str:
        """A stored client; returns its id."""
        uris = {"redirect_uris": (HERE, WEB)} if "scopes" not in more else {}
        self.clients[tenant, name] = OAuthClient(name=name, changed_at=NOW, **{**uris, **more})
        return name

    def document(self, url: str = "https://app.example/client.json", **changes: Any) -> str:
        """A client with a metadata document; returns its id."""
        self.documents[url] = json.dumps({"client_id": url, "redirect_uris": [WEB, HERE], **changes}).encode()
        return url

    def secret(self, name: str, tenant: str = "acme") -> str:
        return self.client_secrets.of(tenant, self.clients[tenant, name])

    # --- what is asked

    async def ask(self, **changes: Any) -> Any:
        return await self.servers.asked(TO, fields(authorization(**changes)))

    async def code(self, person: Principal | None = None, **changes: Any) -> str:
        """The code that a client gets when somebody allows it."""
        asked = await self.ask(**changes)
        return answer(await self.servers.allow(asked, person or self.person))["code"]

    async def post(self, to: Addresses = TO, authorization: str = "", **form: Any) -> Any:
        return await self.servers.token(to, fields(form), authorization)

    async def redeem(self, code: str, to: Addresses = TO, /, **changes: Any) -> Any:
        return await self.post(to, **redemption(code, **changes))

    async def refresh(self, refresh_token: str, client_id: str = "cli", **changes: Any) -> Any:
        return await self.post(grant_type="refresh_token", refresh_token=refresh_token, client_id=client_id, **changes)

    async def connected(self, person: Principal | None = None, **changes: Any) -> dict[str, Any]:
        """The tokens of a new connection."""
        more = {name: changes[name] for name in ("client_id", "redirect_uri") if name in changes}
        answered = await self.redeem(await self.code(person, **changes), **more)
        assert answered.status == 200, answered
        return dict(answered.body)

    @property
    def only(self) -> Connection:
        (found,) = self.connections.rows.values()
        return found


def fields(form: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    """As a form or a query has them; a change to ... leaves one out."""
    return {
        name: value if isinstance(value, list) else [value] for name, value in form.items() if value is not ...
    }  # fmt: skip


def authorization(**changes: Any) -> Form:
    return {
        "response_type": "code", "client_id": "cli", "redirect_uri": HERE, "state": "s t&a=t", "resource": ALL,
        "code_challenge": CHALLENGE, "code_challenge_method": "S256", **changes,
    }  # fmt: skip


def redemption(code: str, /, **changes: Any) -> Form:
    return {
        "grant_type": "authorization_code", "code": code, "client_id": "cli", "redirect_uri": HERE,
        "code_verifier": VERIFIER, **changes,
    }  # fmt: skip


def answer(location: str) -> dict[str, str]:
    """What the browser takes to the client."""
    pairs = parse_qsl(urlsplit(location).query, strict_parsing=True)
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def basic(name: str, secret: str) -> str:
    return "Basic " + b64encode(f"{name}:{secret}".encode()).decode()
