"""ClusterEffects: a change takes effect on every node, whichever made it. Two ways lead to the others: a notice, at
once; and the audit trail, within seconds, also of what was done by a command line or while Redis was away.
"""

import time
from collections.abc import Callable, Sequence

import anyio

from app.cluster.reconcile import Reconciler
from app.domain import KEY_ISSUER, BackendSpec, Tenant
from app.errors import Disabled
from app.routing.notice import RESYNC, Kind, Notice, Once, Way
from app.routing.notices import Notices
from app.storage.audit import AuditEntry
from app.storage.audit_act import Act
from app.storage.audit_follower import AuditFollower
from app.this_node.effects import Identity, Key, LocalEffects

COMMAND_LINE = "cli"  # the issuer of acts that no node has made: no notice speaks of them

_BACKENDS = {
    "backend.create": Kind.BACKEND_CHANGED,
    "backend.change": Kind.BACKEND_CHANGED,
    "backend.delete": Kind.BACKEND_REMOVED,
    "backend.restart": Kind.BACKEND_RESTARTED,
}
_TENANTS = {"tenant.change": Kind.TENANT_CHANGED, "tenant.delete": Kind.TENANT_REMOVED}
_LOOKED_UP = {Kind.BACKEND_CHANGED, Kind.TENANT_CHANGED, Kind.PRINCIPAL_CHANGED}
_ISSUERS = {"issuer.create", "issuer.change", "issuer.delete"}


def notice_of(act: Act) -> Notice | None:
    """What an act means for the nodes; None if nothing."""
    _, _, name = act.target.partition("/")
    if act.action in _BACKENDS:
        return Notice(_BACKENDS[act.action], (act.tenant, name))
    if act.action in _TENANTS:
        return Notice(_TENANTS[act.action], (act.tenant,))
    if act.action in _ISSUERS:
        return Notice(Kind.ISSUER_CHANGED, (act.tenant, act.detail))
    if act.action == "key.change":
        return Notice(Kind.PRINCIPAL_CHANGED, (act.tenant, KEY_ISSUER, name))
    if act.action == "principal.change":
        issuer, _, subject = act.detail.partition(" ")
        return Notice(Kind.PRINCIPAL_CHANGED, (act.tenant, issuer, subject))
    if act.action == "key.revoke":
        return Notice(Kind.KEY_REVOKED, (act.tenant, KEY_ISSUER, name))
    return None


