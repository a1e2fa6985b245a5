"""What every test shares: the options of scripts/test, the event loop, and the list of what was not run."""

import gc
import os
import shutil
import socket
import ssl
import sys
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpcore2
import hypothesis
import pytest

from tests import backend_defaults, costs, started
from tests.long import is_long

pytest_plugins = ["tests.postgres", "tests.redis_servers"]
os.environ.pop("COLUMNS", None)  # workers have one, and tables would be cut to it

# How long an example takes says more of what else the machine does.
hypothesis.settings.register_profile("trunkline", hypothesis.settings(), deadline=None)
hypothesis.settings.load_profile("trunkline")

ROOT = Path(__file__).resolve().parent.parent
OPTIONAL = {
    "long": "acceptance counts: pass --long",
    "clients": "client programs: pass --clients",
    "fuzz": "generated input: pass --fuzz",
    "e2e": "a browser: pass --e2e",
    "newcomer": "a clone that installs everything anew: pass --newcomer, with --e2e",
}
REAL = ("integration", "differential", "conformance", "chaos", "packaging", "documents/test_wire.py", "e2e")
QUICK = ("auth", "backends/connections", "cluster", "http", "limits", "mutations", "protocol", "sessions")
NOT_QUICK = ("cluster/peers", "cluster/redis", "cluster/routing")  # of these
SERVERS = {"redis_url", "redis_server", "postgres_url", "gateway", "start_gateway"}  # fixtures that start one


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("trunkline")
    for name, meaning in OPTIONAL.items():
        group.addoption(f"--{name}", action="store_true", help=f"also run tests marked {name} ({meaning})")
    group.addoption("--backends", metavar="FIELDS", help="of backends that say nothing else: start=fork")
    group.addoption("--chaos", type=float, metavar="MINUTES", help="tests/chaos for so long instead of ten seconds")
    group.addoption("--chaos-seed", type=int, metavar="N", help="which faults, and when; another one each time")
    group.addoption("--pictures", metavar="DIRECTORY", help="with --e2e: keeps pictures of the console there")
    group.addoption("--costs", metavar="FILE", help="writes there what each file and fixture costs")
    group.addoption("--keep-started", action="store_true", help="keeps how many programs this run has started")
    group.addoption("--quick", action="store_true", help="only tests without a socket, a process or a database server")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--backends") and not hasattr(config, "workerinput"):
        backend_defaults.announce(config.getoption("--backends"))
    config.pluginmanager.register(started.Started(config))
    if config.getoption("--costs"):
        config.pluginmanager.register(costs.Measured())


def _is_real(item: pytest.Item) -> bool:
    return _is_in(item, REAL)


def _is_in(item: pytest.Item, places: tuple[str, ...]) -> bool:
    """Whether it stands in one of these folders or files of tests/."""
    where = _where(item.path)
    return any(where == place or where.startswith(f"{place}/") for place in places)


@cache  # asked several times for each of ten thousand tests
def _where(path: Path) -> str:
    return path.relative_to(ROOT / "tests").as_posix()


def _missing_for(item: pytest.Item) -> str | None:
    """Why this test cannot run here, if so."""
    for name, meaning in OPTIONAL.items():
        if item.get_closest_marker(name) and not item.config.getoption(name):
            return meaning
    if item.get_closest_marker("node"):
        if shutil.which("node") is None or shutil.which("npm") is None:
            return "Node and npm are not installed (Debian: apt-get install nodejs npm)"
        if not (ROOT / "tests/npm/node_modules").is_dir():
            return "tests/npm has no node_modules (scripts/test installs them)"
    return None


def _is_quick(item: pytest.Item) -> bool:
    """Whether it belongs to `--quick`; there, a test that opens a socket all the same fails."""
    is_real = item.get_closest_marker("real") is not None or SERVERS.intersection(getattr(item, "fixturenames", ()))
    return _is_in(item, QUICK) and not _is_in(item, NOT_QUICK) and not is_real


def _allow_no_socket(event: str, arguments: tuple[Any, ...]) -> None:
    is_network = event in ("socket.bind", "socket.connect") and arguments[0].family != socket.AF_UNIX
    if is_network or event == "subprocess.Popen":
        pytest.fail(f"{event}: a test of --quick has no socket and no process; mark it `real`")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected lives until the end: looking for garbage in it is a third of collecting."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Quick tests first, then the ones over real sockets."""
    if config.getoption("--quick"):
        sys.addaudithook(_allow_no_socket)
        config.hook.pytest_deselected(items=[item for item in items if not _is_quick(item)])
        items[:] = [item for item in items if _is_quick(item)]
    for item in items:
        if _is_real(item):
            item.add_marker(pytest.mark.real)
        if is_long(_where(item.path), getattr(item, "originalname", item.name)):
            item.add_marker(pytest.mark.long)
        if reason := _missing_for(item):
            item.add_marker(pytest.mark.skip(reason=reason))
    items.sort(key=_is_real)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Captured output may hold lone surrogates; the pipe between xdist's processes may not."""
    report = yield
    report.sections = [
        (name, text.encode("utf-8", "backslashreplace").decode("utf-8")) for name, text in report.sections
    ]
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says aloud what was skipped, and why, right above the closing line."""
    config = terminalreporter.config
    if config.getoption("--backends") and not hasattr(config, "workerinput"):
        terminalreporter.section(f"BACKENDS {config.getoption('--backends')}")
        for line in backend_defaults.tallied():
            terminalreporter.line(line)
    by_reason: dict[str, list[str]] = defaultdict(list)
    for report in terminalreporter.stats.get("skipped", ()):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        by_reason[reason.removeprefix("Skipped: ")].append(report.nodeid)
    if not by_reason:
        return
    terminalreporter.section("NOT RUN", yellow=True)
    for reason, tests in by_reason.items():
        terminalreporter.line(f"{len(tests)} skipped, {reason}:", yellow=True)
        for file, count in Counter(test.partition("::")[0] for test in tests).items():
            terminalreporter.line(f"    {count:4} in {file}")


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Every async test runs on the loop that the gateway runs on."""
    return ("asyncio", {"use_uvloop": True})


@pytest.fixture(scope="session", autouse=True)
def _one_tls_context() -> Iterator[None]:
    """Each new HTTP client would read all certificate authorities again, which takes longer than most requests."""
    read = httpcore2.default_ssl_context

    @cache
    def read_once(trust_env: bool, *where: str | None) -> ssl.SSLContext:
        return read(_trust_env=trust_env)

    def context(_trust_env: bool = True) -> ssl.SSLContext:
        return read_once(_trust_env, *map(os.environ.get, ("SSL_CERT_FILE", "SSL_CERT_DIR")))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpcore2, "default_ssl_context", context)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_settings_from_outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A developer's own TRUNKLINE_… variables do not reach the tests."""
    names = [name for name in os.environ if name.startswith("TRUNKLINE_") or name == "XDG_DATA_HOME"]
    kept = {name: os.environ.pop(name) for name in names}
    # What a test starts without a data directory must not touch that of whoever runs the tests.
    os.environ["XDG_DATA_HOME"] = str(tmp_path_factory.mktemp("xdg-data"))
    yield
    del os.environ["XDG_DATA_HOME"]
    os.environ.update(kept)
