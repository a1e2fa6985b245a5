"""Dies as soon as it is spoken to; with an argument, answers once first."""

import os
import sys

line = os.read(0, 65536)
if len(sys.argv) > 1:
    os.write(1, line)
os.write(2, b"no idea what to do\n")
os._exit(3)
