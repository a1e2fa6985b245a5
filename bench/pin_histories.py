"""How many real updates of MCP servers need a person, with pins: fetches releases of real servers, asks each for its
tools, and classifies what changed from one release to the next.

    .venv/bin/python bench/pin_histories.py --scratch DIR [--only NAME ...] [--figures FILE]

Installs what `pin_histories.json` lists with the user's own npm and uv, from the registry they are configured for, one
release after the other, and removes it again; takes half an hour at first, and seconds once DIR/tools has the answers.
Each server runs for a minute at most, in bubblewrap (`bwrap`): the machine read-only, no network, a home of its own,
credentials that mean nothing. FILE gets hashes and figures only: the texts are other people's. The rules for wording
were tuned on every other package of the list, beginning with the first; the figures of the others stand apart.
"""

import argparse
import contextlib
import hashlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from app.protocol.approval import Kind, Reason, ToolNames, classify, fingerprint

LIST = Path(__file__).with_suffix(".json")
AT_ONCE = 2
INSTALL_S, ANSWER_S = 600, 60
MAX_ANSWER_BYTES = 16 << 20
MAX_PAGES = 50
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}


class Release(NamedTuple):
    """Of a package. `command` is the program's name and arguments; `others` are
    requirements to add where it does not start without: old releases name no highest version of their SDK."""

    registry: str
    package: str
    version: str
    command: tuple[str, ...]
    env: dict[str, str]
    others: tuple[str, ...]

    @property
    def label(self) -> str:
        return re.sub(r"[^\w.-]", "_", f"{self.package}@{self.version}")


class Failed(Exception):
    """A release could not be installed or did not answer."""


def releases(only: Sequence[str]) -> list[list[Release]]:
    """Of each package, the oldest first."""
    found = []
    for each in json.loads(LIST.read_text())["packages"]:
        if only and each["package"] not in only:
            continue
        shared = tuple(each["command"]), each.get("env", {}), tuple(each.get("with", ()))
        found.append([Release(each["registry"], each["package"], version, *shared) for version in each["versions"]])
    return found


# --- installing


def run(command: Sequence[str], where: Path) -> None:
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    if done.returncode:
        raise Failed(f"{command[0]} {command[1]}: {done.stderr.strip()[-300:]}")


