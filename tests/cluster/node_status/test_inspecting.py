"""Inspecting: what it opens, of which sessions, how each ends, and that nothing of it is left."""

import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from app.backends.connections._captured import CapturedConnection
from app.cluster.node_status import inspecting as module
from app.cluster.node_status.inspecting import Inspecting
from app.cluster.node_status.inspection_views import InspectionView, seen_together
from app.domain import BackendSpec, Principal
from app.errors import StorageUnavailable
from app.protocol.jsonrpc import Request
from app.sessions.loop_pause import StandstillDetector, since_boot
from app.sessions.open_sessions import OpenSessions
from app.sessions.registry import SessionRegistry
from app.sessions.session import Session
from app.storage.audit import Act
from app.telemetry.capture.captured_message import InspectedMessage
from app.telemetry.capture.inspection import About
from app.telemetry.capture.masking import MASKED
from app.telemetry.metrics import Metrics
from tests.sessions.fakes import FakePool, alone
from tests.sessions.rig import SPEC

OPENER = ("acme", "key", "k2")
SECRET = "s3cret-of-the-backend"


def asked(seconds: float = 60.0, **members: Any) -> About:
    now = time.time()
    return About(**{
        "id": "i1", "tenant": "acme", "backend": "", "session": "", "transport": "", "payloads": True, "reason": "why",
        "opener": ("acme", "key", "k2"), "opened_at": now, "ends_at": now + seconds, **members,
    })  # fmt: skip


class Rig:
    """Sessions over fakes, and an Inspecting that is told of new ones. `gate`: the trail takes nothing before."""

    def __init__(self, pool: FakePool, directory: Any) -> None:
        sessions, typed_pool = OpenSessions(), pool
        self.pool, self.acts, self.gate = pool, list[Act](), anyio.Event()
        self.gate.set()
        self.specs = [replace(SPEC, env={"TOKEN": SECRET})]  # of every backend that is named
        self.inspecting = Inspecting(
            "n1", sessions, lambda key: self.specs, lambda spec: (), self._write, Metrics("test"), 8 << 20
        )
        self.registry = SessionRegistry(
            directory, typed_pool, Metrics("test"), alone(sessions), max_sessions=500, sessions=sessions,
            standstill=StandstillDetector(lambda: 1000.0),
        )  # type: ignore[arg-type]  # fmt: skip

    async def _write(self, act: Act) -> None:
        await self.gate.wait()
        self.acts.append(act)

    async def session(self, principal: Principal, backend: str = "echo") -> Session:
        session = await self.registry.open(principal, "acme", backend, "streamable_http")
        await self.registry.connect(session)
        self.ask(session, "initialize", b"0")
        self.pool.leases[-1].connection.answer({"protocolVersion": "2025-06-18", "capabilities": {}})
        return session

    def ask(self, session: Session, method: str, id: bytes = b"1", **params: str) -> None:
        raw = {name: msgspec.Raw(json.dumps(value).encode()) for name, value in params.items()}
        session.request(Request(id, method, raw), session.reply(1, may_stream=True))

    def view(self, id: str = "i1") -> InspectionView:
        return next(each for each in self.inspecting.of("acme") if each.about.id == id)

    def shown(self, id: str = "i1") -> list[tuple[str, str, str]]:
        seen = self.inspecting.seen("acme", id, 0, 500)
        assert seen is not None
        return [(each.side, each.method, each.kind) for each in seen.messages]


@pytest.fixture
async def rig(pool: FakePool, directory: Any) -> AsyncIterator[Rig]:
    rig = Rig(pool, directory)
    async with rig.registry:
        yield rig
    assert all(session.calls.capture is None for session in rig.registry)


def is_captured(session: Session) -> bool:
    return session.calls.capture is not None or isinstance(session.connection._connection, CapturedConnection)


