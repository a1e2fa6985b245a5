"""memo: `functools.lru_cache` for functions of what clients, nodes and backends send.

`lru_cache` counts entries. Whoever may send a few MiB fills memory with a few of them, as long as the process lives. So
what is longer than MAX_BYTES is worked out each time and never kept. A test sees to it that nothing else in this
package keeps what it was called with.
"""

from collections.abc import Callable
from typing import TypeVar

MAX_BYTES = 200

Key = TypeVar("Key", bytes, str, bytes | None, tuple[bytes, ...])
Value = TypeVar("Value")


def memo(entries: int) -> Callable[[Callable[[Key], Value]], Callable[[Key], Value]]:
    """Remembers the answers to the `entries` short arguments that were new last. For pure functions of one argument."""

    def keep(function: Callable[[Key], Value]) -> Callable[[Key], Value]:
        return _Kept(function, entries).__getitem__

    return keep


class _Kept(dict[Key, Value]):
    """The answers. A look-up that finds one runs no line of Python, and there are several for each call."""

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