class ClusterEffects:
    """Tells this node and the others (fulfils `admin.context.NodeEffects`). `run` runs in a task of the node.

    Without `notices` the trail is the only way, which is enough for one node and its command line.
    """

    def __init__(
        self,
        local: LocalEffects,
        settling: Reconciler,
        follower: AuditFollower,
        notices: Notices | None = None,
        on_leaving: Callable[[str], None] = lambda node: None,
    ) -> None:
        self._local, self._settling, self._follower, self._notices = local, settling, follower, notices
        self._on_leaving = on_leaving
        self._once = Once()

    async def run(self) -> None:
        """Hears and follows until it is cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._settling.run)
            tasks.start_soon(self._follower.run, self.followed, self.trail_lost)
            if self._notices is not None:
                tasks.start_soon(self._notices.run, self.heard)

    # --- done here

    def tenant_changed(self, tenant: Tenant) -> None:
        """New sessions get the new limits; those of a tenant that is switched off end."""
        was_off = self._local.is_off(tenant.name)
        self._local.tenant_changed(tenant)
        self._done_here(Notice(Kind.TENANT_CHANGED, (tenant.name,)))
        if was_off and tenant.enabled:
            self._settling.came_back(tenant.name)

    def tenant_removed(self, tenant: str) -> None:
        """Everything of it ends."""
        self._local.tenant_removed(tenant)
        self._done_here(Notice(Kind.TENANT_REMOVED, (tenant,)))

    def backend_changed(self, spec: BackendSpec) -> None:
        """New sessions get the new backend; those of a disabled one end."""
        self._local.backend_changed(spec)
        self._done_here(Notice(Kind.BACKEND_CHANGED, spec.key))

    def backend_removed(self, key: Key) -> None:
        """Its sessions end and its processes stop."""
        self._local.backend_removed(key)
        self._done_here(Notice(Kind.BACKEND_REMOVED, key))

    def backend_restarted(self, key: Key) -> None:
        """Its sessions end, and what is warm is replaced."""
        self._local.backend_restarted(key)
        self._done_here(Notice(Kind.BACKEND_RESTARTED, key))

    def key_revoked(self, identity: Identity) -> None:
        """The key's sessions end, and its next request is refused."""
        self._local.key_revoked(identity)
        self._done_here(Notice(Kind.KEY_REVOKED, identity))

    def principal_changed(self, identity: Identity, off: Disabled | None) -> None:
        """A key or a principal was switched off, or on again."""
        self._local.principal_changed(identity, off)
        self._done_here(Notice(Kind.PRINCIPAL_CHANGED, identity))

    def issuer_changed(self, tenant: str, issuer: str) -> None:
        """The sessions of its principals end, and their next requests are looked at anew."""
        self._local.issuer_changed(tenant, issuer)
        self._done_here(Notice(Kind.ISSUER_CHANGED, (tenant, issuer)))

    def node_leaving(self, node: str) -> None:
        """This node stops: the others need not wait for its lease to lapse."""
        if self._notices is not None:
            self._notices.publish(Notice(Kind.NODE_LEAVING, (node,)))

    def _done_here(self, notice: Notice) -> None:
        now = time.monotonic()
        # The trail may have been quicker than the request that wrote it.
        if not self._once.is_repeated(Way.NOTICE, notice, now):
            self._once.owe(Way.TRAIL, notice, now)
        self._settling.supersede(_settled_as(notice))
        if self._notices is not None:
            self._notices.publish(notice)

    # --- done elsewhere

    def heard(self, notice: Notice) -> None:
        """Another node says this."""
        if notice.kind is Kind.RESYNC:
            self._settling.add(notice)
        elif notice.kind is Kind.NODE_LEAVING:
            self._on_leaving(*notice.about)
        elif not self._once.is_repeated(Way.NOTICE, notice, time.monotonic()):
            self._once.owe(Way.TRAIL, notice, time.monotonic())
            self._carry_out(notice)

    def followed(self, entries: Sequence[AuditEntry]) -> None:
        """The trail has these new entries, of whichever node or process."""
        for entry in entries:
            notice = notice_of(entry.act)
            if notice is None or self._once.is_repeated(Way.TRAIL, notice, time.monotonic()):
                continue
            if self._notices is not None and entry.act.actor[1] != COMMAND_LINE:
                self._once.owe(Way.NOTICE, notice, time.monotonic())
            self._carry_out(notice)

    def trail_lost(self) -> None:
        """Some entries may never come: what they owed would be taken for a later change, and that left out."""
        self._once.forget(Way.TRAIL)
        self.heard(RESYNC)

    def _carry_out(self, notice: Notice) -> None:
        """What ends something is done at once; what something has become is read from the database."""
        match notice:
            case Notice(Kind.KEY_REVOKED, (tenant, issuer, subject)):
                self._local.key_revoked((tenant, issuer, subject))
            case Notice(Kind.PRINCIPAL_CHANGED, (tenant, issuer, subject)):
                self._local.forget_principal((tenant, issuer, subject))
            case Notice(Kind.ISSUER_CHANGED, (tenant, issuer)):
                self._local.issuer_changed(tenant, issuer)
            case Notice(Kind.BACKEND_RESTARTED, (tenant, name)):
                self._local.backend_restarted((tenant, name))
            case Notice(Kind.BACKEND_REMOVED, (tenant, name)):
                self._local.backend_removed((tenant, name))
            case Notice(Kind.BACKEND_CHANGED, (tenant, name)):
                self._local.forget_backend((tenant, name))
            case Notice(Kind.TENANT_REMOVED, (tenant,)):
                self._local.tenant_removed(tenant)
            case Notice(Kind.TENANT_CHANGED, (tenant,)):
                self._local.forget_tenant(tenant)
        if _settled_as(notice) != notice or notice.kind in _LOOKED_UP:
            self._settling.add(_settled_as(notice))


def _settled_as(notice: Notice) -> Notice:
    """What is to be looked up after it: what was removed may be there again, made by whoever was quicker."""
    if notice.kind in (Kind.BACKEND_CHANGED, Kind.BACKEND_REMOVED):
        return Notice(Kind.BACKEND_CHANGED, notice.about)
    if notice.kind in (Kind.TENANT_CHANGED, Kind.TENANT_REMOVED):
        return Notice(Kind.TENANT_CHANGED, notice.about)
    return notice
