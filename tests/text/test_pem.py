"""PEM: what people give for a certificate or a key, and which of it can be used."""

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from app.text.pem import MOST, PemRefused, certificates_in, only_certificates, only_key, require_key_of
from tests.certificates import authority, issued, key_pem

ROOT = authority("Root of Example")
OURS = issued(ROOT, "ours.example", days=3)
BROKEN = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


def test_certificates_are_taken_without_what_stands_between_them():
    text = f"subject=Müller & Söhne\r\n{OURS.pem}\nsome remark\n{ROOT.pem}".replace("\n", "\r\n")
    assert only_certificates(text) == OURS.pem + ROOT.pem
    assert only_certificates(only_certificates(text)) == OURS.pem + ROOT.pem
    first, second = certificates_in(OURS.pem + ROOT.pem)
    assert (first.subject, second.subject) == ("CN=ours.example", "CN=Root of Example")
    assert first.expires_at == OURS.certificate.not_valid_after_utc
    assert len(first.sha256) == 64
    assert certificates_in("") == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no certificate in PEM form"),
        ("***", "no certificate in PEM form"),
        (OURS.certificate.public_bytes(serialization.Encoding.DER).decode("latin-1"), "no certificate in PEM form"),
        ("-----BEGIN CERTIFICATE-----\nTUlJ", "no certificate in PEM form"),
        (BROKEN, "cannot be read"),
        (OURS.pem + BROKEN, "cannot be read"),
        (OURS.pem + OURS.key, "has a private key in it"),
        (OURS.key, "has a private key in it"),
        (ROOT.pem * (MOST + 1), f"at most {MOST}"),
    ],
)
def test_what_is_no_certificate_is_refused_without_being_repeated(text, words):
    with pytest.raises(PemRefused, match=words) as caught:
        only_certificates(text)
    assert "MII" not in str(caught.value)


def test_a_key_is_taken_out_of_what_is_around_it():
    assert only_key(OURS.pem + OURS.key + ROOT.pem) == OURS.key
    form = serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    old = rsa.generate_private_key(65537, 2048).private_bytes(serialization.Encoding.PEM, *form).decode()
    assert only_key(old) == old


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no private key in PEM form"),
        (OURS.pem, "no private key in PEM form"),
        (OURS.key + ROOT.key, "several private keys"),
        (key_pem(OURS.private, b"secret"), "is encrypted"),
        (
            OURS.private.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.BestAvailableEncryption(b"secret"),
            ).decode(),
            "is encrypted",
        ),
        ("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "is not known here"),
    ],
)
def test_a_key_that_cannot_be_used_is_refused_without_being_repeated(text, words):
    with pytest.raises(PemRefused, match=words) as caught:
        only_key(text)
    assert "MII" not in str(caught.value)


def test_a_key_is_that_of_the_first_certificate():
    require_key_of(OURS.pem + ROOT.pem, OURS.key)
    with pytest.raises(PemRefused, match=r"certificate 2 of 2: the one with the key stands first"):
        require_key_of(ROOT.pem + OURS.pem, OURS.key)
    with pytest.raises(PemRefused, match="is not the key of the certificate"):
        require_key_of(OURS.pem, key_pem(ec.generate_private_key(ec.SECP256R1())))


def test_a_certificate_that_expires_soon_has_a_note():
    ends = OURS.certificate.not_valid_after_utc
    (known,) = certificates_in(OURS.pem)
    assert known.note("it", ends - timedelta(days=14, seconds=1)) is None
    assert known.note("it", ends - timedelta(days=2)) == (
        f"it: the certificate of CN=ours.example expires at {ends:%Y-%m-%d %H:%M} UTC, in 2.0 days; renew it"
    )
    assert "has expired at" in (known.note("it", ends) or "")
    assert known.note("it", datetime.now(UTC)) is not None


def test_a_name_in_a_certificate_is_shown_as_one_line():
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a\x1b[31m\n" + "b" * 50)] * 8)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(OURS.private.public_key())
        .serial_number(1)
        .not_valid_before(datetime.now(UTC))
        .not_valid_after(datetime.now(UTC) + timedelta(days=1))
        .sign(OURS.private, hashes.SHA256())
    )
    (known,) = certificates_in(made.public_bytes(serialization.Encoding.PEM).decode())
    assert known.subject.isprintable()
    assert len(known.subject) == 201