def install(release: Release, place: Path, others: Sequence[str]) -> list[str]:
    """What starts it."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    program, *arguments = release.command
    if release.registry == "npm":
        wanted = [f"{release.package}@{release.version}", *others]
        run(["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(place), *wanted], place)
        return [str(place / "node_modules/.bin" / program), *arguments]
    uv = shutil.which("uv") or str(ROOT / ".venv/bin/uv")
    run([uv, "venv", "--quiet", "--python", sys.executable, "env"], place)
    wanted = [f"{release.package}=={release.version}", *others]
    run([uv, "pip", "install", "--quiet", "--python", "env/bin/python", *wanted], place)
    return [str(place / "env/bin" / program), *arguments]


# --- asking


def confined(command: Sequence[str], home: Path) -> list[str]:
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise SystemExit("bwrap is not there (Debian: apt-get install bubblewrap)")
    view = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--bind", str(home), str(home)]
    return [bwrap, "--unshare-all", "--die-with-parent", "--new-session", *view, "--chdir", str(home), *command]


@contextlib.contextmanager
def running(command: Sequence[str], env: dict[str, str], home: Path) -> Iterator["subprocess.Popen[bytes]"]:
    home.mkdir(parents=True, exist_ok=True)
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home), "CI": "1", **env}
    process = subprocess.Popen(
        confined([each.replace("{home}", str(home)) for each in command], home),
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for each in (process.stdin, process.stdout):
            if each is not None:
                with contextlib.suppress(OSError):
                    each.close()


class Line:
    """A server's pipes, with one deadline for all that is asked."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin.fileno(), process.stdout.fileno()
        self._rest = b""
        self._until = time.monotonic() + ANSWER_S

    def tell(self, message: dict[str, Any]) -> None:
        os.write(self._stdin, json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def ask(self, number: int, method: str, params: dict[str, Any]) -> Any:
        self.tell({"id": number, "method": method, "params": params})
        while True:
            message = self._next()
            if message.get("id") != number or "method" in message:
                continue
            if "result" not in message:
                raise Failed(f"{method}: {str(message.get('error'))[:200]}")
            return message["result"]

    def _next(self) -> dict[str, Any]:
        while b"\n" not in self._rest:
            left_s = self._until - time.monotonic()
            if left_s <= 0 or not select.select([self._stdout], [], [], left_s)[0]:
                raise Failed("no answer in time")
            chunk = os.read(self._stdout, 1 << 16)
            if not chunk or len(self._rest) > MAX_ANSWER_BYTES:
                raise Failed("it ended" if not chunk else "its answer is too long")
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            message = json.loads(line)
        except ValueError:
            return {}
        return message if isinstance(message, dict) else {}


def tools_of(command: Sequence[str], env: dict[str, str], home: Path) -> list[dict[str, Any]]:
    with running(command, env, home) as process:
        line = Line(process)
        line.ask(0, "initialize", HELLO)
        line.tell({"method": "notifications/initialized"})
        tools: list[dict[str, Any]] = []
        cursor = None
        for page in range(1, MAX_PAGES + 1):
            result = line.ask(page, "tools/list", {"cursor": cursor} if cursor else {})
            tools += result["tools"]
            cursor = result.get("nextCursor")
            if not cursor:
                return tools
        raise Failed("too many pages")


def collect(release: Release, scratch: Path) -> None:
    """Writes the answer, or why there is none, below `scratch`, unless it is there."""
    answer, place = scratch / "tools" / f"{release.label}.json", scratch / "installed" / release.label
    if answer.exists():
        return
    tools: Any = None
    for others in [(), release.others] if release.others else [()]:
        try:
            tools = tools_of(install(release, place, others), release.env, place / "home")
            tools.sort(key=lambda each: str(each["name"]))
            break
        except (Failed, OSError, subprocess.TimeoutExpired, KeyError) as error:
            tools = {"failed": str(error)[:500]}
        finally:
            shutil.rmtree(place, ignore_errors=True)
    print(f"{release.label}: {len(tools) if isinstance(tools, list) else tools}", flush=True)
    answer.parent.mkdir(parents=True, exist_ok=True)
    answer.write_text(json.dumps(tools, indent=1))


# --- classifying

WORDING = {Reason.INSTRUCTION, Reason.SENSITIVE, Reason.OTHER_TOOL, Reason.IMITATION, Reason.LANGUAGE, Reason.GROWTH}
WORDING |= {Reason.ADDRESS, Reason.HIDDEN}
NEVER = {Reason.NEW_PARAMETER, Reason.LOOSENED}  # whatever rules for wording say: they are facts


class Figures(Counter[str]):
    """`releases` that can be compared with the one before, what they did to tools, and why tools need a person."""

    def add_release(self, before: dict[str, Any], after: dict[str, Any]) -> None:
        names = ToolNames(before.keys() | after.keys())
        changes = [classify(before[name], tool, names) for name, tool in after.items() if name in before]
        suspicious = [each for each in changes if each.kind is Kind.SUSPICIOUS]
        new = len(after.keys() - before.keys())
        self["releases"] += 1
        self["releases_with_a_change"] += any(each.kind is not Kind.SAME for each in changes) or bool(new)
        self["releases_for_a_person"] += bool(suspicious or new)
        self["new"] += new
        self["gone"] += len(before.keys() - after.keys())
        self.update(str(each.kind) for each in changes)
        for each in suspicious:
            self["wording_only"] += set(each.reasons) <= WORDING
            self["never"] += bool(NEVER.intersection(each.reasons))
            self.update(f"because {reason}" for reason in each.reasons)
            if len(each.reasons) == 1:
                self[f"only because {each.reasons[0]}"] += 1

    def shares(self) -> dict[str, float]:
        compared = self["same"] + self["harmless"] + self["suspicious"]
        wording = self["harmless"] + self["wording_only"]
        return {
            "of compared tools": self["suspicious"] / max(1, compared),
            "of compared tools, for their wording alone": self["wording_only"] / max(1, compared),
            "of compared tools, for a new parameter or a looser schema": self["never"] / max(1, compared),
            "of changed tools": self["suspicious"] / max(1, self["harmless"] + self["suspicious"]),
            "of tools whose wording alone changed": self["wording_only"] / max(1, wording),
            "of releases": self["releases_for_a_person"] / max(1, self["releases"]),
        }


def figures_of(histories: Sequence[Sequence[Release]], scratch: Path, hashes: dict[str, str]) -> Figures:
    found = Figures()
    for history in histories:
        before: dict[str, Any] | None = None
        for release in history:
            tools = json.loads((scratch / "tools" / f"{release.label}.json").read_text())
            if isinstance(tools, dict):
                found["failed"] += 1
                continue
            after = {str(each["name"]): each for each in tools}
            prints = " ".join(fingerprint(after[name]) for name in sorted(after))
            hashes[f"{release.package}@{release.version}"] = hashlib.sha256(prints.encode()).hexdigest()
            if before is not None:
                found.add_release(before, after)
            before = after
    return found


def report(histories: Sequence[Sequence[Release]], scratch: Path) -> dict[str, Any]:
    hashes: dict[str, str] = {}
    found: dict[str, Any] = {}
    for half, chosen in (("tuned on", histories[::2]), ("held back", histories[1::2])):
        figures = figures_of(chosen, scratch, hashes)
        found[half] = {
            "packages": len(chosen),
            "figures": dict(sorted(figures.items())),
            "needs a person": {name: round(share, 4) for name, share in figures.shares().items()},
        }
    both = figures_of(histories, scratch, hashes)
    found["all"] = {name: round(share, 4) for name, share in both.shares().items()}
    return {**found, "hashes": dict(sorted(hashes.items()))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--figures", type=Path)
    options = parser.parse_args()
    histories = releases(options.only)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda each: collect(each, options.scratch), [one for each in histories for one in each]))
    found = report(histories, options.scratch)
    print(json.dumps({name: value for name, value in found.items() if name != "hashes"}, indent=1))
    if options.figures is not None:
        options.figures.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
