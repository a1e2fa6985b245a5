"""Memory that was freed goes back to the machine."""

import contextlib
import ctypes

MMAP_BYTES = 128 << 10
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # malloc.h of glibc


def give_back_freed_memory() -> None:
    """To be called once, before anything large is allocated. Large blocks are mappings of their own from now on, and
    all threads share one heap.

    Otherwise glibc puts blocks of up to 32 MiB on its heaps once it has freed one of that size, and a single small
    block behind them keeps all of it: a node had 200 MB more for good after one search through 40,000 tools. Where the
    C library is another one nothing is done.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES)
        mallopt(_M_ARENA_MAX, 1)
