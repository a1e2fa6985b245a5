"""How long what is known of a token is believed without another look."""

from dataclasses import dataclass

import anyio
import pytest
from prometheus_client import CollectorRegistry, Counter

from app.auth.api_keys import ApiKeys, KeyMaker
from app.auth.authenticator import Authenticator
from app.auth.tokens import MAX_TOKEN_BYTES, Target
from app.domain import Principal
from app.errors import StorageUnavailable, Unauthenticated
from tests.auth import fakes
from tests.auth.tokens import BASE, ISS, TARGET, Record, Rig, token


@dataclass
class Door:
    """An authenticator that knows keys and tokens."""

    rig: Rig
    authenticator: Authenticator
    registry: CollectorRegistry
    keys: fakes.FakeStore

    def remembered(self, header: bytes, target: Target | None) -> Principal | None:
        return self.authenticator.remembered(header, target and (lambda: target))

    async def refuse(self, header: bytes, target: Target | None = TARGET) -> None:
        with pytest.raises(Unauthenticated):
            await self.authenticator.authenticate(header, target)


maker = KeyMaker(b"k" * 32)


@pytest.fixture
def door(rig: Rig) -> Door:
    registry, keys = CollectorRegistry(), fakes.FakeStore()
    failures = Counter("failures", "", ["reason"], registry=registry)
    held = ApiKeys(keys, maker, rig.now)
    return Door(
        rig,
        Authenticator(held, failures, lambda: rig.elapsed_s, lambda: rig.now().timestamp(), tokens=rig.tokens),
        registry,
        keys,
    )


def bearer(text: str) -> bytes:
    return b"Bearer " + text.encode()


async def test_a_token_is_remembered_for_its_target_only(door):
    header = bearer(token(aud=[TARGET.resource, f"{BASE}/t/acme/time/mcp"]))
    principal = await door.authenticator.authenticate(header, TARGET)
    assert door.remembered(header, TARGET) is principal
    others = [
        TARGET._replace(backend="time"), TARGET._replace(tenant="zenith"), TARGET._replace(backend=""),
        TARGET._replace(base_url="https://evil.example.com"), None,
    ]  # fmt: skip
    for other in others:
        assert door.remembered(header, other) is None
    assert await door.authenticator.authenticate(header, others[0]) == principal
    assert door.rig.lookups == 2
    for other in others[1:]:
        await door.refuse(header, other)
    assert door.remembered(header, TARGET) is principal


async def test_nothing_that_a_client_wrote_is_kept_with_what_is_remembered(door):
    for target in (TARGET, TARGET._replace(tenant="t" * 60_000), TARGET._replace(base_url="http://x:" + "7" * 60_000)):
        await door.refuse(bearer("a.b.c"), target)
    await door.authenticator.authenticate(bearer(token()), TARGET)
    kept = [*door.authenticator._known, *door.authenticator._refused]
    assert [len(key) for key in kept] == [32] * 4


async def test_a_key_is_remembered_for_every_target_and_pays_for_none(door):
    header = bearer(door.keys.add(maker))
    principal = await door.authenticator.authenticate(header, TARGET)
    for target in (TARGET, TARGET._replace(tenant="zenith"), None):
        assert door.remembered(header, target) is principal
    assert door.authenticator.remembered(header, lambda: pytest.fail("asked for the target")) is principal


async def test_a_token_is_remembered_for_thirty_seconds_and_never_when_it_would_be_refused(door):
    header = bearer(token())
    await door.authenticator.authenticate(header, TARGET)
    door.rig.elapsed_s = 29.9
    assert door.remembered(header, TARGET)
    door.rig.elapsed_s = 30
    assert door.remembered(header, TARGET) is None
    door.rig.elapsed_s = 590
    assert await door.authenticator.authenticate(header, TARGET)
    door.rig.elapsed_s = 600
    assert door.remembered(header, TARGET) is None
    assert await door.authenticator.authenticate(header, TARGET)  # within the leeway
    door.rig.elapsed_s = 630
    assert door.remembered(header, TARGET) is None
    await door.refuse(header)


async def test_a_token_that_was_refused_is_not_looked_at_again_for_five_seconds(door):
    header = bearer(token(iss="https://evil.example.com"))
    for _ in range(100):
        await door.refuse(header)
    assert door.rig.lookups == 1
    assert door.registry.get_sample_value("failures_total", {"reason": "unknown_issuer"}) == 100
    door.rig.elapsed_s = 5
    await door.refuse(header)
    assert door.rig.lookups == 2


async def test_a_changed_issuer_makes_its_tokens_be_looked_at_again_refused_ones_included(door):
    mine, theirs = bearer(token()), bearer(door.keys.add(maker))
    await door.authenticator.authenticate(mine, TARGET)
    await door.authenticator.authenticate(theirs, TARGET)
    door.authenticator.forget_issuer("zenith", ISS)
    door.authenticator.forget_issuer("acme", "https://other.example.com")
    assert door.remembered(mine, TARGET)
    door.rig.records.clear()
    door.authenticator.forget_issuer("acme", ISS)
    assert door.remembered(mine, TARGET) is None
    assert door.remembered(theirs, TARGET)
    await door.refuse(mine)
    door.rig.set(Record())
    door.authenticator.forget_issuer("acme", ISS)
    assert await door.authenticator.authenticate(mine, TARGET)
    door.authenticator.forget(("acme", ISS, "alice"))
    assert door.remembered(mine, TARGET) is None
    await door.authenticator.authenticate(mine, TARGET)
    door.authenticator.forget_tenant("acme")
    assert door.remembered(mine, TARGET) is None


async def test_what_was_verified_with_keys_of_before_a_change_is_not_remembered(door):
    header, door.rig.host.gate = bearer(token()), anyio.Event()
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(door.authenticator.authenticate, header, TARGET)
            await anyio.wait_all_tasks_blocked()
            door.authenticator.forget_issuer("acme", ISS)
            door.rig.host.gate.set()
    assert door.remembered(header, TARGET) is None


async def test_a_store_that_is_away_is_neither_a_refusal_nor_remembered(door):
    header, door.rig.is_down = bearer(token()), True
    with pytest.raises(StorageUnavailable):
        await door.authenticator.authenticate(header, TARGET)
    door.rig.is_down = False
    assert await door.authenticator.authenticate(header, TARGET)


async def test_a_token_of_the_largest_size_fits_and_one_more_byte_does_not(door):
    room = MAX_TOKEN_BYTES - len(token(pad=""))
    pad = next("a" * n for n in range(room * 3 // 4 - 4, room) if len(token(pad="a" * n)) >= MAX_TOKEN_BYTES - 1)
    fitting = token(pad=pad)
    if len(fitting) > MAX_TOKEN_BYTES:
        fitting = token(pad=pad[:-1])
    assert await door.authenticator.authenticate(bearer(fitting), TARGET)
    await door.refuse(bearer(token(pad=pad + "aaaa")))


async def test_a_token_that_another_node_has_looked_at_is_confirmed_while_there_is_its_issuer(door):
    principal = await door.authenticator.authenticate(bearer(token()), TARGET)
    await door.authenticator.confirm(principal)
    door.rig.records.clear()
    door.authenticator.forget_issuer(principal.tenant, principal.issuer)
    with pytest.raises(Unauthenticated):
        await door.authenticator.confirm(principal)
