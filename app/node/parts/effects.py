"""What a change does, here and on the other nodes."""

from functools import partial

from app.cluster.effects import ClusterEffects
from app.cluster.reconcile import Reconciler
from app.node.parts.credentials import Credentials
from app.node.parts.membership import Membership, node_leaves
from app.node.parts.processes import Processes
from app.node.parts.records import Records
from app.node.parts.routes import Routes
from app.node.parts.sessions import Sessions
from app.this_node.effects import LocalEffects


def make_effects(
    records: Records,
    credentials: Credentials,
    processes: Processes,
    routes: Routes,
    sessions: Sessions,
    membership: Membership,
) -> ClusterEffects:
    """Changes come from the REST API, from other nodes, and from the trail of what was changed."""
    local = LocalEffects(
        credentials.authenticator,
        sessions.directory,
        processes.pool,
        sessions.registry,
        sessions.implicit,
        records.tenants_off,
    )
    settling = Reconciler(local, records.backends, records.tenants, records.keys, records.issuers, records.switches)
    leaves = partial(node_leaves, routes=routes, membership=membership)
    return ClusterEffects(local, settling, records.trail, routes.routing.notices, leaves)
