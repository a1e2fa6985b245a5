"""A document becomes an Api: a tool for each operation that can be called, and a sentence for each that cannot."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from app.protocol.openapi import _dialects
from app.protocol.openapi._operations import Dialect, made_of, methods_in
from app.protocol.openapi._references import LeftOut, References
from app.protocol.openapi._schemas import short
from app.protocol.openapi.api import MAX_API_BYTES, MAX_TOOLS, Api, Operation, encoded
from app.protocol.openapi.document import UnfitDocument

MAX_NOTES = 100
MAX_NOTE = 300  # characters
# What a list, text or number leads to where an object should be, and a value that JSON has not.
_ODD = (TypeError, AttributeError, LookupError, ValueError, OverflowError)
_UNCALLED = ("head", "options", "trace")


class _Notes:
    """Sentences about what is left out: the first ones, and how many more."""

    def __init__(self) -> None:
        self.kept = list[str]()
        self.more = 0

    def add(self, where: str, what: str) -> None:
        if len(self.kept) < MAX_NOTES:
            self.kept.append(short(f"{where}: {what}", MAX_NOTE))
        else:
            self.more += 1


def api_of(document: dict[str, Any]) -> Api:
    """The tools of a document.

    Raises:
        UnfitDocument: it is no document of OpenAPI, or none of its operations can be called.
    """
    swagger = _dialects.is_swagger(document)
    paths = document.get("paths")
    if not isinstance(paths, dict) or not paths:
        raise UnfitDocument("the document has no `paths`: without operations there are no tools")
    references, notes = References(document), _Notes()
    known = _dialects.credentials_of(document, references, swagger=swagger)
    credentials = frozenset(name.lower() for _, name in known.values())
    server = _dialects.server_of(document, swagger=swagger)
    where = [""]
    dialect = Dialect(document, references, swagger, server, lambda what: notes.add(where[0], what), credentials)
    made, asked = list[Operation](), Counter[_dialects.Ways]()
    size = 0
    for where[0], path, method, item, operation in _each(references, paths, notes):
        try:
            given = references.resolved(operation)
            asks = _dialects.asked_of(document, given, known)
            tool = made_of(dialect, path, method, item, given)
        except LeftOut as why:
            notes.add(where[0], f"is left out: it {why}")
            continue
        except RecursionError:
            notes.add(where[0], "is left out: it is nested too deeply")
            continue
        except _ODD:
            notes.add(where[0], "is left out: it is not written as OpenAPI has it")
            continue
        size += len(encoded(tool))
        if size > MAX_API_BYTES or len(made) >= MAX_TOOLS:
            words = f"is left out: at most {MAX_TOOLS} tools, {MAX_API_BYTES >> 20} MiB in all, are made of a document"
            notes.add(where[0], words)
            continue
        made.append(tool)
        asked[asks] += 1
    if not made:
        first = notes.kept[0] if notes.kept else "it has none"
        raise UnfitDocument(f"no operation of the document can be called; {first}")
    if document.get("webhooks"):
        notes.add("webhooks", "are left out: nobody would be called")
    asks, count = asked.most_common(1)[0]
    keys = [name for place, name in known.values() if place == "query"]
    return _described(document, server, made, keys, asks if 2 * count > len(made) else (), notes)


def _described(
    document: dict[str, Any], server: str, made: list[Operation], keys: list[str], asks: _dialects.Ways, notes: _Notes
) -> Api:
    found = document.get("info")
    info = found if isinstance(found, dict) else {}
    return Api(
        title=short(info.get("title"), 200) or "API",
        version=short(str(info.get("version", "")), 60) or "0",
        server=server,
        operations=made,
        description=short(info.get("description"), 2000),
        keys=keys,
        asks=asks,
        left_out=notes.kept,
        more_left_out=notes.more,
    )


def _each(
    references: References, paths: dict[Any, Any], notes: _Notes
) -> Iterator[tuple[str, str, str, dict[str, Any], Any]]:
    """Each operation: what it is called in notes, its path and method, the object of its path, and its own."""
    for path, found in paths.items():
        if not isinstance(path, str) or path.startswith("x-"):
            continue
        try:
            item = references.resolved(found)
        except LeftOut as why:
            notes.add(short(path, 150), f"is left out: it {why}")
            continue
        for method, operation in methods_in(item):
            name = f"{method.upper()} {short(path, 150)}"
            if method in _UNCALLED:
                notes.add(name, "is left out: its answer has no content that a tool could return")
            else:
                yield name, path, method, item, operation
