"""Api: what is kept of a document: its tools, and how each is called."""

import zlib
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

MAX_API_BYTES = 7 << 20  # of all of it as JSON: what a backend offers has at most 8 MiB
MAX_TOOLS = 3000
MAX_ASKED = 200  # characters of the names of credentials

Place = Literal["path", "query", "header"]
Style = Literal[
    "simple", "label", "matrix", "form", "spaceDelimited", "pipeDelimited", "tabDelimited", "deepObject", "json"
]  # fmt: skip


class Parameter(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where an argument goes. `style` is that of OpenAPI, but for Swagger's `tabDelimited`; `json`: it is written as
    JSON."""

    argument: str
    name: str
    place: Place
    style: Style
    explode: bool = False
    required: bool = False


class Body(msgspec.Struct, frozen=True, omit_defaults=True):
    """The JSON body: one argument, or an object of which each member is an argument, by the argument's name."""

    media_type: str
    argument: str = ""
    members: dict[str, str] = {}
    required: bool = False


class Operation(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tool, and the request that a call of it becomes."""

    name: str
    tool: msgspec.Raw
    method: str
    path: str
    parameters: list[Parameter] = []
    body: Body | None = None


class Api(msgspec.Struct, frozen=True, omit_defaults=True):
    """`server`: where the document says that the API is, perhaps only its path; empty if it does not. `keys`: names of
    query parameters that carry a credential. `asks`: the names of headers and of those parameters that most operations
    need, one of these ways. `left_out`: a sentence for each thing that could not be made;
    `more_left_out`: how many there are besides."""

    title: str
    version: str
    server: str
    operations: list[Operation]
    description: str = ""
    keys: list[str] = []
    asks: tuple[tuple[str, ...], ...] = ()
    left_out: list[str] = []
    more_left_out: int = 0

    @property
    def notes(self) -> list[str]:
        """What could not be made, in sentences."""
        more = [f"… and {self.more_left_out} more"] if self.more_left_out else []
        return [*self.left_out, *more]

    def lacking(self, sent: Iterable[str]) -> list[str]:
        """A sentence, if these names of headers and query parameters are not enough for most operations."""
        names = {each.lower() for each in sent}
        if not self.asks or any(names.issuperset(map(str.lower, each)) for each in self.asks):
            return []
        ways = " or ".join(" and ".join(f"`{name}`" for name in each) for each in self.asks)
        return [f"the document asks for {ways[:MAX_ASKED]}: give it in `headers`"]


def packed(api: bytes) -> bytes:
    """An Api that is JSON, as it is stored."""
    return zlib.compress(api, 6)


def unpacked(stored: bytes) -> Api:
    """Raises ValueError: it was not stored by this program."""
    reader = zlib.decompressobj()
    try:
        data = reader.decompress(stored, 2 * MAX_API_BYTES)
        return msgspec.json.decode(data, type=Api)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise ValueError(str(error)) from None


def encoded(value: Any) -> bytes:
    """As JSON."""
    return msgspec.json.encode(value)
