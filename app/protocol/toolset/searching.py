"""Searching: a toolset that shows two tools instead of hundreds. `find_tools` returns the definitions of those that a
query means, `call_tool` calls one of them."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec

from app.domain.resources.backends import FEW_TOOLS
from app.protocol.jsonrpc import Params, Request, encode, encoded, members_of, object_in, result_response, string_of
from app.protocol.search.learned import Learned
from app.protocol.search.patterns import Patterns
from app.protocol.search.recent_query import RecentQuery
from app.protocol.toolset.listing import ToolsetListing

FIND, CALL = "find_tools", "call_tool"
DEFAULT_LIMIT, MAX_LIMIT = 5, 20
MAX_QUERY = 1000  # characters of a query; what comes after them is not read

# Clients that show their model only the tools that it needs: they search in the whole list themselves. With what they
# read in `_meta` of a tool that is to be shown from the beginning.
_ALWAYS = {"anthropic/alwaysLoad": True}
DEFERRING_CLIENTS = {"claude-code": _ALWAYS, "claude-ai": _ALWAYS, "Anthropic/ClaudeAI": _ALWAYS}

_FIND_TOOL = {
    "name": FIND,
    "title": "Find tools",
    "description": "Finds tools by what they do, and returns their definitions, best first. Describe in a few words "
    f"what you want to do. Then use `{CALL}` with a name from the answer.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What you want to do, in a few words."},
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
        },
        "required": ["query"],
    },
    "annotations": {"readOnlyHint": True, "openWorldHint": False},
}
_CALL_TOOL = {
    "name": CALL,
    "title": "Call a tool",
    "description": f"Calls a tool that `{FIND}` has found, with arguments that fit its `inputSchema`. Its answer is "
    "that of the tool.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": f"The name, as `{FIND}` has returned it."},
            "arguments": {"type": "object", "description": "As its `inputSchema` says."},
        },
        "required": ["name"],
    },
}
_OWN = (encode(_FIND_TOOL), encode(_CALL_TOOL))
_GUIDES = " Finds guides as well, which say how things are done here: read those first."
_OWN_WITH_GUIDES = (encode({**_FIND_TOOL, "description": f"{_FIND_TOOL['description']}{_GUIDES}"}), _OWN[1])


class Terms(NamedTuple):
    """How a toolset is searched. `always`: patterns of the names of tools that are listed nevertheless. `learned` is
    shared by all sessions of the toolset; None: nothing is learned. `clock`: in seconds, of all nodes."""

    always: tuple[str, ...]
    learned: Learned | None
    clock: Callable[[], float]


class Search(NamedTuple):
    """Whether sessions search: `list`, `search` or `auto`, and how."""

    mode: str
    terms: Terms | None


NO_SEARCH = Search("list", None)
Listed = Callable[[ToolsetListing], bytes]  # the result of `tools/list`


class Searching:
    """The search of one session."""

    def __init__(self, terms: Terms) -> None:
        self._always, self._learned, self._clock = terms
        self._recent = RecentQuery()

    def listed(self, listing: ToolsetListing) -> bytes:
        """The result of `tools/list`."""
        return listing.variant(self._always, self._listed)

    def _listed(self, listing: ToolsetListing) -> bytes:
        always = Patterns.of(self._always)
        names = (name for name in listing.tools if name not in (FIND, CALL) and always.match(name))
        own = _OWN_WITH_GUIDES if listing.own.guides else _OWN
        return b'{"tools":[%b]}' % b",".join((*own, *(listing.definition(name) for name in names)))

    def find(self, message: Request, listing: ToolsetListing) -> bytes:
        """The answer to a call of `find_tools`."""
        arguments = members_of((message.params or {}).get("arguments", msgspec.Raw(b"{}")))
        query = (string_of(arguments.get("query")) or "")[:MAX_QUERY]
        now = self._clock()
        self._recent.asked(query, now)
        evidence = {} if self._learned is None else self._learned.evidence(query, now)
        found = listing.index.search(query, _limit(arguments), evidence)
        hits = [hit for hit in found if listing.shows(hit.id)]
        guides = [listing.own.found(hit.id) for hit in hits if hit.id in listing.own.guides]
        tools = b"[%b]" % b",".join(listing.definition(hit.id) for hit in hits if hit.id not in listing.own.guides)
        structured: dict[str, Any] = {"tools": msgspec.Raw(tools)}
        texts = [tools.decode() if hits else "No tool was found. Describe in other words what you want to do."]
        if guides:
            structured["guides"] = guides
            texts.append(encode({"guides": guides}).decode())
        content = [{"type": "text", "text": each} for each in texts]
        return result_response(message.id, {"content": content, "structuredContent": structured})

    def called(self) -> str:
        """A tool is called: the query that it may answer; empty if there is none."""
        return self._recent.called(self._clock()) or ""

    def succeeded(self, query: str, tool: str) -> None:
        """The call that followed this query has succeeded. `tool` is the name that is shown."""
        if self._learned is not None:
            self._learned.learn(query, tool, self._clock())


def inner_call(params: Params) -> Params:
    """The params of the call that `call_tool` asks for; the rest of them (progress token, task) is its own."""
    arguments = members_of(params.get("arguments", msgspec.Raw(b"{}")))
    return {**params, "name": arguments.get("name", encoded("")), "arguments": arguments.get("arguments", encoded({}))}


def listed_for(search: Search, client: str, tools: int) -> tuple[Searching | None, Listed]:
    """Whether and how a session of this client (`clientInfo.name`) searches, with so many tools to be shown; and its
    list."""
    mode, terms = search
    if terms is not None and mode == "auto" and client in DEFERRING_CLIENTS:
        return None, partial(_hinted, terms.always, DEFERRING_CLIENTS[client])
    if terms is None or (mode == "auto" and tools <= FEW_TOOLS):
        return None, whole
    searching = Searching(terms)
    return searching, searching.listed


def whole(listing: ToolsetListing) -> bytes:
    """Every tool as it is."""
    return listing.result("tools/list")


def _hinted(always: tuple[str, ...], hints: Mapping[str, object], listing: ToolsetListing) -> bytes:
    """Every tool, those of `always` with the hints."""

    def marked(listing: ToolsetListing) -> bytes:
        tools = [(name, listing.definition(name)) for name in listing.tools]
        loaded = Patterns.of(always)
        shown = (_marked(tool, hints) if loaded.match(name) else tool for name, tool in tools)
        return b'{"tools":[%b]}' % b",".join(shown)

    return listing.variant((always, tuple(hints)), marked)


def _marked(definition: bytes, hints: Mapping[str, object]) -> bytes:
    members = members_of(msgspec.Raw(definition))
    return encode({**members, "_meta": encoded({**object_in(members, "_meta"), **hints})})


def _limit(arguments: Params) -> int:
    try:
        return max(1, min(MAX_LIMIT, msgspec.json.decode(arguments["limit"], type=int)))
    except (KeyError, msgspec.MsgspecError):
        return DEFAULT_LIMIT
