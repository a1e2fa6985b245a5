"""ToolsetListing: what a toolset shows of its members, and which member has what. Made anew when something changes."""

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import msgspec

from app.domain import Selection
from app.domain.resources.access import Kind
from app.domain.resources.guides import Guide
from app.protocol.jsonrpc import encode, members_of, object_in, string_of
from app.protocol.recipes.recipe import definition
from app.protocol.search.documents import MAX_DESCRIPTION, Definition, Document
from app.protocol.search.index import MAX_DOCUMENTS, ToolIndex
from app.protocol.search.reading import Reading
from app.protocol.search.uri_templates import UriTemplates
from app.protocol.search.work import Work, finished
from app.protocol.sse_format import one_line
from app.protocol.toolset._names import shown_as, shown_prompts
from app.protocol.toolset.allowed import Allowed
from app.protocol.toolset.member_tools import AT_ONCE, MemberTools, by_name, renamed
from app.protocol.toolset.offer import LISTS, Known, Offer
from app.protocol.toolset.own import NAME, Own

TOOLS, PROMPTS, RESOURCES, TEMPLATES = LISTS
MAX_VARIANTS = 8  # of what its tools are listed as: sessions of one toolset have one or two
MAX_PROBLEMS = 20  # that are told
ITEM_BYTES = 600  # what Python needs for each besides its text
# `.` or `..` between separators, in each spelling that servers take for it: `note://open/*` is no pattern for what is
# beside it.
_leads_elsewhere = re.compile(r"(?:[/\\]|%2f|%5c)(?:\.|%2e){1,2}(?:[/\\?#]|%2f|%5c|$)", re.IGNORECASE).search
FEW_TOOLS = 100  # with so many an index is made as soon as it is asked for: in 4 ms


class Shown(NamedTuple):
    """One member: its name for people, what it offers (None: not known yet), and how that is shown. `prefix` as in
    `names.shown_as`; `withheld` as in `Known`. `tools` are made if they are not known yet. `allowed`: what its own
    `access` lists for the caller; None: all."""

    name: str
    offer: Offer | None
    prefix: str | None
    selection: Selection
    withheld: Mapping[str, str] = MappingProxyType({})
    tools: MemberTools | None = None
    allowed: Allowed | None = None


class Place(NamedTuple):
    """Something of a member: the member's index, and its own name of it."""

    member: int
    name: str


class Withheld(NamedTuple):
    """A tool that its pin withholds, and why: it keeps its name, so that no other member's tool is called by it."""

    member: int
    why: str


class Unlisted(NamedTuple):
    """A tool or a prompt that `access` keeps from the caller, for whom there is none. It keeps its name: another
    member's never stands under it for some and not for others."""

    member: int


