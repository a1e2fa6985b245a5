"""Ignores EOF but ends at SIGTERM, with a last line."""

import os
import signal
import sys


def end(*_: object) -> None:
    os.write(1, b"goodbye\n")
    sys.exit(0)


signal.signal(signal.SIGTERM, end)
os.write(1, b"ready\n")
while True:
    signal.pause()
