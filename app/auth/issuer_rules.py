"""What an issuer of tokens may be, and what it may confer."""

from collections.abc import Iterable

from app.auth.policy import CONNECT_ONE, has_scope, is_scope
from app.domain import Principal, Scope, is_own_mark

RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
CURVES = {"secp256r1": ("ES256",), "secp384r1": ("ES384",), "secp521r1": ("ES512",)}
ALGORITHMS = frozenset({*RSA, *(name for names in CURVES.values() for name in names), "EdDSA"})
HMAC = "HS256"
MAX_ISSUER = 512
MIN_SECRET_BYTES = 32
MAX_CLIENT_SECRET, MAX_CLIENT_KEY = 1024, 8192  # characters; RSA with 4096 bits and its certificate have 5,300


def capped(scopes: Iterable[str], tenant: str, max_scopes: frozenset[str]) -> frozenset[str]:
    """The scopes that the issuer may confer: those that `max_scopes` implies.

    If `max_scopes` has only single backends, `mcp:connect` becomes these.
    """
    asked = {scope for scope in scopes if is_scope(scope)}
    cap = Principal(tenant, "", "", max_scopes)
    kept = {scope for scope in asked if has_scope(cap, tenant, scope)}
    if Scope.CONNECT in asked - kept:
        kept |= {scope for scope in max_scopes if scope.startswith(CONNECT_ONE)}
    return frozenset(kept)


def is_issuer(text: str) -> bool:
    """Whether this can be an `iss`. Not `key` or `cli`: these are issuers of principals without a token."""
    is_text = 0 < len(text) <= MAX_ISSUER and text.isascii() and text.isprintable() and " " not in text
    return is_text and not is_own_mark(text)


def is_key(client_secret: str) -> bool:
    """Whether the secret of a client is a key in PEM form, which is not sent, but signs who the client is."""
    return "-----BEGIN " in client_secret


def is_secret(text: str) -> bool:
    """Whether this can sign tokens: long enough, and not a public key, which everybody knows."""
    import jwt  # noqa: PLC0415 - only for issuers with a secret; its ciphers take 30 ms

    try:
        jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).prepare_key(text)
    except jwt.InvalidKeyError:
        return False
    return len(text.encode()) >= MIN_SECRET_BYTES
