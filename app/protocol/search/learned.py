"""What callers asked for before they called a tool, and what that says about a later query.

One object for each tenant and toolset: nothing is shared. It is only evidence, by tool: `ToolIndex.search` decides how
far that may go. It keeps the terms of the queries, sorted, not their sentences.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from heapq import nlargest

from app.protocol.search._words import terms_of

# Limits. The queries that nobody has asked for longest make room; what is over the others is not learned.
MAX_QUERIES = 1_000
MAX_BYTES = 256 << 10  # as JSON, about
MAX_TERMS = 16  # of a query; the first count
MAX_TOOLS = 8  # of a query; the one that was called least makes room
MAX_ID = 256  # characters
MAX_CALLS = 64  # of a query: then all its counts are halved, so that habits can change
MAX_AGE_S = 90 * 24 * 3600  # a tool that was not called for so long after a query is forgotten there

NEIGHBOURS = 12  # how many earlier queries are looked at: those most like it
CANDIDATES = 64  # of how many the likeness is worked out: those that share most
POSTINGS = 1_500  # how many places of terms are looked at, the rarest terms first

Terms = tuple[str, ...]


class Learned:
    """Earlier queries, and how often which tool was called after each.

    Times are seconds of a clock that all nodes share.
    """

    def __init__(self) -> None:
        self._queries: dict[Terms, _Query] = {}  # the longest unasked first
        self._by_term: defaultdict[str, dict[Terms, None]] = defaultdict(dict)
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._queries)

    def __repr__(self) -> str:
        return f"<Learned [{len(self)} queries, {self._bytes} bytes]>"

    def learn(self, query: str, tool: str, now_s: float) -> None:
        """`tool` was called soon after `query` (`recent_query.py` says what is soon)."""
        terms = _key(terms_of(query, MAX_TERMS))
        if terms and len(tool) <= MAX_ID:
            self._add(terms, tool, 1, int(now_s))

    def clear(self) -> None:
        self._queries.clear()
        self._by_term.clear()
        self._bytes = 0

    def evidence(self, query: str, now_s: float) -> dict[str, float]:
        """By tool how much speaks for it, 0 and more: how alike earlier queries are, and its share of their calls."""
        terms = terms_of(query, MAX_TERMS)
        weights = {term: self._weight(term) for term in terms if term in self._by_term}
        if not weights:
            return {}
        unknown = self._weight("") * (len(terms) - len(weights))
        found: dict[str, float] = {}
        for likeness, query_terms in self._neighbours(weights, sum(weights.values()) + unknown):
            for tool, share in self._queries[query_terms].shares(now_s):
                found[tool] = found.get(tool, 0.0) + likeness * share
        return found

    def as_json(self) -> dict[str, object]:
        """As plain values, for `merge`."""
        return {"queries": [{"terms": list(key), "calls": dict(each.links)} for key, each in self._queries.items()]}

    def merge(self, value: object) -> None:
        """Takes over what was kept, or what another node has learned, as the values of `as_json`.

        Twice is the same as once: of equal links the larger count stays. What is not of that form, or over a limit, is
        left out.
        """
        for terms, tool, count, last_s in _links(value):
            known = self._queries.get(terms)
            mine = known.links.get(tool, (0, 0))[0] if known else 0
            self._add(terms, tool, max(0, min(count, MAX_CALLS) - mine), last_s)

    def _add(self, terms: Terms, tool: str, calls: int, now_s: int) -> None:
        query = self._queries.pop(terms, None)
        if query is None:
            query = _Query()
            self._bytes += _size(terms)
            for term in terms:
                self._by_term[term][terms] = None
        self._queries[terms] = query
        self._bytes += query.add(tool, calls, now_s)
        while len(self._queries) > MAX_QUERIES or self._bytes > MAX_BYTES:
            self._forget(next(iter(self._queries)))

    def _forget(self, terms: Terms) -> None:
        self._bytes -= _size(terms) + sum(map(_size_of_link, self._queries.pop(terms).links))
        for term in terms:
            del self._by_term[term][terms]
            if not self._by_term[term]:
                del self._by_term[term]

    def _weight(self, term: str) -> float:
        """Rare words say more about what somebody wants."""
        having = len(self._by_term[term]) if term in self._by_term else 0.5
        return math.log(1 + len(self._queries) / having) ** 2

    def _neighbours(self, weights: Mapping[str, float], whole: float) -> list[tuple[float, Terms]]:
        """The most alike by the cosine of their terms' weights, each with that."""
        shared: dict[Terms, float] = {}
        left = POSTINGS
        for term in sorted(weights, key=lambda each: (-weights[each], each)):
            asked = self._by_term[term]
            left -= len(asked)
            if left < 0 and shared:
                break
            for key in asked:
                shared[key] = shared.get(key, 0.0) + weights[term]
        known: dict[str, float] = {}
        alike: list[tuple[float, Terms]] = []
        for both, key in nlargest(CANDIDATES, ((both, key) for key, both in shared.items())):
            for term in key:
                if term not in known:
                    known[term] = self._weight(term)
            alike.append((both / math.sqrt(whole * sum(known[term] for term in key)), key))
        return nlargest(NEIGHBOURS, alike)