async def test_what_opens_after_it_is_seen_from_its_first_message_and_what_was_open_is_not(rig, principal):
    before = await rig.session(principal)
    assert rig.inspecting.open(asked(backend="echo"), ()).view is not None
    assert rig.inspecting.confirm("acme", "i1") is not None
    after = await rig.session(principal)
    rig.ask(before, "tools/call")
    assert rig.shown() == [
        ("client", "initialize", "request"), ("backend", "initialize", "request"),
        ("backend", "initialize", "result"), ("client", "initialize", "result"),
    ]  # fmt: skip
    assert [is_captured(each) for each in (before, after)] == [False, True]
    assert (rig.view().sessions, rig.view().about.session) == (1, "")
    assert rig.inspecting.open(asked(id="i2", session=before.public_id), ()).view is not None
    refused = rig.inspecting.open(asked(id="i3", session=after.public_id), ())
    assert (refused.view, refused.refusal) == (None, "this session is inspected already: i1")
    assert "backend is inspected already: i1" in rig.inspecting.open(asked(id="i4", backend="echo"), ()).refusal
    rig.inspecting.close("acme", "i1")
    assert [is_captured(each) for each in (before, after)] == [True, False]
    await rig.session(principal)
    assert rig.view("i2").sessions == 1
    rig.inspecting.close("acme", "i2")


async def test_a_bounded_number_of_sessions_is_seen_at_a_time_and_the_others_are_counted(rig, principal, monkeypatch):
    monkeypatch.setattr(module, "MAX_SESSIONS", 2)
    rig.inspecting.open(asked(backend="echo"), ())
    sessions = [await rig.session(principal) for _ in range(3)]
    assert [is_captured(each) for each in sessions] == [True, True, False]
    assert (rig.view().sessions, rig.view().missed) == (2, 1)
    sessions[0].close("deleted")
    assert is_captured(await rig.session(principal))
    assert (rig.view().sessions, rig.view().missed) == (3, 1)
    rig.inspecting.close("acme", "i1")


async def test_the_secrets_of_each_version_of_the_backend_are_masked(rig, principal, store):
    rig.inspecting.open(asked(backend="echo"), ())
    store.specs["acme", "echo"] = replace(SPEC, env={"TOKEN": "secret-of-version-2"})
    session = await rig.session(principal)
    rig.inspecting.backend_changed(replace(SPEC, env={"TOKEN": "secret-of-version-3"}))
    rig.inspecting.backend_changed(BackendSpec("zenith", "echo", "x", env={"TOKEN": "of another tenant"}))
    rig.ask(session, "tools/call", a=SECRET, b="secret-of-version-2", c="secret-of-version-3", d="of another tenant")
    seen = rig.inspecting.seen("acme", "i1", 0, 500)
    said = json.dumps([each.payload for each in seen.messages])
    assert "secret-of" not in said
    assert SECRET not in said
    assert "of another tenant" in said
    rig.inspecting.close("acme", "i1")


async def test_the_secrets_of_all_versions_of_a_member_that_run_are_masked(rig):
    rig.specs = [replace(SPEC, env={"TOKEN": f"secret-of-process-{number}"}) for number in (1, 2)]
    rig.inspecting.open(asked(backend="all"), ())
    inspection = next(iter(rig.inspecting._inspections))
    line = b'{"text":"secret-of-process-1 secret-of-process-2"}'
    inspection.add(InspectedMessage(1, 1.0, "backend", "to_client", "result", "", "", "", "red", len(line)), line)
    assert "secret-of" not in (inspection.message(1).payload or "")
    rig.specs = []
    inspection.add(InspectedMessage(2, 1.0, "backend", "to_client", "result", "", "", "", "blue", len(line)), line)
    assert inspection.message(2).payload is None, "nobody knows what is secret there"
    rig.inspecting.close("acme", "i1")


