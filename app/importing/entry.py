"""Entry: one server of the file, its problems and its name."""

import re
import shlex
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.domain import is_name

MAX_NAME = 63
EXISTS = "exists already"


@dataclass(frozen=True, slots=True)
class Entry:
    """One server of the file. `members` are those of the new backend; it is created if there are no `problems`."""

    source: str
    name: str
    members: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def refused(self, *problems: str) -> "Entry":
        """The entry with more problems."""
        return replace(self, problems=(*self.problems, *problems))

    def noted(self, *notes: str) -> "Entry":
        """The entry with more notes."""
        return replace(self, notes=(*self.notes, *notes))

    @property
    def command_line(self) -> str:
        """The command to be started, for people: quoted for a shell, in printable ASCII; or the URL."""
        if self.members.get("url"):
            return ascii(self.members["url"])[1:-1]
        words = [self.members.get("command"), *self.members.get("args", ())]
        where = f" (in {self.members['cwd']})" if self.members.get("cwd") else ""
        return ascii(shlex.join(map(str, words)) + where)[1:-1] if words[0] else ""


def settle(entries: Sequence[Entry], taken: Collection[str]) -> list[Entry]:
    """Adds a problem to entries whose name is taken, or was given to an earlier entry."""
    settled, given = list[Entry](), dict[str, str]()
    for entry in entries:
        if entry.name in taken:
            settled.append(entry.refused(EXISTS))
        elif not entry.problems and entry.name in given:
            settled.append(entry.refused(f"has the same name as {given[entry.name]!a}"))
        else:
            settled.append(entry)
            if not entry.problems:
                given[entry.name] = entry.source
    return settled


def is_done(entries: Sequence[Entry]) -> bool:
    """Whether every server of the file is a backend already, or can become one."""
    return all(entry.problems in ((), (EXISTS,)) for entry in entries)


def named(source: str, name: str) -> tuple[Entry, list[str]]:
    """An entry without members, and a note if its name is not that in the file."""
    if not is_name(name):
        return Entry(source, name).refused(
            "its name contains no letter or digit that is allowed in a backend's name"
        ), []
    return Entry(source, name), [f"named {name}"] if name != source else []


def normalised(text: str) -> str:
    """A backend's name derived from this text; empty if none can be."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:MAX_NAME].rstrip("-")
