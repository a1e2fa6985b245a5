"""Client programs beside the two SDKs of the other tests, each in an environment of its own, with their defaults.

Each program (a file beside this one) connects to $URL with $KEY, calls a tool, lists resources, hears progress and
answers a question where it can, and prints what came of it as one JSON object.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.gateway import ROOT, running_gateway

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "trunkline-test-clients"
INSTALL_S, RUN_S = 240, 60
BACKEND = [sys.executable, "-I", "-S", str(ROOT / "tests/conformance/stdio_backend.py"), "--era"]
SAID = "This is a simple text response for testing."
ALL = {"resources", "progress", "elicitation"}
PROGRAMS = {
    "python-sdk-1": ("python_sdk_1.py", ["mcp==1.30.0"], ALL),
    "fastmcp": ("fastmcp_client.py", ["fastmcp>=4,<5"], ALL),
    "openai-agents": ("openai_agents.py", ["openai-agents"], {"resources"}),
    "langchain": ("langchain_adapters.py", ["langchain-mcp-adapters"], {"resources"}),
    "typescript-sdk-2": ("typescript_sdk_2.mjs", ["@modelcontextprotocol/client@2"], ALL),
    "typescript-sdk-2-auto": ("typescript_sdk_2.mjs", ["@modelcontextprotocol/client@2"], ALL),
    "typescript-sdk-1": (
        "typescript_sdk_1.mjs",
        ["@modelcontextprotocol/sdk@1"],
        ALL,
    ),
}


def python_of(packages: list[str]) -> list[str]:
    """A Python that has these packages."""
    directory = CACHE / ("py-" + _digest(packages))
    if not (directory / ".installed").exists():
        _install([sys.executable, "-m", "venv", "--clear", str(directory)])
        _install([str(directory / "bin/python"), "-m", "pip", "install", "--quiet", *packages])
        (directory / ".installed").touch()
    return [str(directory / "bin/python")]


def node_of(packages: list[str]) -> Path:
    """A directory whose node_modules have these packages."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    directory = CACHE / ("npm-" + _digest(packages))
    if not (directory / ".installed").exists():
        directory.mkdir(parents=True, exist_ok=True)
        _install(
            ["npm", "install", "--prefix", str(directory), "--ignore-scripts", "--no-audit", "--no-fund", *packages]
        )
        (directory / ".installed").touch()
    return directory


def _digest(packages: list[str]) -> str:
    return hashlib.sha256(" ".join(packages).encode()).hexdigest()[:12]


def _install(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    if done.returncode:
        pytest.skip(f"{command[0]} could not install (no network?): {done.stderr.strip()[-200:]}")


def command_of(program: str, packages: list[str]) -> list[str]:
    if program.endswith(".py"):
        return [*python_of(packages), str(HERE / program)]
    directory = node_of(packages)
    shutil.copy(HERE / program, directory / program)  # node looks for modules beside the program
    return ["node", str(directory / program)]


@pytest.mark.clients
@pytest.mark.parametrize("era", ["legacy", "dual", "modern"])
@pytest.mark.parametrize("client", PROGRAMS)
def test_a_client_program_works_with_its_defaults(client: str, era: str, tmp_path: Path) -> None:
    program, packages, abilities = PROGRAMS[client]
    command = command_of(program, packages)
    with running_gateway(tmp_path / "data") as gateway:
        endpoint = gateway.endpoint([*BACKEND, era])
        done = subprocess.run(
            command,
            env={
                **os.environ,
                "URL": endpoint.mcp,
                "KEY": endpoint.key,
                "OPENAI_AGENTS_DISABLE_TRACING": "1",
                "MODE": client.rpartition("-")[2],
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["text"] == SAID
    if "resources" in abilities:
        assert "test://static-text" in found["resources"]
    if "progress" in abilities:
        assert found["progress"] == [0, 50, 100]
    if "elicitation" in abilities:
        assert found["elicitation"] == "Hello, Ada!"
