"""Runs Python code as a backend's process, in a network of its own in which it reaches what `allow` names."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from app.domain import BackendSpec, ProcessLimits, Sandbox
from app.domain.resources.backends import AllowList
from app.jail.egress.egress import Egress, EgressLine
from app.jail.sandbox.cgroup_roots import CgroupRoots
from app.jail.sandbox.composer import Composer, Confined, Place
from app.jail.sandbox.machine import Machine, examine
from app.jail.sandbox.needs import NeedsFinder
from app.jail.sandbox.tiers import Profile, Tier
from app.jail.spawner.client import End, SpawnerClient
from tests.jail.sandbox.inside import NOBODYS_UID

WAIT_S = 60.0

# Runs `try_each(PROBES)` and prints what each has got: the bytes that it read, or the error.
PROBING = r"""
import array, json, os, socket, struct, sys, urllib.request
def tcp(host, port, family=socket.AF_INET, kind=socket.SOCK_STREAM, protocol=0):
    with socket.socket(family, kind, protocol) as it:
        it.settimeout(20)
        it.connect((host, port))
        return it.recv(100).decode() or "closed"
def named(host, port):
    with socket.create_connection((host, port), 20) as it:
        return it.recv(100).decode() or "closed"
def udp(host, port, family=socket.AF_INET):
    with socket.socket(family, socket.SOCK_DGRAM) as it:
        it.settimeout(0.3)
        it.connect((host, port))
        it.send(b"hello")
        return it.recv(100).decode()
def fast_open(host, port):
    with socket.socket() as it:
        it.settimeout(20)
        it.sendto(b"hello", 0x20000000, (host, port))
        return it.recv(100).decode() or "closed"
def fetched(url):
    return urllib.request.urlopen(url, timeout=20).read(100).decode()
def abstract(name):
    with socket.socket(socket.AF_UNIX) as it:
        it.connect("\0" + name)
        return it.recv(100).decode()
def unix(path):
    with socket.socket(socket.AF_UNIX) as it:
        it.connect(path)
        return it.recv(100).decode()
def made(family, kind, protocol=0):
    with socket.socket(family, kind, protocol):
        return "made"
def route():
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as it:
        it.send(struct.pack("IHHII", 36, 24, 0x405, 1, 0) + struct.pack("8BI", 2, 32, 0, 0, 255, 3, 254, 2, 0)
                + struct.pack("HH4s", 8, 1, socket.inet_aton("10.9.9.9")))
        error = struct.unpack_from("i", it.recv(4096), 16)[0]
        if error: raise OSError(-error, os.strerror(-error))
        return "routed"
def unshared():
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x40000000): raise OSError(ctypes.get_errno(), "unshare")
    return "left"
def entered():
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    found = os.open("/proc/1/ns/net", os.O_RDONLY)
    if libc.setns(found, 0x40000000): raise OSError(ctypes.get_errno(), "setns")
    return "entered"
def bound(host, port):
    with socket.socket() as it:
        it.setsockopt(socket.SOL_SOCKET, 15, 1)
        it.bind((host, port)); it.listen()
        return "bound"
def looked_up(name):
    return socket.getaddrinfo(name, 80)[0][4][0]
def try_each(probes):
    found = {}
    for name, do, *arguments in probes:
        try:
            found[name] = globals()[do](*arguments)
        except Exception as error:
            found[name] = f"denied: {type(error).__name__}: {error}"
    print(json.dumps(found), flush=True)
"""


@asynccontextmanager
async def spawner_client() -> AsyncIterator[SpawnerClient]:
    client = SpawnerClient()
    await client.start()
    try:
        yield client
    finally:
        await client.aclose()


def machine() -> Machine:
    return examine(CgroupRoots(), lambda name: NOBODYS_UID)


def backend(code: str, allow: Sequence[str], *, web: bool = False, command: str = sys.executable) -> BackendSpec:
    network = AllowList(tuple(allow), web)
    arguments = ("-I", "-c", code)
    return BackendSpec("acme", "files", command, arguments, sandbox=Sandbox(network=network), limits=ProcessLimits())


async def run(client: SpawnerClient, egress: Egress, tier: Tier, spec: BackendSpec) -> tuple[Any, EgressLine | None]:
    """What the process prints as JSON."""
    composer = Composer(machine(), NeedsFinder([]), egress)
    confined = await composer.compose(spec, Place("/tmp", "/tmp"), Profile(tier, spec.sandbox.network_kind))
    said, end = await carried_out(client, confined)
    confined.close()
    assert end.number == 0, (said, end)
    return json.loads(said), confined.line


async def carried_out(client: SpawnerClient, confined: Confined) -> tuple[bytes, End]:
    read, write = os.pipe2(os.O_CLOEXEC)
    ended: asyncio.Future[End] = asyncio.get_running_loop().create_future()
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    descriptors = (null, write, os.dup(2), *confined.take_channels())
    spawned = await client.spawn(confined.command, descriptors, ended.set_result)
    confined.started(spawned.id)
    end = await asyncio.wait_for(ended, WAIT_S)
    with os.fdopen(read, "rb") as file:
        return file.read(), end
