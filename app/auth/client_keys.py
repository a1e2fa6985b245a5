"""ClientKey: the private key by which the gateway says who it is to a provider (`private_key_jwt`; RFC 7523, 2.2).

Ciphers take 30 ms and 12 MB: imported where there is such a key.
"""

import base64
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Self

import jwt
from cryptography.exceptions import InternalError, InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import load_pem_x509_certificates

MIN_RSA_BITS, MAX_RSA_BITS = 2048, 4096  # a signature with the longest takes 5 ms
LIFE_S = 60
USUAL = ("RS256", "PS256", "ES256")  # where a provider does not say what it takes

_BEGIN = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_KID = re.compile(r"^kid: ([!-~]{1,256})\s*$", re.MULTILINE)  # in the text around a PEM block (RFC 7468, 2)
_PUBLIC = {"RSA": ("e", "kty", "n"), "EC": ("crv", "kty", "x", "y"), "OKP": ("crv", "kty", "x")}  # RFC 7638, 3.2

PrivateKey = RSAPrivateKey | EllipticCurvePrivateKey | Ed25519PrivateKey


class KeyUnusable(ValueError):
    """Why no assertion can be signed with it, in words that show nothing of it."""


@dataclass(frozen=True)
class ClientKey:
    """The key, the algorithms for it in the order in which they are preferred, and the parameters of the header by
    which a provider finds its public key."""

    private: PrivateKey
    algorithms: Sequence[str]
    named: Mapping[str, str]

    @classmethod
    def read(cls, pem: str) -> Self:
        """The key of a PEM text. With its certificate beside it, it is named by that; or by a line `kid: NAME`, or by
        its thumbprint (RFC 7638). Raises KeyUnusable."""
        private = _private(pem)
        thumbprint = _thumbprint_of_certificate(pem, private)
        if thumbprint is not None:
            return cls(private, _algorithms(private, has_certificate=True), {"x5t#S256": thumbprint})
        kid = _KID.search(pem)
        return cls(private, _algorithms(private), {"kid": _thumbprint(private) if kid is None else kid[1]})

    def assertion(self, client_id: str, audience: str, listed: object, now: float) -> str:
        """What says for a minute that whoever sends it is this client. `listed`: the algorithms that the provider names
        in its metadata. Raises KeyUnusable: it takes none of this key."""
        taken = listed if isinstance(listed, list) and listed else USUAL
        algorithm = next((each for each in self.algorithms if each in taken), None)
        if algorithm is None:
            raise KeyUnusable(f"the provider does not say that it takes {' or '.join(self.algorithms)}")
        claims = {
            "iss": client_id,
            "sub": client_id,
            "aud": audience,
            "jti": secrets.token_urlsafe(24),
            "iat": int(now),
            "exp": int(now) + LIFE_S,
        }
        return jwt.encode(claims, self.private, algorithm, {**self.named})


def _private(pem: str) -> PrivateKey:
    if (found := len(_BEGIN.findall(pem))) != 1:
        raise KeyUnusable("it has more than one private key" if found else "it is no private key, but something public")
    try:
        # What is checked without this takes 50 ms for 2048 bits and ten seconds for 8192.
        key = load_pem_private_key(pem.encode(), None, unsafe_skip_rsa_key_validation=True)
    except TypeError:
        raise KeyUnusable("it is encrypted: decrypt it first") from None
    except (ValueError, UnsupportedAlgorithm):
        raise KeyUnusable("it cannot be read: PKCS#8 in PEM form is expected") from None
    match key:
        case RSAPrivateKey():
            _require_sound(key)
            return key
        case EllipticCurvePrivateKey() if isinstance(key.curve, SECP256R1):
            return key
        case Ed25519PrivateKey():
            return key
    raise KeyUnusable("it must be RSA, EC with the curve P-256, or Ed25519")


def _require_sound(key: RSAPrivateKey) -> None:
    """Sizes first: they bound what a signature costs."""
    if not MIN_RSA_BITS <= key.key_size <= MAX_RSA_BITS:
        raise KeyUnusable(f"RSA must have {MIN_RSA_BITS} to {MAX_RSA_BITS} bits")
    numbers = key.private_numbers()
    modulus = numbers.public_numbers.n
    parts = (numbers.d, numbers.dmp1, numbers.dmq1, numbers.iqmp, numbers.public_numbers.e)
    try:
        if numbers.p * numbers.q != modulus or not all(0 < each < modulus for each in parts):
            raise InvalidSignature
        signature = key.sign(b"", padding.PKCS1v15(), hashes.SHA256())
        key.public_key().verify(signature, b"", padding.PKCS1v15(), hashes.SHA256())
    except (InternalError, InvalidSignature, ValueError):
        raise KeyUnusable("it cannot be read: its numbers belong to no RSA key") from None


def _algorithms(key: PrivateKey, *, has_certificate: bool = False) -> Sequence[str]:
    match key:
        case EllipticCurvePrivateKey():
            return ("ES256",)
        case Ed25519PrivateKey():
            return ("EdDSA",)
    # Entra ID, which wants certificates, lists none and documents PS256; RS256 is what all others take.
    return ("PS256", "RS256") if has_certificate else ("RS256", "PS256")


def _thumbprint_of_certificate(pem: str, key: PrivateKey) -> str | None:
    if "-----BEGIN CERTIFICATE-----" not in pem:
        return None
    public = key.public_key()
    try:
        found = [each for each in load_pem_x509_certificates(pem.encode()) if each.public_key() == public]
    except (ValueError, UnsupportedAlgorithm):
        raise KeyUnusable("the certificate beside it cannot be read") from None
    if not found:
        raise KeyUnusable("the certificate beside it is of another key")
    return _b64(found[0].fingerprint(hashes.SHA256()))


def _thumbprint(key: PrivateKey) -> str:
    maker: Any = jwt.get_algorithm_by_name(_algorithms(key)[0])
    jwk = maker.to_jwk(key.public_key(), as_dict=True)
    members = {name: jwk[name] for name in _PUBLIC[jwk["kty"]]}
    return _b64(sha256(json.dumps(members, separators=(",", ":")).encode()).digest())


def _b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
