"""How soon a node is ready and what it holds without work; and what commands cost of a processor.

    .venv/bin/python bench/start.py [--starts 9]

The node has its own SQLite file and neither Redis, PostgreSQL, issuers nor traces; its first start, which makes the
file, is not counted. The commands ask that node. All are medians of as many runs.
"""

import argparse
import json
import os
import resource
import secrets
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from forking import private_mib
from forwarded import Node

SETTLED_S = 3.0  # its jobs have run once
COMMANDS = ("version", "--help", "backends list", "calls", "plan -f gateway.yaml", "export", "import servers.json")


def start(directory: Path, environment: dict[str, str]) -> tuple[Node, float]:
    """The node, and after how many seconds it was ready."""
    began_at = time.perf_counter()
    node = Node(directory, environment)
    return node, time.perf_counter() - began_at


def cpu_s(command: list[str], directory: Path, environment: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=directory, env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure_node(directory: Path, environment: dict[str, str], starts: int) -> None:
    ready, cpu, memory, written = [], [], [], []
    for number in range(starts + 1):
        node, after_s = start(directory, environment)
        used_s = node.cpu_s()
        time.sleep(SETTLED_S)
        if number:
            ready.append(after_s)
            cpu.append(used_s)
            memory.append(private_mib(node.process.pid) * 1.048576)
            written.append(private_mib(node.process.pid, "Private_Dirty") * 1.048576)
        node.stop()
    print(f"a node is ready after {statistics.median(ready):.2f} s ({statistics.median(cpu):.2f} s of CPU)")
    print(f"its process holds {statistics.median(memory):.0f} MB, and has written {statistics.median(written):.0f}")


def measure_commands(directory: Path, environment: dict[str, str], runs: int) -> None:
    node, _ = start(directory, environment)
    trunkline = node.command
    made = subprocess.check_output(
        [trunkline, "keys", "create", "--tenant", "default", "--scope", "platform:admin", "--json"],
        env=environment, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    at_node = {**environment, "TRUNKLINE_URL": node.url, "TRUNKLINE_KEY": json.loads(made)["key"]}
    (directory / "servers.json").write_text(json.dumps({"mcpServers": {"echo": {"command": "/bin/cat"}}}))
    exported = subprocess.check_output([trunkline, "export"], env=at_node, stderr=subprocess.DEVNULL)
    (directory / "gateway.yaml").write_bytes(exported)
    for words in COMMANDS:
        used = [cpu_s([trunkline, *words.split()], directory, at_node) for _ in range(runs)]
        print(f"{words:24} {statistics.median(used):.2f} s of CPU")
    node.stop()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--starts", type=int, default=9)
    asked = arguments.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": name,
            "TRUNKLINE_DATA_DIR": str(directory / "data"),
            "TRUNKLINE_SECRET_KEY": secrets.token_hex(32),
        }
        measure_node(directory, environment, asked.starts)
        measure_commands(directory, environment, asked.starts)


if __name__ == "__main__":
    main()