@pytest.mark.parametrize("payloads", [True, False])
async def test_secrets_are_masked_in_what_a_message_names_too(rig, principal, store, payloads):
    store.specs["acme", "echo"] = replace(SPEC, env={"TOKEN": SECRET})
    session = await rig.session(principal)
    rig.inspecting.open(asked(session=session.public_id, payloads=payloads), ())
    rig.ask(session, "tools/call", json.dumps(f"id-{SECRET}").encode(), name=f"{'x' * 195}{SECRET}")
    rig.ask(session, "resources/read", b"2", uri="https://me:hunter2x@example.com/a?token=hunter2x")
    rig.ask(session, f"say/{SECRET}", b"3", name="say")
    rig.ask(session, "tools/call", b"4", name="x" * 100_000)
    seen = rig.inspecting.seen("acme", "i1", 0, 500)
    said = json.dumps([msgspec.structs.asdict(each) for each in seen.messages])
    assert SECRET[:5] not in said
    assert "hunter2x" not in said
    names = [each.tool for each in seen.messages if each.side == "client"]
    assert names == ["x" * 195 + MASKED, f"https://me:{MASKED}@example.com/a?token={MASKED}", "", MASKED]
    rig.inspecting.close("acme", "i1")


async def test_one_that_nobody_confirms_ends_and_what_it_saw_is_gone(rig, principal, monkeypatch):
    session = await rig.session(principal)
    monkeypatch.setattr(module, "CONFIRM_S", -1.0)
    rig.inspecting.open(asked(session=session.public_id), ())
    rig.ask(session, "tools/call")
    assert (rig.view().ending, rig.view().kept) == ("not_confirmed", 0)
    assert rig.inspecting.confirm("acme", "i1") is None
    assert not is_captured(session)


async def test_its_time_is_over_in_time_though_the_clock_of_the_machine_was_set_back(rig, monkeypatch):
    clock = since_boot() + 59.0
    rig.inspecting.open(asked(backend="echo"), ())
    assert rig.inspecting.confirm("acme", "i1") is not None
    monkeypatch.setattr(module, "since_boot", lambda: clock)
    assert rig.view().ending is None
    monkeypatch.setattr(module, "since_boot", lambda: clock + 2.0)
    assert rig.view().ending == "time"


async def test_it_ends_with_its_opener_its_tenant_s_word_and_the_tenant(rig, principal):
    cases = [
        ("revoked", lambda: rig.inspecting.end_of_opener(lambda opener: opener == OPENER)),
        ("forbidden", lambda: rig.inspecting.restrict("acme", "metadata")),
        ("forbidden", lambda: rig.inspecting.restrict("acme", "forbidden")),
        ("forbidden", lambda: rig.inspecting.tenant_removed("acme")),
    ]
    for number, (ending, end) in enumerate(cases):
        id = f"i{number}"
        rig.inspecting.open(asked(id=id, backend="echo"), ())
        rig.inspecting.confirm("acme", id)
        session = await rig.session(principal)
        assert is_captured(session)
        end()
        assert not is_captured(session)
        await rig.inspecting._write_ends()
        assert rig.acts[-1].target == f"inspections/{id}"
        assert rig.acts[-1].detail.startswith(f"{ending}; the next sessions; 4 messages")
        session.close("deleted")
    assert rig.inspecting.of("acme") == []  # the tenant is gone


async def test_cancelled_half_way_nothing_is_open_and_the_trail_has_every_end(rig, principal, monkeypatch):
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.001)
    for name in ("LAST_WORDS_S", "STANDSTILL_S"):
        monkeypatch.setattr(module, name, 60.0)  # longer than a busy machine stands still
    session = await rig.session(principal)
    rig.inspecting.open(asked(session=session.public_id), ())
    rig.inspecting.open(asked(id="i2", backend="echo"), ())
    other = await rig.session(principal)
    rig.inspecting.close("acme", "none")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.inspecting.run)
        rig.ask(session, "tools/call")
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert [is_captured(each) for each in (session, other)] == [False, False]
    assert [each.kept for each in rig.inspecting.of("acme")] == [0, 0]
    assert rig.inspecting._inspections.bytes == 0
    assert sorted(act.target for act in rig.acts) == ["inspections/i1", "inspections/i2"]
    assert {act.detail.partition(";")[0] for act in rig.acts} == {"shutdown"}


