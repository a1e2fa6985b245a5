"""Sends every line back after as many milliseconds as its argument says."""

import sys
import time

for line in sys.stdin.buffer:
    time.sleep(int(sys.argv[1]) / 1000)
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
