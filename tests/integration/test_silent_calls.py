"""A call that says nothing: when its answer becomes an event stream, and that of one that has begun never does."""

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest

from tests.integration.gateway import ECHO, ROOT, Endpoint, Gateway, running_gateway, until
from tests.integration.wire import Wire, answer, events, rpc, wire

HALVES = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/halves.py")]

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway behind proxies that cut what is silent for long."""
    with running_gateway(tmp_path_factory.mktemp("impatient") / "data", STREAM_AFTER_S="3") as gateway:
        yield gateway


def kind(response: httpx2.Response) -> str:
    return response.headers["content-type"].partition(";")[0]


async def test_a_call_of_seconds_is_answered_as_json(echo: Endpoint) -> None:
    async with wire(echo) as session:
        answered = await session.post(rpc("tools/call", 7, {"name": "sleep", "arguments": {"ms": 1800}}))
    assert (kind(answered), answered.json()["id"]) == ("application/json", 7)


async def test_the_setting_says_when_silence_makes_a_stream(impatient: Gateway) -> None:
    async with wire(impatient.endpoint(HALVES)) as session:
        body = rpc("tools/call", 7, {"name": "call", "arguments": {}})
        async with session.stream("POST", body) as answered:  # its head is there, and nothing was answered
            assert kind(answered) == "text/event-stream"
            await session.request("tools/list")
            texts = [event.message["result"]["content"][0]["text"] async for event in events(answered) if event.data]
    assert texts == ["late"]


async def test_a_client_that_takes_json_only_is_never_switched_to_a_stream(impatient: Gateway) -> None:
    endpoint = impatient.endpoint(ECHO)
    call = rpc("tools/call", 3, {"name": "sleep", "arguments": {"ms": 4000}})
    async with wire(endpoint) as session:
        response = await session.post(call, Accept="application/json")
    assert (kind(response), answer(response)["content"][0]["text"]) == ("application/json", "slept")


async def test_progress_makes_a_stream_at_once(echo: Endpoint) -> None:
    params = {"name": "progress", "arguments": {"n": 2}, "_meta": {"progressToken": "p"}}
    async with wire(echo) as session:
        assert kind(await session.post(rpc("tools/call", 7, params))) == "text/event-stream"


class Begun:
    """A session with a call whose answer has begun, and what it came to."""

    def __init__(self, session: Wire, endpoint: Endpoint) -> None:
        self.session, self.endpoint = session, endpoint
        self.answered: httpx2.Response | None = None

    async def begin(self, tasks: anyio.abc.TaskGroup, member: str) -> None:
        tasks.start_soon(self._call, member)
        await until(lambda: self._in_flight == 1, 20)

    async def _call(self, member: str) -> None:
        self.answered = await self.session.post(
            rpc("tools/call", "begun", {"name": "call", "arguments": {"member": member}})
        )

    @property
    def _in_flight(self) -> int:
        sessions = self.endpoint.gateway.api("GET", f"/tenants/{self.endpoint.tenant}/sessions")["items"]
        return sum(each["calls"] for each in sessions)


@asynccontextmanager
async def silent(session: Wire) -> AsyncIterator[httpx2.Response]:
    """A call of which nothing is heard; it is open once it has become a stream, as has what was silent before it."""
    async with session.stream("POST", rpc("tools/call", "silent", {"name": "call", "arguments": {}})) as answered:
        assert kind(answered) == "text/event-stream"
        yield answered


@pytest.mark.parametrize("member", ["id", "result"])
@pytest.mark.parametrize("fields", [{}, {"isolation": "shared"}, {"recovery": "respawn"}])
async def test_an_answer_that_has_begun_stays_json_however_slowly_it_comes(
    impatient: Gateway, fields: dict[str, Any], member: str
) -> None:
    first, second = (impatient.endpoint(HALVES, **fields) for _ in range(2))
    async with wire(first) as session, wire(second) as other, anyio.create_task_group() as tasks:
        begun = Begun(session, first)
        await begun.begin(tasks, member)
        async with silent(other):
            await session.request("tools/list")
    assert begun.answered is not None
    assert kind(begun.answered) == "application/json"
    assert begun.answered.json()["result"]["content"][0]["text"].endswith("whole")


@pytest.mark.parametrize("fields", [{}, {"isolation": "shared"}])
async def test_beside_one_that_has_begun_a_silent_call_becomes_a_stream(
    impatient: Gateway, fields: dict[str, Any]
) -> None:
    endpoint = impatient.endpoint(HALVES, **fields)
    async with wire(endpoint) as session, anyio.create_task_group() as tasks:
        begun = Begun(session, endpoint)
        await begun.begin(tasks, "id")
        async with silent(session) as answered:
            await session.request("tools/list")
            assert [event.message["id"] async for event in events(answered) if event.data] == ["silent"]
    assert begun.answered is not None
    assert kind(begun.answered) == "application/json"
