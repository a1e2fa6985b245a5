"""Entry: one server of the file and what stands in its way. How it gets its name, and when a name is taken."""

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
    """One server of the file. `members` are those of a new backend; it can be made if there are no `problems`."""

    source: str
    name: str
    members: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def refused(self, *problems: str) -> "Entry":
        """The entry with more in its way."""
        return replace(self, problems=(*self.problems, *problems))

    @property
    def command_line(self) -> str:
        """What would be started, for people: quoted as a shell would want it, and nothing unprintable."""
        words = [self.members.get("command"), *self.members.get("args", ())]
        where = f" (in {self.members['cwd']})" if self.members.get("cwd") else ""
        return ascii(shlex.join(map(str, words)) + where)[1:-1] if words[0] else ""


def settle(entries: Sequence[Entry], taken: Collection[str]) -> list[Entry]:
    """The entries with clashes of names among their problems: of two the first gets it, nobody one that is taken."""
    settled, given = list[Entry](), dict[str, str]()
    for each in entries:
        entry = each
        if entry.name in taken:
            entry = entry.refused(EXISTS)
        elif not entry.problems and entry.name in given:
            entry = entry.refused(f"has the same name as {given[entry.name]!a}")
        elif not entry.problems:
            given[entry.name] = entry.source
        settled.append(entry)
    return settled


def is_done(entries: Sequence[Entry]) -> bool:
    """Whether every server of the file is a backend, or can become one. One that is there already is done."""
    return all(entry.problems in ((), (EXISTS,)) for entry in entries)


def named(source: str, name: str) -> tuple[Entry, list[str]]:
    """An entry without members yet, and a note if its name is not what the file calls it."""
    if not is_name(name):
        return Entry(source, name).refused("its name has no letter or digit that a backend's name may have"), []
    return Entry(source, name), [f"named {name}"] if name != source else []


def normalised(text: str) -> str:
    """A backend's name made of this text; empty if nothing of it can be used."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:MAX_NAME].rstrip("-")
