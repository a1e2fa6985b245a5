"""Certificates for tests: of 127.0.0.1 and perhaps names, vouched for by nobody but themselves; or of an authority."""

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def self_signed(directory: Path, *names: str, days: float = 1, begins_in_days: float = -1) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and these host names that is its own authority, and its key; valid for so long from
    now on. What was there is replaced."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # A name of its own: of several authorities with one name only the first one is tried.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"test {serial % 10**9}")])
    served = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), *map(x509.DNSName, names)]
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now + datetime.timedelta(days=min(begins_in_days, days - 1)))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName(served), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = directory / "certificate.pem", directory / "key.pem"
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    key_file.chmod(0o600)
    return certificate_file, key_file


def key_pem(key: ec.EllipticCurvePrivateKey, password: bytes = b"") -> str:
    """The key in PEM form, perhaps encrypted."""
    form = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, form).decode()


class Issued:
    """A certificate and its key, both in PEM form. `chain` has those of authorities behind it."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, chain: str = "") -> None:
        self.certificate, self.private = certificate, key
        self.pem = certificate.public_bytes(serialization.Encoding.PEM).decode()
        self.chain, self.key = self.pem + chain, key_pem(key)
        self.is_root = certificate.issuer == certificate.subject

    def context(self, directory: Path, clients: "Issued | None" = None) -> ssl.SSLContext:
        """For a server that shows it, and perhaps wants certificates of clients of this authority."""
        file = directory / f"{self.certificate.serial_number}.pem"
        file.write_text(self.chain + self.key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        if clients is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cadata=clients.pem)
        return context


def authority(name: str = "an authority", parent: Issued | None = None) -> Issued:
    """One that nobody knows, perhaps of another one."""
    return _issued(name, parent, is_authority=True)


def issued(by: Issued, name: str = "far.example", *, days: float = 30) -> Issued:
    """A certificate for this name and 127.0.0.1, valid for so long from now on."""
    return _issued(name, by, days=days)


def _issued(name: str, by: Issued | None, *, days: float = 30, is_authority: bool = False) -> Issued:
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    addresses = [x509.DNSName(name.replace(" ", "-")), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    own = x509.BasicConstraints(ca=is_authority, path_length=None)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if by is None else by.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=min(0, days) - 1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        .add_extension(own, critical=True)
        .sign(key if by is None else by.private, hashes.SHA256())
    )
    return Issued(certificate, key, "" if by is None or by.is_root else by.chain)
