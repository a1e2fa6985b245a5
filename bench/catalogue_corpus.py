"""Fetches a catalogue of real tools: installs each server of bench/catalogue.json, starts it, asks for its tools.

    .venv/bin/python bench/catalogue_corpus.py --out /tmp/catalogue/tools.json --work /tmp/catalogue/work

Needs Node, npm and bwrap. Packages come from the registries that pip and npm are configured for; no install script
runs, and the servers run without a network, with keys that are none, and can write nowhere but below /tmp of their own.
The result is other people's text and stays out of the repository: that has the list, with versions, the number of tools
and a hash of them. `--pin` writes those of this run into the list.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

LIST = Path(__file__).with_name("catalogue.json")
INSTALL_S, ANSWER_S = 240, 45
MAX_BYTES = 8 << 20  # that a server may write until its tools are known
MAX_PAGES = 20
PARAMS = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}

Entry = dict[str, Any]


class Unusable(Exception):
    """This server has no tools for us, and why."""


def run(command: list[str], **more: Any) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False, **more)
    if done.returncode:
        raise Unusable(f"{command[0]}: {(done.stderr or done.stdout).strip()[-300:]}")


def installed(entry: Entry, folder: Path) -> tuple[str, list[str], dict[str, str]]:
    """The version, the command and its environment."""
    package, version = entry["package"], entry.get("version")
    if entry["registry"] == "npm":
        (folder / "package.json").write_text("{}")
        wanted = f"{package}@{version}" if version else package
        run(["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder), wanted])
        about = json.loads((folder / "node_modules" / package / "package.json").read_text())
        programs = about["bin"] if isinstance(about["bin"], dict) else {package: about["bin"]}
        program = str(programs.get(entry.get("script", package.rpartition("/")[2])) or next(iter(programs.values())))
        return about["version"], ["node", str(folder / "node_modules" / package / program)], {}
    wanted = f"{package}=={version}" if version else package
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--only-binary", ":all:"]
    run([*pip, "--target", str(folder), wanted, *entry.get("with", [])])
    name = package.replace("-", "_").replace(".", "_").lower()
    found = [each.name.split("-") for each in folder.glob("*.dist-info")]
    found_version = next(each[1] for each in found if each[0].replace(".", "_").lower() == name)
    script = folder / "bin" / str(entry.get("script", package))
    return found_version.removesuffix(".dist"), [sys.executable, str(script)], {"PYTHONPATH": str(folder)}


def confined(command: list[str], folder: Path, environment: dict[str, str]) -> list[str]:
    places = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]
    for each in (folder, Path(sys.prefix)):
        places += ["--ro-bind", str(each), str(each)]  # again, for those below /tmp
    values = {"PATH": os.environ["PATH"], "HOME": "/tmp", "CI": "1", **environment}
    variables = [each for name, value in values.items() for each in ("--setenv", name, value)]
    return [
        "bwrap",
        *places,
        "--unshare-all",
        "--die-with-parent",
        "--chdir",
        "/tmp",
        "--clearenv",
        *variables,
        *command,
    ]


class Server:
    """A running server. Whatever it does, it is gone after ANSWER_S."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        self._complaints: list[bytes] = []
        assert self._process.stderr is not None
        stderr = self._process.stderr
        threading.Thread(target=lambda: self._complaints.append(stderr.read(1 << 20)), daemon=True).start()
        self._timer = threading.Timer(ANSWER_S, self.stop)
        self._timer.start()

    def send(self, message: dict[str, object]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self._process.stdin.flush()

    def ask(self, number: int, method: str, params: object) -> dict[str, Any]:
        self.send({"id": number, "method": method, "params": params})
        assert self._process.stdout is not None
        left = MAX_BYTES
        while left > 0 and (line := self._process.stdout.readline(left)):
            left -= len(line)
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if isinstance(message, dict) and message.get("id") == number and "result" in message:
                result: dict[str, Any] = message["result"]
                return result
            if isinstance(message, dict) and message.get("id") == number:
                raise Unusable(f"{method}: {message.get('error')}")
        time.sleep(0.2)
        raise Unusable(f"no answer to {method}: {b''.join(self._complaints).decode(errors='replace').strip()[-300:]}")

    def stop(self) -> None:
        self._timer.cancel()
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def tools_of(command: list[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    server = Server(command)
    try:
        hello = server.ask(1, "initialize", PARAMS)
        server.send({"method": "notifications/initialized"})
        found: list[dict[str, Any]] = []
        cursor = None
        for page in range(MAX_PAGES):
            answer = server.ask(2 + page, "tools/list", {"cursor": cursor} if cursor else {})
            found += answer["tools"]
            cursor = answer.get("nextCursor")
            if not cursor:
                break
        return hello, found
    except (OSError, KeyError, TypeError) as error:
        raise Unusable(repr(error)) from error
    finally:
        server.stop()


def fetch(entry: Entry, work: Path) -> tuple[Entry, list[dict[str, Any]]]:
    """The entry with what was found, and the tools in the form of the public sets. The packages are removed again."""
    folder = work / entry["package"].replace("/", "+")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        version, command, environment = installed(entry, folder)
        environment |= entry.get("env", {})
        hello, tools = tools_of(confined([*command, *entry.get("args", [])], folder, environment))
        if not tools:
            raise Unusable("no tools")
    except (Unusable, OSError, subprocess.TimeoutExpired, StopIteration, KeyError, ValueError) as error:
        return {**entry, "problem": str(error) or repr(error)}, []
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    text = json.dumps(sorted(tools, key=lambda each: str(each["name"])), sort_keys=True)
    about = hello.get("serverInfo", {})
    rows = [
        {
            "server": entry["package"],
            "server_title": about.get("title") or about.get("name"),
            "server_description": hello.get("instructions"),
            "name": each["name"],
            "title": each.get("title"),
            "description": each.get("description"),
            "inputSchema": each.get("inputSchema"),
        }
        for each in tools
    ]
    return {**entry, "version": version, "tools": len(tools), "sha256": hashlib.sha256(text.encode()).hexdigest()}, rows


def fetched(entries: list[Entry], work: Path, at_once: int) -> Iterator[tuple[Entry, Entry, list[dict[str, Any]]]]:
    with ThreadPoolExecutor(at_once) as pool:
        yield from (
            (entry, *done) for entry, done in zip(entries, pool.map(lambda e: fetch(e, work), entries), strict=True)
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="where the tools go")
    parser.add_argument("--work", type=Path, required=True, help="where packages are installed, one after the other")
    parser.add_argument("--list", type=Path, default=LIST)
    parser.add_argument("--pin", action="store_true", help="write versions, counts and hashes into the list")
    parser.add_argument("--at-once", type=int, default=2)
    arguments = parser.parse_args()
    entries: list[Entry] = json.loads(arguments.list.read_text())
    kept: list[Entry] = []
    rows: list[dict[str, Any]] = []
    for entry, found, tools in fetched(entries, arguments.work.resolve(), arguments.at_once):
        same = "" if entry.get("sha256") in (None, found.get("sha256")) else "  (other tools than in the list)"
        print(
            found["package"],
            found.get("version", ""),
            found.get("problem") or f"{found['tools']} tools{same}",
            flush=True,
        )
        rows += [{"id": len(rows) + number, **each} for number, each in enumerate(tools)]
        if tools:
            kept.append(found)
        arguments.out.write_text(json.dumps(rows, ensure_ascii=False))
        if arguments.pin:
            rest = entries[entries.index(entry) + 1 :]
            arguments.list.write_text("[\n" + ",\n".join(json.dumps(each) for each in [*kept, *rest]) + "\n]\n")
    print(f"{len(rows)} tools of {len(kept)} servers ({len(entries)} tried): {arguments.out}")


if __name__ == "__main__":
    main()
