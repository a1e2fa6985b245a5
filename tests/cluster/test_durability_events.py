"""Whatever happens to a durable session before its node dies: what was accepted and not delivered comes once, in order,
and a call has one outcome. Sequences are made up; the sessions, journals and connections are real.

An event is accepted once the store has acknowledged that it can be read there. From then on nothing excuses its loss
but a later change of the same resource that the client gets instead, and, where limits are small, that the session
itself has it no more.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.cluster.journal_writer import JournalWriter
from app.errors import RoutesUnavailable
from app.protocol.commands import Failed
from app.protocol.event_ids import EventId
from app.sessions.session import Session
from app.sessions.session_ids import session_key
from app.sessions.streams import _replay as replay
from app.sessions.streams import journal, streams
from app.sessions.streams.entry import FAILED_SIZE, Entry, Item, bytes_of
from app.sessions.streams.journal_store import JournalWrite, Outcome, Target
from app.sessions.streams.resumption import Reader
from tests.cluster.durable import SEALER, Node, nodes, place_of, stream_call
from tests.cluster.routing.memory_journal_store import MemoryJournalStore

LISTEN = 0  # the other streams have the numbers of their calls
CALLS = range(1, 4)
MAX_ALIKE = 3  # changes of one resource: one that the store has, one in a write that may arrive, one since
LARGE = 600  # bytes of an answer that small limits make an error of

Step = tuple[str, int]
changes = st.tuples(
    st.sampled_from(["change", "change", "say", "change meanwhile", "change in vain"]), st.integers(0, 1)
)
calls = st.tuples(st.sampled_from(["call", "progress", "answer", "large answer"]), st.sampled_from(CALLS))
writes = st.tuples(
    st.sampled_from(["part", "part", "flush", "lose", "unsent", "unheard", "late", "deliver"]), st.just(0)
)


def of_readers(*targets: int) -> st.SearchStrategy[Step]:
    return st.tuples(st.sampled_from(["resume", "read", "read", "leave"]), st.sampled_from(targets))


# Those of one stream only meet each other often enough.
steps = st.one_of(
    st.lists(st.one_of(changes, writes, of_readers(LISTEN)), min_size=15, max_size=40),
    st.lists(st.one_of(calls, writes, of_readers(*CALLS)), min_size=15, max_size=40),
    st.lists(st.one_of(changes, calls, writes, of_readers(LISTEN, *CALLS)), min_size=15, max_size=40),
)


class DoubtfulStore(MemoryJournalStore):
    """Its next write may arrive without an answer, late or never; `meanwhile` is what happens while it is under way."""

    def __init__(self) -> None:
        super().__init__()
        self.mishap = ""
        self.meanwhile: Callable[[], None] = lambda: None
        self.has_acknowledged = False  # what can be read now
        self._late: list[Sequence[JournalWrite]] = []

    async def write(self, writes: Sequence[JournalWrite]) -> list[Outcome]:
        self.meanwhile()
        if self.mishap == "late":
            self._late.append(writes)
        outcomes = await super().write(writes) if self.mishap in ("", "unheard") else []
        if self.mishap:
            raise RoutesUnavailable
        self.has_acknowledged |= any(
            outcome is Outcome.WRITTEN and write.target is not Target.ASIDE
            for write, outcome in zip(writes, outcomes, strict=True)
        )
        return outcomes

    async def deliver(self) -> None:
        """What is late arrives."""
        late, self._late = self._late, []
        for writes in late:
            await super().write(writes)


class Client:
    """One client with its session, and what both of them know. Every message has a number of its own."""

    def __init__(self, store: DoubtfulStore, node: Node, session: Session, *, may_lose: bool) -> None:
        self.may_lose = may_lose  # the session itself, because of its limits
        self.store, self.node, self.session, self.token = store, node, session, 1
        self.readers: dict[int, Reader] = {}
        self.places: dict[int, bytes] = {}
        self.received: dict[int, list[int]] = defaultdict(list)
        self.outcomes: dict[int, list[str]] = defaultdict(list)
        self.accepted: dict[int, set[int]] = defaultdict(set)
        self.readable: dict[int, dict[int, int]] = {}  # with their places
        self.told: set[int] = set()  # calls that the process has answered
        self.answered: set[int] = set()  # calls whose answer was accepted
        self.readable_answers: set[int] = set()
        self.promised: set[int] = set()  # calls that the journal knows, answered or not
        self.gateway_ids: dict[int, int] = {}
        self.resource_of: dict[int, int] = {}  # by number of the change
        self.serial = 0
        self.inherited = 0  # numbers up to this one are of a node that died: they were accepted there, or are not

    def next(self) -> int:
        self.serial += 1
        return self.serial

    async def carry_out(self, step: str, target: int) -> None:
        match step:
            case "say":
                self.node.process.say(method="notifications/note", params={"n": self.next()})
            case "change":
                self.change(target)
            case "call" if target not in self.gateway_ids:
                self.take(target, stream_call(self.session, target))
                self.gateway_ids[target] = self.node.process.sent[-1]["id"]
            case "progress" if target in self.gateway_ids:
                params = {"progressToken": self.gateway_ids[target], "progress": self.next()}
                self.node.process.say(method="notifications/progress", params=params)
            case "answer" | "large answer" if target in self.gateway_ids:
                result = {"n": self.next(), "text": "x" * (LARGE if step == "large answer" else 0)}
                self.told.add(target)
                self.node.process.say(id=self.gateway_ids[target], result=result)
            case "read" if target in self.readers:
                await self.read(target)
            case "leave" if target in self.readers:
                self.readers.pop(target).leave()
            case "resume":
                self.resume(target)
            case "lose":
                assert self.session.journal is not None
                self.session.journal.lost()
            case "deliver":
                await self.store.deliver()
                await self.look()
            case "flush" | "part" | "unsent" | "unheard" | "late":
                await self.write(step)
            case "change meanwhile" | "change in vain":
                self.store.meanwhile = partial(self.change_once, target)
                await self.write("part" if step == "change meanwhile" else "unheard")

    async def write(self, step: str) -> None:
        """The writer's turn: one write, but for a flush."""
        assert self.session.journal is not None
        self.store.mishap = "" if step in ("flush", "part") else step
        with suppress(RoutesUnavailable):
            if step == "flush":
                await self.node.flush(self.session)
            else:
                await self.node.writer._write([self.session.journal])
        self.store.mishap, self.store.meanwhile = "", lambda: None
        await self.look()

    def change_once(self, resource: int) -> None:
        self.store.meanwhile = lambda: None
        self.change(resource)

    def change(self, resource: int) -> None:
        number = self.next()
        self.resource_of[number] = resource
        params = {"uri": f"a://{resource}", "n": number}
        self.node.process.say(method="notifications/resources/updated", params=params)

    def take(self, target: int, reader: Reader) -> None:
        self.readers[target], self.places[target] = reader, reader.event_id

    def resume(self, target: int) -> None:
        """Comes back with the last id; without one, to the listen stream only. Whoever has its answer does not."""
        if target in self.readers or self.outcomes[target]:
            return
        reader = self.session.streams.resume(place_of(self.places[target])) if target in self.places else None
        if reader is None and target == LISTEN:
            reader = self.session.streams.read(self.session.streams.open_listener())
        if reader is not None:
            self.take(target, reader)

    async def read(self, target: int) -> bool:
        """One message, if there is one now."""
        reader = self.readers[target]
        if not reader._backlog and not reader._stream._entries:
            return False
        item = await reader.next()
        if item is None:
            return False
        self.places[target] = reader.event_id
        if isinstance(item, Failed):
            self.outcomes[target].append(item.error.reason)
        else:
            self.outcomes[target] += ["answered"] if b'"result"' in bytes_of(item) else []
            self.received[target] += _numbers([bytes_of(item)])
        return True

    async def look(self) -> None:
        """Notes what another node would read now, and accepts it if the store has said that it is there."""
        found = await JournalWriter(self.store, SEALER).take(session_key(self.session.id), self.token)
        if found is None:
            return
        head, events, _ = found
        targets = self._targets()
        readable: dict[int, list[Any]] = defaultdict(list)
        for event in events:
            if event.stream in targets:
                readable[targets[event.stream]].append(event)
        self.readable = {
            target: {number: event.number for event in each for number in _numbers([event.item])}
            for target, each in readable.items()
        }
        self.readable_answers = {target for target, each in readable.items() if any(event.id for event in each)}
        if self.store.has_acknowledged:
            self.store.has_acknowledged = False
            for target, numbers in self.readable.items():
                self.accepted[target] |= {number for number in numbers if number > self.inherited}
            self.answered |= self.readable_answers
            self.promised |= self.answered | {targets[each.name] for each in head.streams if each.name in targets}

    def _targets(self) -> dict[str, int]:
        """The streams that the client knows, by name."""
        assert self.session.streams._resumption is not None
        names = {place_of(place).stream: target for target, place in self.places.items()}
        for recorder, stream in self.session.streams._resumption:
            if stream is self.session.streams.listen:
                names[recorder.name] = LISTEN
        return names

    def kept(self) -> dict[int, list[Entry]]:
        """What the session itself has."""
        assert self.session.streams._resumption is not None
        log = self.session.streams._resumption.log
        return {target: log.after(EventId(name, 0)) for name, target in self._targets().items()}

    async def move(self, node: Node) -> None:
        """The node dies; the client goes on at another one, and hears everything that there is."""
        kept = self.kept()
        self.node.abandon()
        await self.store.deliver()
        await self.look()
        self.token, self.inherited = self.token + 1, self.serial
        self.node, self.session = node, await node.take_over(self.session.id, self.token)
        self.readers.clear()
        before = {target: set(received) for target, received in self.received.items()}
        await self.carry_out("say", 0)
        open_calls = {target for target in self.promised if target != LISTEN and not self.outcomes[target]}
        for target in [LISTEN, *CALLS]:
            self.resume(target)
        for target in list(self.readers):
            while await self.read(target):
                pass
        assert self.serial in self.received[LISTEN], "what the new process says does not arrive"
        for target in [LISTEN, *CALLS]:
            received = self.received[target]
            assert received == sorted(set(received)), f"stream {target}: repeated, or out of order"
            old = {number for number in received if number <= self.inherited} - before.get(target, set())
            assert old <= set(self.readable.get(target, ())), f"stream {target}: what was gone is back"
            self.check_nothing_is_lost(target, kept.get(target, []), set(received))
            changed = Counter(self.resource_of[number] for number in old if number in self.resource_of)
            assert max(changed.values(), default=0) <= MAX_ALIKE, "changes came though later ones were there"
        for target in open_calls:
            self.check_outcome(target, any(event.call is not None for event in kept.get(target, [])))
        self.accepted.clear()  # each has come, or what became of it has been checked
        self.forget_calls()

    def check_that_the_node_may_die(self) -> None:
        """Another one would have all that was accepted and not received, behind the place that the client has."""
        kept = self.kept()
        for target in self.accepted:
            place = place_of(self.places[target]).number if target in self.places else 0
            there = {number for number, at in self.readable.get(target, {}).items() if at > place}
            self.check_nothing_is_lost(target, kept.get(target, []), there | set(self.received[target]))

    def check_nothing_is_lost(self, target: int, events: list[Entry], received: set[int]) -> None:
        """`events` are those that the session itself had."""
        kept = set(_numbers(event.item for event in events))
        for number in self.accepted[target] - received:
            resource = self.resource_of.get(number)
            later = {each for each, of in self.resource_of.items() if resource == of and each > number}
            was_dropped = self.may_lose and not kept & {number, *(later & self.accepted[target])}
            assert later & received or was_dropped, f"stream {target}: {number} is lost"

    def check_outcome(self, target: int, is_kept: bool) -> None:
        outcomes = self.outcomes[target]
        is_answered = target in self.answered | self.readable_answers
        expected = ["answered" if is_answered else "node_lost"]
        is_small = outcomes == ["response_too_large"] and is_answered
        was_dropped = not outcomes and target in self.told and not is_kept
        assert outcomes == expected or (self.may_lose and (is_small or was_dropped)), f"call {target} has {outcomes}"

    def forget_calls(self) -> None:
        """From now on their numbers are those of others."""
        for known in (self.outcomes, self.readers, self.places, self.received):
            for target in CALLS:
                known.pop(target, None)
        self.gateway_ids, self.promised, self.answered, self.told = {}, set(), set(), set()
        self.readable_answers = set()


