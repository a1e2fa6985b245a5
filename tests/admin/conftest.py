"""One API for each test, or one for many; on SQLite, and what depends on the database on PostgreSQL as well."""

from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.admin.rig import Rig, filled_file, open_rig
from tests.postgres import empty, new_database

HERE = Path(__file__).parent

# Where the answer is made by the database: transactions, constraints, order, times. All others on both with --long;
# the repositories are tested on both in tests/storage.
ON_BOTH = {"test_audit", "test_switches", "test_conditions", "test_idempotency", "test_live", "test_tenants"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        callspec = getattr(item, "callspec", None)
        is_second = callspec is not None and callspec.params.get("dialect") == "postgresql"
        if is_second and item.path.is_relative_to(HERE) and item.path.stem not in ON_BOTH:
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(dialect: str, request: pytest.FixtureRequest) -> str:
    """A database for a rig: on PostgreSQL an empty one."""
    if dialect == "sqlite":
        return _filled(request.getfixturevalue("tmp_path"))
    url = str(request.getfixturevalue("postgres_database"))
    empty(url)
    return url


@pytest.fixture(scope="module")
def url_for_many(dialect: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """Another one, for a whole file."""
    if dialect == "sqlite":
        yield _filled(request.getfixturevalue("tmp_path_factory").mktemp("untouched"))
        return
    server, template = (request.getfixturevalue(f"postgres_{name}") for name in ("url", "template"))
    with new_database(server, template) as url:
        yield url


def _filled(folder: Path) -> str:
    (folder / "test.db").write_bytes(filled_file())
    return f"sqlite:///{folder}/test.db"


@pytest.fixture
async def rig(url: str) -> AsyncIterator[Rig]:
    async with open_rig(url) as rig:
        yield rig


@pytest.fixture(scope="module")
async def untouched(url_for_many: str) -> AsyncIterator[Rig]:
    """For tests that change nothing but add keys: made once for each file."""
    async with open_rig(url_for_many) as rig:
        rig.admin.rates._clock = count(step=3600.0).__next__  # nobody of so many asks too fast
        yield rig
