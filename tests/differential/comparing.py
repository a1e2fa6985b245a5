"""Holds two dialogues against each other, message by message, at both ends."""

from collections import defaultdict
from difflib import ndiff

from tests.differential.allowed import COALESCED, Pair, Place, without_what_may_differ
from tests.differential.reading import Entry, Reader
from tests.differential.recording import Dialogue
from tests.differential.scripts import AT_ONCE, SERVERS

SHOWN = 1000  # characters of a message
QUESTIONS = {"elicitation/create", "sampling/createMessage", "roots/list"}


def differences(pair: Pair, expected: Dialogue, found: Dialogue) -> list[str]:
    """One line for each message that is not the same, under the place where."""
    # What only one of the revisions can say is a step of its own: it is left out.
    both = {step for _, step in expected.steps} & {step for _, step in found.steps}
    lines: list[str] = []
    for end in ("client", "server"):
        was, is_now = _groups(Place(pair, end, False), expected, both), _groups(Place(pair, end, True), found, both)
        for group in dict.fromkeys([*was, *is_now]):
            before, after = was.get(group, []), is_now.get(group, [])
            if before != after:
                lines.append(f"  at the {end}'s end, {group}:")
                lines += [f"    {line[:SHOWN]}" for line in ndiff(before, after) if line.startswith(("-", "+"))]
    return lines


def _groups(place: Place, dialogue: Dialogue, steps: set[str]) -> dict[str, list[str]]:
    """What was said, in groups whose order counts."""
    lines = dialogue.at_client if place.end == "client" else dialogue.at_server()
    entries = Reader(neutral=place.pair.is_bridged).read(dialogue.by_step(lines))
    at_any_time = SERVERS[place.pair.name].by_the_way
    entries = [entry for entry in entries if entry.step in steps or entry.method in at_any_time]
    left = without_what_may_differ(entries, place)
    groups: dict[str, list[str]] = defaultdict(list)
    for entry in left:
        said, group = str(entry), groups[_group(place.pair, entry)]
        # That something has changed is not said again while the first message waits: over HTTP a stream may be late.
        if entry.method not in COALESCED or said not in group or place.end == "server":
            group.append(said)
    return dict(groups)


def _group(pair: Pair, entry: Entry) -> str:
    if entry.method in pair.by_the_way | SERVERS[pair.name].by_the_way:
        return f"by the way, {entry.method}"
    if entry.step == AT_ONCE:
        about = entry.body["progressToken"] if entry.method == "notifications/progress" else entry.about
        return f"{entry.step}, {about}"
    # Several that are open at once are answered in any order, and in 2026-07-28 they are asked in one message.
    if entry.method in QUESTIONS and (pair.is_bridged or entry.speaker == "client"):
        return f"{entry.step}, {entry.method}"
    return entry.step
