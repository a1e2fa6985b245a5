"""Images with a real engine, podman as root: many sessions, nodes that are killed, and the network of a backend."""

import io
import os
import shutil
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.integration.gateway import ROOT, Endpoint, Gateway, running_gateway, until
from tests.integration.wire import wire

IS_HERE = os.geteuid() == 0 and shutil.which("podman") is not None
pytestmark = [
    pytest.mark.skipif(
        not IS_HERE, reason="podman is not installed, or this is not root (Debian: apt-get install podman)"
    ),
    pytest.mark.timeout(300),
]

IMAGE = "localhost/trunkline-nothing"
SERVERS = ROOT / "tests/servers"
SEEN = {"/usr", "/lib", "/lib64", sys.base_prefix} - {""}


def podman(*words: str, given: bytes | None = None) -> str:
    done = subprocess.run(["podman", *words], input=given, capture_output=True, timeout=120, check=True)
    return done.stdout.decode()


@pytest.fixture(scope="module", autouse=True)
def image() -> Iterator[None]:
    """An image with nothing in it: what runs is mounted."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("nothing"))
    podman("import", "-", IMAGE, given=archive.getvalue())
    yield
    podman("rmi", "--force", IMAGE)


def line(server: str) -> list[str]:
    mounts = [word for each in sorted(SEEN) if Path(each).is_dir() for word in ("-v", f"{each}:{each}:ro")]
    python = os.path.realpath(sys.executable)
    return [
        "docker",
        "run",
        "-i",
        "--rm",
        *mounts,
        "-v",
        f"{SERVERS}:/servers:ro",
        IMAGE,
        python,
        f"/servers/{server}.py",
    ]


def containers() -> list[str]:
    return podman("ps", "--all", "--quiet", "--filter", "label=trunkline.backend").split()


async def test_twenty_sessions_and_five_killed_nodes_leave_no_container(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for _ in range(5):
        with running_gateway(data, CONTAINER_ENGINE="podman") as gateway:
            assert containers() == []
            endpoint = gateway.endpoint(line("echo"))
            async with AsyncExitStack() as stack:
                for number in range(4):
                    session = await stack.enter_async_context(wire(endpoint))
                    assert await session.call("echo", text=str(number)) == str(number)
                await stack.enter_async_context(wire(endpoint))
                gateway.kill()
                await until(lambda: not gateway.backends())
    with running_gateway(data, CONTAINER_ENGINE="podman") as gateway:
        assert containers() == []
        async with wire(gateway.endpoint(line("echo"))) as session:
            await session.call("echo", text="until the end")
        await until(lambda: containers() == [])


def listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


async def tried(endpoint: Endpoint, port: int | None) -> str:
    async with wire(endpoint) as session:
        return await session.call("connect", host="127.0.0.1", port=port)


async def test_a_container_reaches_what_its_backend_names_and_nothing_else(
    start_gateway: Callable[..., Gateway],
) -> None:
    gateway = start_gateway(CONTAINER_ENGINE="podman")
    with listener() as near, listener() as other:
        here, there = near.getsockname()[1], other.getsockname()[1]
        allowed = gateway.endpoint(line("tries"), sandbox={"network": {"allow": [f"127.0.0.1:{here}"]}})
        assert await tried(allowed, here) == "connected"
        for port in (there, urlsplit(gateway.url).port):
            assert "refused" in await tried(allowed, port)
        none = gateway.endpoint(line("tries"))
        assert "connect to" in await tried(none, here)
        web = gateway.endpoint(line("tries"), sandbox={"network": "web"})
        assert await tried(web, 3128) == "connected"
        assert "refused" in await tried(web, here)