def _numbers(items: Iterable[Item | Any]) -> Iterator[int]:
    for item in items:
        message = json.loads(item) if isinstance(item, bytes) else {}
        if "result" in message:
            yield message["result"]["n"]
        elif message and message["method"] != "notifications/message":  # the news of another process
            params = message["params"]
            yield params["n"] if "n" in params else params["progress"]


@contextmanager
def small_limits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "MAX_EVENTS", 6)
        patch.setattr(replay, "MAX_BYTES", 6 * FAILED_SIZE + 100)
        patch.setattr(streams, "MAX_EVENTS", 5)
        yield


@pytest.fixture
def small_journals(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that short sequences reach what matters in a journal's own housekeeping."""
    monkeypatch.setattr(journal, "SLACK_ENTRIES", 2)
    monkeypatch.setattr(journal, "MAX_EVENTS", 6)
    monkeypatch.setattr(journal, "WRITE_BYTES", 200)
    monkeypatch.setattr(journal, "MAX_ASIDE", 4)


async def live(lives: list[list[Step]], *, may_lose: bool) -> None:
    """One session, which dies at the end of each of these."""
    store = DoubtfulStore()
    async with nodes(store, len(lives) + 1) as cluster:
        client = Client(store, cluster[0], await cluster[0].open(), may_lose=may_lose)
        await client.carry_out("flush", 0)
        for each, successor in zip(lives, cluster[1:], strict=True):
            with small_limits() if may_lose else nullcontext():
                for step in each:
                    await client.carry_out(*step)
                    client.check_that_the_node_may_die()
            await client.move(successor)


def examples(count: int) -> settings:
    return settings(max_examples=count, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.usefixtures("small_journals")
@pytest.mark.parametrize("may_lose", [False, True])
@examples(100)
@given(lives=st.lists(steps, min_size=2, max_size=2))
def test_what_was_accepted_comes_once_and_in_order_wherever_the_node_dies(
    lives: list[list[Step]], may_lose: bool
) -> None:
    anyio.run(partial(live, lives, may_lose=may_lose))


@pytest.mark.fuzz
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("small_journals")
@pytest.mark.parametrize("may_lose", [False, True])
@examples(5_000)
@given(lives=st.lists(steps, min_size=1, max_size=4))
def test_the_same_of_many_more_lives(lives: list[list[Step]], may_lose: bool) -> None:
    anyio.run(partial(live, lives, may_lose=may_lose))
