"""`serve --nodes N`: processes, the port they share, signals, restarts. Sessions are no matter of these tests."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import httpx2
import psutil
import pytest

from app.node import fates
from app.node import fleet as fleet_module
from app.node.listeners import reserve_port
from app.settings.settings import Settings
from app.storage import migrate
from tests.integration.gateway import ROOT, Gateway, is_alive, running_gateway, until
from tests.programs import Program, run_program
from tests.redis_servers import client_of

KEY = "5e" * 32


class TwoNodes(Gateway):
    WORDS = ("--nodes", "2")


@pytest.fixture(scope="module")
def settings(redis_url: str) -> dict[str, str]:
    with client_of(redis_url) as client:
        client.flushdb()  # it may be that of nodes with another key
    return {"REDIS_URL": redis_url, "SECRET_KEY": KEY}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, settings: dict[str, str]) -> Iterator[Gateway]:
    """Two nodes that tests share. Their end is a test as well: SIGTERM, exit status 0, no process left."""
    with running_gateway(tmp_path_factory.mktemp("fleet") / "data", TwoNodes, **settings) as fleet:
        yield fleet


@pytest.fixture
def own_fleet(tmp_path: Path, settings: dict[str, str]) -> Iterator[Gateway]:
    """Two nodes that the test may kill."""
    with running_gateway(tmp_path / "data", TwoNodes, **settings) as fleet:
        yield fleet


def nodes(fleet: Gateway) -> list[psutil.Process]:
    """The nodes' processes."""
    return [each for each in psutil.Process(fleet.pid).children() if is_alive(each)]


def listening(process: psutil.Process) -> list[tuple[str, int]]:
    return sorted(each.laddr for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN)


def port_of(fleet: Gateway) -> int:
    return int(fleet.host.rsplit(":", 1)[1])


