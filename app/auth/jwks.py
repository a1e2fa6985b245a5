"""KeySets: the public keys of issuers, fetched when they are needed and remembered.

Knows when to fetch and what to make of the document; `outbound.py` knows from where it may come. Tokens are
checked in `tokens.py`.
"""

import json
import logging
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import anyio
import jwt
from anyio.abc import TaskGroup
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from app.auth.outbound import FetchFailed

REFRESH_S = 300.0  # a key that the issuer took away is good for at most this long, while its host answers
KEEP_S = 3600.0  # and for this long, while it does not
REFETCH_S = 30.0  # no more often, whatever key ids strangers make up
MAX_KEYS = 100
MAX_ISSUER_SHOWN = 200
MIN_RSA_BITS, MAX_RSA_BITS = 2048, 8192  # a verification with the longest takes half a millisecond

_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES = {"secp256r1": ("ES256",), "secp384r1": ("ES384",), "secp521r1": ("ES512",)}
ALGORITHMS = frozenset({*_RSA, *(name for names in _CURVES.values() for name in names), "EdDSA"})

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey | Ed448PublicKey
Fetch = Callable[[str], Awaitable[bytes]]

log = logging.getLogger(__name__)


class KeySource(NamedTuple):
    """Where an issuer's keys are: at one of the two URLs. Another URL is another source, with keys of its own."""

    tenant: str
    issuer: str
    jwks_url: str | None
    discovery_url: str | None


class KeyNotFound(Exception):
    """The issuer has no such key, as far as is known now: only those of `kids`. `problem`: its host does not answer."""

    def __init__(self, problem: str | None, kids: Sequence[str | None] = ()) -> None:
        super().__init__(problem or "unknown")
        self.problem, self.kids = problem, kids

    @property
    def unavailable(self) -> bool:
        """Whether it may have the key, and cannot be asked."""
        return self.problem is not None


@dataclass(frozen=True, slots=True)
class Key:
    """A public key and the algorithms that it may be used with."""

    public: PublicKey
    algorithms: frozenset[str]


@dataclass(slots=True)
class _KeySet:
    """What is known of one source. `problem` tells why the last fetch failed, if it did."""

    keys: Mapping[str | None, Sequence[Key]] = field(default_factory=dict)
    loaded_at: float = -math.inf
    tried_at: float = -math.inf
    problem: str | None = None
    flight: anyio.Event | None = None

    def find(self, kid: str | None, algorithm: str) -> PublicKey | None:
        """The one key; a token without `kid` is taken if there is no choice."""
        named = self.keys.get(kid, ()) if kid is not None else [key for keys in self.keys.values() for key in keys]
        fitting = [key.public for key in named if algorithm in key.algorithms]
        return fitting[0] if len(fitting) == 1 else None


class KeySets:
    """Every issuer's keys. `async with` owns the fetches; leaving it ends them."""

    def __init__(self, fetch: Fetch, clock: Callable[[], float] = time.monotonic) -> None:
        self._fetch, self._clock = fetch, clock
        self._sets: dict[KeySource, _KeySet] = {}
        self._tasks: TaskGroup | None = None

    def __repr__(self) -> str:
        return f"<KeySets [{len(self._sets)} sources]>"

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

    async def find(self, source: KeySource, kid: str | None, algorithm: str) -> PublicKey:
        """The key that the token names.

        Three cases. 1. The key is known: it is returned at once; if it is old, the set is fetched behind it.
        2. It is not, and the issuer's host answered last time: who asks waits for the fetch, if one is due
        or under way. 3. The host did not answer last time: nobody waits for it again.

        Raises:
            KeyNotFound: there is none that fits.
        """
        known = self._sets.setdefault(source, _KeySet())
        age_s = self._clock() - known.loaded_at
        if age_s >= KEEP_S:
            known.keys = {}
        key = known.find(kid, algorithm)
        if key is None or age_s >= REFRESH_S:
            self._fetch_if_due(source, known)
        if key is None and known.flight is not None and known.problem is None:
            await known.flight.wait()
            key = known.find(kid, algorithm)
        if key is None:
            raise KeyNotFound(known.problem, tuple(known.keys)[:MAX_KEYS])
        return key

    def forget(self, tenant: str, issuer: str) -> None:
        """The issuer was changed: its keys are fetched anew."""
        self._sets = {source: each for source, each in self._sets.items() if source[:2] != (tenant, issuer)}

    def forget_tenant(self, tenant: str) -> None:
        """The same for all issuers of a tenant."""
        self._sets = {source: each for source, each in self._sets.items() if source.tenant != tenant}

    def _fetch_if_due(self, source: KeySource, known: _KeySet) -> None:
        now = self._clock()
        if self._tasks is None or known.flight is not None or now - known.tried_at < REFETCH_S:
            return
        known.tried_at, known.flight = now, anyio.Event()
        self._tasks.start_soon(self._load, source, known, known.flight)

    async def _load(self, source: KeySource, known: _KeySet, flight: anyio.Event) -> None:
        try:
            known.keys = parse_keys(await self._fetch(await key_url(source, self._fetch)))
            known.loaded_at, known.problem = self._clock(), None
        except FetchFailed as problem:
            known.problem = str(problem)
            log.warning("Could not fetch the keys of an issuer: tenant %s, %r: %s", *source[:2], problem)
        except Exception as problem:
            known.problem = type(problem).__name__
            log.exception("Could not fetch the keys of an issuer: tenant %s, %r", *source[:2])
        finally:
            known.flight = None
            flight.set()


