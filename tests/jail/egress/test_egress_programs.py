"""Real programs in a network of their own find the proxy by their environment and reach what it allows."""

import asyncio
import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.jail.egress.egress import EgressLine
from app.jail.spawner.client import Command, End, SpawnerClient
from app.jail.spawner.wire import Confinement
from tests.certificates import self_signed
from tests.jail.egress.conftest import Lookup, descriptors, proxy, server, until
from tests.jail.spawner.test_network import can_enter

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not can_enter(), reason="this machine makes no network namespaces"),
]

PYTHON = {
    "urllib": "import urllib.request; print(urllib.request.urlopen(url, timeout=60).read().decode())",
    "requests": "import requests; print(requests.get(url, timeout=60).text)",
    "httpx2": "import httpx2; print(httpx2.get(url, timeout=60).text)",
    "unaware": (
        "import asyncio, urllib.parse as p; u = p.urlsplit(url)\n"
        "async def main():\n"
        "    try: await asyncio.open_connection(u.hostname, u.port)\n"
        "    except OSError as error: print('unaware:', type(error).__name__)\n"
        "asyncio.run(main())"
    ),
}
NODE = "fetch(process.argv[1]).then(answer => answer.text()).then(console.log)"


def node_proxies() -> bool:
    """Node reads the variables from 24.0 on, and from 22.21 of that line."""
    if shutil.which("node") is None:
        return False
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    major, minor = (int(each) for each in version.removeprefix("v").split(".")[:2])
    return major >= 24 or (major == 22 and minor >= 21)


async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    path = head.split()[1]
    if path == b"/inside":
        writer.write(b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n")
    else:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")


@asynccontextmanager
async def secured(directory: Path) -> AsyncIterator[tuple[int, Path]]:
    """The same by https, as files.example."""
    certificate, key = self_signed(directory, "files.example")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def handle(reader, writer):
        try:
            await hello(reader, writer)
            await writer.drain()
        finally:
            writer.close()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
    try:
        yield listening.sockets[0].getsockname()[1], certificate
    finally:
        listening.close()


async def run(spawner: SpawnerClient, line: EgressLine, argv: list[str], **env: str) -> tuple[End, str]:
    """Runs the program in its own network, with this line; returns what it wrote."""
    read, write = os.pipe2(os.O_CLOEXEC)
    ended: asyncio.Future[End] = asyncio.get_running_loop().create_future()
    command = Command(
        argv,
        {"PATH": os.environ["PATH"], "HOME": "/tmp", **line.environment, **env},
        confinement=Confinement(own_network=True, proxy_port=line.port),
    )
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    spawned = await spawner.spawn(command, (null, write, os.dup(2), line.take_channel()), ended.set_result)
    line.started(spawned.id)
    end = await asyncio.wait_for(ended, 60)
    with os.fdopen(read) as file:
        return end, file.read().strip()


@pytest.fixture
async def spawner() -> AsyncIterator[SpawnerClient]:
    spawner = SpawnerClient()
    await spawner.start()
    yield spawner
    await spawner.aclose()


def argv_of(program: str, url: str) -> list[str]:
    if program == "node":
        return ["node", "-e", NODE, url]
    if program in PYTHON:
        return [sys.executable, "-c", f"url = {url!r}\n{PYTHON[program]}"]
    return [*program.split(), url]


@pytest.mark.parametrize(
    "program",
    [
        "curl -sS", "curl -sS --proxytunnel", "curl -sS -x socks5h://127.0.0.1:3128", "urllib", "requests", "httpx2",
        pytest.param("node", marks=pytest.mark.skipif(not node_proxies(), reason="this node reads no HTTP_PROXY")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_unmodified_programs_reach_a_name_that_is_resolved_outside(spawner, tmp_path, scheme, program):
    lookup = Lookup(files_example=[["127.0.0.1"]])
    async with proxy(lookup=lookup) as proxied, server(hello) as plain, secured(tmp_path) as (secure, certificate):
        url = f"{scheme}://files.example:{plain if scheme == 'http' else secure}/"
        names = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "CURL_CA_BUNDLE")
        line = proxied.egress.open("acme", "files")
        end, said = await run(spawner, line, argv_of(program, url), **dict.fromkeys(names, str(certificate)))
        assert (end.number, said) == (0, "hello")
        line.close()


async def test_a_redirect_inside_is_refused_by_name_and_the_log_says_who(spawner, caplog):
    caplog.set_level("INFO", "app.jail.egress")
    async with proxy(lookup=Lookup(files_example=[["127.0.0.1"]])) as proxied, server(hello) as port:
        line = proxied.egress.open("acme", "files")
        argv = ["curl", "-sSL", f"http://files.example:{port}/inside"]
        end, said = await run(spawner, line, argv)
        assert end.number == 0
        assert "169.254.169.254 is not public" in said
        line.close()
    [record] = [each for each in caplog.records if each.message == "Refused a connection of a backend"]
    assert (record.backend_tenant, record.backend, record.destination) == ("acme", "files", "169.254.169.254:80")
    assert record.reason == "address"


async def test_without_the_proxy_nothing_is_reached(spawner):
    async with proxy() as proxied, server(hello) as port:
        for argv in (
            ["curl", "-sS", "--noproxy", "*", f"http://127.0.0.1:{port}/"],
            ["curl", "-sS", "--noproxy", "*", "http://1.1.1.1/"],
        ):
            line = proxied.egress.open("acme", "files")
            end, said = await run(spawner, line, argv)
            assert (end.number, said) == (7, "")
            line.close()
        line = proxied.egress.open("acme", "files")
        _, said = await run(spawner, line, argv_of("unaware", f"http://127.0.0.1:{port}/"))
        assert said.startswith("unaware:")
        line.close()


async def test_two_processes_have_the_same_port_and_networks_of_their_own(spawner):
    """And the end of one, with a connection open, leaves nothing of it."""
    script = "import socket, time; s = socket.create_connection(('127.0.0.1', 3128)); time.sleep(60)"
    async with proxy() as proxied:
        before = descriptors()
        first, second = (proxied.egress.open("acme", name) for name in ("a", "b"))
        running = [
            asyncio.ensure_future(run(spawner, line, [sys.executable, "-I", "-S", "-c", script]))
            for line in (first, second)
        ]
        await until(lambda: proxied.connections == 2)
        assert repr(first) == "<EgressLine acme/a [open, 1 connections]>"
        first.close()
        await until(lambda: proxied.connections == 1)
        await spawner.aclose()
        await asyncio.gather(*running)
        await until(lambda: proxied.connections == 0)
        second.close()
        await until(lambda: descriptors() <= before)
