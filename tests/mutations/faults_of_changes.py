"""Faults of the log of changes: the order of the audit trail, who reads it, and what follows from it on each node."""

from tests.mutations.fault import Fault

FOLLOWER = "app/storage/audit_follower.py"
FOLLOWING = ("tests/storage/test_audit_follower.py",)
CHANGES, CHANGING = "app/cluster/changes.py", ("tests/cluster/test_changes.py",)
RECONCILE, COMPARING = "app/cluster/reconcile.py", ("tests/cluster/test_reconcile.py",)
EFFECTS = "app/cluster/node_status/change_effects.py"
ORDER = "migrations/versions/0023_order_of_the_trail.py"

FAULTS_OF_CHANGES = (
    Fault(
        "writers of the trail take no turns", ORDER, "PERFORM pg_advisory_xact_lock(TG_RELID::bigint); ", "", FOLLOWING
    ),
    Fault("a writer that stands still holds up others", ORDER, "'2s', true", "'0', true", FOLLOWING),
    Fault("a trail that was replaced is read on", FOLLOWER, "found[: len(last)] == last", "True", FOLLOWING),
    Fault("who is far behind reads some of it", CHANGES, "while self._follower.is_behind", "while False", CHANGING),
    Fault(
        "a row that cannot be read is read again for ever",
        FOLLOWER,
        "began, last, self._last = self._clock(), self._last, None",
        "began, last = self._clock(), self._last",
        FOLLOWING,
    ),
    Fault(
        "rows are lost while the database is away",
        FOLLOWER,
        "            self._last = last\n            raise",
        "            raise",
        FOLLOWING,
    ),
    Fault(
        "what is committed here waits for its second",
        CHANGES,
        "                await self.look()\n\n    def look_soon",
        "                self.look_soon()\n\n    def look_soon",
        CHANGING,
    ),
    Fault("nobody else hears of what was committed", CHANGES, "self._notices.say_look()", "pass", CHANGING),
    Fault("a notice waits for the next second", CHANGES, "        self._must_look.set()", "        pass", CHANGING),
    Fault("nodes look every five seconds", CHANGES, "LOOK_EVERY_S = 1.0", "LOOK_EVERY_S = 5.0", CHANGING),
    Fault("what is due is believed until it was compared", CHANGES, "self._local.doubt(affected)", "pass", CHANGING),
    Fault(
        "after a bug in what ends at once nothing more is done",
        CHANGES,
        "                self._due[EVERYTHING] = False",
        "                pass",
        CHANGING,
    ),
    Fault(
        "what could not be compared is forgotten",
        CHANGES,
        "                waiting[affected] = True",
        "                pass",
        CHANGING,
    ),
    Fault(
        "what is new waits for a comparison of everything",
        CHANGES,
        "self._compare(self._doubtful, most=1)",
        "self._compare(self._doubtful)",
        CHANGING,
    ),
    Fault("however much is due, it is kept", CHANGES, "len(self._due) + len(acts) > MAX_DUE", "False", CHANGING),
    Fault(
        "two comparisons at a time", CHANGES, "self._turn = anyio.Lock()", "self._turn = anyio.Semaphore(9)", CHANGING
    ),
    Fault(
        "who has lost the place goes on as if nothing was missed",
        CHANGES,
        "if acts is None or",
        "if acts is not None and",
        CHANGING,
    ),
    Fault(
        "a tenant that was made again keeps the sessions of the one before",
        EFFECTS,
        "                self.tenant_removed(tenant)",
        "                pass",
        CHANGING,
    ),
    Fault("a revoked key is not ended", RECONCILE, "self._local.key_revoked(identity)", "pass", COMPARING),
    Fault(
        "a tenant counts as switched on before what it keeps warm is known",
        RECONCILE,
        "        warm = await self._backends.list_warm(name)  # they were stopped if it was switched off\n        self._local.tenant_changed(tenant)\n",
        "        self._local.tenant_changed(tenant)\n        warm = await self._backends.list_warm(name)\n",
        COMPARING,
    ),
    Fault(
        "without an answer of the database everything is forgotten",
        RECONCILE,
        "        warm = {spec.key for spec in await self._backends.list_warm()}\n",
        "        self._local.forget_everything()\n        warm = {spec.key for spec in await self._backends.list_warm()}\n",
        COMPARING,
    ),
    Fault(
        "a node hears its own notices",
        "app/cluster/routing/notices.py",
        "!= self._node.encode():",
        "!= b'':",
        ("tests/cluster/routing/test_notices.py",),
    ),
    Fault(
        "anybody may say that a node leaves",
        "app/cluster/routing/notices.py",
        "node = self._seal.open(sealed, STREAM).decode()",
        "node = sealed.decode('ascii', 'replace')",
        ("tests/cluster/routing/test_notices.py",),
    ),
    Fault(
        "wiring: a commit is told to nobody",
        "app/node/gateway.py",
        "        records.database.after_commits(changes.committed)\n",
        "",
        ("tests/node/test_gateway_wiring.py::test_what_is_committed_has_taken_effect_here",),
    ),
)
