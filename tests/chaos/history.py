"""What happened, record by record: what clients asked and got, what backends did, which fault struck when.

A history is a directory: `history.jsonl`, written by the clients and by whoever makes the faults, and a `*.journal` of
each backend process (tests/servers/witness.py). All times are of one clock, time.monotonic().
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

# --- what clients saw


@dataclass(frozen=True)
class Opened:
    """A session that a client knows of; `kind` is respawn, end or sse. Its name is what its backend is told."""

    session: str
    principal: str
    tenant: str
    kind: str
    at: float


@dataclass(frozen=True)
class NotOpened:
    """An `initialize` that opened no session that its client would know of."""

    principal: str
    tenant: str
    node: int
    began: float
    ended: float
    status: int
    reason: str


@dataclass(frozen=True)
class Closed:
    """Its own client ended it, or let it go."""

    session: str
    at: float


@dataclass(frozen=True)
class Call:
    """One tools/call. `outcome`: answered, error (JSON-RPC, whatever the HTTP status), refused (HTTP), unknown."""

    call: str
    session: str
    principal: str
    node: int  # where it was sent
    began: float
    ended: float
    outcome: str
    status: int = 0
    reason: str = ""
    process: str = ""  # what the answer says
    whose: str = ""
    answers: str = ""  # the call that the answer names


@dataclass(frozen=True)
class Listened:
    """A GET for a stream of a session, or its resumption; status 0: it broke before it was answered."""

    session: str
    principal: str
    node: int
    began: float
    answered: float
    status: int
    after: str = ""  # Last-Event-ID


@dataclass(frozen=True)
class Heard:
    """A numbered message of a backend, as it came to a client."""

    session: str
    process: str
    number: int
    whose: str
    sent_at: float
    at: float
    stream: str  # "listen", or the call on whose stream it came
    event_id: str = ""


@dataclass(frozen=True)
class Asked:
    """Somebody used the id of another's session; `status` is what it got."""

    session: str
    principal: str
    at: float
    status: int
    call: str = ""


# --- what backends did


@dataclass(frozen=True)
class Initialised:
    process: str
    place: int  # of its node
    whose: str
    at: float


@dataclass(frozen=True)
class Executed:
    process: str
    call: str
    at: float


@dataclass(frozen=True)
class Sent:
    process: str
    number: int
    at: float


# --- what was done to them


@dataclass(frozen=True)
class Node:
    """One run of a node, in a place of several."""

    place: int
    pid: int
    at: float


@dataclass(frozen=True)
class Fault:
    """`part`: node, redis, or a line of a node (redis-line, database-line, peer-line, client-line)."""

    part: str
    place: int  # of the node; -1 for Redis
    what: str
    began: float
    ended: float


@dataclass(frozen=True)
class Revoked:
    """The key of a principal; `answered` is when somebody was told that it is done."""

    principal: str
    node: int
    asked: float
    answered: float


@dataclass(frozen=True)
class Beat:
    """An answer of /livez (status 0: none). `late` is how late the asking program itself was meanwhile."""

    node: int
    at: float
    seconds: float
    status: int
    late: float


@dataclass(frozen=True)
class Healed:
    """All faults are over; from here on everything has to become well."""

    at: float


@dataclass(frozen=True)
class Ended:
    """Clients stop to look."""

    at: float


@dataclass(frozen=True)
class Finding:
    """What was looked at in the end, in the world and not in the history; empty trouble is none."""

    what: str
    trouble: str


KINDS: dict[str, type[Any]] = {
    each.__name__: each
    for each in (
        *(Opened, NotOpened, Closed, Call, Listened, Heard, Asked, Initialised, Executed, Sent, Node, Fault, Revoked),
        *(Beat, Healed, Ended, Finding),
    )
}
T = TypeVar("T")
FOREVER = float("inf")


class History:
    """All records, in the order in which they were made."""

    def __init__(self, records: list[Any] | None = None) -> None:
        self.records: list[Any] = list(records or [])

    def of(self, kind: type[T]) -> list[T]:
        return [record for record in self.records if isinstance(record, kind)]

    @classmethod
    def load(cls, directory: Path) -> Self:
        """The history and the journals of a directory."""
        records = []
        for file in [directory / "history.jsonl", *sorted(directory.glob("journals/*.journal"))]:
            written, _, _ = file.read_text().rpartition("\n")  # a killed process may have left half a line
            records += [_record(json.loads(line)) for line in written.splitlines()]
        return cls(records)


def _record(fields: dict[str, Any]) -> Any:
    return KINDS[fields.pop("record")](**fields)


class Writer:
    """Keeps a history on disk as it happens."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "journals").mkdir(parents=True)
        self._file = (directory / "history.jsonl").open("a", buffering=1)

    @property
    def journals(self) -> Path:
        return self.directory / "journals"

    def add(self, record: Any) -> None:
        self._file.write(json.dumps({"record": type(record).__name__, **dataclasses.asdict(record)}) + "\n")

    def close(self) -> None:
        self._file.close()
