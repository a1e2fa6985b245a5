"""memo: `functools.lru_cache` for values that clients, nodes and backends send.

`lru_cache` counts entries, so a few arguments of several MiB would fill the memory for good. Here arguments longer than
MAX_BYTES are never kept. A test checks that nothing else in this package caches by its arguments.
"""

from collections.abc import Callable
from typing import TypeVar

MAX_BYTES = 200

Key = TypeVar("Key", bytes, str, bytes | None, tuple[bytes, ...])
Value = TypeVar("Value")


def memo(entries: int) -> Callable[[Callable[[Key], Value]], Callable[[Key], Value]]:
    """Caches the results for the newest `entries` short arguments. For pure functions of one argument."""

    def keep(function: Callable[[Key], Value]) -> Callable[[Key], Value]:
        return _Kept(function, entries).__getitem__

    return keep


class _Kept(dict[Key, Value]):
    """The results. A hit runs no line of Python: there are several look-ups for each call."""

    __slots__ = ("_entries", "_function")

    def __init__(self, function: Callable[[Key], Value], entries: int) -> None:
        super().__init__()
        self._function: Callable[[Key], Value] = function
        self._entries = entries

    def __missing__(self, argument: Key) -> Value:
        value: Value = self._function(argument)
        if _is_short(argument):
            if len(self) >= self._entries:
                del self[next(iter(self))]
            self[argument] = value
        return value


def _is_short(argument: bytes | str | tuple[bytes, ...] | None) -> bool:
    if type(argument) is bytes:
        return len(argument) <= MAX_BYTES
    if type(argument) is str:
        return len(argument) <= MAX_BYTES and argument.isascii()  # other characters take up to four bytes each
    if argument is None:
        return True
    return type(argument) is tuple and len(argument) + sum(map(len, argument)) <= MAX_BYTES
