"""Takes what it is told by lines on stdin: `memory N` (MiB), `forks N`, `spin S` (seconds); says what it got."""

import json
import os
import signal
import sys
import time

hoard: list[bytearray] = []


def memory(mib: int) -> int:
    hoard.extend(bytearray(os.urandom(1024) * 1024) for _ in range(mib))
    return len(hoard)


def forks(number: int) -> int:
    children = []
    for _ in range(number):
        try:
            pid = os.fork()
        except BlockingIOError:
            break
        if pid == 0:
            signal.pause()
        children.append(pid)
    return len(children)


def spin(seconds: int) -> float:
    """The part of that time in which it ran."""
    began, end = time.process_time(), time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    return (time.process_time() - began) / seconds


for line in sys.stdin:
    what, amount = line.split()
    print(json.dumps({"memory": memory, "forks": forks, "spin": spin}[what](int(amount))), flush=True)
