"""The key by which the gateway says who it is: what it takes for one, what it signs, by which algorithm and name."""

import base64
import json
from datetime import timedelta
from hashlib import sha256
from typing import Any

import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from app.auth.client_keys import LIFE_S, ClientKey, KeyUnusable
from app.auth.issuer_rules import MAX_CLIENT_KEY, is_key
from tests.auth.test_jwks import RSA
from tests.auth.tokens import NOW, T

P256, ED = ec.generate_private_key(ec.SECP256R1()), ed25519.Ed25519PrivateKey.generate()
SHORT = rsa.generate_private_key(65537, 1024)
TOKEN = "https://idp.example.com/token"


def pem(key: Any, form: PrivateFormat = PrivateFormat.PKCS8, password: bytes | None = None) -> str:
    sealed = NoEncryption() if password is None else BestAvailableEncryption(password)
    return str(key.private_bytes(Encoding.PEM, form, sealed).decode())


def public(key: Any) -> str:
    return str(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode())


def certificate(key: Any) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "gateway")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, NOW, NOW + timedelta(days=1))
    return builder.sign(key, None if key is ED else hashes.SHA256())


def with_certificate(key: Any) -> str:
    return pem(key) + certificate(key).public_bytes(Encoding.PEM).decode()


def signed(text: str, listed: object = None) -> dict[str, Any]:
    """The header of an assertion with this key."""
    return jwt.get_unverified_header(ClientKey.read(text).assertion("gateway", TOKEN, listed, T))


def refused(text: str) -> str:
    """Why this cannot be a key; "" where it is one."""
    try:
        ClientKey.read(text)
    except KeyUnusable as problem:
        return str(problem)
    return ""


def verified(text: str, key: Any, algorithm: str, audience: str) -> dict[str, Any]:
    """The claims, at whatever time it is."""
    of_then: jwt.types.Options = {"verify_exp": False, "verify_iat": False}
    return jwt.decode(text, key.public_key(), [algorithm], of_then, audience=audience)


def b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


@pytest.mark.parametrize("key", [RSA, P256, ED], ids=["RSA", "P-256", "Ed25519"])
def test_an_assertion_is_of_the_client_for_one_address_and_a_minute(key):
    texts = [ClientKey.read(pem(key)).assertion("gateway", TOKEN, ["EdDSA", "ES256", "RS256"], T + 0.9) for _ in "12"]
    algorithm = jwt.get_unverified_header(texts[0])["alg"]
    found = [verified(each, key, algorithm, TOKEN) for each in texts]
    one, two = (claims.pop("jti") for claims in found)
    assert found == [{"iss": "gateway", "sub": "gateway", "aud": TOKEN, "iat": T, "exp": T + LIFE_S}] * 2
    assert one != two
    assert LIFE_S <= 60


@pytest.mark.parametrize(("text", "listed", "algorithm"), [
    (pem(RSA), None, "RS256"), (pem(RSA), [], "RS256"), (pem(RSA), "PS256", "RS256"),
    (pem(RSA), ["PS256", "RS256"], "RS256"), (pem(RSA), ["ES256", "PS256"], "PS256"),
    (with_certificate(RSA), None, "PS256"), (with_certificate(RSA), ["RS256"], "RS256"),
    (pem(P256), None, "ES256"), (with_certificate(P256), ["RS256", "ES256"], "ES256"),
    (pem(ED), [1, "EdDSA"], "EdDSA"),
])  # fmt: skip
def test_the_algorithm_is_one_of_the_key_that_the_provider_takes(text, listed, algorithm):
    assert signed(text, listed)["alg"] == algorithm


@pytest.mark.parametrize(("text", "listed", "words"), [
    (pem(RSA), ["ES256", "RS512"], "RS256 or PS256"), (pem(P256), ["RS256"], "ES256"), (pem(ED), None, "EdDSA"),
])  # fmt: skip
def test_nothing_is_signed_by_an_algorithm_that_the_provider_does_not_take(text, listed, words):
    with pytest.raises(KeyUnusable, match=f"does not say that it takes {words}$"):
        signed(text, listed)


