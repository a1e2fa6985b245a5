"""Writes lines of 100 bytes to stdout without end."""

import os

BLOCK = (b"x" * 99 + b"\n") * 600
while True:
    os.write(1, BLOCK)
