"""KeySets: the public keys of issuers, fetched when they are needed and remembered.

`outbound.py` decides which URLs may be fetched; `tokens.py` checks tokens.
"""

import json
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import anyio
from anyio.abc import TaskGroup

from app.auth.outbound_urls import FetchFailed

if TYPE_CHECKING:
    from app.auth._ciphers import PublicKey

REFRESH_S = 300.0  # a key that the issuer removed is good for at most this long while its host answers,
KEEP_S = 3600.0  # and for this long while it does not
REFETCH_S = 30.0  # between two fetches: tokens with invented key ids must not cause more
MAX_KEYS = 100
MAX_ISSUER_SHOWN = 200

Fetch = Callable[[str], Awaitable[bytes]]

log = logging.getLogger(__name__)


class KeySource(NamedTuple):
    """Where an issuer's keys are: at one of the two URLs. A source with another URL has its own keys."""

    tenant: str
    issuer: str
    jwks_url: str | None
    discovery_url: str | None


class KeyNotFound(Exception):
    """The issuer has no such key. `kids` are those it has; `problem` says why the last fetch failed, if it did."""

    def __init__(self, problem: str | None, kids: Sequence[str | None] = ()) -> None:
        super().__init__(problem or "unknown")
        self.problem, self.kids = problem, kids


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a JWK set, with the algorithms that it can verify here: none if it has a `problem`."""

    kid: str | None
    public: "PublicKey | None" = None
    algorithms: frozenset[str] = frozenset()
    problem: str | None = None


class _KeySet:
    """The keys of one source. `problem` says why the last fetch failed, if it did; `flight` is the fetch under way."""

    def __init__(self) -> None:
        self.keys: Sequence[Key] = ()
        self.loaded_at = self._tried_at = -math.inf
        self.problem: str | None = None
        self.flight: anyio.Event | None = None

    def begins_fetch(self, now: float) -> bool:
        """Whether a fetch is due. Then `fetch` must be called next."""
        if self.flight is not None or now - self._tried_at < REFETCH_S:
            return False
        self._tried_at, self.flight = now, anyio.Event()
        return True

    async def fetch(self, source: KeySource, get: Fetch, clock: Callable[[], float]) -> None:
        """Replaces the keys, or keeps them and sets `problem`."""
        try:
            keys = listed_keys(await get(await key_url(source, get)))
            self.keys, self.loaded_at, self.problem = keys, clock(), None
        except FetchFailed as problem:
            self.problem = str(problem)
            log.warning("Could not fetch the keys of an issuer: tenant %s, %r: %s", *source[:2], problem)
        except Exception as problem:
            self.problem = type(problem).__name__
            log.exception("Could not fetch the keys of an issuer: tenant %s, %r", *source[:2])
        finally:
            flight, self.flight = self.flight, None
            assert flight is not None
            flight.set()

    def find(self, kid: str | None, algorithm: str, now: float) -> "PublicKey | None":
        """`only_key` of those that are not too old."""
        if now - self.loaded_at >= KEEP_S:
            self.keys = ()
        return only_key(self.keys, kid, algorithm)


class KeySets:
    """The keys of all issuers. Leaving `async with` cancels the fetches."""

    def __init__(self, fetch: Fetch, clock: Callable[[], float] = time.monotonic) -> None:
        self._fetch, self._clock = fetch, clock
        self._sets: dict[KeySource, _KeySet] = {}
        self._tasks: TaskGroup | None = None

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._tasks is None:
            return
        tasks, self._tasks = self._tasks, None
        tasks.cancel_scope.cancel()
        await tasks.__aexit__(None, None, None)

    async def find(self, source: KeySource, kid: str | None, algorithm: str) -> "PublicKey":
        """The key that the token names.

        Three cases. 1. The key is known: it is returned at once; if the set is old, it is fetched in the background.
        2. It is not known, and the issuer's host answered last time: the caller waits for the fetch that is due or
        under way. 3. The host did not answer last time: no caller waits for it.

        Raises:
            KeyNotFound: there is none that fits.
        """
        known, now = self._sets.setdefault(source, _KeySet()), self._clock()
        key = known.find(kid, algorithm, now)
        is_old = key is None or now - known.loaded_at >= REFRESH_S
        if is_old and self._tasks is not None and known.begins_fetch(now):
            self._tasks.start_soon(known.fetch, source, self._fetch, self._clock)
        if key is None and known.flight is not None and known.problem is None:
            await known.flight.wait()
            key = known.find(kid, algorithm, self._clock())
        if key is None:
            raise KeyNotFound(known.problem, list(dict.fromkeys(each.kid for each in known.keys if each.algorithms)))
        return key

    def forget(self, tenant: str, issuer: str | None = None) -> None:
        """Forgets the keys of an issuer, or of all issuers of the tenant, so that they are fetched again."""
        self._sets = {
            source: keys
            for source, keys in self._sets.items()
            if source.tenant != tenant or issuer not in (None, source.issuer)
        }


async def key_url(source: KeySource, fetch: Fetch) -> str:
    """The URL of the issuer's JWK set: the registered one, or that of its discovery document.

    Raises:
        FetchFailed: there is no such document, or it is not valid.
    """
    if source.jwks_url is not None:
        return source.jwks_url
    return named_url(await discovered(source, fetch), "jwks_uri")


async def discovered(source: KeySource, fetch: Fetch) -> Mapping[str, Any]:
    """The discovery document of an issuer that has one (OpenID Connect Discovery 1.0).

    Raises:
        FetchFailed: there is no such document, or it is another issuer's.
    """
    document = _object(await fetch(source.discovery_url or ""))
    # Section 4.3: they must be exactly the same.
    if document.get("issuer") != source.issuer:
        named = repr(document.get("issuer"))[:MAX_ISSUER_SHOWN]
        raise FetchFailed(f"the discovery document names the issuer {named}, not {source.issuer!r}")
    return document


def named_url(document: Mapping[str, Any], name: str) -> str:
    """A URL of a discovery document. Raises FetchFailed: it has none of this name."""
    url = document.get(name)
    if not isinstance(url, str):
        raise FetchFailed(f"the discovery document has no {name}")
    return url


def listed_keys(text: bytes) -> list[Key]:
    """The keys of a JWK set in their order.

    Raises:
        FetchFailed: it is not a JWK set.
    """
    from app.auth._ciphers import usable  # noqa: PLC0415 - 12 MB, where there is an issuer

    listed = _object(text).get("keys")
    if not isinstance(listed, list):
        raise FetchFailed("the document is not a JWK set")
    found = []
    for each in listed[:MAX_KEYS]:
        jwk = each if isinstance(each, dict) else {}
        kid, key = jwk.get("kid"), usable(jwk)
        name = kid if isinstance(kid, str) else None
        found.append(Key(name, problem=key) if isinstance(key, str) else Key(name, *key))
    return found


def only_key(keys: Iterable[Key], kid: str | None, algorithm: str) -> "PublicKey | None":
    """The key that can verify the algorithm, of those with this `kid` if it is given; None unless there is just one."""
    fitting = [key.public for key in keys if kid in (None, key.kid) and algorithm in key.algorithms]
    return fitting[0] if len(fitting) == 1 else None


def _object(text: bytes) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise FetchFailed("the document is not JSON") from None
    if not isinstance(document, dict):
        raise FetchFailed("the document is not a JSON object")
    return document
