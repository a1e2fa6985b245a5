import platform
import subprocess
import sys

import pytest

# Large blocks with small ones between them that stay; before, a large one was freed.
PROGRAM = """
import sys
from pathlib import Path
from app.node.allocator import give_back_freed_memory

def rss():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

if sys.argv[1] == "yes":
    give_back_freed_memory()
del (large := [bytes(24 << 20)])[:]
before, large, small = rss(), [], []
for _ in range(40):
    large.append(b"x" * (4 << 20))
    small.append(b"x" * 100_000)
large.clear()
print(rss() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_what_was_freed_goes_back_although_something_small_behind_it_stays():
    left = {how: int(subprocess.check_output([sys.executable, "-c", PROGRAM, how], text=True)) for how in ("yes", "no")}
    assert left["yes"] < 20 < 100 < left["no"]
