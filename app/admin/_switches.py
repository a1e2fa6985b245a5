"""Switching objects off and on by PATCH, and who may do so."""

from dataclasses import dataclass

from app.admin.context import Access
from app.admin.schemas.fields import SwitchPatch
from app.auth.policy import is_platform_admin, may_switch
from app.domain import Scope
from app.errors import Forbidden, InvalidRequest


@dataclass(frozen=True, slots=True)
class Switch:
    """Whether something is on, and the reason if not. Only the platform switches on what is `off_by_platform`."""

    enabled: bool
    reason: str
    off_by_platform: bool = False


def switched(access: Access, now: Switch, patch: SwitchPatch) -> Switch:
    """The switch with the merge patch applied. Switching on removes the reason.

    Raises:
        InvalidRequest: a reason for what is on.
        Forbidden: the principal may not switch it, or only a platform administrator may switch it on.
    """
    enabled, reason = now.enabled, now.reason
    if "enabled" in patch.model_fields_set:
        enabled = patch.enabled is not False  # null is the default
    if "reason" in patch.model_fields_set:
        reason = patch.reason or ""
    elif enabled:
        reason = ""
    if enabled and reason:
        raise InvalidRequest("a reason goes with `enabled: false`", field="reason")
    if (enabled, reason) == (now.enabled, now.reason):
        return now
    if not may_switch(access.principal, access.tenant, off_by_platform=now.off_by_platform):
        raise Forbidden([Scope.PLATFORM_ADMIN])
    return Switch(enabled, reason, not enabled and is_platform_admin(access.principal))
