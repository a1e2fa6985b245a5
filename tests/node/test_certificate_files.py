"""The certificate of a node: renewed ones are taken, broken ones are not."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from app.node import certificate_files
from app.node.certificate_files import DAY_S, CertificateFiles
from tests.certificates import self_signed


def opened(directory: Path, clock: Callable[[], float] | None = None, **options: Any) -> CertificateFiles:
    pair = self_signed(directory, days=90, **options)
    return CertificateFiles("n1", *pair) if clock is None else CertificateFiles("n1", *pair, clock)


async def test_a_renewed_pair_is_taken_once_it_is_calm(tmp_path: Path) -> None:
    files = opened(tmp_path)
    first, ends = files.context, files.expires_at
    await files.look()
    assert files.context is first
    self_signed(tmp_path, days=180)
    await files.look()
    assert files.context is first  # somebody may still be writing
    await files.look()
    assert files.context is not first
    assert files.expires_at - ends == pytest.approx(90 * DAY_S, abs=60)
    second = files.context
    await files.look()
    assert files.context is second


async def test_files_in_the_middle_of_a_renewal_are_not_looked_into(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files, tmp = opened(tmp_path), tmp_path / "new"
    tmp.mkdir()
    cert, key = self_signed(tmp, days=180)
    os.replace(cert, tmp_path / cert.name)
    await files.look()
    os.replace(key, tmp_path / key.name)
    await files.look()
    await files.look()
    assert files.expires_at > opened(tmp).expires_at + DAY_S
    assert not [each for each in caplog.records if each.levelno > logging.INFO]


async def test_a_broken_pair_keeps_the_old_one_and_is_said_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = opened(tmp_path)
    first, key = files.context, tmp_path / "key.pem"
    right = key.read_bytes()
    key.write_text("junk")
    for _ in range(4):
        await files.look()
    assert files.context is first
    (line,) = [each.getMessage() for each in caplog.records]
    assert line.startswith("Serving the old TLS certificate, which expires at 20")
    assert line.endswith(f"TRUNKLINE_TLS_KEY: '{key}' has no private key in PEM form that is known here")
    (problem,) = files.problems()
    assert (problem.kind, problem.severity) == ("certificate_refused", "warning")
    assert "has no private key" in problem.words
    await files.look(is_asked=True)  # whoever asks gets an answer each time
    assert len(caplog.records) == 2
    key.write_bytes(right)
    await files.look()
    await files.look()
    assert not list(files.problems())
    assert files.context is not first


async def test_files_that_are_gone_for_a_moment_change_nothing(tmp_path: Path) -> None:
    files = opened(tmp_path)
    first = files.context
    (tmp_path / "key.pem").rename(tmp_path / "away")
    await files.look()
    (tmp_path / "away").rename(tmp_path / "key.pem")
    await files.look()
    await files.look()
    assert files.context is first
    assert not list(files.problems())


async def test_who_asks_need_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate_files, "LOOK_EVERY_S", 3600.0)
    files = opened(tmp_path)
    first = files.context
    self_signed(tmp_path, days=180)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(files.run)
        files.read_again()
        with anyio.fail_after(10):
            while files.context is first:
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()


async def test_it_looks_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate_files, "LOOK_EVERY_S", 0.01)
    files = opened(tmp_path)
    first = files.context
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(files.run)
        self_signed(tmp_path, days=180)
        with anyio.fail_after(10):
            while files.context is first:
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()


async def test_a_bug_in_a_look_is_logged_and_the_next_look_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(certificate_files, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(certificate_files, "stamp_of", None)
    files = opened(tmp_path)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(files.run)
        with anyio.fail_after(10):
            while len(caplog.records) < 2:
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    assert "a bug in the gateway" in caplog.text


@pytest.mark.parametrize(
    ("days", "kinds"),
    [
        (15, []),
        (13, [("certificate_expires", "warning")]),
        (2, [("certificate_expires", "critical")]),
        (-1, [("certificate_expires", "critical")]),
    ],
)
def test_that_it_expires_soon_is_a_problem(tmp_path: Path, days: float, kinds: list[tuple[str, str]]) -> None:
    ends = opened(tmp_path).expires_at
    files = opened(tmp_path, lambda: ends - days * DAY_S)
    problems = list(files.problems())
    assert [(each.kind, each.severity) for each in problems] == kinds
    for each in problems:
        assert ("expired at" if days < 0 else f"in {days}.0 days") in each.words
        assert str(tmp_path) in each.words
        assert each.about[0] == "certificate"
