"""What `trunkline doctor` says of the certificate."""

from pathlib import Path

from app.cli.doctor.certificate import certificate
from app.cli.doctor.findings import State
from tests.certificates import self_signed


def test_none_is_fine() -> None:
    assert certificate(None, None).state is State.OK


def test_one_that_lasts_is_fine_and_its_end_is_said(tmp_path: Path) -> None:
    found = certificate(*self_signed(tmp_path, days=60))
    assert found.state is State.OK
    assert "until 20" in found.detail


def test_one_that_cannot_be_used_is_missing_with_the_reason_of_the_start(tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path)
    key.unlink()
    found = certificate(cert, key)
    assert found.state is State.MISSING
    assert found.detail == f"TRUNKLINE_TLS_KEY: cannot read '{key}': No such file or directory"


def test_one_that_expires_soon_is_pointed_at(tmp_path: Path) -> None:
    found = certificate(*self_signed(tmp_path, days=13))
    assert found.state is State.OPTIONAL
    assert "expires in 13.0 days" in found.detail


def test_a_key_that_everybody_can_read_is_pointed_at(tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path, days=60)
    key.chmod(0o644)
    found = certificate(cert, key)
    assert found.state is State.OPTIONAL
    assert found.advice == f"chmod o= {key}"
