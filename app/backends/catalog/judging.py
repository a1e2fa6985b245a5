"""What is found of each tool that a backend offers, compared with what a person has approved; and what is withheld."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from app.errors import InvalidRequest
from app.protocol.approval import (
    DefinitionTooLarge,
    Minor,
    Pin,
    Policy,
    Status,
    ToolNames,
    fingerprint,
    is_passed,
    needs_person,
    pin,
    refusal,
)
from app.protocol.jsonrpc import members_of, string_of
from app.protocol.toolset.offer import Offer
from app.storage.tools.approvals import Approval, Approvals

WHO = "an administrator of the tenant can approve it (`trunkline catalog approve`)"
MAX_LOOKED_AT = 512 << 10  # bytes of all definitions of a backend that differ; the others only count as changed
MAX_TOOL_NAME = 256  # characters that are stored
_UNKNOWN = "nobody has approved it"

Found = Mapping[str, Any]  # of one tool, as it is stored: `status`, `fingerprint`, `reasons`, `refusal`


def items_of(offer: Offer) -> dict[str, msgspec.Raw]:
    """The tools by name, not read yet; of two with one name the first counts, as in lists."""
    found: dict[str, msgspec.Raw] = {}
    for item in offer.items("tools/list"):
        name = string_of(members_of(item).get("name"))
        if name is not None:
            found.setdefault(name, item)
    return found


def tools_of(offer: Offer) -> dict[str, dict[str, Any]]:
    """The definitions that can be read, by name: if the first of a name cannot be, none of that name is."""
    found = {name: read_tool(item) for name, item in items_of(offer).items()}
    return {name: definition for name, definition in found.items() if definition is not None}


class ToolChanges(NamedTuple):
    """Names of tools of two versions of a backend."""

    added: Sequence[str]
    removed: Sequence[str]
    changed: Sequence[str]


def changes_of(before: Offer, after: Offer) -> ToolChanges:
    """What the second offers otherwise. May take a second for large offers: call it in a thread."""
    was, now = items_of(before), items_of(after)
    both = [name for name in now if name in was and bytes(was[name]) != bytes(now[name])]
    changed = [name for name in both if (new := read_tool(now[name])) is None or new != read_tool(was[name])]
    return ToolChanges([name for name in now if name not in was], [name for name in was if name not in now], changed)


def read_tool(item: msgspec.Raw) -> dict[str, Any] | None:
    """None where clients may read something else than the gateway does: of two members with one name some take the
    first, and some know larger numbers."""
    try:
        json.loads(bytes(item), object_pairs_hook=_each_once)
        found: dict[str, Any] = msgspec.json.decode(item)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return found


def _each_once(members: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in members}) < len(members):
        raise ValueError


def names_of(offer: Offer) -> list[str]:
    """Of all tools that have one."""
    named = (string_of(members_of(item).get("name")) for item in offer.items("tools/list"))
    return [name for name in named if name is not None]


def judge(offer: Offer, approvals: Approvals, others: Iterable[str]) -> dict[str, Found]:
    """What is found of each tool, offered or approved. `others`: the names of the tools of the tenant's other backends,
    which clients may see beside these. May take ten seconds for large hostile definitions: call it in a thread."""
    if approvals.policy == "off" and not approvals.tools:
        return {}
    offered = tools_of(offer)
    names = ToolNames([*offered, *others])
    minor: Minor = "accept" if approvals.minor == "accept" else "ask"
    found: dict[str, Found] = {}
    looked_at = 0
    for tool in [*offered, *(name for name in approvals.tools if name not in offered)]:
        said = approvals.tools.get(tool)
        approved = None if said is None or said.approved is None else msgspec.json.decode(said.approved)
        if tool not in offered and approved is None:
            continue  # it was rejected, and is gone
        if approved is not None and tool in offered and approved != offered[tool]:
            looked_at += len(msgspec.json.encode(offered[tool]))
        result = pin(
            approved,
            offered.get(tool),
            names,
            minor=minor,
            rejected=None if said is None else said.rejected,
            is_looked_at=looked_at <= MAX_LOOKED_AT,
        )
        found[tool] = {
            "status": result.status.value,
            "fingerprint": result.fingerprint,
            "reasons": [] if result.change is None else [reason.value for reason in result.change.reasons],
            "refusal": refusal(tool[:200], result),
        }
    return found


def obeyed(pins: Mapping[str, Found], rejected: Mapping[str, str], minor: str) -> Mapping[str, Found]:
    """What was found, as it is stored; but a person may have rejected a tool since, and nobody judged again: a node of
    an earlier version stores the one after the other, and may die in between. `rejected`: fingerprints, by tool."""
    found = dict(pins)
    for tool, each in pins.items():
        if each["status"] == Status.ACCEPTED and minor != "accept":
            found[tool] = {**each, "status": Status.CHANGED.value}
    for tool, no in rejected.items():
        # All that is offered is found, unless there was nothing to judge by; what is not found is not offered.
        if not pins or (tool in pins and pins[tool]["fingerprint"] == no):
            words = refusal(tool[:200], Pin(Status.REJECTED, no))
            refused = {"status": Status.REJECTED.value, "fingerprint": no, "refusal": words}
            found[tool] = {"reasons": [], **pins.get(tool, {}), **refused}
    return found


def withheld(offer: Offer, pins: Mapping[str, Found], policy: str) -> dict[str, str]:
    """Why each of these tools is neither shown nor called, by the tool's own name; with `block` also of those that a
    person has approved and that are gone: they keep their names."""
    followed: Policy = (
        "warn" if policy == "warn" else "off" if policy == "off" else "block"
    )  # also one of later versions
    if followed == "off":
        return {}
    why: dict[str, str] = {}
    for name in dict.fromkeys([*names_of(offer), *pins]):
        found = pins.get(name)
        status = Status.NEW if found is None else _status(found["status"])  # what nobody has judged nobody has approved
        if not is_passed(status, followed):
            words = f"the tool {name[:200]} is withheld: {_UNKNOWN}" if found is None else found["refusal"]
            why[name] = f"{words}; {WHO}"
    return why


def _status(stored: str) -> Status:
    """One of a later version counts as a change that a person has to look at."""
    try:
        return Status(stored)
    except ValueError:
        return Status.CHANGED


class Decided(NamedTuple):
    """What a person has said, and when."""

    approves: bool
    by: str
    at: datetime


def waiting(offer: Offer, said: Approvals, found: Mapping[str, Found]) -> list[str]:
    """The tools of which a person has not said what becomes of them: new and changed ones, and what is gone."""
    offered = tools_of(offer)
    gone = [tool for tool, each in said.tools.items() if tool not in offered and each.approved is not None]
    return [tool for tool in offered if tool not in found or needs_person(_status(found[tool]["status"]))] + gone


def decided(offer: Offer, tools: Sequence[str], said: Approvals, decision: Decided) -> list[Approval]:
    """What to store so that these tools count as approved, or as rejected, as they are offered. Of approved ones that
    are gone nothing is kept. May take a second for large offers: call it in a thread.

    Raises:
        InvalidRequest: there is no such tool, or nobody can decide on it.
    """
    offered = tools_of(offer)
    changed = []
    for tool in dict.fromkeys(tools):
        before = said.tools.get(tool)
        if tool in offered:
            found = _require_decidable(tool, offered[tool])
            kept = None if before is None else before.approved
            if decision.approves:
                changed.append(Approval(tool, msgspec.json.encode(offered[tool]), None, decision.by, decision.at))
            else:
                changed.append(Approval(tool, kept, found, decision.by, decision.at))
        elif before is None:
            raise InvalidRequest(f"there is no tool {tool[:100]}", field="tools")
        elif decision.approves:
            changed.append(Approval(tool, None, None, decision.by, decision.at))
    return changed


def _require_decidable(tool: str, definition: Mapping[str, Any]) -> str:
    """The fingerprint. Raises InvalidRequest: it is too large to be looked at, or has a name that cannot be stored."""
    if not tool or len(tool) > MAX_TOOL_NAME or "\0" in tool:  # without a name it is not on the list of tools
        raise InvalidRequest(f"nobody can decide on the tool {tool[:100]!a}: its name cannot be stored", field="tools")
    try:
        return fingerprint(definition)
    except DefinitionTooLarge as error:
        raise InvalidRequest(f"nobody can decide on the tool {tool[:100]}: {error}", field="tools") from None
