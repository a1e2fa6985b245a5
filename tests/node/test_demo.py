"""serve --demo: whatever of it fails is said, on the terminal and in the log; the node goes on."""

import json
import logging
import os
import sys
import sysconfig
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from app.errors import SettingsError, StorageReadOnly
from app.node import demo, demo_clock, listeners
from app.node.gateway import Gateway, open_gateway
from app.settings.settings import Settings
from app.storage.audit import Act
from tests.databases import migrate

BASE = "http://127.0.0.1:1"


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    settings = Settings.from_env({}, data_dir=tmp_path, max_processes="8")
    migrate(settings.database_url)
    async with open_gateway(settings) as gateway:
        yield gateway


@pytest.fixture
def _own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quicker one of the two servers."""
    monkeypatch.setattr(demo, "_command", lambda: ("-I", demo_clock.__file__))


async def said(gateway: Gateway) -> list[str]:
    with anyio.fail_after(60):
        return [text async for text in demo.set_up_demo(gateway, BASE)]


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


def key_in(gateway: Gateway) -> str:
    return str(json.loads((gateway.settings.data_dir / "demo.json").read_text())["key"])


async def test_a_demo_that_works_says_nothing_else_and_keeps_its_key(gateway, caplog):
    (first,) = await said(gateway)
    assert key_in(gateway) in first
    assert "(mcp-server-time)" in first
    (again,) = await said(gateway)
    assert (again, errors(caplog)) == (first, [])


@pytest.mark.usefixtures("_own_clock")
async def test_the_command_for_an_administrator_can_be_typed_as_it_is_printed(gateway, monkeypatch):
    own = os.path.join(sysconfig.get_path("scripts"), "trunkline")
    for path, printed in (("/nowhere", own), (os.path.dirname(own), "trunkline")):
        monkeypatch.setenv("PATH", path)
        (text,) = await said(gateway)
        assert f"\n    {printed} keys create --tenant default" in text
    monkeypatch.setattr("sysconfig.get_path", lambda name: "/nowhere")
    (text,) = await said(gateway)
    assert f"\n    {sys.executable} -m app keys create" in text


async def test_without_the_extra_the_demo_has_a_server_of_its_own(gateway, monkeypatch, caplog):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (text,) = await said(gateway)  # and it answers: otherwise there would be a second text
    assert "pip install 'trunkline[demo]'" in text
    spec = await gateway.records.backends.get("default", demo.BACKEND)
    assert (spec.command, spec.args) == (sys.executable, ("-I", demo_clock.__file__))
    assert errors(caplog) == []


async def test_a_backend_that_does_not_work_is_reported_with_its_last_words(gateway, monkeypatch, caplog):
    words = "import sys; print('no such module: time', file=sys.stderr); sys.exit(3)"
    monkeypatch.setattr(demo, "_command", lambda: ("-c", words))
    text, problem = await said(gateway)
    assert key_in(gateway) in text
    assert "The demo's backend does not work. Step `" in problem
    assert "    no such module: time" in problem.splitlines()
    assert any("The demo's backend does not work" in each for each in errors(caplog))


def no_object(path: Path) -> None:
    path.write_text("[]")


def no_file(path: Path) -> None:
    path.mkdir()


@pytest.mark.usefixtures("_own_clock")
@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (no_object, ["it is not what an earlier run has written. This is a new one"]),
        (no_file, ["Is a directory. This is a new one", "Could not write URL and key to"]),
    ],
)
async def test_a_file_that_cannot_be_used_is_reported_and_the_key_printed(
    gateway: Gateway, caplog: Any, spoil: Callable[[Path], None], told: list[str]
) -> None:
    spoil(gateway.settings.data_dir / "demo.json")
    (text,) = await said(gateway)
    assert "tlk_" in text
    assert all(each in text for each in told)
    assert len(errors(caplog)) == len(told)


@pytest.mark.usefixtures("_own_clock")
async def test_a_key_that_was_revoked_is_replaced_and_that_is_said(gateway):
    await said(gateway)
    revoked = key_in(gateway)
    (key,) = await gateway.records.keys.list("default", after="", limit=10)
    act = Act("default", ("default", "cli", "test"), "key.revoke", f"keys/{key.id}", datetime.now(UTC))
    await gateway.records.keys.revoke("default", key.id, datetime.now(UTC), act=act)
    gateway.credentials.authenticator.forget_everything()
    (text,) = await said(gateway)
    assert "has expired or was revoked; this is a new one" in text
    assert key_in(gateway) != revoked


async def test_a_database_that_takes_no_changes_is_reported_in_words(gateway, monkeypatch, caplog):
    async def refuse(*_: object, **__: object) -> None:
        raise StorageReadOnly

    broken: Any = type("Backends", (), {"get": refuse})()
    (text,) = await said(replace(gateway, records=replace(gateway.records, backends=broken)))
    assert text.startswith("  The demo could not be set up: The database is read-only")
    assert "TRUNKLINE_DATABASE_URL" in text
    assert len(errors(caplog)) == 1


def test_the_address_of_a_listener_on_every_address_is_one_that_a_client_can_ask_for() -> None:
    assert listeners.from_here("http://0.0.0.0:8080") == "http://127.0.0.1:8080"
    assert listeners.from_here("http://[::]:8080") == "http://[::1]:8080"
    assert listeners.from_here("http://10.0.0.5:8080") == "http://10.0.0.5:8080"


def test_a_host_that_cannot_be_listened_on_is_refused_with_what_to_change() -> None:
    settings: Any = SimpleNamespace(host="192.0.2.1", port=0)
    with pytest.raises(SettingsError, match="; choose another with --host or --port"):
        listeners.listen(settings)