def listening_on(port: int, processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those of them that listen on this port."""
    found = []
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            found += [each] if ("127.0.0.1", port) in listening(each) else []
    return found


def are_listening(fleet: Gateway, count: int) -> bool:
    """Whether so many nodes listen on the shared port."""
    return len(listening_on(port_of(fleet), nodes(fleet))) == count


async def test_nodes_share_the_port_and_each_has_an_address_of_its_own(fleet: Gateway) -> None:
    port, inside = port_of(fleet), []
    for node in nodes(fleet):
        addresses = listening(node)
        assert ("127.0.0.1", port) in addresses
        (own,) = [each for each in addresses if each[1] != port]
        assert own[0] == "127.0.0.1"
        assert httpx2.get(f"http://127.0.0.1:{own[1]}/livez").status_code == 200
        inside.append(own)
    assert len(set(inside)) == 2


async def test_connections_are_spread_over_the_nodes(fleet: Gateway) -> None:
    port = port_of(fleet)
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(64)]

    def accepted() -> list[int]:
        of_each = [node.net_connections("tcp") for node in nodes(fleet)]
        return [sum(each.status == "ESTABLISHED" and each.laddr[1] == port for each in of_one) for of_one in of_each]

    try:
        await until(lambda: sum(accepted()) >= 64, 10, accepted)
        assert min(accepted()) > 8
    finally:
        for each in connections:
            each.close()


async def test_a_node_that_is_killed_is_started_again_and_the_others_serve_meanwhile(own_fleet: Gateway) -> None:
    fleet = own_fleet
    first, second = nodes(fleet)
    spawners = first.children()
    first.kill()
    # Reaped: a zombie's threads may hold its socket for a moment.
    await until(lambda: not psutil.pid_exists(first.pid), 20)
    while not are_listening(fleet, 2):
        assert httpx2.get(fleet.url + "/readyz", timeout=30).status_code == 200
        await anyio.sleep(0.05)
    assert second in nodes(fleet)
    await until(lambda: not [each for each in spawners if is_alive(each)], 20)
    assert "died (SIGKILL)" in fleet.log.read_text()


async def test_a_node_that_hangs_is_replaced_and_then_every_new_connection_is_answered(
    tmp_path: Path, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The parent runs here, with less patience; its nodes are real ones."""
    monkeypatch.setattr(fates, "ASK_EVERY_S", 0.2)
    monkeypatch.setattr(fates, "HUNG_AFTER", 5)
    monkeypatch.setattr(fates, "FIRST_DELAY_S", 0.01)
    for name, text in environment(tmp_path, settings).items():
        monkeypatch.setenv(name, text)
    before = {each.pid for each in psutil.Process().children()}

    def members() -> list[psutil.Process]:
        return [each for each in psutil.Process().children() if each.pid not in before and is_alive(each)]

    with reserve_port(Settings.from_env(os.environ, port=0)) as port:
        number = port.getsockname()[1]
        some = fleet_module._Fleet(Settings.from_env(os.environ), port, 2, demo=False)
        migrate.prepare(Settings.from_env(os.environ).database_url)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(some.run)
            await until(some._announced.is_set, 120)
            hung = members()[0]
            hung.suspend()
            await until(lambda: "has not answered" in caplog.text and not is_alive(hung), 60)
            await until(lambda: len(listening_on(number, members())) == 2, 120)
            answers = [
                await anyio.to_thread.run_sync(httpx2.get, f"http://127.0.0.1:{number}/livez") for _ in range(40)
            ]
            assert {answer.status_code for answer in answers} == {200}
            some.stop()
            some.stop()
    assert not members()


async def test_without_tls_sighup_is_ignored_once_for_all_nodes(fleet: Gateway) -> None:
    before = nodes(fleet)
    os.kill(fleet.pid, signal.SIGHUP)
    await until(lambda: "no TLS certificate to read again" in fleet.log.read_text())
    os.kill(before[0].pid, signal.SIGHUP)  # as `systemctl kill` does
    await until(lambda: fleet.log.read_text().count("no TLS certificate to read again") == 2)
    assert nodes(fleet) == before


async def test_after_the_first_signal_nothing_is_refused_for_drain_delay_and_the_second_one_ends_it(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    with running_gateway(tmp_path / "data", TwoNodes, DRAIN_DELAY_S="60", **settings) as fleet:
        fleet.terminate()
        async with httpx2.AsyncClient(timeout=30) as http:
            with anyio.fail_after(20):
                while (await http.get(fleet.url + "/readyz")).status_code != 503:
                    await anyio.sleep(0.01)
        assert httpx2.get(fleet.url + "/livez").status_code == 200
        assert len(nodes(fleet)) == 2
        started = time.monotonic()
        fleet.stop()
        assert time.monotonic() - started < 40  # less than DRAIN_DELAY_S


async def test_two_signals_while_nodes_start_without_redis_end_them_without_an_error(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    words = ["serve", "--port", "0", "--nodes", "2"]
    settings = environment(data_dir, {"REDIS_URL": "redis://127.0.0.1:1", "SECRET_KEY": KEY})
    with (tmp_path / "log").open("wb") as log:
        process = Program(words, settings, stdout=log, stderr=log)

        def said() -> str:
            return (tmp_path / "log").read_text()

        try:
            await until(lambda: said().count("Redis") >= 2, 60, said)  # both wait for it before they serve
            process.terminate()
            await anyio.sleep(0.15)
        finally:
            process.terminate()
            status = await anyio.to_thread.run_sync(process.wait, 40)
    assert (status, "Traceback" in said()) == (0, False)


async def test_nodes_do_not_outlive_a_parent_that_is_killed(own_fleet: Gateway) -> None:
    fleet = own_fleet
    family = fleet.family()
    fleet.kill()
    await until(lambda: not [each for each in family if is_alive(each)], 20)


@pytest.mark.long
def test_the_demonstration_is_printed_once_after_the_ready_line(tmp_path: Path, settings: dict[str, str]) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "app", "serve", "--port", "0", "--nodes", "2", "--demo"],
        env=environment(tmp_path, settings),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            printed = []
            for line in process.stdout:
                printed.append(line)
                if "Ctrl-C stops" in line:
                    break
        finally:
            process.terminate()
            assert process.wait(40) == 0
        rest = process.stdout.read()
    demo = json.loads((tmp_path / "demo.json").read_text())
    url = printed[0].removeprefix("listening on ").strip()
    assert demo["url"] == f"{url}/t/default/time/mcp"
    assert demo["key"] in "".join(printed)
    assert not rest.strip()


@pytest.mark.parametrize(
    ("changed", "named"),
    [({"REDIS_URL": ""}, "TRUNKLINE_REDIS_URL"), ({"NODE_URL": "http://10.0.0.5:8080"}, "TRUNKLINE_NODE_URL")],
    ids=["REDIS_URL", "NODE_URL"],
)
def test_what_does_not_go_together_is_one_line_and_exit_code_2(
    tmp_path: Path, settings: dict[str, str], changed: dict[str, str], named: str
) -> None:
    done = run("--nodes", "2", data_dir=tmp_path, **{**settings, **changed})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"trunkline: {named}: ")
    assert done.stderr.count("\n") == 1


def test_a_port_that_is_taken_is_not_shared_with_whoever_has_it(tmp_path: Path, settings: dict[str, str]) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as another fleet's
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = run("--nodes", "2", data_dir=tmp_path, **{**settings, "PORT": str(port)})
    assert done.returncode == 2
    assert str(port) in done.stderr


def test_a_port_that_other_nodes_are_about_to_take_is_not_shared_with_them(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    with reserve_port(Settings.from_env(environment(tmp_path, settings), port=0)) as reserved:
        port = reserved.getsockname()[1]
        done = run("--nodes", "2", data_dir=tmp_path, **{**settings, "PORT": str(port)})
    assert (done.returncode, done.stdout) == (2, "")
    assert str(port) in done.stderr


def test_one_node_on_every_address_must_say_how_others_reach_it(tmp_path: Path, settings: dict[str, str]) -> None:
    done = run("--host", "0.0.0.0", data_dir=tmp_path, **settings)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("trunkline: TRUNKLINE_NODE_URL: must be set")
    assert done.stderr.count("\n") == 1


def run(*words: str, data_dir: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """`serve` with a command line that is refused."""
    port = settings.pop("PORT", "0")
    return run_program(["serve", "--port", port, *words], environment(data_dir, settings))


def environment(data_dir: Path, settings: dict[str, str]) -> dict[str, str]:
    named = {f"TRUNKLINE_{name}": text for name, text in settings.items()}
    return {**os.environ, "TRUNKLINE_DATA_DIR": str(data_dir), **named}