async def key_url(source: KeySource, fetch: Fetch) -> str:
    """Where the issuer's JWK set is: as it was registered, or as its discovery document says.

    Raises:
        FetchFailed: that cannot be had, or is no such document.
    """
    if source.jwks_url is not None:
        return source.jwks_url
    document = _object(await fetch(source.discovery_url or ""))
    # OpenID Connect Discovery 1.0, 4.3: exactly the same, or the document is somebody else's.
    if document.get("issuer") != source.issuer:
        named = repr(document.get("issuer"))[:MAX_ISSUER_SHOWN]
        raise FetchFailed(f"the discovery document is of the issuer {named}; that of the tokens is {source.issuer!r}")
    url = document.get("jwks_uri")
    if not isinstance(url, str):
        raise FetchFailed("the discovery document has no jwks_uri")
    return url


def parse_keys(text: bytes) -> dict[str | None, list[Key]]:
    """The usable keys of a JWK set by `kid`. Keys for other purposes, or of kinds that are not ours, are left out.

    Raises:
        FetchFailed: it is no JWK set.
    """
    found: dict[str | None, list[Key]] = defaultdict(list)
    for kid, key in listed_keys(text):
        if isinstance(key, Key):
            found[kid].append(key)
    return dict(found)


def listed_keys(text: bytes) -> list[tuple[str | None, Key | str]]:
    """The keys of a JWK set in their order, with `kid`; for one that is not usable, why.

    Raises:
        FetchFailed: it is no JWK set.
    """
    listed = _object(text).get("keys")
    if not isinstance(listed, list):
        raise FetchFailed("the document is no JWK set")
    objects = (each if isinstance(each, dict) else {} for each in listed[:MAX_KEYS])
    return [(each["kid"] if isinstance(each.get("kid"), str) else None, _usable(each)) for each in objects]


def _usable(jwk: dict[str, Any]) -> Key | str:
    """The key, if it is a public one for signatures. Never a secret: `oct` has no place in a public document."""
    if "d" in jwk or "k" in jwk:
        return "it is private or secret, and does not belong here"
    operations = jwk.get("key_ops", ["verify"])
    if jwk.get("use", "sig") != "sig" or not isinstance(operations, list) or "verify" not in operations:
        return "it is not for signatures"
    try:
        public = _public_key(jwk)
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError, OverflowError):
        return "it is no valid key"
    if public is None:
        return "it is of a kind that is not supported"
    algorithms = frozenset(_algorithms(public))
    if not algorithms:
        return f"its size or curve is not supported; RSA has {MIN_RSA_BITS} to {MAX_RSA_BITS} bits"
    if "alg" in jwk:
        algorithms &= {jwk["alg"]} if isinstance(jwk["alg"], str) else set()
    return Key(public, algorithms) if algorithms else "its `alg` is none that it can be used with"


def _public_key(jwk: dict[str, Any]) -> Any:
    match jwk.get("kty"):
        case "RSA":
            return jwt.algorithms.RSAAlgorithm.from_jwk(jwk)
        case "EC":
            return jwt.algorithms.ECAlgorithm.from_jwk(jwk)
        case "OKP":
            return jwt.algorithms.OKPAlgorithm.from_jwk(jwk)
    return None


def _algorithms(key: object) -> Sequence[str]:
    """What a key of this type, size and curve can verify, whatever the document claims."""
    match key:
        case RSAPublicKey() if MIN_RSA_BITS <= key.key_size <= MAX_RSA_BITS:
            return _RSA
        case EllipticCurvePublicKey():
            return _CURVES.get(key.curve.name, ())
        case Ed25519PublicKey() | Ed448PublicKey():
            return ("EdDSA",)
    return ()


def _object(text: bytes) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise FetchFailed("the document is not JSON") from None
    if not isinstance(document, dict):
        raise FetchFailed("the document is no JSON object")
    return document
