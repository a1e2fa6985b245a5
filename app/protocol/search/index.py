"""An index of documents by their words: BM25 over weighted fields, with stems and synonyms.

Made anew when the documents change. Nothing in it is changed afterwards but what it remembers of its own arithmetic.
"""

import math
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from heapq import nlargest
from operator import itemgetter
from types import MappingProxyType
from typing import NamedTuple, Self

from app.protocol.search._synonyms import SYNONYMS
from app.protocol.search._words import terms_of
from app.protocol.search.documents import MAX_COUNT, Document, Source
from app.protocol.search.work import Work, finished

# Limits. What is over one is not found, or not by that word; nothing is refused for its size.
MAX_DOCUMENTS = 10_000  # later ones are not found: `left_out` says how many
MAX_QUERY_TERMS = 32  # different ones; the first count
MAX_LIMIT = 50
DOCUMENTS_OF_A_TERM = 300  # that a query looks at: those that the word says most about
DOCUMENTS_OF_A_SYNONYM = 50
MAX_WEIGHED = (
    100_000  # documents of terms that were asked for, whose weights are remembered: then all are weighed again
)
AT_ONCE = 16  # documents between two points at which the work can be interrupted

SYNONYM = 0.3  # what a synonym counts, of the word itself
SATURATION = 3.0  # BM25's k1: the weight at which a word has half of its effect
MOST_EVIDENCE = 0.3  # what learning can add to a score, of the best score
NEARLY = 0.9  # of the best score: what learning does not replace by something else
LENGTH = 0.6  # BM25's b: how far long documents count as long

Impacts = list[tuple[int, float]]
NOTHING: Impacts = []
_NONE = array("I")  # of a document's number and, in four bits, how often it has the term
NO_EVIDENCE: Mapping[str, float] = MappingProxyType({})


class Hit(NamedTuple):
    id: str
    score: float  # comparable within one answer only


