"""What can be found, and the words it is found by. A definition is read once, and indexed as often as need be."""

from collections import Counter
from typing import NamedTuple

from app.protocol.search._words import split_name, term_of, words_of

# How many times a word of the field counts.
NAME, SOURCE = 3, 2
MAX_COUNT = 12  # of a word in a document: who repeats it gains no more

# Characters of each field that are read; what comes after them finds nothing.
MAX_NAME = 256
MAX_DESCRIPTION = 1_000
MAX_SOURCE_DESCRIPTION = 500
MAX_PARAMETERS = 1_000  # names and descriptions together
MAX_DEPTH = 5  # of schemas within schemas
MAX_SCHEMAS = 200  # of one document

_DEFINITIONS = frozenset({"$defs", "definitions"})
_INNER = frozenset({"items", "anyOf", "oneOf", "allOf"}) | _DEFINITIONS


class Source:
    """Where documents are from, a server for instance: all of them are found by its words as well."""

    __slots__ = ("counts", "length")

    def __init__(self, name: str, title: object = None, description: object = None) -> None:
        self.counts = _count(_name(name, title) * SOURCE + words_of(_text(description, MAX_SOURCE_DESCRIPTION)))
        self.length = self.counts.total()


class Definition(NamedTuple):
    """Of a tool, prompt, resource or guide, as its server has sent it: what is no text counts as none.

    `kind` is a word as well, if it is no tool ("guide").
    """

    name: str
    title: object = None
    description: object = None
    input_schema: object = None
    kind: str = "tool"


class Document:
    """The words of a definition. `source` is shared by all that are from there. It keeps none of the texts, and of each
    term eight bytes and one: a dictionary would take forty."""

    __slots__ = ("_times", "id", "length", "source", "terms")

    def __init__(self, document_id: str, source: Source, definition: Definition) -> None:
        name, title, description, input_schema, kind = definition
        rest = f"{_text(description, MAX_DESCRIPTION)} {_parameters(input_schema)} {'' if kind == 'tool' else kind}"
        self.id = document_id
        self.source = source
        counts = _count(_name(name, title) * NAME + words_of(rest))
        self.length = counts.total() + source.length
        self.terms = tuple(counts)
        self._times = bytes(min(each, MAX_COUNT) for each in counts.values())

    @property
    def counts(self) -> dict[str, int]:
        """By term, how often it counts, up to MAX_COUNT."""
        return dict(zip(self.terms, self._times, strict=True))


def _name(name: str, title: object) -> list[str]:
    return words_of(split_name(f"{name[:MAX_NAME]} {_text(title, MAX_NAME)}"))


def _count(words: list[str]) -> Counter[str]:
    """By term, how often it counts."""
    counted = Counter(map(term_of, words))
    counted.pop("", None)
    return counted


def _text(value: object, limit: int) -> str:
    return value[:limit] if isinstance(value, str) else ""


def _parameters(schema: object) -> str:
    """Names and descriptions, those of outer schemas first."""
    names: list[str] = []
    descriptions: list[str] = []
    level: list[object] = [schema]
    left = MAX_SCHEMAS
    for _ in range(MAX_DEPTH):
        below: list[object] = []
        for each in level[:left]:
            if type(each) is dict:  # an isinstance costs more here than all else
                _read(each, names, descriptions, below)
        left -= len(level)
        if not below or left <= 0:
            break
        level = below
    return f"{split_name(' '.join(names)[:MAX_PARAMETERS])} {' '.join(descriptions)}"[:MAX_PARAMETERS]


def _read(schema: dict[object, object], names: list[str], descriptions: list[str], below: list[object]) -> None:
    """Adds the schema's own words, and the schemas in it that may have more."""
    description = schema.get("description")
    if type(description) is str:
        descriptions.append(description[:MAX_PARAMETERS])
    properties = schema.get("properties")
    if type(properties) is dict:
        for name, each in properties.items():
            if type(name) is str:
                names.append(name)
            below.append(each)
    for key in _INNER & schema.keys():
        inner = schema[key]
        if type(inner) is list:
            below += inner
        elif key in _DEFINITIONS and type(inner) is dict:
            below += inner.values()
        else:
            below.append(inner)
