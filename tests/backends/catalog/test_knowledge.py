"""Knowledge: what administrators have written is read when it has changed, and only then."""

from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from app.backends.catalog import knowledge as module
from app.backends.catalog.knowledge import Knowledge
from app.domain.resources.guides import Guide
from app.errors import StorageUnavailable


def guide(name: str, text: str = "x") -> Guide:
    return Guide(name=name, text=text, changed_at=datetime(2026, 1, 1, tzinfo=UTC))


class Store:
    """Guides by tenant; may be away."""

    def __init__(self) -> None:
        self.guides: dict[str, list[Guide]] = {"acme": [guide("a")]}
        self.lists, self.is_away = 0, False

    async def state(self, tenant: str) -> object:
        if self.is_away:
            raise StorageUnavailable
        return list(self.guides.get(tenant, []))

    async def list(self, tenant: str) -> Any:
        self.lists += 1
        return list(self.guides.get(tenant, []))


class NoRecipes:
    async def state(self, tenant: str) -> object:
        return []

    async def list(self, tenant: str) -> Any:
        return []


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def knowledge(store: Store, monkeypatch: pytest.MonkeyPatch) -> Knowledge:
    monkeypatch.setattr(module, "MAX_AGE_S", 0.0)
    return Knowledge(store, NoRecipes())


async def test_what_has_not_changed_is_the_same_object_and_not_read_again(store: Store, knowledge: Knowledge) -> None:
    first = await knowledge.of("acme")
    assert [each.name for each in first.guides] == ["a"]
    assert await knowledge.of("acme") is first is knowledge.cached("acme")
    assert store.lists == 1
    assert knowledge.cached("zenith").guides == () == (await knowledge.of("zenith")).guides


async def test_a_change_is_told_once_it_has_been_read(store: Store, knowledge: Knowledge) -> None:
    told: list[str] = []
    heard = anyio.Event()
    knowledge.changed.listen(told.append)
    knowledge.changed.listen(lambda tenant: heard.set())
    knowledge.changed_somewhere("acme")  # nobody has read it: nobody has to be told
    await knowledge.of("acme")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(knowledge.run)
        store.guides["acme"].append(guide("b"))
        knowledge.anything_may_have_changed()
        with anyio.fail_after(20):
            await heard.wait()
        tasks.cancel_scope.cancel()
    assert told == ["acme"]
    assert [each.name for each in knowledge.cached("acme").guides] == ["a", "b"]


async def test_who_asks_after_a_change_gets_what_is_stored_now(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_AGE_S", 60.0)
    knowledge = Knowledge(store, NoRecipes())
    await knowledge.of("acme")
    store.guides["acme"].append(guide("b"))
    assert len((await knowledge.of("acme")).guides) == 1  # nobody has said that it has changed
    knowledge.changed_somewhere("acme")
    assert len((await knowledge.of("acme")).guides) == 2


async def test_without_the_database_what_is_cached_serves_on(store: Store, knowledge: Knowledge) -> None:
    first = await knowledge.of("acme")
    store.is_away = True
    assert await knowledge.of("acme") is first
    with pytest.raises(StorageUnavailable):
        await knowledge.of("zenith")


async def test_what_is_cached_has_a_limit_in_bytes_and_in_tenants(
    store: Store, knowledge: Knowledge, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.guides |= {"b": [guide("b", "x" * 60)], "c": [guide("c", "x" * 60)]}
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    for tenant in ("acme", "b", "c"):
        await knowledge.of(tenant)
    assert [bool(knowledge.cached(tenant).guides) for tenant in ("acme", "b", "c")] == [False, False, True]
    monkeypatch.setattr(module, "MAX_TENANTS", 1)
    await knowledge.of("zenith")
    assert not knowledge.cached("c").guides


@pytest.mark.parametrize(("is_known", "what"), [(True, "state"), (False, "list")])
async def test_a_change_while_it_is_read_is_read_too(
    store: Store, monkeypatch: pytest.MonkeyPatch, is_known: bool, what: str
) -> None:
    """The database answers late, with what was there before the change, which was heard of meanwhile."""
    monkeypatch.setattr(module, "MAX_AGE_S", 60.0)
    knowledge, may_answer, ask = Knowledge(store, NoRecipes()), anyio.Event(), getattr(store, what)
    if is_known:
        await knowledge.of("acme")
        knowledge._cached = {"acme": (*knowledge._cached["acme"][:2], 0.0)}  # no longer fresh

    async def late(tenant: str) -> object:
        found = await ask(tenant)
        monkeypatch.setattr(store, what, ask)
        await may_answer.wait()
        return found

    monkeypatch.setattr(store, what, late)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(knowledge.run)
        tasks.start_soon(knowledge.of, "acme")
        await anyio.wait_all_tasks_blocked()
        store.guides["acme"] = [guide("a"), guide("b")]
        knowledge.changed_somewhere("acme")
        await anyio.wait_all_tasks_blocked()  # `run` has read it, if it was known
        may_answer.set()
        await anyio.wait_all_tasks_blocked()
        assert [each.name for each in knowledge.cached("acme").guides] == ["a", "b"]
        tasks.cancel_scope.cancel()