class ToolIndex:
    """Which of the documents a query means, by ids, best first."""

    def __init__(self, documents: Sequence[Document], beyond: int = 0) -> None:
        """`beyond`: how many more there are, which are not found. Raises ValueError: two documents have the same id."""
        finished(self._making(documents, beyond))

    @classmethod
    def making(cls, documents: Sequence[Document], beyond: int = 0) -> Work[Self]:
        """As the constructor, in pieces of a fraction of a millisecond."""
        index = cls.__new__(cls)
        yield from index._making(documents, beyond)  # noqa: SLF001 - its own
        return index

    def _making(self, documents: Sequence[Document], beyond: int) -> Work[None]:
        self._documents = documents[:MAX_DOCUMENTS]
        self.left_out = len(documents) - len(self._documents) + beyond
        self._postings: defaultdict[str, array[int]] = defaultdict(_NONE.__copy__)  # by term: where, and how often
        self._sources: defaultdict[Source, list[int]] = defaultdict(list)  # which documents are from there
        self._impacts: dict[str, Impacts] = {}  # of terms that were asked for
        self._weighed = 0  # documents in them
        for number, each in enumerate(self._documents):
            self._sources[each.source].append(number)
            for term, count in each.counts.items():
                self._postings[term].append(number << 4 | count)
            if not number % AT_ONCE:
                yield
        self._sources_of: defaultdict[str, list[Source]] = defaultdict(list)  # by term
        for source in self._sources:
            for term in source.counts:
                self._sources_of[term].append(source)
        yield
        self._numbers = {each.id: number for number, each in enumerate(self._documents)}
        if len(self._numbers) < len(self._documents):
            raise ValueError("Two documents have the same id")
        mean = max(1, sum(each.length for each in self._documents)) / max(1, len(self._documents))
        self._norms = [SATURATION * (1 - LENGTH + LENGTH * each.length / mean) for each in self._documents]

    @property
    def size(self) -> int:
        """Bytes, about."""
        return sum(500 + 13 * len(each.terms) for each in self._documents) + 250 * len(self._postings)

    def __len__(self) -> int:
        return len(self._documents)

    def __repr__(self) -> str:
        return f"<ToolIndex [{len(self)} documents, {len(self._postings)} words, {self.left_out} left out]>"

    def search(self, query: str, limit: int = 5, evidence: Mapping[str, float] = NO_EVIDENCE) -> list[Hit]:
        """At most `limit` (1 to 50; others become the nearest), best first, equal scores in the documents' order.

        Without a word that says something, or that a document has, there are no hits but those that `evidence` (of
        `Learned`) speaks for. It reorders what is shown, and replaces at most two fifths of it, the last ones.
        """
        return finished(self.searching(query, limit, evidence))

    def searching(self, query: str, limit: int = 5, evidence: Mapping[str, float] = NO_EVIDENCE) -> Work[list[Hit]]:
        """As `search`, in pieces of at most a few milliseconds: a word that all documents have."""
        limit = max(1, min(limit, MAX_LIMIT))
        scores = yield from self._scores(self._terms(query))
        shown = self._best(scores, limit)
        if evidence:
            shown = self._with(evidence, scores, shown, limit)
        return [Hit(self._documents[number].id, score) for number, score in shown]

    def _terms(self, query: str) -> dict[str, float]:
        """What a query asks for, with weights."""
        found = dict.fromkeys(terms_of(query, MAX_QUERY_TERMS), 1.0)
        for term in list(found):
            for other in SYNONYMS.get(term, ()):
                found.setdefault(other, SYNONYM)
        return found

    def _scores(self, terms: dict[str, float]) -> Work[dict[int, float]]:
        """By number of the document."""
        found: dict[int, float] = {}
        for term, weight in terms.items():
            impacts = self._impacts.get(term) or self._weigh(term)
            if weight == 1.0:
                for number, impact in impacts:
                    found[number] = found.get(number, 0.0) + impact
            else:
                for number, impact in impacts[:DOCUMENTS_OF_A_SYNONYM]:
                    found[number] = found.get(number, 0.0) + impact * weight
            yield
        return found

    def _best(self, scores: Mapping[int, float], limit: int) -> Impacts:
        least = min(nlargest(limit, scores.values()), default=0.0)
        return sorted((each for each in scores.items() if each[1] >= least), key=_rank)[:limit]

    def _with(self, evidence: Mapping[str, float], scores: dict[int, float], shown: Impacts, limit: int) -> Impacts:
        """The first three fifths of what the words have found stay among what is shown, whatever was learned.

        So does whatever no evidence speaks for, if it is nearly as good as the best: a tool that nobody has called yet
        must not be harder to find for that.
        """
        best = shown[0][1] if shown else 1.0
        raised = {
            number: scores.get(number, 0.0) + best * min(MOST_EVIDENCE, weight)
            for document, weight in evidence.items()
            if (number := self._numbers.get(document)) is not None and weight > 0
        }
        safe = limit - -(-2 * limit // 5)
        kept: dict[int, float] = {}
        others = dict(raised)
        for place, (number, score) in enumerate(shown):
            if place < safe or (number not in raised and score >= NEARLY * best):
                kept[number] = others.pop(number, score)
            else:
                others.setdefault(number, score)
        kept.update(self._best(others, limit - len(kept)))
        return sorted(kept.items(), key=_rank)

    def _weigh(self, term: str) -> Impacts:
        """The documents of a term with what it counts in each, highest first. Remembered, up to a number: they do not
        change."""
        documents = self._documents
        counts = {posting >> 4: posting & 15 for posting in self._postings.get(term, ())}
        for source in self._sources_of.get(term, ()):
            count = source.counts[term]
            for number in self._sources[source]:
                counts[number] = counts.get(number, 0) + count
        if not counts:
            return NOTHING
        rarity = math.log(1 + (len(documents) - len(counts) + 0.5) / (len(counts) + 0.5))
        norms = self._norms
        impacts = [
            (number, rarity * count / (norms[number] + count))
            for number, count in ((number, min(count, MAX_COUNT)) for number, count in counts.items())
        ]
        impacts.sort(key=itemgetter(1), reverse=True)
        del impacts[DOCUMENTS_OF_A_TERM:]
        if self._weighed + len(impacts) > MAX_WEIGHED:
            self._impacts.clear()
            self._weighed = 0
        self._impacts[term] = impacts
        self._weighed += len(impacts)
        return impacts


def _rank(scored: tuple[int, float]) -> tuple[float, int]:
    return -scored[1], scored[0]
