"""Sends every line back in two writes, the second after a moment, with CR LF and blank lines around."""

import os
import sys
import time

for line in sys.stdin.buffer:
    text = line.rstrip(b"\n")
    os.write(1, b"\n" + text[: len(text) // 2])
    time.sleep(0.01)
    os.write(1, text[len(text) // 2 :] + b"\r\n\r\n")
