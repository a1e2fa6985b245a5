"""Where the catalogue is kept, for all nodes."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from app.storage.audit import Act
from app.storage.tools.approvals import Approval, Approvals, Judgement
from app.storage.tools.catalog import CatalogRow


class CatalogStore(Protocol):
    """The catalogue of all nodes (CatalogRepository)."""

    async def get(self, tenant: str, backends: Collection[str]) -> Mapping[str, CatalogRow]: ...

    async def backends(self, tenant: str) -> Sequence[str]: ...

    async def put(
        self, tenant: str, backend: str, definition: str, offer: bytes, judgement: Judgement, now: datetime
    ) -> None: ...


class ApprovalStore(Protocol):
    """What persons have approved (ApprovalRepository)."""

    async def get(self, tenant: str, backend: str) -> Approvals: ...

    async def put(
        self, tenant: str, backend: str, changed: Sequence[Approval], judgement: Judgement, *, act: Act | None = None
    ) -> None: ...
