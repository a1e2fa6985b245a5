"""What people have allowed clients, and clients that have registered themselves, in the database."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import anyio
import pytest

from app.auth.authorization.clients import Client
from app.domain import CLIENT_GRANT, Connection, SignIn, Tenant
from app.domain.resources.clients import OAuthClient
from app.domain.resources.members import reader_of
from app.errors import NotFound, QuotaExceeded
from app.storage.access import connections as module
from app.storage.access.connections import ConnectionRepository
from app.storage.audit import Act
from app.storage.audit_queries import AuditLog, Which
from app.storage.engine import Database
from app.storage.tenants import TenantRepository

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
async def tenants(database: Database) -> TenantRepository:
    repository = TenantRepository(database)
    for name in ("acme", "zenith"):
        await repository.create(Tenant(name, sign_in=SignIn()))
    return repository


@pytest.fixture
def repository(database: Database, tenants: TenantRepository) -> ConnectionRepository:
    return ConnectionRepository(database)


@pytest.fixture
def make() -> Callable[..., Connection]:
    numbers = count(1)

    def make(**more: Any) -> Connection:
        made = Connection(
            f"{next(numbers):016x}", "acme", "https://app.example/" + "c" * 970, "An äpp", "key", "k", "",
            frozenset({"mcp:connect:echo", "mcp:connect:files"}), "https://gw.example", "http://127.0.0.1:1/cb",
            "c" * 43,
            NOW, NOW, NOW + DAY, turn=1,
        )  # fmt: skip
        return replace(made, **more)

    return make


def client(name: str, at: datetime = NOW) -> dict[str, Any]:
    return {
        "name": name, "title": "", "redirect_uris": ["http://localhost/cb"], "scopes": [], "authentication": "none",
        "jwks_url": None, "salt": "", "changed_at": at, "version": 1,
    }  # fmt: skip


def of_client(name: str, **more: str) -> str:
    """The grant of such a client."""
    made: OAuthClient = reader_of(OAuthClient)({**client(name), **more})
    return Client(name, "", "", (), made).grant


async def ids(repository: ConnectionRepository, at: datetime = NOW, **more: Any) -> list[str]:
    return [each.id for each in await repository.list("acme", at, limit=1000, **more)]


async def test_a_connection_comes_back_as_it_was_stored_to_its_own_tenant_until_it_is_over(repository, make):
    made = make(created_at=NOW + timedelta(microseconds=1))
    await repository.add(made)
    assert await repository.find("acme", made.id, NOW) == made
    assert await repository.find("acme", made.id, NOW + DAY - timedelta(microseconds=1)) == made
    assert await repository.find("acme", made.id, NOW + DAY) is None
    assert await repository.find("zenith", made.id, NOW) is None
    assert await repository.find("acme", "0" * 16, NOW) is None
    with pytest.raises(NotFound):
        await repository.add(make(tenant="nobody"))


async def test_a_turn_counts_once(repository, make):
    old = make(turn=0)
    await repository.add(old)
    won = list[bool]()

    async def turn(number: int) -> None:
        won.append(await repository.turn(old, replace(old, turn=1, turned_at=NOW + timedelta(seconds=number))))

    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(turn, number)
    assert sorted(won) == [False] * 4 + [True]
    found = await repository.find("acme", old.id, NOW)
    assert found is not None
    assert found.turn == 1
    assert await repository.turn(found, replace(found, turn=2, scopes=frozenset({"mcp:connect:echo"})))
    assert not await repository.turn(found, replace(found, turn=2))
    await repository.end("acme", old.id)
    assert not await repository.turn(replace(found, turn=2), replace(found, turn=3))
    assert await repository.find("acme", old.id, NOW) is None


async def test_what_stands_is_not_over_of_this_tenant_and_of_clients_that_there_are(repository, make):
    mine, over, theirs = make(), make(ends_at=NOW), make(tenant="zenith")
    for each in (mine, over, theirs):
        await repository.add(each)
    await repository.register("acme", client("job"), NOW)
    grants = [
        mine.id,
        over.id,
        theirs.id,
        of_client("job"),
        of_client("nobody"),
        CLIENT_GRANT + mine.id,
        CLIENT_GRANT + "job",
        of_client("job", salt="of an earlier one"),
        "job",
        "",
    ]
    assert await repository.standing("acme", grants, NOW) == {mine.id, of_client("job")}
    assert await repository.standing("zenith", grants, NOW) == {theirs.id}
    assert await repository.standing("acme", [], NOW) == set()


async def test_all_is_gone_where_a_tenant_has_no_authorization_server_any_more(repository, make, tenants):
    mine = make()
    await repository.add(mine)
    await repository.register("acme", client("job"), NOW)
    tenant = await tenants.get("acme")
    await tenants.replace(replace(tenant, sign_in=None))
    late = make()
    await repository.add(late)  # of somebody who was asked before
    for each in (mine, late):
        assert await repository.find("acme", each.id, NOW) is None
    assert await repository.standing("acme", [mine.id, late.id, of_client("job")], NOW) == set()
    assert await ids(repository) == []


async def test_lists_are_of_a_tenant_or_a_person_and_go_on_behind_the_last_one(repository, make):
    made = [make(subject=subject) for subject in "abab"]
    for each in (*made, make(tenant="zenith", subject="a"), make(ends_at=NOW + timedelta(seconds=1))):
        await repository.add(each)
    at = NOW + timedelta(seconds=1)
    assert await ids(repository, at) == [each.id for each in made]
    assert await ids(repository, at, person=("key", "a")) == [made[0].id, made[2].id]
    assert await ids(repository, at, after=made[1].id) == [made[2].id, made[3].id]
    assert await ids(repository, at, person=("https://idp.example", "a")) == []


async def test_allowed_is_the_same_for_the_same_client_or_less(repository, make):
    made = make()
    await repository.add(made)
    assert await repository.allowed(replace(made, scopes=frozenset({"mcp:connect:echo"})), NOW)
    for changes in ({"scopes": frozenset({"mcp:connect"})}, {"client_id": "other"}, {"subject": "other"},
                    {"issuer": "https://idp.example"}, {"backend": "echo"}, {"tenant": "zenith"},
                    {"redirect_uri": "https://evil.example/cb"}):  # fmt: skip
        assert not await repository.allowed(replace(made, **changes), NOW), changes
    assert not await repository.allowed(made, NOW + DAY)


async def test_a_person_has_so_many_and_the_one_used_longest_ago_makes_room(repository, make, monkeypatch):
    monkeypatch.setattr(module, "MAX_PER_PERSON", 3)
    used = [make(turned_at=NOW + timedelta(seconds=second)) for second in (5, 1, 9)]
    other = make(subject="other")
    for each in (*used, other):
        await repository.add(each)
    new = make(turned_at=NOW + timedelta(seconds=10))
    await repository.add(new)
    assert await ids(repository) == [used[0].id, used[2].id, other.id, new.id]
    waiting = [make(turned_at=NOW + timedelta(seconds=20), turn=0) for _ in range(4)]
    for each in waiting:
        await repository.add(each)  # codes that nobody redeems end nothing that is in use, but the one they stand for
    assert await ids(repository) == [used[2].id, other.id, new.id]
    assert not await repository.allowed(make(subject="nobody", turn=0), NOW)


async def test_a_connection_that_makes_room_has_its_line_in_the_trail(repository, make, database, monkeypatch):
    monkeypatch.setattr(module, "MAX_PER_PERSON", 1)
    used, code, new = make(), make(turn=0), make()
    for each in (used, code, new):  # the code that nobody redeemed was no connection yet
        act = Act("acme", each.identity, "connection.create", f"connections/{each.id}", NOW, "r", "tool")
        await repository.add(each, act=act)
    rows = await AuditLog(database).list(Which(tenant="acme"), limit=10)
    (ended,) = [each.act for each in rows if each.act.action == "connection.end"]
    assert (ended.target, ended.actor) == (f"connections/{used.id}", used.identity)
    assert "at most 1" in ended.detail


async def test_a_tenant_has_so_many_and_those_that_are_over_make_room(repository, make, monkeypatch):
    monkeypatch.setattr(module, "MAX_PER_TENANT", 2)
    for subject in "ab":
        await repository.add(make(subject=subject))
    with pytest.raises(QuotaExceeded):
        await repository.add(make(subject="c"))
    await repository.add(make(tenant="zenith"))
    await repository.add(make(subject="c", created_at=NOW + DAY, ends_at=NOW + 2 * DAY))


async def test_an_end_is_in_the_trail_and_once(repository, make, database):
    mine, theirs = make(), make(tenant="zenith")
    for each in (mine, theirs):
        await repository.add(each)
    act = Act("acme", mine.identity, "connection.end", f"connections/{mine.id}", NOW, "r", "its client has revoked it")
    with pytest.raises(NotFound):
        await repository.end("acme", theirs.id, act=act)
    await repository.end("acme", mine.id, act=act)
    with pytest.raises(NotFound):
        await repository.end("acme", mine.id, act=act)
    rows = await AuditLog(database).list(Which(tenant="acme"), limit=10)
    assert [each.act.action for each in rows] == ["connection.end"]
    assert await repository.find("zenith", theirs.id, NOW) == theirs


async def test_all_of_a_client_end_with_it(repository, make, tenants):
    mine, other, theirs = make(client_id="a"), make(client_id="b"), make(client_id="a", tenant="zenith")
    for each in (mine, other, theirs):
        await repository.add(each)
    await repository.end_of_client("acme", "a")
    assert await ids(repository) == [other.id]
    assert await repository.find("zenith", theirs.id, NOW) == theirs
    await tenants.delete("zenith")
    assert await repository.find("zenith", theirs.id, NOW) is None


# --- clients that register themselves


async def standing(repository: ConnectionRepository, *names: str) -> set[str]:
    found = await repository.standing("acme", [of_client(each) for each in names], NOW)
    return {each.removeprefix(CLIENT_GRANT).partition(" ")[0] for each in found}


async def test_a_client_registers_once(repository):
    assert await repository.register("acme", client("r-a"), NOW)
    assert not await repository.register("acme", {**client("r-a"), "title": "other"}, NOW)
    assert await repository.register("zenith", client("r-a"), NOW)
    with pytest.raises(NotFound):
        await repository.register("nobody", client("r-a"), NOW)


async def test_those_that_nobody_connects_go_after_a_day(repository, make):
    for name in ("r-used", "r-unused"):
        await repository.register("acme", client(name), NOW)
    await repository.register("acme", client("mine"), NOW)
    await repository.add(make(client_id="r-used"))
    await repository.add(make(client_id="r-unused", tenant="zenith"))
    await repository.register("acme", client("r-new", NOW + DAY), NOW + DAY)
    assert await standing(repository, "r-used", "r-unused", "mine", "r-new") == {"r-used", "r-unused", "mine", "r-new"}
    later = NOW + DAY + timedelta(seconds=1)
    await repository.register("acme", client("r-newer", later), later)
    assert await standing(repository, "r-used", "r-unused", "mine", "r-new", "r-newer") == {
        "r-used",
        "mine",
        "r-new",
        "r-newer",
    }


async def test_a_flood_of_registrations_takes_the_places_of_what_nobody_uses(repository, make, monkeypatch):
    monkeypatch.setattr(module, "MAX_REGISTERED", 3)
    await repository.register("acme", client("mine"), NOW)
    for second, name in enumerate(("r-used", "r-a", "r-b", "r-c", "r-d")):
        await repository.register("acme", client(name, NOW + timedelta(seconds=second)), NOW)
        if name == "r-used":
            await repository.add(make(client_id="r-used"))
    assert await standing(repository, "mine", "r-used", "r-a", "r-b", "r-c", "r-d") == {"mine", "r-used", "r-c", "r-d"}
    for name in ("r-c", "r-d"):
        await repository.add(make(client_id=name))
    with pytest.raises(NotFound):
        await repository.register("acme", client("r-e"), NOW)
    await repository.register("zenith", client("r-e"), NOW)
