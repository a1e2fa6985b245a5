"""Whatever happens to a durable session before its node dies: what was accepted and not delivered comes once, in order,
and a call has one outcome. Sequences are made up; the sessions, journals and links are real."""

import json
from collections import defaultdict
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.protocol.commands import Failed
from app.protocol.event_ids import EventId
from app.routing.journal_store import MemoryJournalStore
from app.sessions import journal
from app.sessions.resumption import Reader
from app.sessions.session import Session
from tests.sessions.durable import Node, nodes, place_of, stream_call

LISTEN = 0  # the other streams have the numbers of their calls
CALLS = range(1, 4)
STRANGE = 99  # a stream of a call of another node's time

Step = tuple[str, int]
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["say", "change"]), st.integers(0, 1)),
        st.tuples(st.sampled_from(["call", "progress", "answer"]), st.sampled_from(CALLS)),
        st.tuples(st.sampled_from(["read", "leave", "resume"]), st.sampled_from([LISTEN, *CALLS])),
        st.tuples(st.sampled_from(["flush", "part", "lose"]), st.just(0)),
    ),
    min_size=10,
    max_size=40,
)


class Client:
    """One client with its session, and what both of them know. Every message has a number of its own."""

    def __init__(self, node: Node, session: Session) -> None:
        self.node, self.session = node, session
        self.readers: dict[int, Reader] = {}
        self.places: dict[int, bytes] = {}
        self.received: dict[int, list[int]] = defaultdict(list)
        self.outcomes: dict[int, list[str]] = defaultdict(list)
        self.accepted: dict[int, list[int]] = defaultdict(list)
        self.promised: set[int] = set()  # calls that the journal knows, answered or not
        self.gateway_ids: dict[int, int] = {}
        self.known: dict[int, set[int]] = {}
        self.changes: dict[int, int] = {}
        self.overtaken: set[int] = set()  # changes that a later one may have taken the place of
        self.serial = 0

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
            case "answer" if target in self.gateway_ids:
                self.node.process.say(id=self.gateway_ids[target], result={"n": self.next()})
            case "read" if target in self.readers:
                await self.read(target)
            case "leave" if target in self.readers:
                self.readers.pop(target).leave()
            case "resume":
                self.resume(target)
            case "flush":
                await self.flush()
            case "lose":
                assert self.session.journal is not None
                self.session.journal.lost()
            case "part":
                assert self.session.journal is not None
                await self.node.writer._write([self.session.journal])
                self.accept()

    def change(self, resource: int) -> None:
        """A change takes the place of the one before if that is not delivered yet; the client may miss that one."""
        number = self.next()
        before = self.changes.get(resource)
        if before is not None:
            self.overtaken.add(before)
        if before in self.accepted[LISTEN]:
            self.accepted[LISTEN].remove(before)
        self.changes[resource] = number
        params = {"uri": f"a://{resource}", "n": number}
        self.node.process.say(method="notifications/resources/updated", params=params)

    def take(self, target: int, reader: Reader) -> None:
        self.readers[target], self.places[target] = reader, reader.event_id

    def resume(self, target: int) -> None:
        """Comes back with the last id; without one, to the listen stream only. Whoever has its answer does not."""
        if target in self.readers or self.outcomes[target]:
            return
        if target in self.places:
            reader = self.session.resume(place_of(self.places[target]))
            if reader is not None:
                self.take(target, reader)
        elif target == LISTEN:
            self.take(LISTEN, self.session.read(self.session.open_listener()))

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
            self.note(target, json.loads(item))
        return True

    def note(self, target: int, message: dict[str, Any]) -> None:
        if "result" in message:
            self.outcomes[target].append("answered")
            self.received[target].append(message["result"]["n"])
        elif message["method"] != "notifications/message":  # the news of another process
            params = message["params"]
            self.received[target].append(params["n"] if "n" in params else params["progress"])

    async def flush(self) -> None:
        """From now on what there is is accepted."""
        await self.node.flush(self.session)
        self.accept()

    def accept(self) -> None:
        """Notes what the store has."""
        self.accepted.clear()
        resumption = self.session._resumption
        assert resumption is not None
        names = {place_of(place).stream: target for target, place in self.places.items()}
        for recorder, stream in resumption:
            target = LISTEN if stream is self.session.listen else names.get(recorder.name, STRANGE)
            for event in resumption.log.after(EventId(recorder.name, 0)):
                if isinstance(event.item, bytes) and event.serial:
                    found = Client(self.node, self.session)
                    found.note(target, json.loads(event.item))
                    self.accepted[target] += [each for each in found.received[target] if each not in self.overtaken]
        self.known = {target: set(accepted) for target, accepted in self.accepted.items()}
        self.promised = set(self.gateway_ids)

    async def move(self, node: Node, token: int) -> None:
        """The node dies; the client goes on at another one, and hears everything that there is."""
        self.node.abandon()
        self.node, self.session = node, await node.take_over(self.session.id, token)
        self.readers.clear()
        before = {target: set(received) for target, received in self.received.items()}
        died_at = self.serial
        await self.carry_out("say", 0)
        open_calls = {target for target in self.promised if not self.outcomes[target]}
        for target in [LISTEN, *CALLS]:
            if target in self.promised or target == LISTEN:
                self.resume(target)
        for target in list(self.readers):
            while await self.read(target):
                pass
        self.check(open_calls)
        for target, received in self.received.items():
            old = {number for number in received if number <= died_at} - before.get(target, set())
            assert old <= self.known.get(target, set()), f"stream {target}: what was gone is back"
        self.gateway_ids = {}
        for target in CALLS:
            self.outcomes.pop(target, None)
            self.readers.pop(target, None)
            self.places.pop(target, None)
        self.accepted.clear()
        self.promised = set()
        await self.flush()

    def check(self, open_calls: set[int]) -> None:
        for target, received in self.received.items():
            assert received == sorted(set(received)), f"stream {target}: repeated, or out of order"
        for target, accepted in self.accepted.items():
            assert set(accepted) <= set(self.received[target]) or target == STRANGE, f"stream {target}: lost"
        for target in open_calls:
            assert len(self.outcomes[target]) == 1, f"call {target} has {self.outcomes[target]}"


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that short sequences reach what matters in a journal's own housekeeping."""
    monkeypatch.setattr(journal, "SLACK_ENTRIES", 2)
    monkeypatch.setattr(journal, "MAX_EVENTS", 6)
    monkeypatch.setattr(journal, "WRITE_BYTES", 200)


@pytest.mark.usefixtures("small_limits")
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=steps, second=steps)
def test_what_was_accepted_comes_once_and_in_order_wherever_the_node_dies(
    first: list[Step], second: list[Step]
) -> None:
    async def live() -> None:
        async with nodes(MemoryJournalStore(), 3) as cluster:
            client = Client(cluster[0], await cluster[0].open())
            await client.flush()
            for each in first:
                await client.carry_out(*each)
            await client.move(cluster[1], 2)
            for each in second:
                await client.carry_out(*each)
            await client.move(cluster[2], 3)

    anyio.run(live)
