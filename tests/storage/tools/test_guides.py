"""Guides in the database."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from app.domain import Guide
from app.errors import ConcurrentChange, Conflict, NotFound, QuotaExceeded
from app.storage.tools import guides as module
from app.storage.tools.guides import GuideRepository

GUIDE = Guide("style", "Style", "How to write", "# Style\n\nBe brief: 🙂", datetime(2026, 1, 2, tzinfo=UTC))


@pytest.fixture
def guides(database, tenants):
    return GuideRepository(database)


async def test_a_guide_comes_back_as_it_was_stored(guides):
    assert await guides.create("acme", GUIDE) == GUIDE
    assert await guides.get("acme", "style") == GUIDE == (await guides.list("acme"))[0]
    before = await guides.state("acme")
    changed = await guides.replace("acme", replace(GUIDE, text="x"))
    assert changed == replace(GUIDE, text="x", version=2) == await guides.get("acme", "style")
    assert await guides.state("acme") != before
    with pytest.raises(ConcurrentChange):
        await guides.replace("acme", GUIDE)
    with pytest.raises(ConcurrentChange):
        await guides.delete("acme", "style", version=1)
    await guides.delete("acme", "style")
    assert await guides.list("acme") == [] == await guides.state("acme")
    for missing in (guides.get("acme", "style"), guides.delete("acme", "style"), guides.replace("acme", changed)):
        with pytest.raises(NotFound):
            await missing


async def test_of_another_tenant_there_is_nothing(guides):
    await guides.create("acme", GUIDE)
    assert await guides.list("zenith") == [] == await guides.state("zenith")
    with pytest.raises(NotFound):
        await guides.get("zenith", "style")
    with pytest.raises(NotFound):
        await guides.create("nobody", GUIDE)


async def test_a_name_is_taken_once_and_there_is_a_most(guides, monkeypatch):
    await guides.create("acme", GUIDE)
    with pytest.raises(Conflict):
        await guides.create("acme", GUIDE)
    monkeypatch.setattr(module, "MAX_GUIDES_PER_TENANT", 1)
    with pytest.raises(QuotaExceeded):
        await guides.create("acme", replace(GUIDE, name="other"))
    await guides.create("zenith", GUIDE)
