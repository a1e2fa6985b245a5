"""Never reads its stdin."""

import os
import signal

os.write(1, b"ready\n")
while True:
    signal.pause()
