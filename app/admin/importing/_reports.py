"""Reports of an import: what was done with each server of the file, or would be."""

import json
from collections.abc import Sequence
from typing import Any

from app.admin.importing._entry import Entry
from app.text.credentials import hidden


def report(entries: Sequence[Entry], *, applied: bool) -> str:
    """For people: one line per entry."""
    lines = [
        f"{_outcome(entry, applied=applied):<12}  {entry.name or ascii(entry.source)[1:-1]:<20}  "
        + "; ".join([*(entry.problems or [entry.command_line]), *entry.notes, *_needs(entry)])
        for entry in entries
    ]
    return "\n".join(lines or ["the list of servers is empty"])


def report_json(entries: Sequence[Entry], *, applied: bool) -> str:
    """As JSON; with the names of variables, but without their values and other secrets."""
    shown = [
        {
            "outcome": _outcome(entry, applied=applied).replace(" ", "_"),
            "source": entry.source,
            "name": entry.name,
            "command": entry.members.get("command"),
            "args": _shown(entry.members.get("args", [])),
            "cwd": entry.members.get("cwd"),
            "env": sorted(entry.members.get("env") or ()),
            "url": next(iter(_shown([entry.members.get("url")]))),
            "headers": sorted(entry.members.get("headers") or ()),
            "enabled": entry.members.get("enabled"),
            "needs": entry.needs,
            "problems": entry.problems,
            "notes": entry.notes,
        }
        for entry in entries
    ]
    return json.dumps(shown, indent=2)


def _shown(words: Any) -> Any:
    """Without secrets. What is no list of texts is shown as it is: it is refused."""
    are_texts = isinstance(words, list) and all(isinstance(each, str) for each in words)
    return list(hidden(words)) if are_texts else words


def _needs(entry: Entry) -> list[str]:
    return [f"needs {', '.join(entry.needs)}"] if entry.needs and not entry.problems else []


def _outcome(entry: Entry, *, applied: bool) -> str:
    if applied:
        return "skipped" if entry.problems else "created"
    return "would skip" if entry.problems else "would create"
