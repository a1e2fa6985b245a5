"""A child's own network: nothing of the machine's can be reached, and the one listener there is served from outside."""

import os
import shutil
import socket
from contextlib import closing
from pathlib import Path

import pytest

from app.jail.spawner import _network as network
from app.jail.spawner import wire
from app.jail.spawner.client import Command, SpawnerClient, SpawnFailed
from app.jail.spawner.syscalls import refuse_inspection, renounce_privileges
from app.jail.spawner.wire import Confinement
from tests.jail.spawner.conftest import Child

NOBODY = 65534
PORT = 3128
PROXIED = Confinement(own_network=True, proxy_port=PORT)
WAIT_S = 10.0
BWRAP = shutil.which("bwrap")


def can_enter() -> bool:
    child = os.fork()
    if child == 0:
        try:
            network.enter({"own_network": True})
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


pytestmark = pytest.mark.skipif(not can_enter(), reason="this machine makes no network namespaces")

WRAPPER = [
    "bwrap", "--unshare-user", "--disable-userns", "--unshare-pid", "--unshare-ipc", "--die-with-parent",
    "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--",
]  # fmt: skip
# What the child says through its listener: which of the machine's is reached, its interfaces, its rights.
LOOK = r"""
exec 3<>/dev/tcp/127.0.0.1/3128
for place in %s; do (exec 4<>/dev/tcp/$place) 2>/dev/null && echo "reached $place" >&3; done
while IFS=: read -r name rest; do [ -n "$rest" ] && echo "interface" $name >&3; done < /proc/net/dev
while read -r name value; do [ "$name" = CapEff: ] && echo "rights $value" >&3; done < /proc/self/status
echo "uid $UID" >&3
read -r answer <&3
[ "$answer" = bye ]
"""


def start(uid: int, argv: list[str], channel: socket.socket, confinement: Confinement = PROXIED) -> int:
    """A child that becomes this user, enters its own network and executes that, as the spawner's children do."""
    child = os.fork()
    if child == 0:
        try:
            if uid != os.geteuid():
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
            refuse_inspection()
            network.enter(confinement, channel.fileno())
            renounce_privileges()
            os.chdir("/")
            os.execvp(argv[0], argv)
        finally:
            os._exit(99)
    return child


def listener_from(ours: socket.socket) -> socket.socket:
    ours.settimeout(WAIT_S)
    _, [descriptor], _, _ = socket.recv_fds(ours, 1, 1)
    listener = socket.socket(fileno=descriptor)
    listener.settimeout(WAIT_S)
    return listener


def said_through(listener: socket.socket) -> set[str]:
    """The lines of the child, up to its uid, and lets it end."""
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(WAIT_S)
        text = b""
        while b"uid" not in text or not text.endswith(b"\n"):
            text += connection.recv(4096)
        connection.sendall(b"bye\n")
        return set(text.decode().splitlines())


@pytest.mark.parametrize("wrapper", [[], WRAPPER], ids=["bare", "bwrap"])
@pytest.mark.parametrize("uid", [os.geteuid(), NOBODY], ids=["this-user", "nobody"])
def test_of_the_machine_nothing_is_reached_and_the_listener_is_served_from_outside(
    uid: int, wrapper: list[str]
) -> None:
    if wrapper and BWRAP is None:
        pytest.skip("bwrap is not on PATH")
    if uid != os.geteuid() and os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.create_server(("127.0.0.1", 0)) as v4, socket.create_server(("0.0.0.0", 0)) as every:
        places = " ".join(f"127.0.0.1/{each.getsockname()[1]}" for each in (v4, every))
        child = start(uid, [*wrapper, "/bin/bash", "-c", LOOK % places], theirs)
        with closing(listener_from(ours)) as listener:
            said = said_through(listener)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert {line for line in said if not line.startswith("rights")} == {"interface lo", f"uid {uid}"}
    if uid == NOBODY:
        assert "rights 0000000000000000" in said  # neither over the network nor over what is in it


