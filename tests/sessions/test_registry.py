"""SessionRegistry: who finds which session, limits, and the end of all of them."""

import anyio
import pytest

from app.domain import Limits, Principal
from app.errors import BackendNotFound, QuotaExceeded, SessionNotFound, ShuttingDown
from app.protocol.lifecycle import SessionState
from app.sessions.directory import BackendDirectory
from app.sessions.registry import SessionRegistry
from tests.sessions.fakes import FakePool, FakeStore


async def open_one(registry: SessionRegistry, principal: Principal) -> str:
    session = await registry.open(principal, "acme", "echo", "streamable_http")
    await registry.connect(session)
    return session.id


async def test_only_its_principal_finds_a_session(registry: SessionRegistry, principal: Principal) -> None:
    session_id = await open_one(registry, principal)
    assert registry.find(session_id, principal, "acme", "echo").id == session_id
    same = Principal("acme", "key", "k1", frozenset())  # another token of the same key
    assert registry.find(session_id, same, "acme", "echo").id == session_id
    strangers = [
        Principal("acme", "key", "k2", principal.scopes),
        Principal("acme", "https://idp", "k1", principal.scopes),
        Principal("other", "key", "k1", principal.scopes),
    ]
    messages = set()
    for stranger in strangers:
        with pytest.raises(SessionNotFound) as caught:
            registry.find(session_id, stranger, "acme", "echo")
        messages.add(str(caught.value))
    for session, backend in ((session_id, "other"), ("unknown", "echo")):
        with pytest.raises(SessionNotFound) as caught:
            registry.find(session, principal, "acme", backend)
        messages.add(str(caught.value))
    assert len(messages) == 1


async def test_session_ids_carry_192_random_bits(registry: SessionRegistry, principal: Principal) -> None:
    ids = {await open_one(registry, principal) for _ in range(3)}
    assert len(ids) == 3
    assert all(len(session_id) == 8 + 1 + 32 for session_id in ids)


async def test_the_tenants_and_the_nodes_number_of_sessions_are_limits(
    registry: SessionRegistry, principal: Principal, store: FakeStore
) -> None:
    store.limits = Limits(sessions=2)
    first = await open_one(registry, principal)
    await open_one(registry, principal)
    with pytest.raises(QuotaExceeded):
        await open_one(registry, principal)
    registry.find(first, principal, "acme", "echo").close("deleted")
    await open_one(registry, principal)


async def test_the_node_has_a_limit_of_its_own(
    registry: SessionRegistry, principal: Principal, store: FakeStore
) -> None:
    store.limits = Limits(sessions=None)
    for _ in range(5):
        await open_one(registry, principal)
    with pytest.raises(QuotaExceeded) as caught:
        await open_one(registry, principal)
    assert caught.value.limit == "node_sessions"


async def test_an_unknown_backend_opens_nothing(registry: SessionRegistry, principal: Principal) -> None:
    with pytest.raises(BackendNotFound):
        await registry.open(principal, "acme", "nothing", "sse")
    assert len(registry) == 0


async def test_backends_are_remembered_until_told_otherwise(
    registry: SessionRegistry, directory: BackendDirectory, principal: Principal, store: FakeStore
) -> None:
    await open_one(registry, principal)
    await open_one(registry, principal)
    assert store.asked == 1
    directory.forget("acme", "echo")
    await open_one(registry, principal)
    assert store.asked == 2


async def test_draining_refuses_new_sessions_and_waits_for_calls(
    registry: SessionRegistry, principal: Principal
) -> None:
    session_id = await open_one(registry, principal)
    session = registry.find(session_id, principal, "acme", "echo")
    assert await registry.drain(5) == 0
    assert session.state is SessionState.CLOSED
    with pytest.raises(ShuttingDown):
        await open_one(registry, principal)


async def test_leaving_the_registry_closes_every_session(
    registry: SessionRegistry, principal: Principal, pool: FakePool
) -> None:
    await open_one(registry, principal)
    await registry.__aexit__()
    assert pool.leases[0].released == ["shutdown"]
    assert len(registry) == 0


async def test_of_many_that_ask_at_once_one_asks_the_store(directory: BackendDirectory, store: FakeStore) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(directory.find, "acme", "echo")
    assert store.asked == 1


async def test_one_that_gives_up_does_not_take_the_others_with_it(
    directory: BackendDirectory, store: FakeStore
) -> None:
    found = []

    async def find() -> None:
        found.append(await directory.find("acme", "echo"))

    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as impatient:
            impatient.cancel()
            await directory.find("acme", "echo")
        tasks.start_soon(find)
    assert len(found) == 1


async def test_everything_that_is_remembered_can_be_forgotten(directory: BackendDirectory, store: FakeStore) -> None:
    await directory.find("acme", "echo")
    directory.forget_everything()
    await directory.find("acme", "echo")
    assert store.asked == 2
