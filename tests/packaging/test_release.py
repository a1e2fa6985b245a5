"""scripts/release, in a copy of the repository: what it refuses, what it leaves, and what it would upload."""

import hashlib
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import app
from tests.integration.gateway import ROOT
from tests.packaging.conftest import attempt, run

VERSION = app.__version__
SOMEBODY = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.com"]


class Repository:
    """A git repository with what stands in ours now, committed, and a .venv with the packages of ours."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if listed.returncode:
            pytest.skip("this is no git checkout: which files belong to the repository is not known")
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        if not (ROOT / ".venv").exists():
            pytest.skip("there is no .venv (scripts/test makes it), and a release would make one of its own")
        self._lend_venv()
        self.git("init", "--quiet", "--initial-branch", "main")
        self.git("config", "user.name", "Somebody")
        self.git("config", "user.email", "somebody@example.com")
        (folder / ".git/info/exclude").write_text("/.venv\n")
        self.to_be_released()
        self.commit()

    def _lend_venv(self) -> None:
        """All but the file that says what is installed: else the scripts would install this folder into ours."""
        venv = self.folder / ".venv"
        (venv / "bin").mkdir(parents=True)
        for each in [ROOT / ".venv/lib", ROOT / ".venv/pyvenv.cfg", *(ROOT / ".venv/bin").iterdir()]:
            (venv / each.relative_to(ROOT / ".venv")).symlink_to(each)

    def _is_installed(self) -> None:
        """As scripts/_venv.sh writes it."""
        lock = "requirements-dev.lock"
        both = (self.folder / lock).read_bytes() + (self.folder / "pyproject.toml").read_bytes()
        (self.folder / f".venv/.installed-{lock}").write_text(hashlib.sha256(both).hexdigest() + "\n")

    def to_be_released(self) -> None:
        """Whatever ours is: a version whose section has something in it."""
        text = self.changelog.read_text()
        text = re.sub(r"\A(# Changelog\n\n## )[^\n]*\n", rf"\g<1>{VERSION}, unreleased\n\n- Something.\n", text)
        self.changelog.write_text(text)
        self.give_address("trunkline.test")

    def give_address(self, host: str) -> None:
        pyproject = self.folder / "pyproject.toml"
        pyproject.write_text(re.sub(r'(?m)^([A-Z]\w+ = "https://)[^/]+', rf"\g<1>{host}", pyproject.read_text()))

    @property
    def changelog(self) -> Path:
        return self.folder / "CHANGELOG.md"

    def git(self, *words: str) -> str:
        return run("git", *words, cwd=self.folder).stdout.strip()

    def commit(self) -> None:
        self._is_installed()
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "As it is")

    def state(self) -> tuple[str, str, str]:
        return self.git("rev-parse", "HEAD"), self.git("tag"), self.git("status", "--porcelain")

    def release(self, *options: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        return attempt("scripts/release", "--no-tests", *options, cwd=self.folder, **environment)


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Repository]:
    """Its scripts change nothing in our .venv: afterwards `scripts/run` must start what is installed there."""
    command = ROOT / ".venv/bin/trunkline"
    before = command.read_bytes() if command.exists() else None
    yield Repository(tmp_path / "repository")
    assert before is None or command.read_bytes() == before


def spoil_tree(repository: Repository) -> None:
    (repository.folder / "app/new.py").write_text("")


def empty_section(repository: Repository) -> None:
    text = repository.changelog.read_text()
    repository.changelog.write_text(text.replace("\n- Something.\n", "\n\n## 0.0.1, 2026-01-01\n\n- Something.\n", 1))
    repository.commit()


def no_section(repository: Repository) -> None:
    repository.changelog.write_text(repository.changelog.read_text().replace(", unreleased", ", 2026-01-01", 1))
    repository.commit()


def released(repository: Repository) -> None:
    repository.git("tag", f"v{VERSION}")


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (spoil_tree, "there is something that is not committed"),
        (empty_section, f"the section of {VERSION} in CHANGELOG.md is empty"),
        (no_section, f"must be: ## {VERSION}, unreleased"),
        (released, f"v{VERSION} is released already: raise the version"),
    ],
)
def test_what_is_not_ready_is_refused_before_anything_is_done(
    repository: Repository, spoil: Callable[[Repository], None], told: str
) -> None:
    spoil(repository)
    before = repository.state()
    done = repository.release()
    assert done.returncode == 1
    assert told in done.stderr
    assert repository.state() == before
    assert not (repository.folder / "dist").exists()


def test_nothing_is_uploaded_whose_addresses_lead_nowhere(repository: Repository) -> None:
    repository.give_address("trunkline.example")
    repository.commit()
    before = repository.state()
    done = repository.release("--upload")
    assert done.returncode == 1
    assert "[project.urls] in pyproject.toml has addresses that lead nowhere" in done.stderr
    assert repository.state() == before


def test_an_unknown_option_is_answered_with_the_usage(repository: Repository) -> None:
    done = repository.release("--upload-everything")
    assert done.returncode == 2
    assert "--dry-run" in done.stderr


class Index(ThreadingHTTPServer):
    """Takes uploads, as an index of packages does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Taker)
        self.uploads: list[bytes] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/upload/"


class Taker(BaseHTTPRequestHandler):
    server: Index

    def do_POST(self) -> None:
        if self.headers["Transfer-Encoding"] == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.uploads.append(body)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def index() -> Iterator[Index]:
    with Index() as index:
        thread = threading.Thread(target=index.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield index
        index.shutdown()
        thread.join(10)


@pytest.mark.timeout(300)
def test_a_release_is_tried_first_and_then_committed_tagged_and_uploaded(repository: Repository, index: Index) -> None:
    before = repository.state()
    dry = repository.release("--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert f"dry run: {VERSION} could be released" in dry.stderr
    assert "is as it should be" in dry.stdout
    assert "== /api/docs is there" in dry.stdout
    assert repository.state() == before
    assert len(list((repository.folder / "dist").iterdir())) == 2
    assert index.uploads == []

    done = repository.release("--upload", UV_PUBLISH_URL=index.url, UV_PUBLISH_TOKEN="token")
    assert done.returncode == 0, done.stderr
    head, tags, changes = repository.state()
    assert (tags, changes) == (f"v{VERSION}", "")
    assert repository.git("rev-parse", f"v{VERSION}^{{commit}}") == head
    assert repository.git("log", "--format=%s", "-2").splitlines() == [f"Release {VERSION}", "As it is"]
    assert repository.git("diff", "--stat", "HEAD~1").count("|") == 1
    assert f"## {VERSION}, {datetime.now(UTC):%Y}-" in repository.changelog.read_text()
    assert len(repository.git("worktree", "list").splitlines()) == 1
    names = {name.decode() for each in index.uploads for name in re.findall(rb'filename="([^"]+)"', each)}
    assert names == {f"trunkline-{VERSION}-py3-none-any.whl", f"trunkline-{VERSION}.tar.gz"}
    again = repository.release()
    assert (again.returncode, f"v{VERSION} is released already" in again.stderr) == (1, True)
