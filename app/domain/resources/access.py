"""Access: who may use which tools, prompts and resources of a backend or a toolset, and how often."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from app.domain.resources.fields import Unfit, no_nul, one_line

Kind = Literal["tools", "prompts", "resources"]
MAX_ACCESS_ENTRIES = 100  # of one backend
MAX_ACCESS_PATTERNS = 1000  # of all of them together: a call is compared with those that name its caller

_NAMED = Meta(min_length=1, max_length=512)
Patterns = Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=512), no_nul], ...], Meta(max_length=100)]


@dataclass(frozen=True, slots=True)
class Who:
    """Whom an entry names: exactly one of these; with a person or a group perhaps the issuer."""

    group: (
        Annotated[
            str,
            _NAMED,
            "A group in tokens of an issuer. It has to be in the issuer's `claims.map`: other groups are not kept.",
            one_line,
        ]
        | None
    ) = None
    person: Annotated[str, _NAMED, "The subject of tokens of an issuer.", one_line] | None = None
    issuer: Annotated[str, _NAMED, "Whose group or person it is. null: of any issuer.", one_line] | None = None
    key: Annotated[str, _NAMED, "The id of an API key.", one_line] | None = None
    client: Annotated[str, _NAMED, "The name of a client, for what it does by itself.", one_line] | None = None
    everyone: Annotated[bool, "Whoever may connect."] = False

    def __str__(self) -> str:
        """For people: `group analysts`."""
        for kind in ("group", "person", "key", "client"):
            if (name := getattr(self, kind)) is not None:
                return f"{kind} {name}" + (f" of {self.issuer}" if self.issuer else "")
        return "everyone"


@dataclass(frozen=True, slots=True)
class CallLimits:
    """How often each caller may use what an entry lists: calls of tools, prompts and resources that are read, over all
    nodes."""

    requests_per_minute: (
        Annotated[int, Meta(ge=1, le=1_000_000), "In each minute of the clock. null: no limit."] | None
    ) = None
    calls_per_day: Annotated[int, Meta(ge=1, le=1_000_000_000), "In each day of UTC. null: no limit."] | None = None


@dataclass(frozen=True, slots=True)
class AccessEntry:
    """What somebody may use. A call counts for the first entry that allows it."""

    who: Who = field(default_factory=Who)
    tools: Annotated[Patterns, "Names of tools, with `*`, `?` and `[…]`: as the backend has them, or a toolset."] = ()
    prompts: Annotated[Patterns, "Names of prompts, likewise."] = ()
    resources: Annotated[Patterns, "URIs of resources and of their templates, likewise."] = ()
    limits: CallLimits = field(default_factory=CallLimits)

    @property
    def is_limited(self) -> bool:
        """Whether its calls are counted."""
        return self.limits != CallLimits()

    def patterns(self, kind: Kind) -> tuple[str, ...]:
        """What it lists of this kind."""
        found: tuple[str, ...] = getattr(self, kind)
        return found


Access = Annotated[
    tuple[AccessEntry, ...],
    Meta(max_length=MAX_ACCESS_ENTRIES),
    "Who may use which tools, prompts and resources. Empty: everybody who may connect, all. Else only what an entry "
    "lists for its caller: the rest is in no list and no search, and is answered as unknown. That of a backend holds "
    "in toolsets too.",
]


def fits(entries: Iterable[AccessEntry]) -> None:
    """Raises Unfit: an entry names nobody, or allows nothing; or they have too many patterns."""
    patterns = 0
    for number, entry in enumerate(entries, 1):
        who = entry.who
        named = [each for each in (who.group, who.person, who.key, who.client) if each is not None]
        if len(named) + who.everyone != 1:
            words = "entry {number}: `who` has one of `group`, `person`, `key`, `client` and `everyone: true`"
            raise Unfit("who", words, number=number)
        if who.issuer is not None and who.group is None and who.person is None:
            raise Unfit("who", "entry {number}: `issuer` goes with a group or a person", number=number)
        count = len(entry.tools) + len(entry.prompts) + len(entry.resources)
        if not count:
            words = 'entry {number} allows nothing: give `tools`, `prompts` or `resources`, `["*"]` for all'
            raise Unfit("allows_nothing", words, number=number)
        patterns += count
    if patterns > MAX_ACCESS_PATTERNS:
        raise Unfit("too_many", "the entries have more than {most} patterns in all", most=MAX_ACCESS_PATTERNS)
