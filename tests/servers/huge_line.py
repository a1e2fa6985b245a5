"""Once it has read something, writes one line of as many bytes as its argument says, then an ordinary one; without end
if it is 0."""

import os
import sys

BLOCK = b"x" * 65536
length = int(sys.argv[1])
os.read(0, 65536)
while not length:
    os.write(1, BLOCK)
for _ in range(length // len(BLOCK)):
    os.write(1, BLOCK)
os.write(1, b"\nafter\n")
while os.read(0, 65536):
    pass
