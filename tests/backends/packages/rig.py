"""Packages in the real sandbox, from registries of the test's own: a folder of wheels, and a small npm on loopback."""

import base64
import hashlib
import io
import json
import os
import shutil
import ssl
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from app.backends.packages.packages import Packages, RegistrySettings
from app.backends.packages.store import Store
from app.backends.packages.workshop import WayOut, Workshop
from app.domain.resources.backends import NetworkMode
from app.errors import NotFound
from app.jail.egress.egress import Egress
from app.jail.sandbox.cgroup_roots import CgroupRoots
from app.jail.sandbox.composer import Composer
from app.jail.sandbox.machine import examine
from app.jail.sandbox.needs import NeedsFinder
from app.jail.sandbox.probes.prober import Attempt, TierReport
from app.jail.sandbox.sandboxes import Sandboxes
from app.jail.sandbox.tiers import Tier, promised
from app.storage.packages import StoredLock
from app.telemetry.metrics import Metrics
from tests.jail.sandbox.inside import NOBODYS_UID

ENTRY = "import json, os, sys\n\ndef main():\n    print(json.dumps([sys.argv[1:], sys.prefix]), flush=True)\n"


needs_npm = pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed (Debian: apt-get install npm)")


# --- fixtures: who wants them imports them, and names them in `__all__`


@pytest.fixture(autouse=True)
def unconfigured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of how this machine gets packages."""
    for name in list(os.environ):
        if name.lower().startswith(("npm_config_", "uv_", "pip_")):
            monkeypatch.delenv(name)


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """The folder of wheels."""
    place = tmp_path / "index"
    place.mkdir()
    return place


@pytest.fixture
def npm() -> Iterator["Npm"]:
    with npm_registry() as registry:
        yield registry


class MemoryLocks:
    """Fulfils `Locks`."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], StoredLock] = {}

    async def keep(self, tenant: str, lock: StoredLock) -> None:
        self.kept[tenant, lock.lock] = lock

    async def content(self, tenant: str, lock: str) -> str:
        if (tenant, lock) not in self.kept:
            raise NotFound
        return self.kept[tenant, lock].content

    async def wanted(self) -> set[str]:
        return {lock for _, lock in self.kept}


@dataclass
class Bench:
    """One node's packages, below `data`."""

    data: Path
    packages: Packages
    store: Store
    locks: MemoryLocks
    sandboxes: Sandboxes
    finder: NeedsFinder
    used: set[str] = field(default_factory=set)

    @property
    def installed(self) -> list[str]:
        return sorted(each.name for each in self.store.root.iterdir()) if self.store.root.exists() else []


def sandboxes_of(tier: Tier) -> Sandboxes:
    """As if probes had found that this tier holds, and no higher one is there."""
    networks: tuple[NetworkMode, ...] = ("none", "web", "host")
    reports = [
        TierReport(
            each, network, [Attempt("", name, True, "") for name in {*promised(each, network), "memory", "pids"}]
        )
        for each in Tier
        if Tier.NONE < each <= tier
        for network in networks
    ]
    machine = examine(CgroupRoots(), lambda name: NOBODYS_UID)
    finder = NeedsFinder([])
    return Sandboxes(machine, Composer(machine, finder, Egress(Metrics("test"))), "auto", reports)


def bench(
    data: Path,
    tier: Tier,
    settings: RegistrySettings,
    locks: MemoryLocks | None = None,
    way_out: WayOut | None = None,
) -> Bench:
    sandboxes, store, kept = sandboxes_of(tier), Store(data / "packages"), locks or MemoryLocks()
    finder, used = NeedsFinder([str(data)]), set[str]()
    workshop = Workshop(sandboxes, finder, Metrics("test"), way_out or WayOut())
    packages = Packages(store, workshop, kept, settings, lambda: used)
    return Bench(data, packages, store, kept, sandboxes, finder, used)


# --- PyPI: a folder


