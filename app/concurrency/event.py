"""Event: connects an object that reports something with its listeners; it is made before either of them."""

from collections.abc import Callable
from typing import Generic, ParamSpec

_P = ParamSpec("_P")


class Event(Generic[_P]):
    """Calls its listeners in the order in which they were added."""

    def __init__(self) -> None:
        self._listeners: list[Callable[_P, None]] = []

    def listen(self, listener: Callable[_P, None]) -> None:
        self._listeners.append(listener)

    def tell(self, *args: _P.args, **kwargs: _P.kwargs) -> None:
        for listener in self._listeners:
            listener(*args, **kwargs)
