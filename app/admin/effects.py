"""What a change in the administration means for the node that runs: told after it is stored."""

from typing import Protocol

from app.domain import BackendSpec, Tenant
from app.errors import Disabled


class NodeEffects(Protocol):
    """Hears of stored changes. The methods start what has to be done and return at once; they do not raise."""

    def tenant_changed(self, tenant: Tenant) -> None:
        """Its limits are others now, or it is switched off, or on again."""

    def tenant_removed(self, tenant: str) -> None:
        """It is gone with its backends and keys: end its sessions and processes."""

    def backend_changed(self, spec: BackendSpec) -> None:
        """It is new, or something about it is: start nothing any more from older versions."""

    def backend_removed(self, key: tuple[str, str]) -> None:
        """It is gone: end its sessions and processes."""

    def backend_restarted(self, key: tuple[str, str]) -> None:
        """Nothing is stored, but its sessions end, and its warm processes are replaced."""

    def key_revoked(self, identity: tuple[str, str, str]) -> None:
        """Its holder is nobody any more: end the sessions. The authenticator has forgotten it already."""

    def principal_changed(self, identity: tuple[str, str, str], off: Disabled | None) -> None:
        """A key or a principal is switched `off`: end its sessions; or it is on again."""

    def issuer_changed(self, tenant: str, issuer: str) -> None:
        """It is new, changed or gone: end the sessions of its principals. The authenticator has forgotten them."""
