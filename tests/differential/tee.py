"""Runs a stdio server and writes down each line that goes in and comes out, before it passes it on.

    tee.py DIRECTORY COMMAND…

Each process writes a file of its own: `TIME client LINE` or `TIME server LINE`. Standard library only.
"""

import os
import subprocess
import sys
import threading
import time
from typing import IO

directory, *command = sys.argv[1:]
journal = os.open(
    os.path.join(directory, f"{time.monotonic_ns()}-{os.getpid()}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND
)
server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def copy(speaker: str, source: IO[bytes], target: IO[bytes]) -> None:
    try:
        for line in iter(source.readline, b""):
            os.write(journal, f"{time.monotonic()} {speaker} ".encode() + line)
            target.write(line)
            target.flush()
        target.close()
    except OSError:
        pass  # whoever would read it has gone


assert server.stdin is not None
assert server.stdout is not None
threading.Thread(target=copy, args=("client", sys.stdin.buffer, server.stdin), daemon=True).start()
copy("server", server.stdout, sys.stdout.buffer)
os._exit(max(server.wait(), 0))