def add_wheel(
    index: Path,
    name: str,
    version: str,
    *,
    files: Mapping[str, str] | None = None,
    requires: tuple[str, ...] = (),
    program: str | None = None,
) -> Path:
    """A wheel in this folder; its program prints its arguments."""
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    content = {
        f"{module}.py": ENTRY,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {each}\n" for each in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{program or name} = {module}:main\n",
        **(files or {}),
    }
    lines = [f"{path},{_digest(text)},{len(text.encode())}" for path, text in content.items()]
    content[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,"]) + "\n"
    place = index / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(place, "w") as archive:
        for path, text in content.items():
            archive.writestr(path, text)
    return _listed(index, name, place)


def _digest(text: str) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def add_source(index: Path, name: str, version: str, setup: str) -> Path:
    """A source distribution: to install it is to run its `setup.py`."""
    place = index / f"{name}-{version}.tar.gz"
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    place.write_bytes(_tar({f"{name}-{version}/setup.py": setup, f"{name}-{version}/PKG-INFO": about}))
    return _listed(index, name, place)


def _listed(index: Path, name: str, place: Path) -> Path:
    """In the page of its name, as a static index has one."""
    page = index / name / "index.html"
    page.parent.mkdir(exist_ok=True)
    names = sorted(each.name for each in index.iterdir() if each.name.startswith(name.replace("-", "_") + "-"))
    links = (
        f'<a href="../{each}#sha256={hashlib.sha256((index / each).read_bytes()).hexdigest()}">{each}</a>'
        for each in names
    )
    page.write_text(f"<!DOCTYPE html><html><body>{'<br>'.join(links)}</body></html>")
    return place


# --- npm: a server


def _tar(files: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(text.encode()), 0o755
            archive.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


SERVER = "#!/usr/bin/env node\nconsole.log(JSON.stringify([process.argv.slice(2), __filename]));\n"


@dataclass
class Npm:
    """A registry on loopback. `never_ends`: names whose archives never come to an end; `silent`: names about which it
    says nothing. `asked`: paths, in order. `at`: scheme and name by which it is reached."""

    port: int = 0
    at: str = "http://127.0.0.1"
    silent: set[str] = field(default_factory=set)
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)
    archives: dict[str, bytes] = field(default_factory=dict)
    never_ends: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"{self.at}:{self.port}/"

    def add(self, name: str, version: str, *, files: Mapping[str, str] | None = None, **members: Any) -> None:
        """A version of a package; the last one is the newest."""
        about = {"name": name, "version": version, "bin": {name.rpartition("/")[2]: "server.js"}, **members}
        content = {"package/package.json": json.dumps(about), "package/server.js": SERVER, **(files or {})}
        archive = _tar(content)
        path = f"/files/{name.replace('/', '-')}-{version}.tgz"
        self.archives[path] = archive
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
        document = self.documents.setdefault(name, {"name": name, "versions": {}})
        script = {"hasInstallScript": True} if "scripts" in members else {}
        dist = {"tarball": self.url.rstrip("/") + path, "integrity": integrity}
        document["versions"][version] = {**about, **script, "dist": dist}
        document["dist-tags"] = {"latest": version}

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = handler.path.replace("%2f", "/").replace("%2F", "/")
        self.asked.append(path)
        if path[1:] in self.silent:
            self.stopped.wait(60)
        if path in self.archives:
            self._send_archive(handler, path)
            return
        document = self.documents.get(path[1:])
        body = json.dumps(document or {"error": "not found"}).encode()
        handler.send_response(200 if document else 404)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def _send_archive(self, handler: BaseHTTPRequestHandler, path: str) -> None:
        archive = self.archives[path]
        endless = any(name in path for name in self.never_ends)
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(archive) + (1 << 40 if endless else 0)))
        handler.end_headers()
        handler.wfile.write(archive)
        try:
            while endless and not self.stopped.is_set():
                handler.wfile.write(b"\0" * 4096)
                time.sleep(0.01)
        except OSError:
            pass


@contextmanager
def npm_registry(tls: ssl.SSLContext | None = None, at: str = "http://127.0.0.1") -> Iterator[Npm]:
    npm = Npm(at=at)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            npm.answer(self)

        def log_message(self, *args: object) -> None:
            pass

    with _serving(Handler, tls) as port:
        npm.port = port
        try:
            yield npm
        finally:
            npm.stopped.set()


@contextmanager
def pypi_index(folder: Path, tls: ssl.SSLContext) -> Iterator[int]:
    """A folder of wheels as a registry on loopback; its port."""

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(folder))

        def log_message(self, *args: object) -> None:
            pass

    with _serving(Handler, tls) as port:
        yield port


@contextmanager
def _serving(handler: type[BaseHTTPRequestHandler], tls: ssl.SSLContext | None) -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if tls is not None:  # the handshake is a matter of the thread of a connection
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
