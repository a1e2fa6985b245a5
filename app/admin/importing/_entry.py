"""Entry: one server of the file, its problems and its name."""

import json
import re
import shlex
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from app.admin.importing._needs import needs
from app.domain import is_name
from app.text.credentials import hidden, hidden_in

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

    def renamed(self, name: str) -> "Entry":
        """The entry under another name, which a note says instead of the one before."""
        notes = (f"named {name}", *(note for note in self.notes if note != f"named {self.name}"))
        members = {**self.members, "name": name} if self.members else self.members
        return replace(self, name=name, members=members, notes=notes)

    @property
    def command_line(self) -> str:
        """What it becomes, for people: a command line, quoted for a shell, or a URL. In ASCII, without secrets."""
        if self.members.get("url"):
            return ascii(hidden_in(str(self.members["url"])))[1:-1]
        words = [self.members.get("command"), *hidden([str(each) for each in self.members.get("args", ())])]
        where = f" (in {self.members['cwd']})" if self.members.get("cwd") else ""
        return ascii(shlex.join(map(str, words)) + where)[1:-1] if words[0] else ""

    @property
    def needs(self) -> list[str]:
        """What its sandbox, or the rule for outgoing connections, has to let it have, as far as its definition says."""
        return needs(self.members)


def settle(entries: Sequence[Entry], taken: Collection[str]) -> list[Entry]:
    """Adds a problem to entries whose name is taken."""
    return [entry.refused(EXISTS) if entry.name in taken else entry for entry in entries]


def told_apart(entries: Sequence[Entry]) -> list[Entry]:
    """Each under a name of its own: where an earlier entry has it, with a number that makes it nobody's.

    Those with problems count, too: when they can be imported, later, all still have the same names.
    """
    taken, given, apart = {entry.name for entry in entries}, set[str](), list[Entry]()
    for entry in entries:
        name = numbered(entry.name, taken) if entry.name and entry.name in given else entry.name
        taken.add(name)
        given.add(name)
        apart.append(entry if name == entry.name else entry.renamed(name))
    return apart


def numbered(name: str, taken: Collection[str]) -> str:
    """The name with the first number from 2 with which it is not taken."""
    suffixes = (f"-{number}" for number in count(2))
    candidates = (name[: MAX_NAME - len(suffix)].rstrip("-") + suffix for suffix in suffixes)
    return next(each for each in candidates if each not in taken)


def definition(value: Any) -> str:
    """The same text for what a file says in the same way."""
    return json.dumps(value, sort_keys=True, default=str)  # TOML has dates


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
