"""Says in one line of JSON what it was given: descriptors, environment, signals, session; then sends lines back."""

import json
import os
import resource

with open("/proc/self/status") as file:
    status = dict(line.split(":\t", 1) for line in file if ":\t" in line)


def is_open(descriptor: int) -> bool:
    """Not the one that the listing itself was read through."""
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


report = {
    "descriptors": sorted(filter(is_open, map(int, os.listdir("/proc/self/fd")))),
    "environment": dict(os.environ),
    "no_new_privs": status["NoNewPrivs"].strip(),
    "ignored_signals": int(status["SigIgn"], 16),
    "blocked_signals": int(status["SigBlk"], 16),
    "pid": os.getpid(),
    "session": os.getsid(0),
    "group": os.getpgid(0),
    "cwd": os.getcwd(),
    "scheduler": os.sched_getscheduler(0),
    "core": resource.getrlimit(resource.RLIMIT_CORE),
    "locks": resource.getrlimit(10),
}
os.write(1, json.dumps(report).encode() + b"\n")
while data := os.read(0, 65536):
    os.write(1, data)
