"""Switching off and on by PATCH: what it makes of an object, and who may."""

from dataclasses import dataclass
from typing import Protocol

from app.admin.context import Access
from app.auth.policy import is_platform_admin, may_switch
from app.domain import Scope
from app.errors import Forbidden, InvalidRequest


class SwitchPatch(Protocol):
    """The members of a PATCH that are meant."""

    enabled: bool | None
    reason: str | None

    @property
    def model_fields_set(self) -> set[str]: ...


@dataclass(frozen=True, slots=True)
class Switch:
    """Whether something is on, and why it is not. What `off_by_platform` is, the platform switches on."""

    enabled: bool
    reason: str
    off_by_platform: bool = False


def switched(access: Access, now: Switch, patch: SwitchPatch) -> Switch:
    """The switch with the merge patch applied. On again, the reason is gone.

    Raises:
        InvalidRequest: a reason for what is on.
        Forbidden: a platform administrator has switched it off, and this is none.
    """
    enabled, reason = now.enabled, now.reason
    if "enabled" in patch.model_fields_set:
        enabled = patch.enabled is not False  # null brings the default back
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