def test_a_key_is_named_by_its_thumbprint():
    """RFC 7638; Ed25519 as in RFC 8037, A.3."""
    numbers = RSA.public_key().public_numbers()
    n, e = (b64(each.to_bytes((each.bit_length() + 7) // 8)) for each in (numbers.n, numbers.e))
    x, y = (
        b64(each.to_bytes(32)) for each in (P256.public_key().public_numbers().x, P256.public_key().public_numbers().y)
    )
    jwks = {"e": e, "kty": "RSA", "n": n}, {"crv": "P-256", "kty": "EC", "x": x, "y": y}
    for key, jwk in zip((RSA, P256), jwks, strict=True):
        assert signed(pem(key))["kid"] == b64(sha256(json.dumps(jwk, separators=(",", ":")).encode()).digest())
    known = base64.urlsafe_b64decode("nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=")
    of_the_rfc = pem(ed25519.Ed25519PrivateKey.from_private_bytes(known))
    assert signed(of_the_rfc, ["EdDSA"])["kid"] == "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"


def test_a_key_is_named_as_a_line_beside_it_says():
    assert signed("kid: one-2026\n" + pem(RSA)) == {"alg": "RS256", "typ": "JWT", "kid": "one-2026"}
    assert signed("kid: one-2026\r\n" + pem(RSA).replace("\n", "\r\n"))["kid"] == "one-2026"


@pytest.mark.parametrize("key", [RSA, P256], ids=["RSA", "P-256"])
def test_a_key_with_its_certificate_is_named_by_that_alone(key):
    own = certificate(key)
    other, text_of_own = (each.public_bytes(Encoding.PEM).decode() for each in (certificate(ED), own))
    for text in (pem(key) + text_of_own, other + text_of_own + pem(key), "kid: one\n" + pem(key) + text_of_own):
        header = signed(text)
        assert header.pop("x5t#S256") == b64(own.fingerprint(hashes.SHA256()))
        assert header.keys() == {"alg", "typ"}


def test_older_forms_and_the_text_of_openssl_are_read():
    parameters = "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"
    for key, around in ((RSA, ""), (P256, parameters), (P256, "Bag Attributes\n    friendlyName: x\n")):
        text = around + pem(key, PrivateFormat.TraditionalOpenSSL)
        assert ClientKey.read(text).private.public_key() == key.public_key()


@pytest.mark.parametrize(("text", "words"), [
    (public(RSA), "no private key"), (certificate(RSA).public_bytes(Encoding.PEM).decode(), "no private key"),
    (pem(RSA, password=b"x"), "encrypted"), (pem(P256, PrivateFormat.TraditionalOpenSSL, b"x"), "encrypted"),
    (pem(SHORT), "2048 to 4096 bits"), (pem(RSA) + pem(P256), "more than one"),
    (pem(ec.generate_private_key(ec.SECP384R1())), "P-256"), (pem(ed448.Ed448PrivateKey.generate()), "P-256"),
    ("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "cannot be read"),
    ("-----BEGIN PRIVATE KEY-----\n", "cannot be read"), ("-----BEGIN ", "no private key"),
    (pem(RSA)[:900] + pem(RSA)[1000:], "cannot be read"), ("\ud800" + pem(RSA), "cannot be read"),
    (pem(P256, PrivateFormat.OpenSSH), "cannot be read"),
    (pem(RSA) + certificate(P256).public_bytes(Encoding.PEM).decode(), "of another key"),
    (pem(RSA) + "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "beside it cannot be read"),
])  # fmt: skip
def test_what_cannot_sign_is_refused_in_words_without_it(text, words):
    problem = refused(text)
    assert is_key(text)
    assert words in problem
    assert (text[40:60] or text) not in problem


@pytest.mark.parametrize("change", [(3, 2), (2, 0), (5, 0), (1, 4), (0, 1 << 2047)])
def test_numbers_that_are_no_key_are_refused_before_they_cost_anything(change):
    """OpenSSL would calculate with them, however large they are."""
    numbers = RSA.private_numbers()
    parts = [numbers.public_numbers.n, numbers.public_numbers.e, numbers.d, numbers.p, numbers.q]
    parts += [numbers.dmp1, numbers.dmq1, numbers.iqmp]
    assert not refused(_by_hand(parts))
    parts[change[0]] = change[1]
    assert "no RSA key" in refused(_by_hand(parts))
    parts[change[0]] = (1 << 16384) | 1
    assert refused(_by_hand(parts))


def _long(length: int) -> bytes:
    return b"\x81" + bytes([length]) if length < 256 else b"\x82" + length.to_bytes(2)


def _by_hand(parts: list[int]) -> str:
    def tagged(tag: bytes, content: bytes) -> bytes:
        length = len(content)
        return tag + (bytes([length]) if length < 128 else _long(length)) + content

    body = b"".join(tagged(b"\x02", each.to_bytes(each.bit_length() // 8 + 1)) for each in [0, *parts])
    text = base64.encodebytes(tagged(b"\x30", body)).decode()
    return f"-----BEGIN RSA PRIVATE KEY-----\n{text}-----END RSA PRIVATE KEY-----\n"


def test_the_longest_key_with_its_certificate_has_room():
    longest = rsa.generate_private_key(65537, 4096)
    assert len(with_certificate(longest)) < MAX_CLIENT_KEY
    assert signed(with_certificate(longest))["alg"] == "PS256"
