"""Starts descendants that try to outlive it, tells their pids in one line of JSON, then sends lines back.

1. A child in its group. 2. A child in a session of its own. 3. A daemon: double fork, own session.
4. A daemon without the marker in its environment. All ignore SIGTERM and hold the pipes.
"""

import json
import os
import signal

KINDS = ("child", "session", "daemon", "nameless")


def outlive(kind: str, tell: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if kind != "child":
        os.setsid()
    if kind in ("daemon", "nameless") and os.fork():
        os._exit(0)
    os.write(tell, b"%d\n" % os.getpid())
    os.close(tell)
    if kind == "nameless":
        os.execve("/bin/sleep", ["sleep", "1000"], {"LANG": "C"})
    while True:
        signal.pause()


pids = {}
for kind in KINDS:
    hear, tell = os.pipe()
    child = os.fork()
    if child == 0:
        outlive(kind, tell)
    os.close(tell)
    pids[kind] = int(os.read(hear, 64))
    if kind in ("daemon", "nameless"):
        os.waitpid(child, 0)
os.write(1, json.dumps(pids).encode() + b"\n")
while data := os.read(0, 65536):
    os.write(1, data)
