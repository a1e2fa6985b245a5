"""`trunkline doctor`: each finding in the state that it stands for, and that it only looks."""

import errno
import json
import os
import re
import resource
import shutil
import socket
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest

from app import __version__, cli
from app.cli.doctor import machine, network, storage
from app.cli.doctor.findings import Check, State, is_well
from app.cluster.redis import survey
from app.cluster.redis.survey import Survey
from app.jail.spawner.client import SpawnerClient, SpawnFailed
from app.storage.migrate import upgrade
from tests.backends.images.rig import STATE, StandIn
from tests.integration.stopwatch import Stopwatch
from tests.redis_servers import RedisServer

SANDBOX = {
    "sandbox",
    "sandbox tier 0",
    "sandbox tier 1",
    "sandbox tier 2",
    "sandbox tier 3",
    "sandbox memory",
    "sandbox pids",
    "freezer",
    "landlock",
    "seccomp",
    "user namespaces",
    "bubblewrap",
    "cgroups",
}


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is well is so on a busy machine too."""
    monkeypatch.setattr(network, "ANSWER_S", 30.0)
    monkeypatch.setattr(network, "MOST_SKEW_S", 8.0)
    monkeypatch.setattr(survey, "WITHIN_S", 30.0)


@pytest.fixture
def slow_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long Redis takes says something of this machine only."""
    monkeypatch.setattr(network, "SLOW_REDIS_S", 30.0)


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv("TRUNKLINE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("TRUNKLINE_PORT", str(port))
    return tmp_path / "data"


def examined(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict[str, str]]]:
    code = cli.main(["doctor", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is (code == 0)
    return code, {check["name"]: check for check in document["checks"]}


def test_a_fresh_machine_is_well_and_nothing_is_made(capsys, data_dir):
    code, checks = examined(capsys)
    assert code == 0, checks
    assert not data_dir.exists()
    needed = {
        "python",
        "settings",
        "data directory",
        "homes",
        "secret key",
        "database",
        "port",
        "open files",
        "memory",
        "traces",
        "certificate",
        "container engine",
    }
    assert needed | {"spawner", "no_new_privs", "node", "npm", "uv", "git"} | SANDBOX == set(checks)
    assert all(checks[name]["state"] == "ok" for name in needed - {"open files", "memory"})
    assert all(checks[name]["state"] != "missing" for name in SANDBOX)


def test_the_table_is_for_people(capsys, data_dir, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    assert cli.main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:2] == ["ok", "python"] for line in lines)
    assert lines[0].endswith(f"; trunkline {__version__}")
    position = next(index for index, line in enumerate(lines) if line.split()[:2] == ["optional", "npm"])
    assert "npx" in lines[position + 1]
    assert lines[-1] == "everything that is needed is here"


def test_wrong_settings_are_a_finding_and_the_rest_is_still_looked_at(capsys, data_dir, monkeypatch):
    monkeypatch.setenv("TRUNKLINE_PORT", "x")
    code, checks = examined(capsys)
    assert code == 1
    assert checks["settings"]["state"] == "missing"
    assert "TRUNKLINE_PORT" in checks["settings"]["detail"]
    assert checks["spawner"]["state"] == "ok"
    assert "port" not in checks


def test_what_is_missing_is_named_at_the_end(capsys, data_dir, monkeypatch):
    monkeypatch.setenv("TRUNKLINE_HOST", "0.0.0.0")
    assert cli.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "TRUNKLINE_SECRET_KEY" in out
    assert out.splitlines()[-1] == "missing: settings"


# --- one by one


def test_the_container_engine_is_named_with_its_version_or_why_it_cannot_be_used(tmp_path, monkeypatch):
    engine = StandIn(tmp_path / "engine")
    monkeypatch.setenv(STATE, str(engine.state))
    assert machine.engine(engine.name) == Check(machine.ENGINE, State.OK, f"podman version 4.3.1, {engine.name}")
    assert machine.engine(None).state is State.OK
    lacking = machine.engine("no-such-engine")
    assert (lacking.state, "this node has no such program" in lacking.detail) == (State.OPTIONAL, True)
    (engine.state / "containers").rmdir()  # as where its daemon does not run
    assert machine.engine(engine.name).state is State.OPTIONAL


def test_a_data_directory_that_others_can_read_is_pointed_at(tmp_path):
    (tmp_path / "data").mkdir(mode=0o755)
    check = storage.data_dir(tmp_path / "data")
    assert check.state is State.OPTIONAL
    assert "chmod 700" in check.advice


@pytest.mark.parametrize(("mib", "state"), [(0, State.MISSING), (storage.LITTLE_MIB - 1, State.OPTIONAL)])
def test_a_data_directory_on_a_disk_that_is_nearly_full_is_pointed_at(tmp_path, monkeypatch, mib, state):
    tmp_path.chmod(0o700)
    assert storage.data_dir(tmp_path).state is State.OK
    usage = shutil.disk_usage(tmp_path)._replace(free=mib * 2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    check = storage.data_dir(tmp_path)
    assert check.state is state
    assert f"only {mib} MiB free" in check.detail
    assert "Free space" in check.advice


def test_a_data_directory_that_cannot_be_written_is_missing(tmp_path, monkeypatch):
    def refuse(**_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert storage.data_dir(tmp_path).state is State.MISSING


@pytest.mark.parametrize(
    ("content", "check", "state"),
    [("ab" * 32 + "\n", "secret key", "ok"), ("ab" * 31, "settings", "missing"), ("hunter2", "settings", "missing")],
)
def test_the_kept_secret_key_is_looked_at_and_not_shown(capsys, data_dir, content, check, state):
    data_dir.mkdir(mode=0o700)
    (data_dir / "secret_key").write_text(content)
    found = examined(capsys)[1][check]
    assert found["state"] == state
    assert f"{data_dir}/secret_key" in found["detail"]
    assert content.strip() not in found["detail"]


def test_a_secret_key_from_the_environment_is_said_to_be(capsys, data_dir, monkeypatch):
    monkeypatch.setenv("TRUNKLINE_SECRET_KEY", "5e" * 32)
    assert examined(capsys)[1]["secret key"]["detail"] == "from TRUNKLINE_SECRET_KEY"
    assert not data_dir.exists()


def test_a_database_is_well_with_todays_schema_only(tmp_path):
    url = f"sqlite:///{tmp_path}/trunkline.db"
    (tmp_path / "trunkline.db").touch()
    behind = storage.database(url)
    assert (behind.state, behind.advice) == (State.MISSING, "Run `trunkline migrate`.")
    upgrade(url)
    assert storage.database(url).state is State.OK


def test_a_database_that_is_none_is_missing(tmp_path):
    (tmp_path / "trunkline.db").write_bytes(b"this is not a database" * 100)
    assert storage.database(f"sqlite:///{tmp_path}/trunkline.db").state is State.MISSING


def test_a_taken_port_is_missing():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(0)
        taken.settimeout(5)
        thread = threading.Thread(target=lambda: taken.accept()[0].close())  # noqa: PLW0108 (accepts in the thread)
        thread.start()
        check = network.port("127.0.0.1", taken.getsockname()[1])
        thread.join()
    assert check.state is State.MISSING
    assert "TRUNKLINE_PORT" in check.advice


class _Alive(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"status":"alive"}')

    def log_message(self, *_: object) -> None:
        pass


def test_a_port_that_our_own_gateway_holds_is_well():
    with HTTPServer(("127.0.0.1", 0), _Alive) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        check = network.port("127.0.0.1", server.server_port)
        thread.join()
    assert check.state is State.OK
    assert "answers" in check.detail


@pytest.mark.parametrize(
    ("limit", "state"), [(100, State.MISSING), (1000, State.OPTIONAL), (2000, State.OK), (-1, State.OK)]
)
def test_the_limit_on_open_files_is_held_against_max_processes(monkeypatch, limit, state):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert machine.open_files(240).state is state


def test_little_memory_is_pointed_at(monkeypatch, tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal:  8000000 kB\nMemAvailable:   102400 kB\nHugePages_Total:       0\n")
    monkeypatch.setattr(machine, "MEMINFO", tmp_path / "meminfo")
    assert machine.memory(8).state is State.OPTIONAL


def test_a_spawner_that_cannot_start_anything_is_missing(monkeypatch):
    async def refuse(*_: object) -> None:
        raise SpawnFailed(errno.EAGAIN, "fork", "Resource temporarily unavailable")

    monkeypatch.setattr(SpawnerClient, "spawn", refuse)
    (check,) = machine.spawner()
    assert check.state is State.MISSING
    assert "cannot start a process" in check.detail


def test_the_spawners_check_leaves_nothing_behind():
    before = set(os.listdir("/proc/self/fd"))
    children = {child.pid for child in psutil.Process().children()}
    assert [check.state for check in machine.spawner()] == [State.OK, State.OK]
    assert set(os.listdir("/proc/self/fd")) <= before  # garbage of earlier tests may have gone meanwhile
    assert {child.pid for child in psutil.Process().children()} <= children


@pytest.mark.usefixtures("slow_redis")
def test_a_redis_that_is_there_is_well_with_its_version_and_latency(redis_url):
    check = network.redis(redis_url)
    assert check.state is State.OK, check
    assert re.fullmatch(r"version \d+\.\d+, answers in \d+\.\d ms", check.detail)


@pytest.mark.usefixtures("slow_redis")
def test_redis_that_wants_a_password_gets_it_and_it_is_not_shown():
    with RedisServer("--requirepass", "hunter2") as server:
        place = server.url.removeprefix("redis://")
        assert network.redis(f"redis://:hunter2@{place}").state is State.OK
        for url in (server.url, f"redis://:hunter3@{place}"):
            check = network.redis(url)
            assert check.state is State.MISSING
            assert "TRUNKLINE_REDIS_URL" in check.advice
            assert "hunter" not in check.detail


def test_a_redis_that_evicts_is_pointed_at():
    with RedisServer("--maxmemory-policy", "allkeys-lru") as server:
        check = network.redis(server.url)
    assert check.state is State.OPTIONAL
    assert "allkeys-lru" in check.detail


def test_a_redis_that_does_not_answer_is_missing_in_bounded_time(redis_server, monkeypatch):
    monkeypatch.setattr(survey, "WITHIN_S", 3.0)
    redis_server.freeze()
    watch = Stopwatch([psutil.Process()])
    assert network.redis(redis_server.url).state is State.MISSING
    assert watch.seconds < 6


def test_what_is_not_redis_is_missing():
    with HTTPServer(("127.0.0.1", 0), _Alive) as server:
        server.timeout = 5
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        check = network.redis(f"redis://127.0.0.1:{server.server_port}/0")
        thread.join()
    assert check.state is State.MISSING


def test_redis_that_is_not_there_is_missing():
    assert network.redis("redis://127.0.0.1:1/0").state is State.MISSING


@pytest.mark.parametrize(
    ("found", "state", "detail"),
    [
        (Survey((6, 0), "noeviction", 0.0, 0.001), State.MISSING, "6.0"),
        (Survey((6, 2), "noeviction", 0.0, 0.001), State.OK, "6.2"),
        (Survey((8, 2), None, 0.0, 0.001), State.OK, "8.2"),
        (Survey((8, 2), "noeviction", -9.0, 0.001), State.OPTIONAL, "-9.0 s"),
        (Survey((8, 2), "noeviction", 0.0, 0.1), State.OPTIONAL, "100.0 ms"),
    ],
)
def test_redis_is_judged_by_version_clock_and_latency(found, state, detail):
    check = network._judge(found)
    assert check.state is state
    assert detail in check.detail


@pytest.mark.parametrize(
    ("host", "node_url", "state"),
    [
        ("127.0.0.1", None, State.OK),
        ("0.0.0.0", None, State.MISSING),
        ("0.0.0.0", "http://127.0.0.1:8080", State.OK),
        ("127.0.0.1", "http://127.0.0.1:8080", State.OK),
        ("127.0.0.1", "http://192.0.2.1:8080", State.MISSING),
        ("127.0.0.1", "https://192.0.2.1", State.OK),  # whatever ends TLS there stands on this machine, perhaps
        ("0.0.0.0", "http://nowhere.invalid:8080", State.MISSING),
    ],
)
def test_other_nodes_must_be_able_to_find_this_one(host, node_url, state):
    assert network.node_url(host, node_url).state is state


@pytest.mark.usefixtures("slow_redis")
def test_with_redis_the_address_for_other_nodes_is_looked_at_too(capsys, data_dir, monkeypatch, redis_url):
    monkeypatch.setenv("TRUNKLINE_SECRET_KEY", "5e" * 32)
    monkeypatch.setenv("TRUNKLINE_REDIS_URL", redis_url)
    code, checks = examined(capsys)
    assert code == 0, checks
    assert (checks["redis"]["state"], checks["node address"]["state"]) == ("ok", "ok")


def test_optional_findings_keep_nobody_from_being_well():
    assert is_well([Check("a", State.OK, ""), Check("b", State.OPTIONAL, "")])
    assert not is_well([Check("a", State.MISSING, "")])
