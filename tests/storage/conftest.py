"""A migrated database, SQLite and PostgreSQL in turn, and the repositories on it."""

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pytest

from app.domain import ApiKey, BackendSpec, ProcessLimits, Sandbox, Tenant, Timeouts
from app.storage.access.api_keys import ApiKeyRepository
from app.storage.backends import BackendRepository
from app.storage.engine import Database
from app.storage.tenants import TenantRepository
from tests.databases import SEALER, migrate
from tests.postgres import empty


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return migrate(f"sqlite:///{tmp_path}/test.db")


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(dialect: str, request: pytest.FixtureRequest) -> str:
    if dialect == "sqlite":
        return str(request.getfixturevalue("sqlite_url"))
    url = str(request.getfixturevalue("postgres_database"))
    empty(url)
    return url


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    database = Database(url)
    yield database
    await database.aclose()


@pytest.fixture
async def tenants(database: Database) -> TenantRepository:
    repository = TenantRepository(database)
    for name in ("acme", "zenith"):
        await repository.create(Tenant(name))
    return repository


@pytest.fixture
def backends(database: Database, tenants: TenantRepository) -> BackendRepository:
    return BackendRepository(database, SEALER)


@pytest.fixture
def keys(database: Database, tenants: TenantRepository) -> ApiKeyRepository:
    return ApiKeyRepository(database)


@pytest.fixture
def spec() -> BackendSpec:
    return BackendSpec(
        "acme",
        "echo",
        "/bin/echo",
        ("-n", "hällo", ""),
        {"TOKEN": "secret", "EMPTY": ""},
        warm=2,
        timeouts=Timeouts(call_s=0.5),
        sandbox=Sandbox("require", ("files", "pids"), ("/srv/ä",), ("/srv/out",), "web"),
        limits=ProcessLimits(memory_mb=None, cpu=0.25),
    )


@pytest.fixture
def make_key() -> Callable[..., ApiKey]:
    numbers = count(1)

    def make(tenant: str) -> ApiKey:
        created_at = datetime(2026, 1, 1, tzinfo=UTC)
        return ApiKey(f"key{next(numbers):05}", tenant, "a key", b"d" * 32, 1, frozenset({"mcp:connect"}), created_at)

    return make
