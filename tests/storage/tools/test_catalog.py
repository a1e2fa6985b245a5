"""The catalogue in the database."""

from datetime import UTC, datetime, timedelta

import pytest

from app.errors import NotFound
from app.storage.tools.catalog import CatalogRepository

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)


@pytest.fixture
async def catalog(database, backends, spec):
    await backends.create("acme", spec)
    return CatalogRepository(database)


async def test_a_revision_counts_changes_of_what_is_offered(catalog):
    first = await catalog.put("acme", "echo", "d1", b"{}", NOW)
    assert (first.revision, first.looked_at, first.changed_at) == (1, NOW, NOW)
    same = await catalog.put("acme", "echo", "d2", b"{}", LATER)
    assert (same.revision, same.definition, same.looked_at, same.changed_at) == (1, "d2", LATER, NOW)
    other = await catalog.put("acme", "echo", "d2", b"[]", LATER)
    assert (other.revision, other.changed_at) == (2, LATER)
    assert await catalog.get("acme", ["echo", "unknown"]) == {"echo": other}
    assert await catalog.get("zenith", ["echo"]) == {}


async def test_an_entry_goes_with_its_backend_and_needs_one(catalog, backends):
    await catalog.put("acme", "echo", "d", b"{}", NOW)
    await backends.delete("acme", "echo")
    assert await catalog.get("acme", ["echo"]) == {}
    with pytest.raises(NotFound):
        await catalog.put("acme", "echo", "d", b"{}", NOW)