async def test_cancelled_while_the_trail_does_not_answer_it_waits_for_a_bounded_time(rig, principal, monkeypatch):
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.001)
    monkeypatch.setattr(module, "LAST_WORDS_S", 0.01)
    rig.gate = anyio.Event()
    session = await rig.session(principal)
    rig.inspecting.open(asked(session=session.public_id), ())
    rig.inspecting.end_of_opener(lambda opener: True)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(rig.inspecting.run)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
    assert not is_captured(session)
    assert rig.acts == []


async def test_while_the_trail_does_not_answer_the_others_end_in_time(rig, monkeypatch):
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.001)
    monkeypatch.setattr(module, "LAST_WORDS_S", 0.01)
    rig.gate = anyio.Event()
    rig.inspecting.open(asked(backend="echo"), ())
    rig.inspecting.end_of_opener(lambda opener: True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.inspecting.run)
        await anyio.wait_all_tasks_blocked()
        rig.inspecting.open(asked(id="i2", backend="other", seconds=0.1), ())
        with anyio.fail_after(5):
            while rig.inspecting.openers():
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    assert rig.acts == []


async def test_an_end_that_the_trail_does_not_take_is_written_later(rig, principal):
    tries = list[Act]()

    async def refuse(act: Act) -> None:
        tries.append(act)
        if len(tries) == 1:
            raise StorageUnavailable

    rig.inspecting._write = refuse
    rig.inspecting.open(asked(backend="echo"), ())
    rig.inspecting.end_of_opener(lambda opener: True)
    for _ in range(3):
        await rig.inspecting._write_ends()
    assert len(tries) == 2
    assert tries[0] is tries[1]


async def test_after_a_standstill_all_end_since_others_have_said_that_they_are_over(rig, monkeypatch):
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.001)
    monkeypatch.setattr(module, "STANDSTILL_S", -1.0)  # however short it was
    rig.inspecting.open(asked(backend="echo"), ())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.inspecting.run)
        with anyio.fail_after(20):
            while not rig.acts:
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    assert rig.view().ending == "standstill"


async def test_parts_of_several_nodes_become_one_in_the_order_of_time(pool, directory, principal):
    rigs = [Rig(FakePool(), directory) for _ in range(2)]
    parts = asked(backend="echo")
    for rig, name in zip(rigs, ("n1", "n2"), strict=True):
        rig.inspecting._node = name
        rig.inspecting.open(parts, ["n1", "n2"])
    sessions = [await rig.session(principal) for rig in rigs]
    for turn in range(5):
        rigs[turn % 2].ask(sessions[turn % 2], "tools/call", b"%d" % (turn + 10))
    found, after = list[Any](), 0
    with anyio.fail_after(20):
        while len(found) < 4 * 2 + 5 * 2:
            rows = [rig.inspecting.seen("acme", "i1", after, 3) for rig in rigs]
            page = seen_together([each for each in rows if each is not None], 3, ["n3"])
            assert page is not None
            found += page.messages
            after = found[-1].number if found else 0
            await anyio.lowlevel.checkpoint()
    numbers = [each.number for each in found]
    assert numbers == sorted(set(numbers))
    for session in sessions:
        theirs = [each.at for each in found if each.session == session.public_id]
        assert theirs == sorted(theirs)
    assert {number % 2 for number in numbers} == {0, 1}
    assert (page.view.nodes, page.view.sessions, page.view.kept, page.silent) == (["n1", "n2"], 2, 18, ["n3"])
    by_number = {each.number: each for each in found}
    assert all(by_number[each.pair].session == each.session for each in found if each.pair)
    rigs[0].inspecting.end_of_opener(lambda opener: True)
    page = seen_together([seen for rig in rigs if (seen := rig.inspecting.seen("acme", "i1", 0, 0))], 0, [])
    assert page.view.ended_at is None
    rigs[1].inspecting.restrict("acme", "forbidden")
    page = seen_together([seen for rig in rigs if (seen := rig.inspecting.seen("acme", "i1", 0, 0))], 0, [])
    assert (page.view.ending, page.view.kept) == ("forbidden", 0)
    for rig in rigs:
        rig.registry.close_where(lambda session: True, "deleted")
