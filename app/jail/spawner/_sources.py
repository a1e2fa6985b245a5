"""Sources: what the spawner hears, and what it does then."""

import contextlib
import selectors
import socket
import traceback
from collections.abc import Callable

Source = socket.socket | int


class Sources:
    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._vital: set[int] = set()

    def watch(self, source: Source, callback: Callable[[], None], *, is_vital: bool = False) -> None:
        """Has `callback` called while the source can be read. An error in that of a vital one ends the spawner."""
        key = self._selector.register(source, selectors.EVENT_READ, callback)
        if is_vital:
            self._vital.add(key.fd)

    def unwatch(self, source: Source) -> None:
        """Also of one that is not watched."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(source)

    def wait(self, most_s: float | None) -> None:
        """Calls what is due, as soon as there is something, or the time is over.

        What one process has brought about does not end all others: it is not heard any more, and the node gives it up.
        """
        for key, _ in self._selector.select(most_s):
            try:
                key.data()
            except Exception:
                if key.fd in self._vital:
                    raise
                traceback.print_exc()
                if self._selector.get_map().get(key.fd) == key:  # it may be another source by now
                    self.unwatch(key.fd)
