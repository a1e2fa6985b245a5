"""ChangePropagation: makes a change take effect on all nodes. The other nodes learn of it at once from a notice, and
within seconds from the audit trail, which also has changes by the command line and those made while Redis was away.
"""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import anyio

from app.cluster.node_status.change_effects import ChangeEffects, Identity, Key
from app.cluster.reconcile import Reconciler
from app.cluster.routing.notice import RESYNC, Kind, Notice, Once, Way
from app.domain import KEY_ISSUER, BackendSpec, Tenant
from app.errors import Disabled
from app.storage.audit import AuditEntry
from app.storage.audit_act import Act
from app.storage.audit_follower import AuditFollower

if TYPE_CHECKING:
    from app.cluster.routing.notices import Notices

COMMAND_LINE = "cli"  # the issuer of acts without a notice, because no node made them

_BACKENDS = {  # and toolsets, which are backends to everybody but administrators
    "backend.create": Kind.BACKEND_CHANGED,
    "backend.change": Kind.BACKEND_CHANGED,
    "backend.delete": Kind.BACKEND_REMOVED,
    "backend.restart": Kind.BACKEND_RESTARTED,
    "tool.approve": Kind.BACKEND_CHANGED,
    "tool.reject": Kind.BACKEND_CHANGED,
    "toolset.create": Kind.BACKEND_CHANGED,
    "toolset.change": Kind.BACKEND_CHANGED,
    "toolset.delete": Kind.BACKEND_REMOVED,
}
_TENANTS = {"tenant.change": Kind.TENANT_CHANGED, "tenant.delete": Kind.TENANT_REMOVED}
_LOOKED_UP = {  # what was removed may have been made again already
    Kind.BACKEND_CHANGED: Kind.BACKEND_CHANGED,
    Kind.BACKEND_REMOVED: Kind.BACKEND_CHANGED,
    Kind.TENANT_CHANGED: Kind.TENANT_CHANGED,
    Kind.TENANT_REMOVED: Kind.TENANT_CHANGED,
    Kind.PRINCIPAL_CHANGED: Kind.PRINCIPAL_CHANGED,
}
_WRITINGS = {f"{what}.{verb}" for what in ("guide", "recipe") for verb in ("create", "change", "delete")}
_ISSUERS = {"issuer.create", "issuer.change", "issuer.delete"}


def notice_of(act: Act) -> Notice | None:
    """The notice for an act in the audit trail; None if it does not concern the nodes."""
    _, _, name = act.target.partition("/")
    if act.action in _BACKENDS:
        return Notice(_BACKENDS[act.action], (act.tenant, name))
    if act.action in _TENANTS:
        return Notice(_TENANTS[act.action], (act.tenant,))
    if act.action in _WRITINGS:
        return Notice(Kind.WRITINGS_CHANGED, (act.tenant,))
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


