"""View: what is declared of a list of what runs now. What makes it is a function of one node, whose rows say the rest
(`app/cluster/node_status/questions.py`, `app/admin/_view.py`)."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class View:
    """`name` stands in paths and commands, `about` and `help` describe the route and the command; `columns` are the
    first ones of a table. `whose`: a tenant's, or of all tenants too, for platform administrators, or only for them."""

    name: str
    about: str
    columns: tuple[str, ...] = ()
    help: str = ""
    whose: Literal["tenant", "tenants", "platform"] = "tenants"


SESSIONS = View(
    "sessions",
    "The sessions of a tenant on all nodes; for platform administrators also of all tenants: `/tenants/-/sessions`.",
    (
        "id", "tenant", "backend", "subject", "client_name", "state", "idle_s", "calls", "resident_bytes",
        "cpu_percent", "opened_at", "node",
    ),
)  # fmt: skip
PROCESSES = View(
    "processes",
    """The processes of a tenant's backends on all nodes, including warm ones; for platform administrators also of all
tenants: `/tenants/-/processes`.""",
    ("id", "tenant", "backend", "state", "resident_bytes", "cpu_percent", "age_s", "session_count", "node"),
    help="list backend processes",
)
FAILURES = View(
    "failures",
    """The last failures of the tenant's backends on all nodes, newest first; for platform administrators also of all
tenants: `/tenants/-/failures`. Each node keeps ten per backend.""",
    ("at", "tenant", "backend", "kind", "detail", "times", "before_handshake", "node"),
    help="list recent failures of backends",
)
INSPECTIONS = View(
    "inspections",
    """The open inspections of a tenant's sessions on all nodes, and the last ones that have ended, newest first: who
has opened them, and why. The audit trail has all of them (`action=inspection.*`).""",
    ("id", "session", "backend", "reason", "subject", "payloads", "opened_at", "ends_at", "ending", "kept"),
    whose="tenant",
)
CALLERS = View(
    "callers",
    "How often callers have used what the entries of an `access` with limits list, over all nodes, in this minute and "
    "this day of UTC: those who have called since a node has started.",
    ("subject", "issuer", "place", "entry", "minute", "per_minute", "day", "per_day"),
    help="list how often callers have called, where that is limited",
    whose="tenant",
)
USE = View(
    "use",
    "What each active tenant uses. A node reports at most 2,000 tenants, the first in the order.",
    ("tenant",),
    help="list what each tenant uses",
    whose="platform",
)
