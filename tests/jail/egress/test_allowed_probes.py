"""What a process does not reach, whatever `allow` names, in real network namespaces: each attempt has to fail."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from app.jail.egress.egress import Egress, EgressOptions
from app.jail.sandbox.tiers import PORTS_ONLY, Tier
from app.jail.spawner.client import SpawnerClient
from app.telemetry.metrics import Metrics
from tests.jail.egress.conftest import Lookup
from tests.jail.egress.inside import PROBING, backend, run, spawner_client
from tests.jail.sandbox.inside import IS_ROOT, needs_bubblewrap
from tests.jail.spawner.conftest import spawn

pytestmark = needs_bubblewrap
GREETING = "reached"
# A backend with the machine's network, which listens.
NEIGHBOUR = f"""
import socket
it = socket.create_server(("127.0.0.1", 0))
print(it.getsockname()[1], flush=True)
while True:
    it.accept()[0].sendall(b"{GREETING}")
"""


@pytest.fixture(params=[Tier.NAMESPACES, Tier.ASSISTED])
def tier(request: pytest.FixtureRequest) -> Tier:
    if request.param is Tier.ASSISTED and not IS_ROOT:
        pytest.skip("needs root")
    return Tier(request.param)


@pytest.fixture
async def client() -> AsyncIterator[SpawnerClient]:
    async with spawner_client() as client:
        yield client


def own_address() -> str | None:
    """One of this machine that is not loopback. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])
    return None


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(GREETING.encode())
    with contextlib.suppress(OSError):
        await writer.drain()
        await reader.read(1)
    writer.close()


@asynccontextmanager
async def listening(answer: Any, *hosts: str, port: int = 0) -> AsyncIterator[int]:
    """A server at these addresses, on the same port."""
    servers = []
    try:
        for host in hosts:
            servers.append(await asyncio.start_server(answer, host, port))
            port = servers[0].sockets[0].getsockname()[1]
        yield port
    finally:
        for each in servers:
            each.close()