class ToolsetListing:
    """Immutable; sessions of one toolset share it. Of two things with one name the first member's is shown: `clashes`
    says so of tools and prompts, `hidden` of resources. What is the toolset's `own` comes before all members', so that
    none can take its place; it has the number after the last member's."""

    def __init__(
        self,
        members: Sequence[Shown],
        own: Own | None = None,
        before: "ToolsetListing | None" = None,
        allowed: Allowed | None = None,
    ) -> None:
        """`before` is what the toolset has shown so far: its index is a help for making the next one. `allowed`: what
        the toolset's own `access` lists for the caller; None: all."""
        finished(self._making(members, own, before, allowed))

    @classmethod
    def making(
        cls,
        members: Sequence[Shown],
        own: Own | None = None,
        before: "ToolsetListing | None" = None,
        allowed: Allowed | None = None,
    ) -> Work[Self]:
        """As the constructor, in pieces of a fraction of a millisecond."""
        listing = cls.__new__(cls)
        yield from listing._making(members, own, before, allowed)  # noqa: SLF001 - its own
        return listing

    def _making(
        self,
        members: Sequence[Shown],
        own: Own | None,
        before: "ToolsetListing | None",
        allowed: Allowed | None,
    ) -> Work[None]:
        every, self.allowed = own or Own(), allowed
        self.own = every if allowed is None else every.narrowed(allowed)
        made = list[Shown]()
        for each in (*members, Shown(NAME, self.own.offer, None, Selection())):
            tools = each.tools
            if each.offer is not None and (tools is None or tools.offer is not each.offer):
                tools = yield from MemberTools.making(each.offer, each.prefix, each.selection)
            made.append(each._replace(tools=tools))
        self.members, self._all = tuple(made[:-1]), tuple(made)
        self.clashes: list[str] = []
        self.hidden: list[str] = []
        self._tools: dict[str, Place | Withheld | Unlisted] = {
            name: Place(len(self.members), name) if name in self.own.recipes else Unlisted(len(self.members))
            for name in every.recipes
        }
        self._prompts = dict[str, Place | Unlisted]()
        self._uris, self._uris_of_apps = dict[str, int](), dict[str, int]()
        self._uris_of_withheld, self._unlisted_uris = set[str](), set[str]()
        self._templates: dict[str, int] = {}
        self._matching = UriTemplates()
        self._definitions: dict[str, bytes] = {}
        self._index: ToolIndex | None = None
        self._earlier = None if before is None else before.ready_index
        self._reading: Reading | None = None if before is None else before.reading  # until there is an index: before's
        self._items = dict[str, list[bytes]]()
        self._results = dict[str, bytes]()  # those that were asked for
        self._variants = dict[Hashable, bytes]()
        for method in LISTS:
            self._items[method] = yield from self._list(method)

    def with_offer(self, member: int, known: Known) -> "Work[ToolsetListing]":
        """The same, where one member offers something else. In pieces, as `making`."""
        changed = list(self.members)
        changed[member] = changed[member]._replace(offer=known.offer, withheld=known.withheld)
        return ToolsetListing.making(changed, self.own, self, self.allowed)

    def emptied(self) -> "ToolsetListing":
        """Of the same members, of which nothing is known."""
        return ToolsetListing([Shown(each.name, None, each.prefix, each.selection) for each in self.members])

    # --- for clients

    def result(self, method: str) -> bytes:
        """The result of a list, as JSON: one object for all that ask. It has no pages."""
        made = self._results.get(method)
        if made is None:
            items = b",".join(self._items[method])
            made = self._results[method] = one_line(b'{"%b":[%b]}' % (LISTS[method][0].encode(), items))
        return made

    def variant(self, of: Hashable, make: Callable[[Self], bytes]) -> bytes:
        """The result of a list in another form, one object for all that ask: `of` says which."""
        made = self._variants.get(of)
        if made is None:
            if len(self._variants) >= MAX_VARIANTS:
                del self._variants[next(iter(self._variants))]
            made = self._variants[of] = make(self)
        return made

    @property
    def size(self) -> int:
        """Bytes of its lists, each item once alone and once in a result, and of its index, about."""
        index = 0 if self._index is None else self._index.size
        return index + sum(ITEM_BYTES * len(items) + 2 * sum(map(len, items)) for items in self._items.values())

    @property
    def tools(self) -> list[str]:
        """The names of the tools that are shown."""
        return [name for name in self._tools if name in self._definitions]

    def definition(self, tool: str) -> bytes:
        """The JSON of a tool that is shown. Raises KeyError: it is not."""
        return self._definitions[tool]

    @property
    def offers(self) -> Iterator[Offer]:
        """Of the members that are known, and its own."""
        return (each.offer for each in self._all if each.offer is not None)

    @property
    def index(self) -> ToolIndex:
        """Finds tools that are shown, by their names, and guides, by their URIs. Until `indexing` is done, that of what
        was shown before, where there is much to read: it may find what is shown no more (`shows`)."""
        if self._index is None and (self._earlier is None or len(self._tools) <= FEW_TOOLS):
            finished(self.indexing())
        index = self.ready_index  # one of no documents is false
        assert index is not None
        return index

    @property
    def ready_index(self) -> ToolIndex | None:
        """As `index`, without making one."""
        return self._earlier if self._index is None else self._index

    @property
    def is_indexed(self) -> bool:
        return self._index is not None

    def shows(self, found: str) -> bool:
        """Whether what an index has found, a tool or a guide, is shown."""
        return found in self._definitions or found in self.own.guides

    def indexing(self) -> Work[None]:
        """Makes the index, if nobody has, in pieces: 10 ms for 3,000 tools, 40 ms for each thousand new."""
        if self._index is not None:
            return
        reading = Reading(self._reading)
        sources = [reading.source(each.name, *_server_of(each.offer)) for each in self.members]
        sources.append(reading.source("", None, None))
        documents = [
            Document(uri, sources[-1], Definition(each.name, each.title, _words_of(each), kind="guide"))
            for uri, each in self.own.guides.items()
        ]
        yield
        found = list[Document]()
        for name, text in islice(self._definitions.items(), max(0, MAX_DOCUMENTS - len(documents))):
            source = sources[self._tools[name].member]
            found.append(reading.document(name, source, text, partial(_definition_of, name, text)))
            yield
        reading.done()
        index = yield from ToolIndex.making([*found, *documents], len(self._definitions) - len(found))
        self._index, self._reading, self._earlier = index, reading, None

    @property
    def reading(self) -> Reading | None:
        """What was read for the index, if there is one, else for that of what was shown before."""
        return self._reading

    def schema(self, tool: str) -> dict[str, Any] | str:
        """The input schema of a member's tool that is shown under this name; or why there is none."""
        place = self.tool(tool)
        if place is None:
            return f"the toolset shows no tool {tool[:100]}"
        if isinstance(place, Withheld):
            return place.why
        if self.is_own(place.member):
            return f"{tool} is a recipe, and a recipe has no other as a step"
        try:
            found = msgspec.json.decode(self._definitions[tool]).get("inputSchema")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return f"the definition of {tool} cannot be read"
        return found if isinstance(found, dict) else {}

    @property
    def odd(self) -> list[str]:
        """What members have left out of their lists."""
        known = ((each.name, each.offer) for each in self.members if each.offer is not None)
        return [f"{name}: {note}"[:300] for name, offer in known for note in offer.oddities][:MAX_PROBLEMS]

    # --- who has what

    def is_own(self, member: int) -> bool:
        """Whether this is the number of the toolset itself."""
        return member == len(self.members)

    def tool(self, name: str) -> Place | Withheld | None:
        """The tool that is meant by this name: the one that is shown under it, and no other. Whoever calls a tool by a
        name asks here, and a refusal is the last word."""
        found = self._tools.get(name)
        return None if isinstance(found, Unlisted) else found

    def prompt(self, name: str) -> Place | None:
        """The prompt that is shown under this name."""
        found = self._prompts.get(name)
        return None if isinstance(found, Unlisted) else found

    def member_of_uri(self, uri: str) -> int | None:
        """The member that has this resource: by its list, its tools' apps, or its templates."""
        found = self._uris.get(uri, self._uris_of_apps.get(uri, self._templates.get(uri)))
        if found is not None:
            return found
        found = self._matching.member_of(uri)
        return found if found is not None and self.may_read(found, uri) else None

    def member_of_reference(self, uri: str) -> int | None:
        """The member that lists exactly this resource or template."""
        return self._templates.get(uri, self._uris.get(uri))

    def refuses(self, uri: str) -> bool:
        """Whether a URI that no member has is asked of none: it may be that of a guide that is gone, or is the user
        interface of a tool that is withheld; or `access` keeps it from the caller."""
        return self.own.had(uri) or uri in self._uris_of_withheld or uri in self._unlisted_uris

    def may_read(self, member: int, uri: str) -> bool:
        """Whether `access` lists a resource of this member for the caller, if it has any of this URI."""
        if self._uris_of_apps.get(uri) == member:
            return True
        has_list = self.allowed is not None or self._all[member].allowed is not None
        if has_list and self._uris.get(uri) != member and _leads_elsewhere(uri):
            return False
        return uri not in self._unlisted_uris and finished(self._may("resources", member, uri, uri))

    def is_closed(self, member: Shown) -> bool:
        """Whether its caller may use nothing of a member, which then says nothing to them either."""
        return any(each is not None and not each.entries for each in (self.allowed, member.allowed))

    def promise(self, capability: str) -> list[int]:
        """The members that have this capability."""
        return [
            index
            for index, each in enumerate(self.members)
            if each.offer is not None and capability in each.offer.capabilities
        ]

    # --- making it

    def _list(self, method: str) -> Work[list[bytes]]:
        items: list[bytes] = []
        for index in (len(self.members), *range(len(self.members))):
            member = self._all[index]
            if member.offer is not None and member.tools is not None:
                if method == TOOLS:
                    yield from self._show_tools(index, member.tools, items)
                elif method == PROMPTS:
                    yield from self._show_prompts(index, member.offer, items)
                else:
                    yield from self._show_resources(method, index, member.offer, items)
        return [*self._show_recipes(), *items] if method == TOOLS else items

    def _show_recipes(self) -> list[bytes]:
        """After the tools that they call. Their names are taken before those of all members' tools. One with a step
        that its caller may not call is not shown."""
        called = {name: {step.tool for step in each.method.steps} for name, each in self.own.recipes.items()}
        for name, tools in called.items():
            if any(isinstance(self._tools.get(tool), Unlisted) for tool in tools):
                self._tools[name] = Unlisted(len(self.members))
        shown = [name for name in called if isinstance(self._tools[name], Place)]
        hints = {
            tool: _hints_of(self._definitions[tool])
            for name in shown
            for tool in called[name]
            if tool in self._definitions
        }
        made = {name: encode(definition(self.own.recipes[name], hints)) for name in shown}
        self._definitions |= made
        return list(made.values())

    def _show_tools(self, index: int, tools: MemberTools, items: list[bytes]) -> Work[None]:
        member = self._all[index]
        for own in tools.displaced[:MAX_PROBLEMS]:
            _note(self.clashes, f"{member.name}: {own} is hidden: another tool is shown under its name")
        for number, (shown, own, app, text) in enumerate(tools.shown):
            if not number % FEW_TOOLS:
                yield
            if self._is_free(self._tools, shown, "tool", index):
                why = member.withheld.get(own)
                is_listed = yield from self._may("tools", index, own, shown)
                if why is not None or not is_listed:
                    self._tools[shown] = Withheld(index, why) if why is not None and is_listed else Unlisted(index)
                    self._uris_of_withheld.update([app] if app is not None else [])
                    continue
                self._tools[shown] = Place(index, own)
                if app is not None:
                    self._uris_of_apps.setdefault(app, index)
                self._definitions[shown] = text
                items.append(text)
        for own in (yield from tools.gone(member.withheld)):
            shown = shown_as(member.selection.rename.get(own, own), member.prefix)
            is_listed = yield from self._may("tools", index, own, shown)
            self._tools.setdefault(shown, Withheld(index, member.withheld[own]) if is_listed else Unlisted(index))

    def _show_prompts(self, index: int, offer: Offer, items: list[bytes]) -> Work[None]:
        prompts = yield from by_name(offer.items(PROMPTS))
        for number, (shown, own) in enumerate(shown_prompts(self._all[index].prefix, prompts).items()):
            if not number % AT_ONCE:
                yield
            if self._is_free(self._prompts, shown, "prompt", index):
                if not (yield from self._may("prompts", index, own, shown)):
                    self._prompts[shown] = Unlisted(index)
                    continue
                self._prompts[shown] = Place(index, own)
                items.append(renamed(prompts[own], members_of(prompts[own]), own, shown, None))

    def _show_resources(self, method: str, index: int, offer: Offer, items: list[bytes]) -> Work[None]:
        """Resources keep their URIs."""
        key, taken = ("uri", self._uris) if method == RESOURCES else ("uriTemplate", self._templates)
        for number, item in enumerate(offer.items(method)):
            if not number % AT_ONCE:
                yield
            uri = string_of(members_of(item).get(key))
            if uri is None or uri in self._unlisted_uris:
                continue
            is_listed = self._uris_of_apps.get(uri) == index or (yield from self._may("resources", index, uri, uri))
            if not is_listed and uri not in taken:
                self._unlisted_uris.add(uri)
            elif uri not in taken:
                taken[uri] = index
                items.append(bytes(item))
                if method == TEMPLATES:
                    self._matching.add(uri, index)
            elif taken[uri] != index:
                words = f"{self._name(index)}: {uri} is hidden: {self._name(taken[uri])} has it too"
                _note(self.hidden, words)

    def _may(self, kind: Kind, index: int, own: str, shown: str) -> Work[bool]:
        """Whether `access`, of the member and of the toolset, lists this for the caller."""
        for allowed, name in ((self._all[index].allowed, own), (self.allowed, shown)):
            if allowed is not None and not (yield from allowed.listing(kind, name)):
                return False
        return True

    def _is_free(self, taken: Mapping[str, Place | Withheld | Unlisted], shown: str, what: str, index: int) -> bool:
        if shown not in taken:
            return True
        first = self._name(taken[shown].member)
        words = f"{self._name(index)}: the {what} {shown} is hidden: {first} has one of this name too"
        _note(self.clashes, words)
        return False

    def _name(self, member: int) -> str:
        return self._all[member].name


def _server_of(offer: Offer | None) -> tuple[str | None, str | None]:
    """Title and instructions of a server."""
    if offer is None:
        return None, None
    return string_of(object_in(members_of(offer.hello), "serverInfo").get("title")), offer.instructions


def _definition_of(name: str, definition: bytes) -> Definition:
    try:
        members = msgspec.json.decode(definition)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # it is found by its name only
        return Definition(name)
    return Definition(name, members.get("title"), members.get("description"), members.get("inputSchema"))


def _words_of(guide: Guide) -> str:
    """Its description, and the beginning of its text."""
    return f"{guide.description}\n{guide.text[:MAX_DESCRIPTION]}"


def _hints_of(definition: bytes) -> dict[str, Any]:
    """A tool's annotations."""
    try:
        found = msgspec.json.decode(definition).get("annotations")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _note(problems: list[str], words: str) -> None:
    if len(problems) < MAX_PROBLEMS:
        problems.append(words[:300])
