"""API keys: their form, and which of them open something."""

import re
from dataclasses import replace
from datetime import timedelta

import pytest

from app.auth._refusal import CredentialRefused
from app.auth.api_keys import ApiKeys, KeyMaker, key_id
from app.errors import StorageUnavailable
from tests.auth.fakes import NOW, FakeStore

maker = KeyMaker(b"s" * 32)


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def keys(store) -> ApiKeys:
    return ApiKeys(store, maker, lambda: NOW)


def test_a_key_has_the_published_form():
    new = maker.make()
    assert re.fullmatch(r"tlk_[0-9A-Za-z]{8}_[0-9A-Za-z]{43}[0-9A-Za-z]{6}", new.text)
    assert new.text[4:12] == new.id == key_id(new.text)
    assert len(new.digest) == 32
    assert new.text not in repr(new)


def test_keys_do_not_repeat():
    made = [maker.make() for _ in range(500)]
    assert len({new.text for new in made}) == len({new.digest for new in made}) == 500


def test_any_one_wrong_character_is_noticed_without_a_lookup():
    text = maker.make().text
    for position in range(len(text)):
        other = "B" if text[position] == "A" else "A"
        assert key_id(text[:position] + other + text[position + 1 :]) is None


@pytest.mark.parametrize("text", ["", "tlk_", "tlk__", "tlk_abcdefgh_" + "a" * 49, "x" * 10_000, "tlk_ab\0defgh_"])
def test_other_texts_are_no_keys(text):
    assert key_id(text) is None


def test_a_trailing_newline_is_no_key():
    assert key_id(maker.make().text + "\n") is None


def test_digests_depend_on_the_secret_key_of_the_node():
    text = maker.make().text
    assert maker.digest(text) == KeyMaker(b"s" * 32).digest(text) != KeyMaker(b"t" * 32).digest(text)


async def test_a_good_key_names_its_holder(store, keys):
    text = store.add(maker, scopes=frozenset({"tenant:read"}), expires_at=NOW + timedelta(days=1))
    principal = await keys.verify(text)
    assert principal.identity == ("acme", "key", key_id(text))
    assert principal.scopes == {"tenant:read"}
    assert principal.expires_at == (NOW + timedelta(days=1)).timestamp()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"digest": bytes(32)}, "wrong_secret"),
        ({"expires_at": NOW}, "expired"),
        ({"revoked_at": NOW - timedelta(days=1)}, "revoked"),
        ({"pepper_version": 2}, "unknown"),
    ],
)
async def test_a_key_is_refused_with_the_reason(store, keys, changes, reason):
    text = store.add(maker, **changes)
    with pytest.raises(CredentialRefused) as caught:
        await keys.verify(text)
    assert caught.value.facts["failure"] == reason


async def test_an_unknown_key_costs_a_lookup_and_a_malformed_one_none(store, keys):
    for text, reason, lookups in [("tlk_nonsense", "malformed", 0), (maker.make().text, "unknown", 1)]:
        with pytest.raises(CredentialRefused) as caught:
            await keys.verify(text)
        assert (caught.value.facts["failure"], store.lookups) == (reason, lookups)


async def test_the_digest_of_another_row_does_not_open_this_one(store, keys):
    mine, theirs = store.add(maker), store.add(maker)
    identifier = key_id(theirs)
    assert identifier is not None
    store.records[identifier] = replace(store.records[identifier], digest=maker.digest(mine))
    with pytest.raises(CredentialRefused):
        await keys.verify(theirs)


async def test_use_is_written_down_when_flushed_and_survives_a_store_that_is_away(store, keys):
    text = store.add(maker)
    await keys.verify(text)
    assert store.touched == {}
    store.is_down = True
    with pytest.raises(StorageUnavailable):
        await keys.flush_last_used()
    store.is_down = False
    await keys.flush_last_used()
    assert store.touched == {("acme", key_id(text)): NOW}
    store.touched.clear()
    await keys.flush_last_used()
    assert store.touched == {}
