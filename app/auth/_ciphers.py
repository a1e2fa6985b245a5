"""Signatures and public keys. PyJWT and its ciphers take 30 ms and 12 MB: imported where there is an issuer."""

from collections.abc import Sequence
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from app.auth._refusal import Finding
from app.auth._token_form import Sent, shown
from app.auth.issuer_rules import CURVES, HMAC, RSA

MINRSA_BITS, MAXRSA_BITS = 2048, 8192  # a verification with the longest takes half a millisecond

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey | Ed448PublicKey

_JWT = jwt.PyJWT({"enforce_minimum_key_length": True})


def signature(sent: Sent, key: PublicKey | bytes) -> Finding:
    """Whether the key has signed the token, by the algorithm that it names, which must have passed the rules.

    PyJWT checks no claims here: the rules are stricter and say what they expected.
    """
    name = sent.header.get("alg")
    expected = "a signature by the issuer's " + ("secret" if isinstance(key, bytes) else "key of this `kid`")
    if not isinstance(name, str) or (name == HMAC) != isinstance(key, bytes):
        return Finding("signature", expected, shown(name), "algorithm")  # a public key is never an HMAC secret
    try:
        _JWT.decode(
            sent.text,
            key,
            algorithms=[name],
            options={
                "verify_exp": False, "verify_iat": False, "verify_nbf": False, "verify_aud": False,
                "verify_iss": False, "verify_sub": False, "verify_jti": False,
            },
        )  # fmt: skip
    except jwt.InvalidSignatureError:
        return Finding("signature", expected, "another signature", "signature")
    except jwt.PyJWTError as problem:
        return Finding("signature", expected, type(problem).__name__, "malformed")
    return Finding("signature", expected, "that signature")


def usable(jwk: dict[str, Any]) -> tuple[PublicKey, frozenset[str]] | str:
    """The key of a JWK and its algorithms if it is a public one for signatures, else why not."""
    if "d" in jwk or "k" in jwk:
        return "it is private or secret, and must not be published"
    operations = jwk.get("key_ops", ["verify"])
    if jwk.get("use", "sig") != "sig" or not isinstance(operations, list) or "verify" not in operations:
        return "it is not for signatures"
    try:
        public = _public_key(jwk)
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError, OverflowError):
        return "it is not a valid key"
    if public is None:
        return "its type is not supported"
    algorithms = frozenset(_algorithms(public))
    if not algorithms:
        return f"its size or curve is not supported; RSA has {MINRSA_BITS} to {MAXRSA_BITS} bits"
    if "alg" in jwk:
        algorithms &= {jwk["alg"]} if isinstance(jwk["alg"], str) else set()
    return (public, algorithms) if algorithms else "its `alg` is not supported for such a key"


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
    """The algorithms that a key of this type, size and curve can verify, whatever the document says."""
    match key:
        case RSAPublicKey() if MINRSA_BITS <= key.key_size <= MAXRSA_BITS:
            return RSA
        case EllipticCurvePublicKey():
            return CURVES.get(key.curve.name, ())
        case Ed25519PublicKey() | Ed448PublicKey():
            return ("EdDSA",)
    return ()
