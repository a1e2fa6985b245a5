"""The certificate that a gateway serves with: what is refused, and in which words."""

import os
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from app.errors import SettingsError
from app.settings.certificate import load, stamp_of
from tests.certificates import self_signed


def refused(cert: Path, key: Path) -> str:
    with pytest.raises(SettingsError) as error:
        load(cert, key)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_pair_is_read_with_its_end_and_allows_no_old_tls(tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path, days=20)
    found = load(cert, key)
    assert found.stamp == stamp_of(cert, key)
    assert 19 < (found.expires_at - cert.stat().st_mtime) / 86_400 < 21
    assert found.context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert found.context.options & ssl.OP_NO_RENEGOTIATION


def test_secrets_of_connections_are_written_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "secrets"))
    assert load(*self_signed(tmp_path)).context.keylog_filename is None


def test_what_is_missing_or_is_something_else_is_named(tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path)
    none, junk = tmp_path / "none.pem", tmp_path / "junk.pem"
    junk.write_bytes(b"\x00junk")
    assert refused(none, key) == f"TRUNKLINE_TLS_CERT: cannot read '{none}': No such file or directory"
    assert refused(cert, none) == f"TRUNKLINE_TLS_KEY: cannot read '{none}': No such file or directory"
    assert refused(cert, tmp_path) == f"TRUNKLINE_TLS_KEY: cannot read '{tmp_path}': Is a directory"
    assert refused(junk, key).startswith(f"TRUNKLINE_TLS_CERT: '{junk}' has no certificates in PEM form; needed are")
    assert refused(key, key).startswith("TRUNKLINE_TLS_CERT: ")
    assert refused(cert, cert) == f"TRUNKLINE_TLS_KEY: '{cert}' has no private key in PEM form that is known here"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path)
    os.mkfifo(pipe := tmp_path / "pipe")
    assert refused(pipe, key).startswith(f"TRUNKLINE_TLS_CERT: '{pipe}' is not a file")
    assert refused(cert, pipe).startswith(f"TRUNKLINE_TLS_KEY: '{pipe}' is not a file")


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    cert, _ = self_signed(tmp_path)
    _, other = self_signed(tmp_path / "other")
    assert f"'{other}' is not the key of the first certificate in '{cert}'" in refused(cert, other)


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_password(tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path)
    private = load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
    assert "is encrypted; decrypt it" in refused(cert, key)


def test_dates_are_looked_at(tmp_path: Path) -> None:
    assert "has expired at 20" in refused(*self_signed(tmp_path, days=-1))
    assert "is the clock right?" in refused(*self_signed(tmp_path, days=30, begins_in_days=1))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a key that OpenSSL itself finds too short")
def test_what_openssl_does_not_accept_is_refused_with_its_reason(tmp_path: Path) -> None:
    cert, key = tmp_path / "c.pem", tmp_path / "k.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:1024", "-nodes", "-subj", "/CN=a", "-keyout", key, "-out", cert],
        check=True,
        capture_output=True,
        timeout=60,
    )
    assert "OpenSSL does not accept" in refused(cert, key)
    assert "KEY_TOO_SMALL" in refused(cert, key)
