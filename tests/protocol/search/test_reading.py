"""Definitions that were read for an earlier list are not read again."""

from functools import partial

from app.protocol.search.documents import Definition
from app.protocol.search.index import ToolIndex
from app.protocol.search.reading import Reading


def read_all(definitions: dict[str, str], earlier: Reading | None = None, title: str = "Notes"):
    """The reading, the index of it, and what was read."""
    read: list[str] = []

    def one(name: str) -> Definition:
        read.append(name)
        return Definition(name, None, definitions[name])

    reading = Reading(earlier)
    source = reading.source("notes", title, None)
    index = ToolIndex([reading.document(name, source, text, partial(one, name)) for name, text in definitions.items()])
    reading.done()
    return reading, index, read


def test_only_what_is_new_is_read():
    reading, _, read = read_all({"add": "Adds a note", "remove": "Removes it"})
    assert read == ["add", "remove"]
    again, index, read = read_all({"add": "Adds a note", "remove": "Throws it away", "list": "Lists all"}, reading)
    assert read == ["remove", "list"]
    assert [hit.id for hit in index.search("throw away")] == ["remove"]
    assert [hit.id for hit in index.search("adds")] == ["add"]
    assert len(again.documents) == 3, "what is not there any more is forgotten"


def test_all_of_a_server_is_read_again_that_calls_itself_otherwise():
    reading, _, _ = read_all({"add": "Adds a note"})
    _, index, read = read_all({"add": "Adds a note"}, reading, title="Diary")
    assert read == ["add"]
    assert [hit.id for hit in index.search("diary")] == ["add"]
