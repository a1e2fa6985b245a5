"""…/callers and …/access:explain: how often callers have called, and what `access` would answer somebody."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from fastapi import Query
from pydantic import BaseModel, Field

from app.admin._route import ResourceRouter
from app.admin._view import add_list
from app.admin.context import Access, MayRead
from app.admin.schemas.fields import no_items
from app.admin.schemas.rows import answer_of
from app.auth.policy import entries_for
from app.cluster.node_status.questions import CALLERS
from app.cluster.node_status.views import CallerUse
from app.domain import CLIENT_ISSUER, KEY_ISSUER, BackendSpec, Principal, views
from app.domain.resources.access import AccessEntry
from app.errors import InvalidRequest, NotFound
from app.protocol.toolset.allowed import Allowed
from app.protocol.toolset.listing import Place, Withheld

router = ResourceRouter(tags=["access"])

MAX_PLACES = 100  # that are looked at where none is named

add_list(router, views.CALLERS, CALLERS, answer_of(CallerUse, "CallerUseAnswer"))


class Explanation(BaseModel):
    """What a backend or a toolset would answer, and why."""

    place: str = Field(examples=["backends/db"], description="Where the tool is called.")
    allowed: bool
    why: str = Field(examples=["backends/db: entry 2, group analysts, lists it"])
    limits: list[str] = Field(
        description="What a call counts for.", examples=[["backends/db, entry 2: 60 a minute, 1000 a day"]]
    )


class Explained(BaseModel):
    """Who was meant, and what each place that has the tool would answer."""

    who: str = Field(examples=["person alice@example.com"])
    groups: list[str] = Field(description="Those that were given, and those of people who have signed in here.")
    items: list[Explanation]


_As = Annotated[
    str,
    Query(
        alias="as",
        min_length=1,
        max_length=512,
        description="The subject of tokens; or `key:` and the id of an API key, `client:` and the name of a client.",
    ),
]
_Tool = Annotated[str, Query(min_length=1, max_length=256, description="A tool, by the name under which it is called.")]
_Groups = Annotated[
    list[str],
    Query(default_factory=no_items, max_length=100, description="Groups of the tokens, besides those that are known."),
]
_At = Annotated[str | None, Query(max_length=63, description="Only at this backend or toolset.")]
_Issuer = Annotated[
    str | None, Query(max_length=512, description="Of the tokens; it matters only where entries name one.")
]


@router.get("/access:explain")
async def explain_access(
    access: MayRead,
    who: _As,
    tool: _Tool,
    group: _Groups,
    at: _At = None,
    issuer: _Issuer = None,
) -> Explained:
    """A dry run: whether somebody may call a tool, by the `access` of backends and toolsets, and which entry decides.
    Nothing is called or counted. Whether a credential may connect at all is not looked at: see its scopes."""
    principal = await _principal(access, who, issuer, frozenset(group))
    places = await _places(access, at)
    found = [await _explained(access, spec, principal, tool) for spec in places]
    items = [each for each in found if each is not None]
    if not items and at is not None:
        raise NotFound(f"{at} has no tool {tool}")
    kind = {KEY_ISSUER: "key", CLIENT_ISSUER: "client"}.get(principal.issuer, "person")
    return Explained(who=f"{kind} {principal.subject}", groups=sorted(principal.groups), items=items)


async def _principal(access: Access, who: str, issuer: str | None, groups: frozenset[str]) -> Principal:
    kind, _, name = who.partition(":")
    if name and kind in ("key", "client"):
        return Principal(access.tenant, KEY_ISSUER if kind == "key" else CLIENT_ISSUER, name, frozenset())
    known = [each for each in await access.admin.people.of_subject(access.tenant, who) if issuer in (None, each.issuer)]
    if len({each.issuer for each in known}) > 1:
        raise InvalidRequest(f"several issuers know a person {who}: name one", field="issuer")
    groups = groups.union(*(each.groups for each in known))
    named = issuer or (known[0].issuer if known else "")
    return Principal(access.tenant, named, who, frozenset(), groups=groups)


async def _places(access: Access, at: str | None) -> Sequence[BackendSpec]:
    admin, tenant = access.admin, access.tenant
    if at is not None:
        try:
            return [await admin.toolsets.get(tenant, at)]
        except NotFound:
            return [await admin.backends.get(tenant, at)]
    found = [
        spec for each in (admin.backends, admin.toolsets) for spec in await each.list(tenant, limit=MAX_PLACES + 1)
    ]
    if len(found) > MAX_PLACES:
        words = f"there are more than {MAX_PLACES} backends and toolsets: name one"
        raise InvalidRequest(words, field="at")
    return found


async def _explained(access: Access, spec: BackendSpec, principal: Principal, tool: str) -> Explanation | None:
    """None: there is no such tool."""
    listing = await access.admin.offered.listing(spec)
    place = listing.tool(tool)
    if place is None:
        return None
    own = f"toolsets/{spec.name}" if spec.toolset is not None else f"backends/{spec.name}"
    if isinstance(place, Withheld):
        return Explanation(place=own, allowed=False, why=place.why, limits=[])
    lists = [(own, spec.access, tool)]
    if spec.toolset is not None and not listing.is_own(place.member):
        lists.append(await _of_member(access, listing.members[place.member].name, place))
    verdicts = [_verdict(where, entries, principal, name) for where, entries, name in lists]
    refusals = [words for words, entry in verdicts if entry is False]
    limits = [
        words for (where, _, _), (_, entry) in zip(lists, verdicts, strict=True) for words in _limits(where, entry)
    ]
    return Explanation(
        place=own, allowed=not refusals, why="; ".join(refusals or [words for words, _ in verdicts]), limits=limits
    )


async def _of_member(access: Access, name: str, place: Place) -> tuple[str, tuple[AccessEntry, ...], str]:
    member = await access.admin.backends.get(access.tenant, name)
    return f"backends/{name}", member.access, place.name


def _verdict(
    where: str, entries: tuple[AccessEntry, ...], principal: Principal, tool: str
) -> tuple[str, AccessEntry | Literal[False] | None]:
    """In words; with the entry that lists the tool, False if none does, None if there is no list."""
    if not entries:
        return f"{where} has no list: whoever may connect may use all of it", None
    named = entries_for(principal, entries)
    if not named:
        return f"{where}: no entry names them", False
    number = Allowed(named).entry("tools", tool)
    if number is None:
        which = ", ".join(f"{entries.index(each) + 1}, {each.who}" for each in named)
        return f"{where}: the entries that name them ({which}) do not list {tool}", False
    entry = named[number]
    return f"{where}: entry {entries.index(entry) + 1}, {entry.who}, lists it", entry


def _limits(where: str, entry: AccessEntry | Literal[False] | None) -> Iterator[str]:
    if not entry:
        return
    limits = entry.limits
    each = [(limits.requests_per_minute, "a minute"), (limits.calls_per_day, "a day")]
    words = [f"{number} {window}" for number, window in each if number is not None]
    if words:
        yield f"{where}: {', '.join(words)}"
