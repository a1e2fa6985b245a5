"""Pins: what of a tool's definition is approved, and whether a change of it needs a person. Definitions in, a status,
its reasons and a readable difference out.

Pure: no I/O, no clock, no store. Which definitions there are, who approved them and who is told is known elsewhere.
"""

from app.pins.canonical import MAX_BYTES, MAX_DEPTH, DefinitionTooLarge, canonical, fingerprint
from app.pins.change import SENTENCES, Change, Finding, Kind, Reason
from app.pins.classification import classify
from app.pins.differences import Difference, Hunk, difference
from app.pins.hidden import visible
from app.pins.names import MAX_NAMES, ToolNames
from app.pins.statuses import Minor, Pin, Policy, Status, is_passed, needs_person, pin, refusal

__all__ = [
    "MAX_BYTES", "MAX_DEPTH", "MAX_NAMES", "SENTENCES", "Change", "DefinitionTooLarge", "Difference", "Finding", "Hunk",
    "Kind", "Minor", "Pin", "Policy", "Reason", "Status", "ToolNames", "canonical", "classify", "difference",
    "fingerprint", "is_passed", "needs_person", "pin", "refusal", "visible",
]  # fmt: skip
