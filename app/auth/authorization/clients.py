"""Clients by their `client_id`: a name that is stored, or the URL of a metadata document (CIMD)."""

import hmac
import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import anyio

from app.auth.outbound_urls import FetchFailed
from app.concurrency.single_flight import SingleFlight
from app.domain import SignIn, is_name
from app.domain.resources.clients import LOOPBACK, REGISTERED, OAuthClient, parsed_redirect, redirects_to, without_port
from app.domain.resources.fields import Unfit, one_line
from app.errors import NotFound

MAX_DOCUMENT_BYTES = 64 << 10
MAX_URIS = 50  # of one client
KEEP_S, KEEP_FAILED_S = 600.0, 30.0
KEEP_AWAY_S = 86400.0  # a document whose host does not answer: its clients would be told that there are none of them
MAX_KEPT = 1000  # documents
MAX_UNDER_WAY = 8  # that are fetched at once
_LABEL = b"trunkline client secrets 1"


class ClientStore(Protocol):
    """Where clients are kept."""

    async def get(self, tenant: str, name: str) -> OAuthClient:
        """Raises NotFound."""


class ClientRefused(Exception):
    """There is no such client, or it may not be used here: why, in words for people."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client of one tenant. `host`: whose it is, as far as that is known: of its metadata document, or where its
    people come back to; empty: a program on a person's machine. `title` is its own claim."""

    client_id: str
    title: str
    host: str
    redirect_uris: Sequence[str]
    stored: OAuthClient | None = None  # None: it has a metadata document

    def redirects_to(self, uri: str) -> bool:
        return redirects_to(uri, self.redirect_uris)

    @property
    def is_administrators(self) -> bool:
        """Whether an administrator has registered it, and not whoever asks."""
        return self.stored is not None and not self.stored.has_registered_itself

    @property
    def authentication(self) -> str:
        return "none" if self.stored is None else self.stored.authentication


class ClientSecrets:
    """Derives the secrets of clients, which are stored nowhere."""

    def __init__(self, secret_key: bytes) -> None:
        self._key = hmac.digest(secret_key, _LABEL, "sha256")

    def of(self, tenant: str, client: OAuthClient) -> str:
        """The secret of a client that has one."""
        mac = hmac.digest(self._key, f"{tenant} {client.name} {client.salt}".encode(), "sha256")
        return "tls_" + urlsafe_b64encode(mac).rstrip(b"=").decode()

    def is_right(self, tenant: str, client: OAuthClient, secret: str) -> bool:
        return hmac.compare_digest(self.of(tenant, client).encode(), secret.encode())

    def name_of(self, tenant: str, metadata: Mapping[str, Any]) -> str:
        """The name of a client that registers itself: the same for the same program, whatever port it listens at."""
        text = json.dumps([tenant, metadata], sort_keys=True, separators=(",", ":"))
        return REGISTERED + hmac.digest(self._key, text.encode(), "sha256").hex()[:40]


class Clients:
    """Finds clients."""

    def __init__(self, store: ClientStore, documents: "ClientDocuments") -> None:
        self._store, self._documents = store, documents

    async def find(self, tenant: str, client_id: str, rules: SignIn) -> Client:
        """The client with this id.

        Raises:
            ClientRefused: there is none, or this tenant does not let it in.
            StorageUnavailable: the store does not answer.
        """
        if is_name(client_id):
            return await self._stored(tenant, client_id, rules)
        if not rules.documents:
            raise ClientRefused("this tenant knows no such client, and accepts no metadata documents")
        host = document_host(client_id)
        _require_host(rules, host)
        metadata = await self._documents.find(client_id)
        client = read_metadata(metadata)
        require_hosts(client.redirect_uris, rules)
        return Client(client_id, client.title, host, client.redirect_uris)

    async def _stored(self, tenant: str, name: str, rules: SignIn) -> Client:
        try:
            client = await self._store.get(tenant, name)
        except NotFound:
            raise ClientRefused("this tenant knows no such client; it may have been removed") from None
        if client.has_registered_itself:
            if not rules.registration:
                raise ClientRefused("this tenant does not let programs register themselves any more")
            require_hosts(client.redirect_uris, rules)
        return Client(name, client.title or name, _host_of(client.redirect_uris), client.redirect_uris, client)


class _Kept(NamedTuple):
    """A document, or why there is none; when it is asked for again, and since when it is as it is."""

    found: Mapping[str, Any] | str
    until: float
    since: float