class ChangePropagation:
    """Fulfils `admin.context.NodeEffects`, which says what its methods mean. `run` is a task of the node. A single node
    has no `notices`: the audit trail tells it what the command line did."""

    def __init__(
        self,
        local: ChangeEffects,
        reconciler: Reconciler,
        follower: AuditFollower,
        notices: "Notices | None" = None,
        on_leaving: Callable[[str], None] = lambda node: None,
    ) -> None:
        self._local, self._reconciler, self._follower, self._notices = local, reconciler, follower, notices
        self._on_leaving = on_leaving
        self._once = Once()

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._reconciler.run)
            tasks.start_soon(self._follower.run, self.followed, self.trail_lost)
            if self._notices is not None:
                tasks.start_soon(self._notices.run, self.heard)

    # --- done here

    def tenant_changed(self, tenant: Tenant) -> None:
        was_off = self._local.is_off(tenant.name)
        self._local.tenant_changed(tenant)
        self._done_here(Notice(Kind.TENANT_CHANGED, (tenant.name,)))
        if was_off and tenant.enabled:
            self._reconciler.came_back(tenant.name)

    def tenant_removed(self, tenant: str) -> None:
        self._local.tenant_removed(tenant)
        self._done_here(Notice(Kind.TENANT_REMOVED, (tenant,)))

    def backend_changed(self, spec: BackendSpec) -> None:
        self._local.backend_changed(spec)
        self._done_here(Notice(Kind.BACKEND_CHANGED, spec.key))

    def backend_removed(self, key: Key) -> None:
        self._local.backend_removed(key)
        self._done_here(Notice(Kind.BACKEND_REMOVED, key))

    def backend_restarted(self, key: Key) -> None:
        self._local.backend_restarted(key)
        self._done_here(Notice(Kind.BACKEND_RESTARTED, key))

    def writings_changed(self, tenant: str) -> None:
        self._local.writings_changed(tenant)
        self._done_here(Notice(Kind.WRITINGS_CHANGED, (tenant,)))

    def key_revoked(self, identity: Identity) -> None:
        self._local.key_revoked(identity)
        self._done_here(Notice(Kind.KEY_REVOKED, identity))

    def principal_changed(self, identity: Identity, off: Disabled | None) -> None:
        self._local.principal_changed(identity, off)
        self._done_here(Notice(Kind.PRINCIPAL_CHANGED, identity))

    def issuer_changed(self, tenant: str, issuer: str) -> None:
        self._local.issuer_changed(tenant, issuer)
        self._done_here(Notice(Kind.ISSUER_CHANGED, (tenant, issuer)))

    def node_leaving(self, node: str) -> None:
        """Tells the other nodes that this one stops."""
        if self._notices is not None:
            self._notices.publish(Notice(Kind.NODE_LEAVING, (node,)))

    def _done_here(self, notice: Notice) -> None:
        now = time.monotonic()
        # The entry may have been read from the trail before the request that wrote it got here.
        if not self._once.is_repeated(Way.NOTICE, notice, now):
            self._once.owe(Way.TRAIL, notice, now)
        # Looked up all the same: the answer to this change may have been late, and another one been made since.
        if (look_up := _to_look_up(notice)) is not None:
            self._reconciler.add(look_up)
        if self._notices is not None:
            self._notices.publish(notice)

    # --- done by others

    def heard(self, notice: Notice) -> None:
        """Applies a notice of another node."""
        if notice.kind is Kind.RESYNC:
            self._reconciler.add(notice)
        elif notice.kind is Kind.NODE_LEAVING:
            self._on_leaving(*notice.about)
        elif not self._once.is_repeated(Way.NOTICE, notice, time.monotonic()):
            self._once.owe(Way.TRAIL, notice, time.monotonic())
            self._carry_out(notice)

    def followed(self, entries: Sequence[AuditEntry]) -> None:
        """Applies new entries of the audit trail, whoever wrote them."""
        for entry in entries:
            notice = notice_of(entry.act)
            if notice is None or self._once.is_repeated(Way.TRAIL, notice, time.monotonic()):
                continue
            if self._notices is not None and entry.act.actor[1] != COMMAND_LINE:
                self._once.owe(Way.NOTICE, notice, time.monotonic())
            self._carry_out(notice)

    def trail_lost(self) -> None:
        """Entries may have been missed: a later change must not be taken for the repetition of an earlier one."""
        self._once.forget(Way.TRAIL)
        self.heard(RESYNC)

    def _carry_out(self, notice: Notice) -> None:
        """Ends at once what has to end; the new state is read from the database later."""
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
            case Notice(kind, (tenant,)):
                self._carry_out_of_tenant(kind, tenant)
        if (look_up := _to_look_up(notice)) is not None:
            self._reconciler.add(look_up)

    def _carry_out_of_tenant(self, kind: Kind, tenant: str) -> None:
        if kind is Kind.TENANT_REMOVED:
            self._local.tenant_removed(tenant)
        elif kind is Kind.TENANT_CHANGED:
            self._local.forget_tenant(tenant)
        elif kind is Kind.WRITINGS_CHANGED:
            self._local.writings_changed(tenant)


def _to_look_up(notice: Notice) -> Notice | None:
    kind = _LOOKED_UP.get(notice.kind)
    return None if kind is None else Notice(kind, notice.about)
