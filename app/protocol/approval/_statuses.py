"""The one status of a tool that is stored, and what follows from it under each policy. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from app.protocol.approval._canonical import DefinitionTooLarge, fingerprint
from app.protocol.approval._change import Change, Finding, Kind, Reason
from app.protocol.approval._classification import classify
from app.protocol.approval._names import ToolNames

Policy = Literal["off", "warn", "block"]
Minor = Literal["accept", "ask"]
_TOO_LARGE = Change(Kind.SUSPICIOUS, (Finding(Reason.TOO_LARGE, ""),))


class Status(StrEnum):
    """Of a tool, as its backend offers it now."""

    APPROVED = "approved"  # exactly what a person approved
    ACCEPTED = "accepted"  # a harmless edit of that, and the policy lets those pass
    CHANGED = "changed"  # something else than that; a person has to look
    NEW = "new"  # nobody has approved a tool of this name
    REJECTED = "rejected"  # a person has seen exactly this definition and refused it
    GONE = "gone"  # approved, and no longer offered


@dataclass(frozen=True, slots=True)
class Pin:
    """What is stored for a tool. `fingerprint` is that of the offered definition, None if it is too large or gone."""

    status: Status
    fingerprint: str | None
    change: Change | None = None


def pin(
    approved: Mapping[str, Any] | None,
    offered: Mapping[str, Any] | None,
    names: ToolNames,
    *,
    minor: Minor,
    rejected: str | None = None,
    is_looked_at: bool = True,
) -> Pin:
    """What to store, for the definition that a person approved (None: none), the one that is offered now (None: none),
    and the fingerprint of the one that was rejected last.

    `approved` is always what a person approved, never what was accepted since: or many harmless edits would add up to
    one that is not. With `is_looked_at=False` it is only asked whether it is the approved one, which takes no time.
    """
    if offered is None:
        return Pin(Status.GONE, None)
    try:
        found = fingerprint(offered)
    except DefinitionTooLarge:
        return Pin(Status.NEW if approved is None else Status.CHANGED, None, _TOO_LARGE)
    if found == rejected:
        return Pin(Status.REJECTED, found)
    if approved is None:
        return Pin(Status.NEW, found)
    if not is_looked_at and found != fingerprint(approved):
        return Pin(Status.CHANGED, found, _TOO_LARGE)
    change = classify(approved, offered, names)
    if change.kind is Kind.SAME:
        return Pin(Status.APPROVED, found)
    is_accepted = change.kind is Kind.HARMLESS and minor == "accept"
    return Pin(Status.ACCEPTED if is_accepted else Status.CHANGED, found, change)


def is_passed(status: Status, policy: Policy) -> bool:
    """Whether the tool is listed, found by a search and called: all of them or none."""
    if policy == "off":
        return True
    if policy == "warn":
        return status is not Status.REJECTED
    return status in (Status.APPROVED, Status.ACCEPTED)


def needs_person(status: Status) -> bool:
    """Whether it waits for approval or rejection."""
    return status in (Status.CHANGED, Status.NEW)


def refusal(tool: str, found: Pin) -> str:
    """Why a call of this tool is refused, for its caller. It quotes nothing of the definition."""
    if found.status is Status.NEW:
        return f"the tool {tool} is new: nobody has approved it"
    if found.status is Status.REJECTED:
        return f"the tool {tool} was rejected as it is now"
    if found.status is Status.GONE:
        return f"the tool {tool} is no longer offered"
    why = found.change.sentence() if found.change and found.change.findings else "its wording differs"
    return f"the tool {tool} has changed since it was approved: {why}"