def test_without_a_port_there_is_no_listener_and_without_own_network_nothing_happens() -> None:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            before = os.readlink("/proc/self/ns/net")
            network.enter({"proxy_port": PORT})
            unchanged = os.readlink("/proc/self/ns/net") == before
            network.enter({"own_network": True})
            listening = Path("/proc/net/tcp").read_text().splitlines()[1:]
            status = 0 if unchanged and os.readlink("/proc/self/ns/net") != before and not listening else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("uid", [os.geteuid(), NOBODY], ids=["this-user", "nobody"])
def test_listeners_for_addresses_that_are_local_there_say_what_was_meant(uid: int) -> None:
    """Also on ports that only root may have elsewhere, for both families."""
    if uid != os.geteuid() and os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    forwarded = wire.Forwarded(networks=["10.20.0.0/16", "198.18.0.1/32", "fd12::/64"], ports=[443, 5432])
    places = [("10.20.3.4", 443), ("198.18.0.1", 5432), ("127.0.0.1", 443), ("fd12::7", 5432), ("::1", 443)]
    asks = "; ".join(f"(exec 3<>/dev/tcp/{host}/{port}; read -t 10 -r x <&3)" for host, port in places)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child = start(uid, ["/bin/bash", "-c", asks], theirs, Confinement(own_network=True, forwarded=forwarded))
        ours.settimeout(WAIT_S)
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 8)
        listeners = {each.getsockname()[1]: each for each in (socket.socket(fileno=one) for one in descriptors)}
        assert sorted(listeners) == [443, 5432]
        for host, port in places:
            listeners[port].settimeout(WAIT_S)
            connection, _ = listeners[port].accept()
            with connection:
                assert connection.getsockname()[:2] == (host if ":" in host else f"::ffff:{host}", port)
                connection.sendall(b"x\n")
        for each in listeners.values():
            each.close()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


async def proxied(client: SpawnerClient, port: int, *argv: str) -> tuple[Child, socket.socket]:
    import anyio

    ours, theirs = socket.socketpair()
    stdin, to_child = os.pipe2(os.O_CLOEXEC)
    from_child, stdout = os.pipe2(os.O_CLOEXEC)
    ends, ended = [], anyio.Event()

    def on_end(end) -> None:
        ends.append(end)
        ended.set()

    confinement = Confinement(own_network=True, proxy_port=port)
    command = Command(argv, {"PATH": os.environ["PATH"]}, confinement=confinement)
    try:
        spawned = await client.spawn(command, (stdin, stdout, os.dup(2), theirs.detach()), on_end)
    except BaseException:
        os.close(to_child)
        os.close(from_child)
        ours.close()
        raise
    return Child(spawned, to_child, from_child, ends, ended), ours


async def test_the_listener_has_come_when_the_spawner_says_that_the_process_runs(client: SpawnerClient) -> None:
    child, ours = await proxied(
        client, PORT, "/bin/bash", "-c", 'exec 3<>/dev/tcp/127.0.0.1/3128; read -r x <&3; echo "$x"'
    )
    with ours:
        ours.setblocking(False)
        _, [descriptor], _, _ = socket.recv_fds(ours, 1, 1)
        assert ours.recv(1) == b""  # nobody has the other end any more
    with socket.socket(fileno=descriptor) as listener:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"hello\n")
            assert await child.read_line() == b"hello\n"
    assert (await child.end()).number == 0
    child.close()


async def test_a_listener_that_cannot_be_made_is_a_failure_that_names_the_stage(client: SpawnerClient) -> None:
    with pytest.raises(SpawnFailed) as caught:
        await proxied(client, 1 << 17, "/bin/true")
    assert caught.value.stage == "network"


async def test_an_order_that_lacks_a_descriptor_starts_nothing(client: SpawnerClient) -> None:
    proxied = Confinement(own_network=True, proxy_port=PORT)
    for confinement, count in ((proxied, 3), (Confinement(own_network=True), 4)):
        command = Command(("/bin/true",), {}, confinement=confinement)
        with pytest.raises(SpawnFailed):
            await client.spawn(command, [os.open("/dev/null", os.O_RDWR) for _ in range(count)], lambda end: None)
