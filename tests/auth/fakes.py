"""A store of keys in a dictionary."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import anyio

from app.auth.api_keys import KeyMaker
from app.domain import ApiKey
from app.errors import StorageUnavailable

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Record(ApiKey):
    id: str = ""
    tenant: str = "acme"
    name: str = ""
    digest: bytes = b""
    pepper_version: int = 1
    scopes: frozenset[str] = frozenset({"mcp:connect"})
    created_at: datetime = NOW


@dataclass
class FakeStore:
    records: dict[str, Record] = field(default_factory=dict)
    touched: dict[tuple[str, str], datetime] = field(default_factory=dict)
    lookups: int = 0
    is_down: bool = False
    gate: anyio.Event | None = None

    async def find(self, key_id: str) -> Record | None:
        self.lookups += 1
        if self.is_down:
            raise StorageUnavailable
        found = self.records.get(key_id)
        if self.gate is not None:
            await self.gate.wait()
        return found

    async def touch(self, used: Mapping[tuple[str, str], datetime]) -> None:
        if self.is_down:
            raise StorageUnavailable
        self.touched.update(used)

    def add(self, maker: KeyMaker, **changes: object) -> str:
        """Makes a key of tenant acme; returns its text."""
        new = maker.make()
        self.records[new.id] = replace(Record(digest=new.digest), **changes)  # type: ignore[arg-type]
        return new.text
