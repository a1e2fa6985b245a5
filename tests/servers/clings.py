"""An MCP server whose tree tries to outlive its session: clings.py MARK. Standard library only.

It ignores SIGTERM and EOF, and so do all it starts before it answers `initialize`; each holds its pipes: a child in its
group, one in a session of its own, a daemon by a double fork, and a daemon without an environment. All show MARK in
their command lines.
"""

import json
import os
import signal
import sys

MARK = sys.argv[1]
DAEMONS = ("daemon", "nameless")


def cling(kind: str, tell: int) -> None:
    if kind != "child":
        os.setsid()
    if kind in DAEMONS and os.fork():
        os._exit(0)
    os.write(tell, b"x")
    if kind == "nameless":
        os.execve("/bin/sleep", [MARK, "1000"], {})
    while True:
        signal.pause()


def start_tree() -> None:
    for kind in ("child", "session", *DAEMONS):
        ready, tell = os.pipe()
        child = os.fork()
        if child == 0:
            cling(kind, tell)
        os.close(tell)
        os.read(ready, 1)
        os.close(ready)
        if kind in DAEMONS:
            os.waitpid(child, 0)


for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
start_tree()
for line in sys.stdin:
    message = json.loads(line)
    result: dict = {}
    if message.get("method") == "initialize":
        info = {"name": "clings", "version": "1"}
        result = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {}, "serverInfo": info}
    if "id" in message and "method" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
while True:
    signal.pause()
