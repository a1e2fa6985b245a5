"""The gateway serves TLS itself: real clients, renewals, and peers that do not end their handshakes."""

import json
import os
import shutil
import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import anyio
import httpx2
import pytest

from tests.certificates import self_signed
from tests.console.browser import Browser
from tests.integration.gateway import ECHO, Gateway, running_gateway, until
from tests.integration.nodes import running_nodes
from tests.integration.servers import TRANSPORTS, Transport, python_client, text_of
from tests.integration.wire import wire
from tests.programs import run_program
from tests.redis_servers import client_of

METRIC = "trunkline_tls_certificate_expires_timestamp_seconds"
DAY_S = 86_400


class Files:
    """The files of a certificate, which are replaced by others that clients trust, too."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._others = directory, {days: directory / f"for-{days}" for days in (90, 60, 10)}
        bundle = b""
        for days, other in self._others.items():
            other.mkdir()
            bundle += self_signed(other, "localhost", days=days)[0].read_bytes()
        self.trusted, self.cert, self.key = directory / "trusted.pem", directory / "cert.pem", directory / "key.pem"
        self.trusted.write_bytes(bundle)
        self.put(90)

    @property
    def settings(self) -> dict[str, str]:
        return {"TLS_CERT": str(self.cert), "TLS_KEY": str(self.key)}

    def put(self, days: int) -> None:
        """As certbot does it: one after the other, each in one step."""
        for name, path in (("certificate.pem", self.cert), ("key.pem", self.key)):
            shutil.copy(self._others[days] / name, self._directory / "new")
            os.replace(self._directory / "new", path)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Files]:
    """Trusted by the clients of these tests, and by nodes for each other."""
    files = Files(tmp_path_factory.mktemp("certificates"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(files.trusted))
        yield files


@pytest.fixture(scope="module")
def secure(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("tls") / "data", **files.settings) as gateway:
        yield gateway


class Impatient(Gateway):
    """Looks at the files of its certificate five times a second."""

    FIRST = "import app.node.certificate_files as files; files.LOOK_EVERY_S = 0.2"


def serial(gateway: Gateway, trusted: Path) -> str:
    """That of the certificate which a new connection gets."""
    host, port = gateway.host.split(":")
    context = ssl.create_default_context(cafile=trusted)
    with socket.create_connection((host, int(port)), 10) as tcp, context.wrap_socket(tcp, server_hostname=host) as tls:
        certificate = tls.getpeercert()
    assert certificate is not None
    return str(certificate["serialNumber"])


# --- clients


@pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_official_client_calls_over_https(secure: Gateway, transport: Transport) -> None:
    assert secure.url.startswith("https://127.0.0.1:")
    async with python_client(secure.endpoint(ECHO), transport) as client:
        assert text_of(await client.call_tool("echo", {"text": "sealed"})) == "sealed"
        assert len(text_of(await client.call_tool("echo", {"text": "long" * 200_000}))) == 800_000


def test_what_the_gateway_says_of_itself_is_https(secure: Gateway) -> None:
    endpoint = secure.endpoint(ECHO)
    answer = httpx2.post(endpoint.mcp, content=b"{}", headers={"Content-Type": "application/json"})
    assert answer.status_code == 401
    metadata = httpx2.get(f"{secure.url}/.well-known/oauth-protected-resource/t/{endpoint.tenant}/{endpoint.name}/mcp")
    assert metadata.json()["resource"] == endpoint.mcp


def test_the_cookie_of_the_console_is_for_https_only(secure: Gateway) -> None:
    with Browser(secure) as browser:
        answer = browser.sign_in(secure.admin_key)
        assert answer.status_code == 303
        cookie = answer.headers["Set-Cookie"]
        assert cookie.startswith("__Host-")
        assert "Secure" in cookie
        assert browser.page().status_code == 200


def test_the_command_line_trusts_an_authority_by_ssl_cert_file(secure: Gateway, files: Files) -> None:
    known = {"TRUNKLINE_URL": secure.url, "TRUNKLINE_KEY": secure.admin_key, "PATH": os.environ["PATH"]}
    done = run_program(["nodes", "list", "--json"], {**known, "SSL_CERT_FILE": str(files.trusted)})
    assert done.returncode == 0, done.stderr
    done = run_program(["nodes", "list", "--json"], known)
    assert done.returncode != 0
    assert "certificate verify failed" in done.stderr
    assert "Traceback" not in done.stderr


def test_connect_writes_the_address_with_https(secure: Gateway) -> None:
    secure.add_backend("default", "notes", "true")
    words = ["connect", "cursor", "--tenant", "default", "--backend", "notes"]
    done = run_program(words, {**secure.environment, "TRUNKLINE_PORT": "8443"})
    assert "https://127.0.0.1:8443/t/default/notes/mcp" in done.stdout, done.stderr


def test_doctor_looks_at_the_certificate_and_finds_the_gateway_behind_it(secure: Gateway) -> None:
    port = secure.host.split(":")[1]
    done = run_program(["doctor", "--json"], {**secure.environment, "TRUNKLINE_PORT": port})
    found = {each["name"]: each for each in json.loads(done.stdout)["checks"]}
    assert found["port"]["detail"].startswith("a gateway answers")
    assert found["certificate"]["state"] == "ok"


# --- starts


@pytest.mark.parametrize("words", [(), ("--nodes", "2")])
def test_a_key_of_another_certificate_stops_the_start_with_one_line(
    tmp_path: Path, files: Files, words: tuple[str, ...]
) -> None:
    _, other = self_signed(tmp_path)
    environment = {**os.environ, "TRUNKLINE_DATA_DIR": str(tmp_path / "data"), "TRUNKLINE_PORT": "0"}
    environment |= {"TRUNKLINE_TLS_CERT": str(files.cert), "TRUNKLINE_TLS_KEY": str(other)}
    if words:
        environment |= {"TRUNKLINE_REDIS_URL": "redis://127.0.0.1:1", "TRUNKLINE_SECRET_KEY": "5e" * 32}
    done = run_program(["serve", *words], environment)
    assert done.returncode == 2, done.stderr
    assert "TRUNKLINE_TLS_KEY" in done.stderr.splitlines()[-1]
    assert "is not the key of the first certificate" in done.stderr
    assert not (tmp_path / "data/trunkline.db").exists()


# --- renewals


async def test_a_renewed_certificate_is_served_while_a_stream_goes_on(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    files = Files(tmp_path / "files")
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("SSL_CERT_FILE", str(files.trusted))
        gateway = stack.enter_context(running_gateway(tmp_path / "data", Impatient, **files.settings, KEEPALIVE_S="1"))
        first, ends = serial(gateway, files.trusted), gateway.metrics()[METRIC]
        async with (
            wire(gateway.endpoint(ECHO)) as session,
            session.stream("GET", accept="text/event-stream") as stream,
        ):
            comments = stream.aiter_lines()
            assert await anext(comments)
            files.put(60)
            await until(lambda: serial(gateway, files.trusted) != first, 20)
            for _ in range(4):  # of which two or more came after it
                await anext(comments)
            assert await session.call("echo", text="still here") == "still here"
        assert gateway.metrics()[METRIC] == pytest.approx(ends - 30 * DAY_S, abs=120)
        assert "Serving the TLS certificate that was read anew" in gateway.log.read_text()


async def test_a_broken_file_keeps_the_old_certificate_and_is_a_problem_until_it_is_right(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    files = Files(tmp_path / "files")
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("SSL_CERT_FILE", str(files.trusted))
        gateway = stack.enter_context(running_gateway(tmp_path / "data", **files.settings))

        def kinds() -> dict[str, str]:
            return {each["kind"]: each["words"] for each in gateway.api("GET", "/problems")["items"]}

        assert not {"certificate_refused", "certificate_expires"} & set(kinds())
        first = serial(gateway, files.trusted)
        files.cert.write_text("junk")
        os.kill(gateway.pid, signal.SIGHUP)
        await until(lambda: "certificate_refused" in kinds(), 20)
        assert "has no certificates in PEM form" in kinds()["certificate_refused"]
        assert serial(gateway, files.trusted) == first
        await until(lambda: "Serving the old TLS certificate" in gateway.log.read_text())
        files.put(10)
        os.kill(gateway.pid, signal.SIGHUP)
        await until(lambda: "certificate_expires" in kinds(), 20)
        assert "in 10.0 days" in kinds()["certificate_expires"]
        assert "certificate_refused" not in kinds()
        assert serial(gateway, files.trusted) != first


# --- peers that do not end their handshakes


def client_hello() -> bytes:
    arrives, leaves = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(arrives, leaves, server_hostname="127.0.0.1").do_handshake()
    return leaves.read()


async def test_many_whole_handshakes_at_once_do_not_stop_a_session(secure: Gateway) -> None:
    host, port = secure.host.split(":")
    hello, stop = client_hello(), threading.Event()

    def flood() -> None:
        while not stop.is_set():
            with ExitStack() as stack:
                crowd = [stack.enter_context(socket.create_connection((host, int(port)), 10)) for _ in range(100)]
                for tcp in crowd:
                    tcp.sendall(hello)

    async with wire(secure.endpoint(ECHO)) as session, anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, flood)
        slowest = 0.0
        try:
            for number in range(50):
                began = time.monotonic()
                assert await session.call("echo", text=str(number)) == str(number)
                slowest = max(slowest, time.monotonic() - began)
        finally:
            stop.set()
    assert slowest < 5


# --- several nodes


async def test_nodes_reach_each_other_over_https(tmp_path: Path, files: Files, postgres_database: str) -> None:
    with running_nodes(tmp_path, postgres_database, 2, **files.settings) as nodes:
        await nodes.all_know_each_other()
        first, second = nodes.all
        assert all(each["url"].startswith("https://") for each in first.api("GET", "/nodes")["items"])
        endpoint = first.endpoint(ECHO)
        async with wire(endpoint) as session:
            session.url = second.url + endpoint.mcp.removeprefix(first.url)
            assert await session.call("echo", text="far") == "far"
        # It is counted once the answer was sent on.
        await until(lambda: second.metrics().get('trunkline_forwards_total{result="ok"}', 0) >= 1, 10)


class TwoNodes(Gateway):
    WORDS = ("--nodes", "2")


async def test_nodes_of_a_fleet_serve_tls_and_speak_plainly_among_themselves(tmp_path: Path, redis_url: str) -> None:
    with client_of(redis_url) as client:
        client.flushdb()
    (tmp_path / "files").mkdir()
    files = Files(tmp_path / "files")
    settings = {"REDIS_URL": redis_url, "SECRET_KEY": "5e" * 32, **files.settings}
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("SSL_CERT_FILE", str(files.trusted))
        fleet = stack.enter_context(running_gateway(tmp_path / "data", TwoNodes, **settings))
        assert fleet.url.startswith("https://")

        def of_nodes() -> list[str]:
            return [each["url"] for each in fleet.api("GET", "/nodes")["items"]]

        await until(lambda: len(of_nodes()) == 2, 20)
        for url in of_nodes():
            assert url.startswith("http://127.0.0.1:")
            assert (await anyio.to_thread.run_sync(httpx2.get, url + "/livez")).status_code == 200
        endpoint = fleet.endpoint(ECHO)
        for _ in range(8):  # connections, of which one is to reach the other node
            async with wire(endpoint) as session:
                assert await session.call("echo", text="here") == "here"
        first = serial(fleet, files.trusted)
        files.put(60)
        os.kill(fleet.pid, signal.SIGHUP)
        log = "Serving the TLS certificate that was read anew"
        await until(lambda: fleet.log.read_text().count(log) == 2, 20)
        assert serial(fleet, files.trusted) != first
