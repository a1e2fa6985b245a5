"""The REST API on a real SQLite file, without a gateway: what the tests of this folder talk to."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2
from fastapi import FastAPI

from app.admin.context import AdminContext
from app.admin.router import build_router
from app.auth import ApiKeys, Authenticator, KeyMaker
from app.domain import BackendSpec, Tenant
from app.http import health, problems
from app.metrics import Metrics
from app.storage import ApiKey, ApiKeyRepository, BackendRepository, Database, TenantRepository
from app.storage.migrate import upgrade


@dataclass
class Effects:
    """Keeps what a node would have been told."""

    heard: list[tuple[str, Any]] = field(default_factory=list)

    def tenant_changed(self, tenant: Tenant) -> None:
        self.heard.append(("tenant_changed", tenant))

    def tenant_removed(self, tenant: str) -> None:
        self.heard.append(("tenant_removed", tenant))

    def backend_changed(self, spec: BackendSpec) -> None:
        self.heard.append(("backend_changed", spec))

    def backend_removed(self, key: tuple[str, str]) -> None:
        self.heard.append(("backend_removed", key))

    def key_revoked(self, identity: tuple[str, str, str]) -> None:
        self.heard.append(("key_revoked", identity))


@dataclass
class Ready:
    """A node's parts, as they are set."""

    parts: dict[str, str] = field(default_factory=lambda: {"database": "ok"})

    async def check(self) -> dict[str, str]:
        return self.parts


def build_app() -> FastAPI:
    """The application without its state: enough for its OpenAPI document."""
    app = FastAPI(openapi_url="/api/v1/openapi.json", docs_url="/api/docs", redirect_slashes=False)
    problems.install(app)
    app.include_router(build_router())
    app.include_router(health.router)
    return app


@dataclass
class Rig:
    """An API with a key of every kind."""

    app: FastAPI
    admin: AdminContext
    effects: Effects
    ready: Ready
    root: str = ""

    async def key(self, tenant: str, *scopes: str) -> str:
        """Makes a key; returns its text."""
        new = self.admin.key_maker.make()
        record = ApiKey(new.id, tenant, "", new.digest, 1, frozenset(scopes), datetime.now(UTC))
        await self.admin.keys.create(tenant, record)
        return new.text

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        key: str | None = None,
        content: bytes | None = None,
        headers: dict[str, str] | None = None,
        client: tuple[str, int] = ("127.0.0.1", 1234),
    ) -> httpx2.Response:
        """One request, by the platform administrator unless a key is given ("" is none)."""
        sent = {"Authorization": f"Bearer {self.root if key is None else key}"} if key != "" else {}
        if body is not None or content is not None:
            sent["Content-Type"] = "application/json"
            content = content if content is not None else json.dumps(body).encode()
        transport = httpx2.ASGITransport(self.app, raise_app_exceptions=False, client=client)
        async with httpx2.AsyncClient(transport=transport, base_url="http://gateway") as http:
            return await http.request(method, path, content=content, headers={**sent, **(headers or {})})


@cache
def _migrated() -> bytes:
    """A fresh database; migrating once is enough for all."""
    with TemporaryDirectory() as folder:
        upgrade(f"sqlite:///{folder}/test.db")
        return Path(folder, "test.db").read_bytes()


@asynccontextmanager
async def open_rig(folder: Path) -> AsyncIterator[Rig]:
    """Tenants acme and zenith, each with a backend `echo`."""
    url = f"sqlite:///{folder}/test.db"
    (folder / "test.db").write_bytes(_migrated())
    database, metrics, maker, effects = Database(url), Metrics("test"), KeyMaker(b"s" * 32), Effects()
    keys = ApiKeyRepository(database)
    authenticator = Authenticator(ApiKeys(keys, maker), metrics.auth_failures)
    tenants, backends = TenantRepository(database), BackendRepository(database)
    app, ready = build_app(), Ready()
    context = AdminContext(tenants, backends, keys, maker, authenticator, effects, lambda: datetime.now(UTC))
    app.state.admin = context
    app.state.health = health.Health(ready, metrics.registry)
    for name in ("acme", "zenith"):
        await tenants.create(Tenant(name))
        await backends.create(name, BackendSpec(name, "echo", "/bin/cat", env={"TOKEN": "s3cret"}))
    rig = Rig(app, context, effects, ready)
    rig.root = await rig.key("default", "platform:admin")
    try:
        yield rig
    finally:
        await database.aclose()
