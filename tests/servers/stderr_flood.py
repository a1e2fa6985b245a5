"""Writes as many megabytes to stderr as its argument says, then one line to stdout, and waits for EOF."""

import os
import sys

BLOCK = (b"complaint " * 10 + b"\n") * 600
for _ in range(int(sys.argv[1]) * 1_000_000 // len(BLOCK)):
    os.write(2, BLOCK)
os.write(1, b"done\n")
while os.read(0, 65536):
    pass
