"""How fast the egress proxy is: the same download by curl, direct and from a network namespace through the proxy.

    python bench/egress.py [--bytes 1073741824] [--rounds 5] [--tls] [--gbit 10] [--allow | --beside-host]

Direct and proxied runs alternate, and the medians are compared. Reported beside them: how late the event loop of the
node was meanwhile, and the CPU time that the proxy used. `--gbit` has the server send no faster than a network of that
speed would: the loopback interface alone is faster than that. `--allow`: not by the proxy, but as what a backend's
`network.allow` names; with `--bytes 1` the times are those of a connection and the first byte. `--beside-host`: this
from processes as backends have them in the highest tier, one with `network: host` and one with `allow`. Needs curl and
network namespaces.
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import resource
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from app.domain import BackendSpec, Sandbox
from app.domain.resources.backends import AllowList, NetworkMode
from app.jail.egress.allowed import Allowed
from app.jail.egress.egress import Egress, EgressOptions
from app.jail.sandbox.cgroup_roots import CgroupRoots
from app.jail.sandbox.composer import Composer, Place
from app.jail.sandbox.machine import examine
from app.jail.sandbox.needs import NeedsFinder
from app.jail.sandbox.tiers import Profile
from app.jail.sandbox.uids import OF_PROBES
from app.jail.spawner.client import Command, End, SpawnerClient
from app.jail.spawner.wire import Confinement, Forwarded
from app.telemetry.metrics import Metrics

CHUNK = bytes(1 << 20)
SO_MAX_PACING_RATE = 47  # bytes per second; the module `socket` does not know it


class AnyPort:
    async def permit(self, outgoing: Any) -> tuple[()]:
        return ()


def serve(listener: socket.socket, size: int, certificate: str | None, gbit: float | None) -> None:
    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % size
    while True:
        plain, _ = listener.accept()
        if gbit is not None:
            rate = min(round(gbit * 1e9 / 8), (1 << 32) - 2)
            plain.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("I", rate))
        connection = plain if context is None else context.wrap_socket(plain, server_side=True)
        with connection:
            connection.recv(65536)
            connection.sendall(head)
            left = size
            while left > 0:
                connection.sendall(CHUNK[:left])
                left -= len(CHUNK)


def certificate(directory: str) -> str:
    path = f"{directory}/both.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1",
         "-subj", "/CN=localhost", "-keyout", path, "-out", f"{path}.cert"],
        check=True, capture_output=True,
    )  # fmt: skip
    with open(path, "a") as file:
        file.write(Path(f"{path}.cert").read_text())
    return path


class Lateness:
    """How late the event loop was."""

    def __init__(self) -> None:
        self.late: list[float] = []

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        watching = asyncio.ensure_future(self._watch())
        try:
            yield
        finally:
            watching.cancel()

    async def _watch(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.005)
            self.late.append(time.perf_counter() - before - 0.005)

    def p99_ms(self) -> float:
        return 1000 * statistics.quantiles(self.late, n=100)[98]


MACHINE = examine(CgroupRoots(), lambda name: OF_PROBES)
CURL = ("curl", "-sk", "-o", "/dev/null", "-w", "%{time_total} %{size_download}")


async def timed(spawner: SpawnerClient, command: Command, *channels: int) -> float:
    """Seconds of one download, as curl counts them."""
    out_read, out_write = os.pipe()
    null = os.open("/dev/null", os.O_RDWR)
    ended: asyncio.Future[End] = asyncio.get_running_loop().create_future()
    await spawner.spawn(command, [null, out_write, os.dup(2), *channels], ended.set_result)
    end = await ended
    said = os.read(out_read, 4096).decode()
    os.close(out_read)
    if end.number != 0:
        raise SystemExit(f"curl failed: {end} {said}")
    return float(said.split()[0])


async def curl(spawner: SpawnerClient, url: str, egress: Egress | None, allowed: Allowed | None) -> float:
    """By the proxy, by a listener, or direct."""
    env = {"PATH": os.environ["PATH"]}
    if egress is None:
        return await timed(spawner, Command([*CURL, url], env, confinement=Confinement()))
    line = egress.open("bench", "curl", allowed=allowed, has_proxy=allowed is None)
    env |= {**line.environment, "no_proxy": "", "NO_PROXY": ""}
    if allowed is None:
        argv, confinement = [*CURL, "--proxytunnel", url], Confinement(own_network=True, proxy_port=line.port)
    else:
        forwarded = Forwarded(networks=allowed.networks, ports=allowed.ports)
        argv, confinement = [*CURL, url], Confinement(own_network=True, forwarded=forwarded)
    try:
        return await timed(spawner, Command(argv, env, confinement=confinement), line.take_channel())
    finally:
        line.close()


async def of_a_backend(spawner: SpawnerClient, composer: Composer, url: str, network: NetworkMode | AllowList) -> float:
    """From a process as a backend with this network has it."""
    spec = BackendSpec("bench", "curl", CURL[0], (*CURL[1:], url), sandbox=Sandbox(network=network))
    confined = await composer.compose(spec, Place("/tmp", "/tmp"), Profile(MACHINE.tiers[0], spec.sandbox.network_kind))
    try:
        return await timed(spawner, confined.command, *confined.take_channels())
    finally:
        confined.close()


async def measure(options: argparse.Namespace, url: str) -> dict[str, Any]:
    spawner = SpawnerClient()
    chosen = EgressOptions(allow=(ip_network("127.0.0.0/8"),), rule=AnyPort())
    direct: list[float] = []
    proxied: list[float] = []
    cpu_s: list[float] = []
    late, late_direct = Lateness(), Lateness()
    place = urlsplit(url).netloc
    allowed = Allowed([place]) if options.allow else None

    async def first() -> float:
        if options.beside_host:
            return await of_a_backend(spawner, composer, url, "host")
        return await curl(spawner, url, None, None)

    async def second() -> float:
        if options.beside_host:
            return await of_a_backend(spawner, composer, url, AllowList((place,)))
        return await curl(spawner, url, egress, allowed)

    async with Egress(Metrics("bench"), chosen) as egress:
        composer = Composer(MACHINE, NeedsFinder([]), egress)
        for _ in range(options.rounds):
            async with late_direct.watched():
                direct.append(await first())
            before = resource.getrusage(resource.RUSAGE_SELF)
            async with late.watched():
                proxied.append(await second())
            after = resource.getrusage(resource.RUSAGE_SELF)
            cpu_s.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    await spawner.aclose()
    mega = options.bytes / 1e6
    return {
        "direct_mb_s": round(mega / statistics.median(direct)),
        "proxied_mb_s": round(mega / statistics.median(proxied)),
        "direct_ms": round(1000 * statistics.median(direct), 2),
        "proxied_ms": round(1000 * statistics.median(proxied), 2),
        "ratio": round(statistics.median(direct) / statistics.median(proxied), 2),
        "ratio_best": round(min(direct) / min(proxied), 2),
        "proxy_cpu_s": round(statistics.median(cpu_s), 2),
        "loop_late_p99_ms": round(late.p99_ms(), 1),
        "loop_late_p99_ms_direct": round(late_direct.p99_ms(), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=1 << 30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tls", action="store_true")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--allow", action="store_true")
    how.add_argument("--beside-host", action="store_true")
    parser.add_argument("--gbit", type=float, help="of the network between server and client")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, socket.create_server(("127.0.0.1", 0)) as listener:
        pem = certificate(directory) if options.tls else None
        server = multiprocessing.get_context("fork").Process(
            target=serve, args=(listener, options.bytes, pem, options.gbit), daemon=True
        )
        server.start()
        scheme = "https" if options.tls else "http"
        url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}/"
        try:
            print(json.dumps(uvloop.run(measure(options, url)), indent=2))
        finally:
            server.terminate()
            server.join()


if __name__ == "__main__":
    main()
