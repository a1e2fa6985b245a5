"""Denials: what its limits and its sandbox have denied one process since its start, counted, and the last few. Bounded.

Nothing watches its system calls: known is what the kernel counts (forks beyond `limits.pids`, kills for want of
memory), what the egress proxy refuses, and what the program itself says when a call fails.
"""

import re
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Literal, get_args

Kind = Literal["file", "address", "pids", "memory", "files", "disk"]
KINDS: tuple[Kind, ...] = get_args(Kind)

KEPT = 20  # of one process
MAX_WHAT = 200  # characters
SAID_BYTES = 8 << 10  # of a failed answer, and of stderr
_MOST_SAID = 5  # in one text
_NEAR = 200  # bytes around the words, where what they are about stands
# What the C library, Python, Node, Go, Java and shells say. Where words go on, they are somebody's own: a database's of
# a table, or a server's of a user.
_words = re.compile(
    rb"(?:(?P<file>\b(?:EROFS|EACCES|EPERM)\b|[Rr]ead-only file system|[Pp]ermission denied|"
    rb"[Oo]peration not permitted)|"
    rb"(?P<address>\b(?:ECONNREFUSED|ENETUNREACH|EHOSTUNREACH|EAI_AGAIN|ENOTFOUND)\b|[Cc]onnection refused|"
    rb"\bfetch failed|[Nn]etwork is unreachable|[Tt]emporary failure in name resolution|[Nn]ame or service not known)|"
    rb"(?P<files>\bEMFILE\b|[Tt]oo many open files)|"
    rb"(?P<disk>\b(?:ENOSPC|EFBIG|EDQUOT)\b|[Nn]o space left on device|[Ff]ile too large))(?:(?<=[A-Z])|(?! +\w))"
).finditer
_path = re.compile(rb"(?<![\w./:])/[^\s\"'`\\<>(),:;]{1,150}")
_address = re.compile(
    rb"(?<![\w.:/])((?:\d{1,3}\.){3}\d{1,3}|\[[0-9a-f:]{2,39}\]|localhost|(?:[a-z0-9-]{1,63}\.){1,8}[a-z]{2,20})"
    rb"(?:(?::|\\?\", port |', port )(\d{1,5}))?(?!\w|\.\w)"
)


@dataclass(frozen=True, slots=True)
class Denial:
    """One thing that was denied. `what`: a path, an address, or which limit was reached; safe to show."""

    kind: Kind
    what: str
    at: datetime


class Denials:
    """Of one process. `printable`: makes a text of the process safe to show, without its secrets."""

    def __init__(
        self, printable: Callable[[bytes], str], now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._printable, self._now = printable, now
        self._last = deque[Denial](maxlen=KEPT)
        self._count = self._notes = self._taken = 0
        self._untold = Counter[Kind]()
        self._counted = Counter[Kind]()

    @property
    def count(self) -> int:
        """Of all kinds."""
        return self._count

    @property
    def last(self) -> Sequence[Denial]:
        """The last ones, oldest first."""
        return tuple(self._last)

    def take_last(self) -> Sequence[Denial]:
        """Those of the last ones that nobody has taken."""
        taken, self._taken = self._taken, self._notes
        return tuple(self._last)[max(0, len(self._last) - (self._notes - taken)) :]

    def note(self, kind: Kind, what: str | bytes, times: int = 1) -> None:
        text = what if isinstance(what, str) else self._printable(what)
        self._last.append(Denial(kind, text[:MAX_WHAT], self._now()))
        self._notes += 1
        self._count += times
        self._untold[kind] += times

    def counted(self, kind: Kind, what: str, total: int) -> None:
        """What the kernel has counted since the start of the process."""
        if (new := total - self._counted[kind]) > 0:
            self._counted[kind] = total
            self.note(kind, what, new)

    def said(self, text: bytes, reached: Collection[str] | None = ()) -> None:
        """What a program says of a call that has failed. `reached`: addresses that are not kept from it; None: all."""
        for kind, what in islice(dict.fromkeys(denied_by(text[:SAID_BYTES])), _MOST_SAID):
            if kind != "address" or not (reached is None or what.decode("ascii") in reached):
                self.note(kind, what)

    def take_new(self) -> Counter[Kind]:
        """Those that nobody has counted yet."""
        new, self._untold = self._untold, Counter()
        return new


def said_of(denials: Sequence[Denial]) -> list[str]:
    """For the log."""
    return [f"{each.kind}: {each.what}" for each in denials]


def denied_by(text: bytes) -> Iterator[tuple[Kind, bytes]]:
    """What these words complain of. The name stands behind them (Python, Node) or before (C, Go, Java)."""
    for match in _words(text):
        kind = _kind(match)
        before = _line(text[max(0, match.start() - _NEAR) : match.start()], -1)
        behind = _line(text[match.end() : match.end() + _NEAR], 0)
        found = _nearest(_address if kind == "address" else _path, before, behind)
        if kind == "file" and found is None and (address := _nearest(_address, before, behind)) and address[2]:
            yield "address", _named(address)  # connect() and socket() in tier 1
        else:
            yield kind, match[0] if found is None else _named(found)


def _kind(match: re.Match[bytes]) -> Kind:
    return next(kind for kind in KINDS if match.groupdict().get(kind) is not None)


def _nearest(pattern: re.Pattern[bytes], before: bytes, behind: bytes) -> re.Match[bytes] | None:
    return pattern.search(behind) or next(reversed([*pattern.finditer(before)]), None)


def _line(text: bytes, which: int) -> bytes:
    """The nearest line; in JSON its end is escaped."""
    return text.replace(b"\\n", b"\n").split(b"\n")[which]


def _named(match: re.Match[bytes]) -> bytes:
    if match.re is _path:
        return match[0].rstrip(b".")
    return b":".join(each for each in match.groups() if each)
