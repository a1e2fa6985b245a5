"""Tool approval (`pin`): what of a tool's definition is approved, and whether a change of it needs a person.

Definitions in, a status, its reasons and a readable difference out. Pure: no I/O, no clock, no store. Which
definitions there are, who approved them and who is told is known elsewhere.
"""

from app.protocol.approval._canonical import MAX_BYTES, MAX_DEPTH, DefinitionTooLarge, canonical, fingerprint
from app.protocol.approval._change import SENTENCES, Change, Finding, Kind, Reason
from app.protocol.approval._classification import classify
from app.protocol.approval._differences import Difference, Hunk, difference
from app.protocol.approval._hidden import visible
from app.protocol.approval._names import MAX_NAMES, ToolNames
from app.protocol.approval._statuses import Minor, Pin, Policy, Status, is_passed, needs_person, pin, refusal

__all__ = [
    "MAX_BYTES", "MAX_DEPTH", "MAX_NAMES", "SENTENCES", "Change", "DefinitionTooLarge", "Difference", "Finding", "Hunk",
    "Kind", "Minor", "Pin", "Policy", "Reason", "Status", "ToolNames", "canonical", "classify", "difference",
    "fingerprint", "is_passed", "needs_person", "pin", "refusal", "visible",
]  # fmt: skip
