"""The command itself: what `serve` prints, what it refuses, and what the operations endpoints say."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from tests.integration.gateway import ECHO, ROOT, Gateway, running_gateway
from tests.integration.wire import wire
from tests.programs import run_program

# As much of the package sniffio 1.3 as anyio asks, where it is installed: in a callback of the loop it sees no task.
SNIFFIO = """
import asyncio
from contextvars import ContextVar
class AsyncLibraryNotFoundError(RuntimeError): pass
current_async_library_cvar = ContextVar("current_async_library_cvar", default=None)
def current_async_library():
    if (name := current_async_library_cvar.get()) is not None:
        return name
    try:
        if asyncio.current_task() is not None:
            return "asyncio"
    except RuntimeError:
        pass
    raise AsyncLibraryNotFoundError
"""
TRUNKLINE = [sys.executable, "-m", "app"]


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_program(words, {**os.environ, **environment})


def test_livez_and_readyz_answer_and_skip_the_host_check(gateway: Gateway) -> None:
    for path in ("/livez", "/readyz"):
        response = httpx2.get(gateway.url + path, headers={"Host": "probe.example.com"})
        assert response.status_code == 200, path


def test_metrics_are_open_on_loopback_and_carry_the_promised_names(gateway: Gateway) -> None:
    names = gateway.metrics()
    assert any(name.startswith("trunkline_build_info{") for name in names)


@pytest.mark.parametrize(
    "settings",
    [{"TRUNKLINE_PORT": "http"}, {"TRUNKLINE_LOG_LEVEL": "loud"}, {"TRUNKLINE_SECRET_KEY": "short"}],
    ids=lambda settings: next(iter(settings)),
)
def test_a_wrong_setting_is_one_line_and_exit_code_2(tmp_path: Path, settings: dict[str, str]) -> None:
    done = run("serve", "--data-dir", str(tmp_path), **settings)
    assert done.returncode == 2
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1
    assert next(iter(settings)) in lines[0]


def test_another_address_than_loopback_needs_a_secret_key(tmp_path: Path) -> None:
    done = run("serve", "--host", "0.0.0.0", "--port", "0", "--data-dir", str(tmp_path))
    assert done.returncode == 2
    assert "SECRET_KEY" in done.stderr


def test_a_taken_port_is_one_clear_line(gateway: Gateway, tmp_path: Path) -> None:
    port = gateway.host.rsplit(":", 1)[1]
    done = run("serve", "--port", port, "--data-dir", str(tmp_path))
    assert done.returncode not in (0, -signal.SIGKILL)
    assert "Traceback" not in done.stderr
    assert port in done.stderr


def test_the_demo_prints_a_working_address_and_key(tmp_path: Path) -> None:
    command = [*TRUNKLINE, "serve", "--demo", "--port", "0", "--data-dir", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            seen = []
            demo = tmp_path / "demo.json"
            for line in process.stdout:
                seen.append(line)
                if demo.exists() and (key := json.loads(demo.read_text())["key"]) in "".join(seen):
                    break
            assert seen[0].startswith("listening on http://127.0.0.1:")
            url = json.loads(demo.read_text())["url"]
            params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
            body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
            answer = httpx2.post(url, json=body, headers={"Authorization": f"Bearer {key}"}, timeout=30)
            assert answer.status_code == 200, answer.text
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(40) == 0


async def test_sessions_open_where_another_package_has_brought_sniffio(tmp_path: Path) -> None:
    (tmp_path / "sniffio.py").write_text(SNIFFIO)

    class BesideSniffio(Gateway):
        FIRST = (
            f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import sniffio; "
            "from anyio._core import _eventloop; _eventloop.sniffio = sniffio"
        )

    with running_gateway(tmp_path / "data", BesideSniffio, POOL_WAIT_S="15") as gateway:
        async with wire(gateway.endpoint(ECHO)) as session:
            assert await session.call("echo", text="here") == "here"
