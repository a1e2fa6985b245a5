"""Reading definitions once: a list that has changed a little is indexed again in a fraction of the time."""

from collections.abc import Callable, Hashable, Mapping

from app.protocol.search.documents import Definition, Document, Source

Sources = Mapping[Hashable, Source]
Documents = Mapping[Hashable, Document]


class Reading:
    """The documents of one list. Those that are in an `earlier` list too are taken over from it."""

    __slots__ = ("_earlier", "documents", "sources")

    def __init__(self, earlier: "Reading | None" = None) -> None:
        self.sources: dict[Hashable, Source] = {}
        self.documents: dict[Hashable, Document] = {}
        self._earlier: tuple[Sources, Documents] = ({}, {}) if earlier is None else (earlier.sources, earlier.documents)

    def source(self, name: str, title: str | None, description: str | None) -> Source:
        """Where documents are from."""
        key = (name, title, description)
        known = self.sources.get(key) or self._earlier[0].get(key)
        found = self.sources[key] = known or Source(name, title, description)
        return found

    def document(self, document_id: str, source: Source, text: Hashable, read: Callable[[], Definition]) -> Document:
        """`text` is the definition as it was sent, and `read` what is in it: called only if this one is new."""
        key = (source, document_id, text)
        found = self.documents[key] = self._earlier[1].get(key) or Document(document_id, source, read())
        return found

    def done(self) -> None:
        """Lets the earlier list go."""
        self._earlier = ({}, {})
