"""LostInspections on a real trail: which inspections have ended with their nodes, and who writes it."""

import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest

from app.cluster import lost_inspections as module
from app.cluster.lost_inspections import LostInspections
from app.errors import StorageUnavailable
from app.inspections.inspection import About
from app.storage import Database
from app.storage.audit import AuditEntry, AuditLog, Which
from app.storage.audit_act import Act
from app.this_node.inspection_views import InspectionView
from app.this_node.listing import Gathered
from tests.databases import migrated_file

OPENER = ("acme", "key", "k1")


@pytest.fixture
async def audit(tmp_path: Path) -> AsyncIterator[AuditLog]:
    (tmp_path / "test.db").write_bytes(migrated_file())
    database = Database(f"sqlite:///{tmp_path}/test.db")
    yield AuditLog(database)
    await database.aclose()


def view(id: str, tenant: str = "acme") -> InspectionView:
    about = About(id, tenant, "echo", "s", "sse", False, "why", OPENER, 1.0, 2.0)
    return InspectionView(about, ("n2",), None, None, 0, 0, 0, 1, 0)


class Trail:
    """What is written, and what the nodes know."""

    def __init__(self, audit: AuditLog) -> None:
        self.audit = audit
        self.others = set[str]()
        self.known = dict[str, Gathered[InspectionView]]()
        self.asked = list[str]()
        self.lost = LostInspections("n1", lambda: self.others, audit, self._known)

    async def _known(self, tenant: str) -> Gathered[InspectionView]:
        self.asked.append(tenant)
        return self.known.get(tenant, Gathered([], []))

    async def write(
        self, action: str, id: str, *, tenant: str = "acme", age_s: float = 60.0, detail: str = "why"
    ) -> None:
        at = datetime.now(UTC) - timedelta(seconds=age_s)
        await self.audit.append(Act(tenant, OPENER, action, f"inspections/{id}", at, "r1", detail))

    async def ends(self, tenant: str = "acme") -> list[tuple[str, str]]:
        found = await self.audit.list(Which(tenant, action=module.ENDED), limit=100)
        return sorted((each.act.target, each.act.detail.partition(";")[0]) for each in found)


@pytest.fixture
def trail(audit: AuditLog) -> Trail:
    return Trail(audit)


async def test_one_that_no_node_knows_and_that_has_no_end_gets_one(trail):
    for id in ("gone", "known", "closed"):
        await trail.write(module.OPENED, id)
    await trail.write(module.ENDED, "closed")
    await trail.write(module.OPENED, "young", age_s=1.0)
    await trail.write(module.OPENED, "old", age_s=8 * 24 * 3600)
    await trail.write("key.create", "other")
    trail.known["acme"] = Gathered([view("known")], [])
    for _ in range(2):
        await trail.lost.look()
    assert await trail.ends() == [("inspections/closed", "why"), ("inspections/gone", "node_lost")]
    assert trail.asked == ["acme", "acme"]  # the known one has no end yet
    (entry, *_) = await trail.audit.list(Which("acme", target="inspections/gone"), limit=1)
    assert entry.act.actor == OPENER


async def test_the_same_id_of_another_tenant_is_another_inspection(trail):
    for tenant in ("acme", "zenith"):
        await trail.write(module.OPENED, "one", tenant=tenant)
    await trail.write(module.ENDED, "one", tenant="zenith")
    trail.known["zenith"] = Gathered([view("one", "zenith")], [])
    await trail.lost.look()
    assert await trail.ends() == [("inspections/one", "node_lost")]
    assert await trail.ends("zenith") == [("inspections/one", "why")]


async def test_nothing_is_written_while_a_node_does_not_answer(trail):
    await trail.write(module.OPENED, "one")
    trail.known["acme"] = Gathered([], ["n2"])
    await trail.lost.look()
    assert await trail.ends() == []


async def test_one_node_writes_it(trail):
    await trail.write(module.OPENED, "one")
    trail.others = {"n0", "n2"}
    await trail.lost.look()
    assert (await trail.ends(), trail.asked) == ([], [])
    trail.others = {"n2"}
    await trail.lost.look()
    assert len(await trail.ends()) == 1


async def test_a_bounded_number_is_written_at_a_time_the_oldest_first(trail, monkeypatch):
    monkeypatch.setattr(module, "MOST", 2)
    for number in range(5):
        await trail.write(module.OPENED, str(number))
    seen = []
    for _ in range(3):
        await trail.lost.look()
        seen.append(len(await trail.ends()))
    assert seen == [2, 4, 5]


async def test_many_that_are_open_or_on_a_silent_node_hide_no_lost_one(trail, monkeypatch):
    monkeypatch.setattr(module, "MOST", 2)
    for tenant in ("acme", "silent"):
        for number in range(3):
            await trail.write(module.OPENED, f"{tenant}-{number}", tenant=tenant)
    await trail.write(module.OPENED, "gone")
    trail.known["acme"] = Gathered([view(f"acme-{number}") for number in range(3)], [])
    trail.known["silent"] = Gathered([], ["n2"])
    for _ in range(4):
        await trail.lost.look()
    assert await trail.ends() == [("inspections/gone", "node_lost")]
    await trail.write(module.OPENED, "gone too")
    trail.known["acme"] = Gathered([], [])
    for _ in range(5):
        await trail.lost.look()
    assert len(await trail.ends()) == 5


async def test_the_end_of_a_part_is_not_that_of_the_inspection(trail):
    for id, what in (
        ("many", "next sessions of echo, 15 min"),
        ("over", "next sessions of echo"),
        ("one", "session s"),
    ):
        await trail.write(module.OPENED, id, detail=what)
        await trail.write(module.ENDED, id, detail=f"standstill; {what}; on n2")
    await trail.write(module.ENDED, "over", detail="time; on n1")
    trail.known["acme"] = Gathered([view("many")], [])
    await trail.lost.look()
    assert len(await trail.ends()) == 4  # another node has a part
    trail.known["acme"] = Gathered([], [])
    for _ in range(2):
        await trail.lost.look()
    assert ("inspections/many", "node_lost") in await trail.ends()
    assert len(await trail.ends()) == 5


async def test_one_whose_node_says_that_it_has_ended_while_the_nodes_are_asked_has_no_other_end(trail):
    """It stops: the trail has been read before, and nobody knows of it any more."""
    await trail.write(module.OPENED, "one")
    ask = trail._known

    async def known(tenant: str) -> Gathered[InspectionView]:
        await trail.write(module.ENDED, "one", age_s=0.0, detail="session_ended; session s; 1 messages")
        return await ask(tenant)

    trail.lost._known = known
    await trail.lost.look()
    assert await trail.ends() == [("inspections/one", "session_ended")]


async def test_a_database_that_is_away_is_no_bug(trail: Trail, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    looks = 0

    async def unanswered(*_: object, **__: object) -> list[AuditEntry]:
        nonlocal looks
        looks += 1
        raise StorageUnavailable

    monkeypatch.setattr(trail.audit, "unanswered", unanswered)
    monkeypatch.setattr(module, "EVERY_S", 0.001)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(trail.lost.run)
        with anyio.fail_after(20):
            while looks < 3:
                await anyio.sleep(0.001)
        tasks.cancel_scope.cancel()
    assert not [each for each in caplog.records if each.levelno > logging.DEBUG]