@asynccontextmanager
async def redirecting(to: int) -> AsyncIterator[int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = (
            f"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{to}/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode())
        writer.close()

    async with listening(answer, "127.0.0.1") as port:
        yield port


def elsewhere(good: int, other: int, v6: int, redirect: int) -> list[list[Any]]:
    """At other ports and addresses than those which `allow` has, in every spelling."""
    six = int(socket.AF_INET6)
    return [
        ["another port", "tcp", "127.0.0.1", other],
        ["another address of loopback", "tcp", "127.0.0.2", good],
        ["another address, mapped", "tcp", "::ffff:127.0.0.2", good, six],
        ["another port, mapped", "tcp", "::ffff:127.0.0.1", other, six],
        ["another port of no address", "tcp", "0.0.0.0", other],
        ["another port of no IPv6 address", "tcp", "::", other, six],
        ["loopback of IPv6", "tcp", "::1", v6, six],
        ["another port of IPv6 loopback", "tcp", "::1", other, six],
        ["another port of a name", "named", "db.internal", other],
        ["an address that stands for no name", "tcp", "198.18.0.200", good],
        ["another port at the address of a name", "tcp", "198.18.0.1", other],
        ["a translated address", "tcp", "64:ff9b::7f00:1", good, six],
        ["a 6to4 address", "tcp", "2002:7f00:1::", good, six],
        ["a name that is not allowed", "looked_up", "other.internal"],
        ["the proxy of `web`", "tcp", "127.0.0.1", 3128],
        ["by a redirect", "fetched", f"http://127.0.0.1:{redirect}/"],
        ["metadata", "tcp", "169.254.169.254", 80],
        ["metadata on an allowed port", "tcp", "169.254.169.254", good],
        ["metadata of IPv6", "tcp", "fd00:ec2::254", good, six],
        ["multicast", "tcp", "224.0.0.1", good],
        ["broadcast", "tcp", "255.255.255.255", good],
    ]


def other_ways(good: int, other: int, abstract: str, path: str) -> list[list[Any]]:
    """Not by a connection of TCP, or with another network."""
    six = int(socket.AF_INET6)
    return [
        ["a datagram to an allowed place", "udp", "127.0.0.1", good],
        ["a datagram elsewhere", "udp", "127.0.0.1", other],
        ["a datagram of IPv6", "udp", "::1", good, six],
        ["a fast open elsewhere", "fast_open", "127.0.0.1", other],
        ["multipath TCP elsewhere", "tcp", "127.0.0.1", other, int(socket.AF_INET), 1, 262],
        ["SCTP", "tcp", "127.0.0.1", other, int(socket.AF_INET), 1, 132],
        ["a raw socket", "made", int(socket.AF_INET), int(socket.SOCK_RAW), 1],
        ["a raw socket of IPv6", "made", six, int(socket.SOCK_RAW), 58],
        ["a packet socket", "made", 17, int(socket.SOCK_RAW)],
        ["a socket of the host of virtual machines", "made", 40, 1],
        ["an abstract socket", "abstract", abstract],
        ["a socket with a path", "unix", path],
        ["a route of its own", "route"],
        ["a network of its own", "unshared"],
        ["another network", "entered"],
        ["a listener in the place of ours", "bound", "0.0.0.0", good],
        ["a listener beside ours", "bound", "127.0.0.1", good],
    ]


def gateways(port: int, own: str | None) -> list[list[Any]]:
    """What is the gateway's, though `allow` has it."""
    six = int(socket.AF_INET6)
    found = [
        ["the gateway", "tcp", "127.0.0.1", port],
        ["the gateway, mapped", "tcp", "::ffff:127.0.0.1", port, six],
        ["the gateway at no address", "tcp", "0.0.0.0", port],
        ["the gateway at another address of loopback", "tcp", "127.9.9.9", port],
        ["the gateway by IPv6", "tcp", "::1", port, six],
        ["the gateway by a name", "named", "gateway.internal", port],
        ["the gateway as localhost", "named", "localhost", port],
    ]
    return found + ([["the gateway at an address of the machine", "tcp", own, port]] if own else [])


def lookup() -> Lookup:
    return Lookup(
        db_internal=[["127.0.0.1"]],
        public_example=[["127.0.0.1"]],
        mixed_example=[["93.184.215.14", "127.0.0.1"]],
        mapped_example=[["::ffff:127.0.0.1"]],
        loop_internal=[["127.0.0.1"]],
        meta_internal=[["169.254.169.254"]],
        zoned_internal=[["fe80::1%lo"]],
        nowhere_internal=[["0.0.0.0"]],
        flip_internal=[["127.0.0.1"], ["127.0.0.2"]],
        gateway_internal=[["127.0.0.1"]],
    )


def rebound(good: int) -> tuple[list[str], list[list[Any]]]:
    names = [name for name in lookup().names if name not in ("db.internal", "flip.internal", "gateway.internal")]
    return [f"{name}:{good}" for name in names], [[f"the name {name}", "named", name, good] for name in names]


@pytest.mark.real
async def test_nothing_but_what_is_allowed_is_reached(client, tier, tmp_path):
    own = own_address()
    machines = ("127.0.0.1", "127.9.9.9", "::1", *([own] if own else []))
    abstract, path = f"trunkline-test-{id(tmp_path)}", str(tmp_path / "socket")
    neighbour = await spawn(client, sys.executable, "-I", "-S", "-c", NEIGHBOUR)
    near = int(await neighbour.read_line())
    async with contextlib.AsyncExitStack() as stack:
        good = await stack.enter_async_context(listening(greet, "127.0.0.1", "127.0.0.2"))
        other = await stack.enter_async_context(listening(greet, "127.0.0.1"))
        v6 = await stack.enter_async_context(listening(greet, "::1"))
        gateway = await stack.enter_async_context(listening(greet, *machines))
        redirect = await stack.enter_async_context(redirecting(other))
        for address in ("\0" + abstract, path):
            each = await asyncio.start_unix_server(greet, address)
            stack.callback(each.close)
        names, by_name = rebound(good)
        allow = [
            f"127.0.0.1:{good}", f"db.internal:{good}@127.0.0.0/8", f"flip.internal:{good}@127.0.0.1", *names,
            f"127.0.0.1:{near}", f"127.0.0.1:{redirect}", f"127.0.0.0/8:{gateway}", f"[::1]:{gateway}",
            f"localhost:{gateway}", f"gateway.internal:{gateway}@127.0.0.0/8", *([f"{own}:{gateway}"] if own else []),
        ]  # fmt: skip
        reached = [
            ["by its address", "tcp", "127.0.0.1", good],
            ["by its mapped address", "tcp", "::ffff:127.0.0.1", good, int(socket.AF_INET6)],
            ["by no address, which is loopback", "tcp", "0.0.0.0", good],
            ["by a name", "named", "db.internal", good],
            ["by a name that keeps its address", "named", "flip.internal", good],
        ]
        denied = [
            *elsewhere(good, other, v6, redirect), *other_ways(good, other, abstract, path), *gateways(gateway, own),
            *by_name, ["another backend", "tcp", "127.0.0.1", near],
            ["a name that has another address now", "named", "flip.internal", good],
        ]  # fmt: skip
        options = EgressOptions(lookup=lookup(), parts=((ip_address("0.0.0.0"), gateway),))
        async with Egress(Metrics("0"), options) as egress:
            spec = backend(f"{PROBING}\ntry_each({[*reached, *denied]!r})", allow)
            found, _ = await run(client, egress, tier, spec)
    client.kill(neighbour.spawned.id)
    await neighbour.end()
    neighbour.close()
    assert {name: found[name] for name, *_ in reached} == {name: GREETING for name, *_ in reached}
    assert len(denied) >= 50
    assert [(name, found[name]) for name, *_ in denied if not found[name].startswith("denied: ")] == []


@pytest.mark.real
@pytest.mark.skipif(own_address() is None, reason="this machine has no address but loopback")
async def test_an_address_of_a_network_is_reached_as_it_is_and_the_port_beside_it_is_not(client, tier):
    own = own_address()
    egress = Egress(Metrics("0"), EgressOptions(lookup=Lookup()))
    async with listening(greet, str(own)) as good, listening(greet, str(own)) as other, egress:
        probes = [["good", "tcp", own, good], ["other", "tcp", own, other], ["loopback", "tcp", "127.0.0.1", good]]
        spec = backend(f"{PROBING}\ntry_each({probes!r})", [f"{ip_network(f'{own}/24', strict=False)}:{good}"])
        found, line = await run(client, egress, tier, spec)
    assert found["good"] == GREETING
    assert found["other"].startswith("denied: ")
    assert found["loopback"].startswith("denied: ")
    assert line is not None
    assert [destination for destination, _ in line.refused] == [f"127.0.0.1:{good}"]


@pytest.mark.real
async def test_in_the_kernel_s_tier_ports_hold_and_addresses_do_not_as_the_report_says(client):
    async with listening(greet, "127.0.0.1", "127.0.0.2") as good, listening(greet, "127.0.0.1") as other:
        probes = [
            ["good", "tcp", "127.0.0.1", good], ["another address", "tcp", "127.0.0.2", good],
            ["another port", "tcp", "127.0.0.1", other], ["bound", "bound", "127.0.0.1", 0],
            ["multipath", "tcp", "127.0.0.1", other, int(socket.AF_INET), 1, 262],
            ["fast open", "fast_open", "127.0.0.1", other],
        ]  # fmt: skip
        async with Egress(Metrics("0"), EgressOptions(lookup=Lookup())) as egress:
            spec = backend(f"{PROBING}\ntry_each({probes!r})", [f"127.0.0.1:{good}"])
            found, _ = await run(client, egress, Tier.KERNEL, spec)
    reached = {name for name, what in found.items() if not what.startswith("denied: ")}
    assert reached == {"good", "another address"}, found
    assert "every address can be reached" in PORTS_ONLY["allow"]
