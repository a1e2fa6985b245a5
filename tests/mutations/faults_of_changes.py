"""Faults of the log of changes: the order of the audit trail, who reads it, and what follows from it on each node."""

from tests.mutations.fault import Fault

FOLLOWER = "app/storage/audit_follower.py"
FOLLOWING = ("tests/storage/test_audit_follower.py",)
ORDER = "migrations/versions/0023_order_of_the_trail.py"

FAULTS_OF_CHANGES = (
    Fault(
        "writers of the trail take no turns", ORDER, "PERFORM pg_advisory_xact_lock(TG_RELID::bigint); ", "", FOLLOWING
    ),
    Fault("a writer that stands still holds up others", ORDER, "'1s', true", "'0', true", FOLLOWING),
    Fault("a trail that was replaced is read on", FOLLOWER, " or found[: len(last)] != last", "", FOLLOWING),
    Fault("who is far behind reads some of it", FOLLOWER, "len(found) > MAX_NEW", "False", FOLLOWING),
)