class ClientDocuments:
    """Fetches metadata documents, and remembers them for ten minutes. `get` is that of Outbound, which guards the
    network that the gateway is in."""

    def __init__(self, get: Callable[[str], Awaitable[bytes]], clock: Callable[[], float] = time.monotonic) -> None:
        self._get, self._clock = get, clock
        self._known: dict[str, _Kept] = {}  # the oldest is first
        self._flight = SingleFlight[str]()
        # Whoever asks for slow documents of their own holds up others that are new, and none that is known.
        self._first, self._again = anyio.CapacityLimiter(MAX_UNDER_WAY), anyio.CapacityLimiter(MAX_UNDER_WAY)

    async def find(self, url: str) -> Mapping[str, Any]:
        """The document. Raises ClientRefused."""
        async with self._flight.turn(url):
            kept = self._known.get(url)
            if kept is None or kept.until <= self._clock():
                kept = await self._fetched(url, kept)
                self._known.pop(url, None)
                if len(self._known) >= MAX_KEPT:
                    del self._known[next(iter(self._known))]
                self._known[url] = kept
        if isinstance(kept.found, str):
            raise ClientRefused(kept.found)
        return kept.found

    async def _fetched(self, url: str, before: _Kept | None) -> _Kept:
        try:
            is_known = before is not None and not isinstance(before.found, str)
            async with self._again if is_known else self._first:
                text = await self._get(url)
            document = _document(url, text)
        except FetchFailed as error:
            now = self._clock()
            if before is not None and not isinstance(before.found, str) and now < before.since + KEEP_AWAY_S:
                return before._replace(until=now + KEEP_FAILED_S)
            return _Kept(f"its metadata document cannot be fetched: {error}", now + KEEP_FAILED_S, now)
        except Unfit as error:
            now = self._clock()
            return _Kept(f"its metadata document cannot be used: {error}", now + KEEP_FAILED_S, now)
        return _Kept(document, self._clock() + KEEP_S, self._clock())


@dataclass(frozen=True, slots=True)
class Metadata:
    """What is used of a client's metadata (RFC 7591, 2)."""

    title: str
    redirect_uris: Sequence[str]


def read_metadata(metadata: Mapping[str, Any]) -> Metadata:
    """What a document or a registration says of a client. Raises Unfit: it cannot be used."""
    uris, title = metadata.get("redirect_uris"), metadata.get("client_name", "")
    if not isinstance(uris, list) or not 0 < len(uris) <= MAX_URIS or not all(isinstance(each, str) for each in uris):
        raise Unfit("redirect_uri", f"`redirect_uris` has 1 to {MAX_URIS} texts")
    for each in uris:
        parsed_redirect(each)
    if not isinstance(title, str):
        raise Unfit("client_name", "`client_name` is a text")
    shown = " ".join("".join(each if each.isprintable() else " " for each in title).split())[:200]
    try:
        one_line(shown)
    except Unfit:
        shown = ""
    return Metadata(shown, tuple(dict.fromkeys(uris)))


def same_program(metadata: Metadata) -> dict[str, Any]:
    """What two registrations of one program have in common."""
    return {
        "name": metadata.title,
        "uris": sorted(without_port(parsed_redirect(each)) for each in metadata.redirect_uris),
    }


def require_hosts(uris: Sequence[str], rules: SignIn) -> None:
    """Raises ClientRefused where people would come back to a host that the tenant does not let in."""
    for uri in uris:
        parts = parsed_redirect(uri)
        if parts.scheme == "https":
            _require_host(rules, parts.hostname or "")


def _require_host(rules: SignIn, host: str) -> None:
    if host not in LOOPBACK and not rules.accepts_host(host):
        raise ClientRefused(f"this tenant does not let in clients of {host}")


def _host_of(uris: Sequence[str]) -> str:
    hosts = {parts.hostname or "" for parts in map(parsed_redirect, uris) if parts.scheme == "https"}
    return hosts.pop() if len(hosts) == 1 else ", ".join(sorted(hosts))


def document_host(url: str) -> str:
    """The host of a metadata document's URL. Raises ClientRefused: it is no such URL."""
    try:
        parts = parsed_redirect(url)
    except Unfit:
        parts = None
    if parts is None or parts.scheme != "https" or parts.path in ("", "/") or parts.query or not parts.hostname:
        raise ClientRefused("this tenant knows no such client")
    return parts.hostname


def _document(url: str, text: bytes) -> Mapping[str, Any]:
    """Raises Unfit."""
    if len(text) > MAX_DOCUMENT_BYTES:
        raise Unfit("size", f"it has more than {MAX_DOCUMENT_BYTES:,} bytes")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise Unfit("json", "it is no JSON object")
    if document.get("client_id") != url:
        raise Unfit("client_id", "its `client_id` is not its URL")
    if (
        document.get("token_endpoint_auth_method", "none") not in ("none", "private_key_jwt")
        or "client_secret" in document
    ):
        raise Unfit("token_endpoint_auth_method", "it has a secret, which everybody could read")
    read_metadata(document)
    kept = ("client_name", "redirect_uris", "client_uri")
    return {name: document[name] for name in kept if name in document}