class _Query:
    """Which tools were called after it: how often, and when last."""

    __slots__ = ("links",)

    def __init__(self) -> None:
        self.links: dict[str, tuple[int, int]] = {}

    def add(self, tool: str, calls: int, now_s: int) -> int:
        """Returns by how many bytes it has grown."""
        grown = 0 if tool in self.links else _size_of_link(tool)
        count, last_s = self.links.get(tool, (0, 0))
        self.links[tool] = min(count + calls, MAX_CALLS), max(last_s, now_s)
        for each in [each for each, (_, at_s) in self.links.items() if at_s < now_s - MAX_AGE_S]:
            grown -= self._drop(each)
        if sum(count for count, _ in self.links.values()) > MAX_CALLS:
            self.links = {each: (max(1, count // 2), at_s) for each, (count, at_s) in self.links.items()}
        if len(self.links) > MAX_TOOLS:
            grown -= self._drop(min(self.links, key=lambda each: (each == tool, *self.links[each], each)))
        return grown

    def shares(self, now_s: float) -> Iterator[tuple[str, float]]:
        """The root of each tool's share: one that was called now and then counts as well."""
        current = {tool: count for tool, (count, last_s) in self.links.items() if last_s >= now_s - MAX_AGE_S}
        whole = sum(current.values())
        return ((tool, math.sqrt(count / whole)) for tool, count in current.items())

    def _drop(self, tool: str) -> int:
        del self.links[tool]
        return _size_of_link(tool)


def _key(terms: Iterable[str]) -> Terms:
    return tuple(sorted(terms))


def _size(terms: Terms) -> int:
    return 40 + sum(len(term.encode()) + 4 for term in terms)


def _size_of_link(tool: str) -> int:
    return 24 + len(tool.encode(errors="replace"))


def _links(value: object) -> Iterator[tuple[Terms, str, int, int]]:
    queries = value.get("queries") if isinstance(value, dict) else None
    for each in queries if isinstance(queries, list) else ():
        match each:
            case {"terms": [_, *_] as terms, "calls": dict() as calls} if len(terms) <= MAX_TERMS:
                if all(isinstance(term, str) and 0 < len(term) <= MAX_ID for term in terms):
                    yield from ((_key(set(terms)), *link) for link in _calls(calls))


def _calls(calls: dict[object, object]) -> Iterator[tuple[str, int, int]]:
    for tool, link in calls.items():
        match link:
            case [int(count), int(last_s)] if isinstance(tool, str) and len(tool) <= MAX_ID and count > 0:
                yield tool, count, last_s
