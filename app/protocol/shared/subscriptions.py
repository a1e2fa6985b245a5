"""Subscriptions: which sessions of a shared process want to hear of which resource. No await, no clock."""

from collections.abc import Iterator
from typing import Generic, TypeVar

MAX_LENGTH = 4096  # characters of a URI that can be subscribed to (Exchange: MAX_KEPT)
MAX_DEPTH = 256  # path elements; who has subscribed to what lies deeper hears of just that

Subscriber = TypeVar("Subscriber")


class Subscriptions(Generic[Subscriber]):
    """The process is told of the first subscriber to a resource and of the last one's end only."""

    def __init__(self) -> None:
        self._by_uri: dict[str, dict[Subscriber, None]] = {}
        self._by_subscriber: dict[Subscriber, dict[str, None]] = {}

    def add(self, who: Subscriber, uri: str) -> None:
        """One more wants to hear of it."""
        self._by_uri.setdefault(uri, {})[who] = None
        self._by_subscriber.setdefault(who, {})[uri] = None

    def discard(self, who: Subscriber, uri: str) -> bool:
        """One less; whether it was the last one."""
        subscribers = self._by_uri.get(uri, {})
        if who not in subscribers:
            return False
        del subscribers[who]
        mine = self._by_subscriber[who]
        del mine[uri]
        if not mine:
            del self._by_subscriber[who]
        if not subscribers:
            del self._by_uri[uri]
        return not subscribers

    def discard_all(self, who: Subscriber) -> list[str]:
        """Of a subscriber that is gone; the resources that nobody wants to hear of any more."""
        return [uri for uri in list(self._by_subscriber.get(who, ())) if self.discard(who, uri)]

    def count(self, who: Subscriber) -> int:
        """How many resources it hears of."""
        return len(self._by_subscriber.get(who, ()))

    def has(self, uri: str) -> bool:
        """Whether anybody wants to hear of it."""
        return uri in self._by_uri

    def concerned(self, uri: str) -> list[Subscriber]:
        """Who is to hear that this resource has changed; it may lie below the one that was subscribed to."""
        found = dict(self._by_uri.get(uri, ()))
        for above in _above(uri):
            found |= self._by_uri.get(above, {})
        return list(found)


def concerns(uri: str, subscribed: str) -> bool:
    """Whether a change of `uri` is one of what was subscribed to: the same, or below it by whole path elements."""
    return uri == subscribed or (uri.startswith(subscribed) and subscribed in _above(uri))


def _above(uri: str) -> Iterator[str]:
    """What this lies below, with and without the slash at its end; authorities have nothing above them."""
    authority = uri.find("://")
    end = 0 if authority < 0 else authority + 3
    if "/../" in uri[end:] or uri.endswith("/.."):
        return  # who knows where that is
    for _ in range(MAX_DEPTH):
        end = uri.find("/", end, MAX_LENGTH)
        if end < 0:
            return
        yield uri[:end]
        end += 1
        if end < len(uri):
            yield uri[:end]
