"""Starts descendants that try to outlive it, tells their pids in one line of JSON, then sends lines back.

1. A child in its group. 2. A child in a session of its own. 3. A daemon: double fork, own session.
4. A daemon without the marker in its environment. 5. Only if asked for: one that has lost the mark as well.
All ignore SIGTERM and hold the pipes.
"""

import json
import os
import resource
import signal
import sys

KINDS = tuple(sys.argv[1:]) or ("child", "session", "daemon", "nameless")
RLIMIT_LOCKS = 10


def outlive(kind: str, tell: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if kind != "child":
        os.setsid()
    if kind in ("daemon", "nameless", "stranger") and os.fork():
        os._exit(0)
    os.write(tell, b"%d\n" % os.getpid())
    if kind == "stranger":
        resource.setrlimit(RLIMIT_LOCKS, (7, 7))
    if kind in ("nameless", "stranger"):
        os.execve("/bin/sleep", ["sleep", "1000"], {"LANG": "C"})  # which closes `tell`
    os.close(tell)
    while True:
        signal.pause()


pids = {}
for kind in KINDS:
    hear, tell = os.pipe()
    child = os.fork()
    if child == 0:
        outlive(kind, tell)
    os.close(tell)
    with open(hear) as hearing:
        pids[kind] = int(hearing.read())  # to its end: by then it has become what it is to be
    if kind in ("daemon", "nameless", "stranger"):
        os.waitpid(child, 0)
os.write(1, json.dumps(pids).encode() + b"\n")
while data := os.read(0, 65536):
    os.write(1, data)
