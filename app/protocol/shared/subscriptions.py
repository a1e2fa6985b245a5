"""Subscriptions: which sessions of a shared process have subscribed to which resource."""

from collections.abc import Iterator

from app.protocol.shared.shared_call import Member

MAX_LENGTH = 4096  # characters of a URI that can be subscribed to (Exchange: MAX_KEPT)
MAX_DEPTH = 256  # path elements that are searched for subscriptions above a resource


class Subscriptions:
    """The process has one subscription per resource, from the first subscriber until the last."""

    def __init__(self) -> None:
        self._by_uri: dict[str, dict[Member, None]] = {}
        self._by_subscriber: dict[Member, dict[str, None]] = {}

    def add(self, who: Member, uri: str) -> None:
        self._by_uri.setdefault(uri, {})[who] = None
        self._by_subscriber.setdefault(who, {})[uri] = None

    def discard(self, who: Member, uri: str) -> bool:
        """Returns whether it was the last subscriber."""
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

    def discard_all(self, who: Member) -> list[str]:
        """Returns the resources without subscribers now."""
        return [uri for uri in list(self._by_subscriber.get(who, ())) if self.discard(who, uri)]

    def count(self, who: Member) -> int:
        return len(self._by_subscriber.get(who, ()))

    def has(self, uri: str) -> bool:
        return uri in self._by_uri

    def concerned(self, uri: str) -> list[Member]:
        """Who has subscribed to this resource, or to one above it."""
        found = dict(self._by_uri.get(uri, ()))
        for above in _above(uri):
            found |= self._by_uri.get(above, {})
        return list(found)


def concerns(uri: str, subscribed: str) -> bool:
    """Whether `uri` is the resource that was subscribed to, or below it by whole path elements."""
    return uri == subscribed or (uri.startswith(subscribed) and subscribed in _above(uri))


def _above(uri: str) -> Iterator[str]:
    """The URIs above this one, each with and without a slash at its end; nothing is above an authority."""
    authority = uri.find("://")
    end = 0 if authority < 0 else authority + 3
    if "/../" in uri[end:] or uri.endswith("/.."):
        return  # it may lie anywhere
    for _ in range(MAX_DEPTH):
        end = uri.find("/", end, MAX_LENGTH)
        if end < 0:
            return
        yield uri[:end]
        end += 1
        if end < len(uri):
            yield uri[:end]
