"""API keys in the database."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest

from app.errors import Conflict, NotFound, QuotaExceeded
from app.storage.access import api_keys

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)


async def test_a_key_comes_back_as_it_was_stored_with_its_times_in_utc(keys, make_key):
    zurich = timezone(timedelta(hours=2))
    key = replace(make_key("acme"), expires_at=datetime(2026, 6, 1, 14, tzinfo=zurich))
    await keys.create("acme", key)
    found = await keys.get("acme", key.id)
    assert found == key == await keys.find(key.id)
    assert found.expires_at == NOW
    assert found.expires_at.tzinfo is UTC
    assert "digest" not in repr(found)


async def test_another_tenants_key_is_out_of_reach(keys, make_key):
    key = make_key("acme")
    await keys.create("acme", key)
    for attempt in (keys.get("zenith", key.id), keys.revoke("zenith", key.id, NOW)):
        with pytest.raises(NotFound):
            await attempt
    assert await keys.list("zenith", limit=9) == []
    await keys.touch({("zenith", key.id): NOW})
    assert await keys.get("acme", key.id) == key


async def test_a_key_needs_a_tenant_and_an_id_of_its_own(keys, make_key):
    key = make_key("acme")
    with pytest.raises(NotFound):
        await keys.create("nobody", key)
    await keys.create("acme", key)
    with pytest.raises(Conflict):
        await keys.create("zenith", replace(key, tenant="zenith"))


async def test_revoking_twice_keeps_the_first_date(keys, make_key):
    key = make_key("acme")
    await keys.create("acme", key)
    await keys.revoke("acme", key.id, NOW)
    await keys.revoke("acme", key.id, NOW + timedelta(days=1))
    assert (await keys.get("acme", key.id)).revoked_at == NOW
    with pytest.raises(NotFound):
        await keys.revoke("acme", "unknown", NOW)


async def test_last_use_only_moves_forward(keys, make_key):
    key = make_key("acme")
    await keys.create("acme", key)
    for at in (NOW, NOW - timedelta(hours=1)):
        await keys.touch({("acme", key.id): at, ("acme", "gone"): at})
    await keys.touch({})
    assert (await keys.get("acme", key.id)).last_used_at == NOW


async def test_a_tenant_cannot_fill_the_database(keys, make_key, monkeypatch):
    monkeypatch.setattr(api_keys, "MAX_KEYS_PER_TENANT", 2)
    for _ in range(2):
        await keys.create("acme", make_key("acme"))
    with pytest.raises(QuotaExceeded):
        await keys.create("acme", make_key("acme"))
    await keys.create("zenith", make_key("zenith"))


async def test_lists_go_on_behind_the_last_one(keys, make_key):
    made = [make_key("acme") for _ in range(3)]
    for key in made:
        await keys.create("acme", key)
    assert await keys.list("acme", limit=2) == made[:2]
    assert await keys.list("acme", after=made[1].id, limit=2) == made[2:]


async def test_of_many_keys_those_that_stand_are_told(keys, make_key):
    now = datetime(2026, 6, 1, tzinfo=UTC)
    good, revoked, expired, lasting = (make_key("acme") for _ in range(4))
    for each in (good, revoked, replace(expired, expires_at=now), replace(lasting, expires_at=now + timedelta(1))):
        await keys.create("acme", each)
    await keys.revoke("acme", revoked.id, now)
    asked = [("acme", each.id) for each in (good, revoked, expired, lasting)]
    found = await keys.standing([*asked, ("zenith", good.id), ("acme", "nobody00")], now)
    assert found == {("acme", good.id), ("acme", lasting.id)}
    assert await keys.standing([], now) == set()
