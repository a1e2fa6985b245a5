"""The catalogue in the database."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from app.errors import NotFound
from app.storage.tools.approvals import Approvals, Judgement
from app.storage.tools.catalog import CatalogRepository

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NOTHING = Judgement({}, Approvals("off", "ask", {}))
LATER = NOW + timedelta(hours=1)


@pytest.fixture
async def catalog(database, backends, spec):
    await backends.create("acme", spec)
    return CatalogRepository(database)


async def test_a_revision_counts_changes_of_what_is_offered(catalog):
    await catalog.put("acme", "echo", "d1", b"{}", NOTHING, NOW)
    first = (await catalog.get("acme", ["echo"]))["echo"]
    assert (first.revision, first.looked_at, first.changed_at, first.policy) == (1, NOW, NOW, "off")
    await catalog.put("acme", "echo", "d2", b"{}", replace(NOTHING, pins={"a": {"status": "new"}}), LATER)
    same = (await catalog.get("acme", ["echo", "unknown"]))["echo"]
    assert (same.revision, same.definition, same.looked_at, same.changed_at) == (1, "d2", LATER, NOW)
    assert same.pins == {"a": {"status": "new"}}
    await catalog.put("acme", "echo", "d2", b"[]", NOTHING, LATER)
    other = (await catalog.get("acme", ["echo"]))["echo"]
    assert (other.revision, other.changed_at) == (2, LATER)
    assert await catalog.get("zenith", ["echo"]) == {}
    assert (await catalog.backends("acme"), await catalog.backends("zenith")) == (["echo"], [])


async def test_an_entry_has_the_policy_of_its_backend_and_goes_with_it(catalog, backends):
    await catalog.put("acme", "echo", "d", b"{}", NOTHING, NOW)
    spec = await backends.get("acme", "echo")
    await backends.replace("acme", replace(spec, pin="block", pin_minor="ask"))
    assert (await catalog.get("acme", ["echo"]))["echo"].policy == "block"
    await backends.delete("acme", "echo")
    assert await catalog.get("acme", ["echo"]) == {}
    with pytest.raises(NotFound):
        await catalog.put("acme", "echo", "d", b"{}", NOTHING, NOW)
