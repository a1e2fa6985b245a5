"""The catalogue in the database."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from app.domain.resources.access import AccessEntry, CallLimits, Who
from app.errors import NotFound
from app.storage.tools.approvals import Approval, ApprovalRepository, Approvals, Judgement, Overtaken
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
    assert (first.looked_at, first.changed_at, first.policy) == (NOW, NOW, "off")
    await catalog.put("acme", "echo", "d2", b"{}", replace(NOTHING, pins={"a": {"status": "new"}}), LATER)
    same = (await catalog.get("acme", ["echo", "unknown"]))["echo"]
    assert (same.revision, same.definition, same.looked_at, same.changed_at) == (first.revision, "d2", LATER, NOW)
    assert same.pins == {"a": {"status": "new"}}
    await catalog.put("acme", "echo", "d2", b"[]", NOTHING, LATER)
    other = (await catalog.get("acme", ["echo"]))["echo"]
    assert (other.revision, other.changed_at) == (first.revision + 1, LATER)
    assert await catalog.get("zenith", ["echo"]) == {}
    assert (await catalog.backends("acme"), await catalog.backends("zenith")) == (["echo"], [])


async def test_what_was_judged_of_a_backend_is_not_stored_of_its_namesake(catalog, backends, database, spec):
    """Revisions began with 1 again: who had looked at the old one's tools approved the new one's."""
    await catalog.put("acme", "echo", "d1", b"{}", NOTHING, NOW)
    looked_at = (await catalog.get("acme", ["echo"]))["echo"].revision
    await backends.delete("acme", "echo")
    await backends.create("acme", spec)
    await catalog.put("acme", "echo", "d2", b"[]", NOTHING, NOW)
    assert (await catalog.get("acme", ["echo"]))["echo"].revision != looked_at
    approved = Approval("a", b"{}", None, "somebody", NOW)
    with pytest.raises(Overtaken):
        await ApprovalRepository(database).put("acme", "echo", [approved], replace(NOTHING, revision=looked_at))


async def test_an_entry_has_the_policy_of_its_backend_and_goes_with_it(catalog, backends):
    await catalog.put("acme", "echo", "d", b"{}", NOTHING, NOW)
    spec = await backends.get("acme", "echo")
    await backends.replace("acme", replace(spec, pin="block", pin_minor="ask"))
    assert (await catalog.get("acme", ["echo"]))["echo"].policy == "block"
    await backends.delete("acme", "echo")
    assert await catalog.get("acme", ["echo"]) == {}
    with pytest.raises(NotFound):
        await catalog.put("acme", "echo", "d", b"{}", NOTHING, NOW)


async def test_an_entry_has_the_list_of_its_backend(catalog, backends):
    await catalog.put("acme", "echo", "d", b"{}", NOTHING, NOW)
    assert (await catalog.get("acme", ["echo"]))["echo"].access == ()
    access = (AccessEntry(Who(group="a"), ("*",), limits=CallLimits(5)),)
    await backends.replace("acme", replace(await backends.get("acme", "echo"), access=access))
    assert (await catalog.get("acme", ["echo"]))["echo"].access == access
