"""Whether a change of a tool's definition needs a person. Fails closed: what no rule knows is suspicious."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from app.protocol.approval import _schemas as schemas
from app.protocol.approval._canonical import DefinitionTooLarge, canonical
from app.protocol.approval._change import MAX_FINDINGS, SAME, Change, Finding, Kind, Reason
from app.protocol.approval._names import ToolNames
from app.protocol.approval._schemas import pointer, same, shown
from app.protocol.approval._wording import ApprovedText, NewText

Definition = Mapping[str, Any]
# What a hint is where it is not given (the schema of the protocol, ToolAnnotations).
_HINTS = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True}
_OF_WRITERS = ("destructiveHint", "idempotentHint")  # without a meaning where the tool is read-only
_COMPARED = frozenset({"title", "description", "inputSchema", "outputSchema", "annotations"})
_SAYS_NOTHING = {"execution": {"taskSupport": "forbidden"}, "_meta": {}, "icons": []}  # as if they were not there
_TITLES = ("/title", "/annotations/title")


def classify(approved: Definition, offered: Definition, names: ToolNames) -> Change:
    """What has changed since a person approved `approved`. `names`: of all tools that clients see beside this one.

    Takes about a millisecond, and up to two seconds for hostile text of the largest size that is looked at.
    """
    try:
        if canonical(approved) == canonical(offered):
            return SAME
    except DefinitionTooLarge:
        return Change(Kind.SUSPICIOUS, (Finding(Reason.TOO_LARGE, ""),))
    findings = dict.fromkeys([*_structure(approved, offered), *_wording(approved, offered, names)])
    if not findings:
        return Change(Kind.HARMLESS)
    return Change(Kind.SUSPICIOUS, tuple(sorted(findings))[:MAX_FINDINGS])


# --- structure


def _structure(approved: Definition, offered: Definition) -> Iterator[Finding]:
    for member in ("title", "description"):
        if not all(isinstance(each.get(member, ""), str) for each in (approved, offered)):
            yield Finding(Reason.MEMBER, f"/{member}")
    yield from schemas.differences(approved.get("inputSchema", {}), offered.get("inputSchema", {}), "/inputSchema")
    yield from _of_output(approved, offered)
    yield from _of_annotations(approved.get("annotations"), offered.get("annotations"))
    for member in sorted((approved.keys() | offered.keys()) - _COMPARED):
        was, now = (each.get(member, _SAYS_NOTHING.get(member)) for each in (approved, offered))
        if not same(was, now):
            yield Finding(Reason.MEMBER, f"/{pointer(member)}", f"{shown(was)} -> {shown(now)}")


def _of_output(approved: Definition, offered: Definition) -> Iterator[Finding]:
    path = "/outputSchema"
    if ("outputSchema" in approved) != ("outputSchema" in offered):
        yield Finding(Reason.OUTPUT_SCHEMA, path)
        return
    for each in schemas.differences(approved.get("outputSchema", {}), offered.get("outputSchema", {}), path):
        yield Finding(Reason.OUTPUT_SCHEMA, each.path, each.what)


def _of_annotations(was: Any, now: Any) -> Iterator[Finding]:
    old, new = ({} if each is None else each for each in (was, now))
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        yield Finding(Reason.ANNOTATION, "/annotations")
        return
    old, new = _meant(old), _meant(new)
    for name in sorted(old.keys() | new.keys()):
        if not same(old.get(name), new.get(name)):
            what = f"{shown(old.get(name))} -> {shown(new.get(name))}"
            yield Finding(Reason.ANNOTATION, f"/annotations/{pointer(name)}", what)


def _meant(annotations: Definition) -> dict[str, Any]:
    """With the defaults that clients assume, and without the title, which is wording."""
    meant = {**_HINTS, **annotations}
    if meant["readOnlyHint"] is True:
        for name in _OF_WRITERS:
            del meant[name]
    if isinstance(meant.get("title"), str):
        del meant["title"]
    return meant


# --- wording


def _wording(approved: Definition, offered: Definition, names: ToolNames) -> list[Finding]:
    before, after = list(_strings(approved, "")), list(_strings(offered, ""))
    said, says = (ApprovedText(text for _, text in each) for each in (before, after))
    new = NewText(said, names, str(offered.get("name", "")))
    known = {name for _, name in _names_of_members(approved, "")}
    for path, name in _names_of_members(offered, ""):
        if name not in known:
            new.look_at_name(path, name)
    for path, text in after:
        if path in _TITLES:
            new.look_at_title(path, text)
        else:
            new.look(path, text)
    for path, text in before:
        if text not in says.texts:
            new.look_at_removed(path, text, says)
    new.look_at_growth(sum(len(text) for _, text in after) - sum(len(text) for _, text in before))
    return new.findings


def _strings(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """All strings at any depth, but for dialects of JSON Schema and the names of members."""
    if isinstance(value, str):
        yield path, value
    else:
        for name, each in _members(value):
            if name != "$schema":
                yield from _strings(each, f"{path}/{pointer(name)}")


def _names_of_members(value: Any, path: str) -> Iterator[tuple[str, str]]:
    for name, each in _members(value):
        place = f"{path}/{pointer(name)}"
        if isinstance(value, Mapping):
            yield place, name
        yield from _names_of_members(each, place)


def _members(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return value.items()
    return ((str(index), each) for index, each in enumerate(value)) if isinstance(value, list | tuple) else ()
