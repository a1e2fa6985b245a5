"""Whose a listener of this machine is."""

import socket
from ipaddress import ip_address

import pytest

from app.jail.egress._listening import Listening
from app.jail.spawner.client import SpawnerClient
from tests.jail.spawner.conftest import spawn

pytestmark = pytest.mark.real
LISTENS = """
import socket, sys
it = socket.create_server((sys.argv[1], 0), family=socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
print(it.getsockname()[1], flush=True)
it.accept()
"""


@pytest.mark.parametrize(
    ("host", "asked", "is_one"),
    [
        ("127.0.0.1", "127.0.0.1", True), ("127.0.0.1", "127.0.0.2", False), ("0.0.0.0", "127.0.0.3", True),
        ("::1", "::1", True), ("::", "127.0.0.1", True), ("::1", "127.0.0.1", False),
    ],
)  # fmt: skip
async def test_that_of_a_backend_is_known_at_each_address_where_it_answers(host, asked, is_one):
    client = SpawnerClient()
    await client.start()
    try:
        child = await spawn(client, "/usr/bin/python3", "-I", "-S", "-c", LISTENS, host)
        port = int(await child.read_line())
        assert Listening().is_of_a_backend(ip_address(asked), port) is is_one
        client.kill(child.spawned.id)
        await child.end()
        child.close()
    finally:
        await client.aclose()


def test_ours_is_nobody_elses():
    with socket.create_server(("127.0.0.1", 0)) as own:
        listening, port = Listening(), own.getsockname()[1]
        assert not listening.is_of_a_backend(ip_address("127.0.0.1"), port)
    assert not listening.is_of_a_backend(ip_address("127.0.0.1"), port)
