"""Large answers that clients do not read, over real sockets: equal ones are one copy, and their number is bounded."""

import json
import socket
import sys
from contextlib import ExitStack

import httpx2
import psutil
import pytest

from app.limits.unread_answers import MAX_OF_TENANT
from tests.integration.gateway import ROOT, Endpoint, Gateway, until
from tests.integration.wire import RpcError, Wire, rpc, wire

TORRENT = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/torrent.py")]
MIB = 1 << 20
TIMES = 1 * MIB
SIZE = 8 * TIMES  # of a result: more than the kernel takes of one
MOST = MAX_OF_TENANT // SIZE


@pytest.fixture
def torrent(gateway: Gateway) -> Endpoint:
    return gateway.endpoint(TORRENT, tenant=gateway.add_tenant())


def ask(session: Wire, letters: str, open_sockets: ExitStack) -> socket.socket:
    """Sends a call whose answer is not read."""
    url = httpx2.URL(session.url)
    body = json.dumps(
        rpc("tools/call", letters, {"name": "say", "arguments": {"text": letters, "times": TIMES}})
    ).encode()
    lines = [f"POST {url.path} HTTP/1.1", f"Host: {url.host}:{url.port}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in session.headers.items()]
    connection = open_sockets.enter_context(socket.socket())
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # else the kernel reads it all
    connection.connect((str(url.host), int(url.port or 0)))
    connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    return connection


def running(endpoint: Endpoint) -> int:
    items = endpoint.gateway.api("GET", f"/tenants/{endpoint.tenant}/sessions")["items"]
    return sum(each["calls"] for each in items)


async def refusal(session: Wire) -> RpcError:
    """Of the first call that is refused: until the answers of all others have come none is."""
    for _ in range(200):
        try:
            await session.call("say", text="y" * 8, times=TIMES)
        except RpcError as error:
            return error
    raise AssertionError("no call is refused")


async def test_equal_answers_that_nobody_reads_are_one_copy(gateway: Gateway, torrent: Endpoint) -> None:
    node = psutil.Process(gateway.pid)
    with ExitStack() as open_sockets:
        async with wire(torrent) as session:
            first = ask(session, "x" * 8, open_sockets)
            await until(lambda: running(torrent) == 0, 30)
            before = node.memory_info().rss
            for _ in range(MOST + 5):
                ask(session, "x" * 8, open_sockets)
                await until(lambda: running(torrent) == 0, 30)
            assert (node.memory_info().rss - before) / MIB < MOST * SIZE / MIB / 2
            assert b" 200 " in first.recv(64)


async def test_a_tenant_whose_clients_do_not_read_gets_an_error_and_nobody_else_does(
    gateway: Gateway, torrent: Endpoint
) -> None:
    other = gateway.endpoint(TORRENT, tenant=gateway.add_tenant())
    async with wire(torrent) as session, wire(other) as bystander:
        with ExitStack() as open_sockets:
            for number in range(MOST):
                ask(session, f"{number:08}", open_sockets)
            refused = await refusal(session)
            assert refused.reason == "response_too_large"
            assert "wait for clients that do not read" in str(refused)
            assert await session.call("say", text="small") == "small"
            assert await bystander.call("say", text="y" * 8, times=TIMES) == "y" * SIZE

        async def is_answered() -> bool:
            response = await session.post(
                rpc("tools/call", 2, {"name": "say", "arguments": {"text": "y" * 8, "times": TIMES}})
            )
            return "result" in response.json()

        for _ in range(100):  # until the node has noticed that the connections are closed
            if await is_answered():
                return
        pytest.fail("nothing is kept after the clients have gone")
