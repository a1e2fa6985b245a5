"""Home: in front of a server that keeps state one process has every call of its caller, whatever they may ask."""

import dataclasses
import time
from typing import Any

import anyio
import pytest

from app.domain import Principal
from app.errors import BackendExited, BackendTimeout, QuotaExceeded
from app.protocol.commands import CANCEL_GRACE_S
from app.sessions import session as module
from app.sessions.registry import SessionRegistry
from app.sessions.sessionless.call import ASK_ANYBODY_S, ASK_ELSEWHERE_S
from app.sessions.sessionless.requests import SessionlessRequests
from tests.sessions.fakes import FakeStore
from tests.sessions.rig import SPEC
from tests.sessions.sessionless.client import ACCEPT, ELICITS, TEXT, Client, Sent, keys, run
from tests.sessions.sessionless.servers import FakeServer, ServerPool, sessionless_server


@pytest.fixture
def pool() -> ServerPool:
    return ServerPool()


async def several(client: Client, pool: ServerPool, *names: str) -> tuple[list[Sent], FakeServer]:
    """Calls of these names, and the one process that has them."""
    sent = [await client.send(name=name) for name in names]
    (server,) = pool.servers
    return sent, server


def answer(server: FakeServer, number: int) -> None:
    """Answers the call that came as that one."""
    server.answer(TEXT, to=server.sent.index(server.sent_with("tools/call")[number]))


async def done(server: FakeServer, sent: Sent, number: int) -> None:
    answer(server, number)
    assert (await sent.outcome())["content"] == TEXT["content"]


def sweep(registry: SessionRegistry, seconds: float) -> None:
    """What happens that much later."""
    for session in registry:
        session.sweep(time.monotonic() + seconds)


# --- where calls go


async def test_calls_that_may_be_asked_share_the_home_with_all_others(
    asked: Client, pool: ServerPool, sessionless: SessionlessRequests, principal: Principal
) -> None:
    loud = Client(sessionless, principal, ELICITS, log_level="info")
    sent, server = await several(asked, pool, "a", "b")
    sent.append(await loud.send(name="c"))
    assert (await (await asked.send("tools/list")).outcome())["tools"] == []
    for number, each in enumerate(sent):
        await done(server, each, number)
    assert pool.living == [server]


@pytest.mark.parametrize("knows_era", [True, False])
async def test_calls_that_come_at_once_open_one_home(asked: Client, pool: ServerPool, *, knows_era: bool) -> None:
    if knows_era:
        (await run(asked, pool)).die()
    before, sent = len(pool.servers), list[Sent]()

    async def send() -> None:
        sent.append(await asked.send(name="x"))

    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(send)
    (server,) = pool.servers[before:]
    for number in range(10):
        answer(server, number)
    for each in sent:
        await each.outcome()


async def test_a_cancelled_call_does_not_cost_its_caller_the_home(
    asked: Client, pool: ServerPool, registry: SessionRegistry
) -> None:
    [sent, other], server = await several(asked, pool, "a", "b")
    sent.leave()
    await server.called("notifications/cancelled")
    server.ask("late", message="late")
    assert list(keys(await other.outcome())) == ["late"], "it is the same person"
    sweep(registry, CANCEL_GRACE_S + 1)
    await anyio.wait_all_tasks_blocked()
    third = await asked.send(name="c")
    assert pool.living == [server]
    await done(server, third, 2)
    other.call.cancel("the test is over")


async def test_a_question_of_a_cancelled_call_reaches_nobody_if_there_is_no_other(
    asked: Client, pool: ServerPool
) -> None:
    [sent], server = await several(asked, pool, "a")
    sent.leave()
    listing = await asked.send("tools/list")
    server.ask("late", message="of the call that was cancelled")
    assert (await server.replied("late"))["error"]["code"] == -32601
    await listing.outcome()


async def test_a_home_with_as_many_calls_as_it_may_have_lets_the_next_wait_but_not_the_gateway(
    asked: Client, pool: ServerPool, store: FakeStore
) -> None:
    store.specs[SPEC.key] = dataclasses.replace(SPEC, calls_per_session=8)
    sent, server = await several(asked, pool, *"abcdefgh")
    assert len(server.sent_with("tools/call")) == 6
    _, envelope = asked.message("tools/call", name="x")
    assert await asked.sessionless.mirrored(asked.caller, envelope, "x", max_age_s=0.0) == []
    assert len(server.sent_with("tools/list")) == 1
    await done(server, sent[0], 0)
    assert [message["params"]["name"] for message in server.sent_with("tools/call")] == list("abcdefg")
    sent[-1].leave()
    for number in range(1, 7):
        await done(server, sent[number], number)
    assert len(server.sent_with("tools/call")) == 7, "who left while waiting is not sent"
    assert not server.sent_with("notifications/cancelled")


async def test_a_home_where_as_many_wait_as_may_refuses_the_next_as_any_session_does(
    asked: Client, pool: ServerPool, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "POOLED_WAITING", 9)
    store.specs[SPEC.key] = dataclasses.replace(SPEC, calls_per_session=8)
    sent, server = await several(asked, pool, *("x" for _ in range(6 + 9)))
    with pytest.raises(QuotaExceeded):
        await asked.send(name="x")
    server.die()
    for each in sent:
        with pytest.raises(BackendExited):
            await each.outcome()
    assert await run(asked, pool) is not server


async def test_a_process_that_says_whose_its_messages_are_is_home_even_if_it_keeps_no_state(
    asked: Client, pool: ServerPool, store: FakeStore
) -> None:
    """Which task it has made is told by its answer: there is no knowing before where to ask for it."""
    store.specs[SPEC.key] = dataclasses.replace(SPEC, calls_per_session=2, recovery="respawn")
    pool.make = sessionless_server
    sent, server = await several(asked, pool, *"abc")
    for number, each in enumerate(sent):
        answer(server, number)
        assert await each.outcome() == TEXT


@pytest.mark.usefixtures("stateless")
async def test_cursors_and_tasks_go_to_the_oldest_process_though_others_have_joined_it(
    asked: Client, pool: ServerPool
) -> None:
    sent = [await asked.send(name=name) for name in "ab"]
    oldest, other = pool.servers
    for server in pool.servers:
        del server.answers["tools/list"]
    sent.append(await asked.send(name="t", task={"ttl": 1}))
    named = [await asked.send("tools/list", cursor="7"), await asked.send("tasks/get", taskId="7")]
    assert [message["method"] for message in oldest.sent[-3:]] == ["tools/call", "tools/list", "tasks/get"]
    assert len(other.sent_with("tools/call")) == 1
    for each in [*sent, *named]:
        each.leave()


async def late(client: Client, server: FakeServer, registry: SessionRegistry, asks: str = "ping") -> dict[str, Any]:
    """A call that takes too long; what the process is asked then."""
    count = len(server.sent_with(asks)) + 1
    sent = await client.send(name="x")
    sweep(registry, SPEC.timeouts.call_s + 1)
    with pytest.raises(BackendTimeout):
        await sent.outcome()
    return await server.called(asks, count)


async def test_a_process_that_is_only_late_stays_home(
    asked: Client, pool: ServerPool, registry: SessionRegistry
) -> None:
    server = await run(asked, pool)
    ping = await late(asked, server, registry)
    server.say(id=ping["id"], result={})
    assert await run(asked, pool) is server


async def test_a_late_process_that_speaks_2026_07_28_gets_no_ping_as_there_is_none(
    asked: Client, pool: ServerPool, registry: SessionRegistry
) -> None:
    pool.make = sessionless_server
    server = await run(asked, pool)
    question = await late(asked, server, registry, "server/discover")
    assert "io.modelcontextprotocol/protocolVersion" in question["params"]["_meta"]
    assert server.sent_with("ping") == []
    assert await run(asked, pool) is server


@pytest.mark.parametrize("says_something", [True, False])
async def test_a_process_that_says_nothing_for_as_long_as_a_call_may_take_is_home_no_more(
    asked: Client, pool: ServerPool, registry: SessionRegistry, *, says_something: bool
) -> None:
    """In this revision no client can ask for another."""
    server = await run(asked, pool)
    await (await asked.send("tools/list")).outcome()  # and what the gateway has asked itself is answered as well
    await late(asked, server, registry)
    if says_something:
        server.say(method="notifications/message", params={"level": "info", "data": "still at it"})
    sweep(registry, SPEC.timeouts.call_s + 1)
    await anyio.wait_all_tasks_blocked()
    assert (server in pool.living) == says_something
    assert (await run(asked, pool) is server) == says_something


# --- who is asked


async def test_a_question_goes_to_the_oldest_call_that_may_be_asked_and_the_next_to_the_next(
    asked: Client, pool: ServerPool
) -> None:
    listing = await asked.send("prompts/list")
    (server,) = pool.servers
    first, second = await asked.send(name="a"), await asked.send(name="b")
    server.ask("q1", message="q1")
    result = await first.outcome()
    assert list(keys(result)) == ["q1"]
    for question in ("q2", "q3"):
        server.ask(question, message=question)
    other = await second.outcome()
    assert list(keys(other)) == ["q2", "q3"], "the first is not there to hear it"
    first = await asked.go_on(result, {keys(result)["q1"]: ACCEPT}, name="a")
    assert (await server.replied("q1"))["result"] == ACCEPT
    second = await asked.go_on(other, dict.fromkeys(keys(other).values(), ACCEPT), name="b")
    await done(server, second, 1)
    await done(server, first, 0)
    listing.leave()


async def test_a_question_that_comes_while_every_client_is_being_asked_is_told_to_a_retry(
    asked: Client, pool: ServerPool
) -> None:
    sent, server = await several(asked, pool, "a", "b")
    results = []
    for number, each in enumerate(sent):
        server.ask(f"q{number}", message=f"q{number}")
        results.append(await each.outcome())
    server.ask("q2", message="q2")
    retry = await asked.go_on(results[1], {keys(results[1])["q1"]: ACCEPT}, name="b")
    again = await retry.outcome()
    assert list(keys(again)) == ["q2"]
    retry = await asked.go_on(again, {keys(again)["q2"]: ACCEPT}, name="b")
    await done(server, retry, 1)
    other = await asked.go_on(results[0], {keys(results[0])["q0"]: ACCEPT}, name="a")
    await done(server, other, 0)


@pytest.mark.parametrize("end", ["answered", "cancelled"])
async def test_a_question_that_a_call_has_not_told_its_client_before_its_end_goes_to_another(
    asked: Client, pool: ServerPool, end: str
) -> None:
    [first, second], server = await several(asked, pool, "a", "b")
    server.ask("q1", message="q1")
    if end == "answered":
        await done(server, first, 0)
    else:
        first.leave()
    result = await second.outcome()
    assert list(keys(result)) == ["q1"]
    retry = await asked.go_on(result, {keys(result)["q1"]: ACCEPT}, name="b")
    assert (await server.replied("q1"))["result"] == ACCEPT
    await done(server, retry, 1)


async def test_a_question_of_a_call_that_is_answered_is_refused_if_there_is_no_other(
    asked: Client, pool: ServerPool
) -> None:
    [sent], server = await several(asked, pool, "a")
    server.ask("q1", message="q1")
    await done(server, sent, 0)
    assert (await server.replied("q1"))["error"]["code"] == -32601


async def test_who_was_asked_and_left_is_not_asked_again_by_another_call(asked: Client, pool: ServerPool) -> None:
    [first, second], server = await several(asked, pool, "a", "b")
    server.ask("q1", message="q1")
    result = await first.outcome()
    retry = await asked.go_on(result, {}, name="a")
    retry.leave()
    assert (await server.replied("q1"))["error"]["code"] == -32602
    await done(server, second, 1)


@pytest.mark.parametrize("first_to_answer", ["the one that was asked", "the other"])
async def test_a_question_that_is_not_answered_for_long_is_asked_of_another_call_that_waits(
    asked: Client, pool: ServerPool, sessionless: SessionlessRequests, first_to_answer: str
) -> None:
    [first, second], server = await several(asked, pool, "a", "b")
    server.ask("q1", message="q1")
    result = await first.outcome()
    newer = await asked.send(name="c")
    sessionless.sweep(time.monotonic() + ASK_ELSEWHERE_S - 1)
    await anyio.wait_all_tasks_blocked()
    assert not second.reply.outcomes
    sessionless.sweep(time.monotonic() + ASK_ELSEWHERE_S + 1)
    other = await second.outcome()
    assert list(keys(other)) == ["q1"]
    retries = [("a", result), ("b", other)]
    if first_to_answer == "the other":
        retries.reverse()
    sent = [await asked.go_on(each, {keys(each)["q1"]: ACCEPT}, name=name) for name, each in retries]
    for (name, _), each in zip(retries, sent, strict=True):
        await done(server, each, "ab".index(name))
    await done(server, newer, 2)
    assert len([message for message in server.sent if message.get("id") == "q1"]) == 1


async def test_a_question_is_not_asked_of_a_call_that_the_process_has_passed_over_if_there_is_another(
    asked: Client, pool: ServerPool, sessionless: SessionlessRequests
) -> None:
    [slow, quick], server = await several(asked, pool, "a", "b")
    await done(server, quick, 1)
    third = await asked.send(name="c")
    server.ask("q1", message="q1")
    result = await third.outcome()
    assert list(keys(result)) == ["q1"]
    sessionless.sweep(time.monotonic() + ASK_ELSEWHERE_S + 1)
    await anyio.wait_all_tasks_blocked()
    assert not slow.reply.outcomes, "it came before"
    sessionless.sweep(time.monotonic() + ASK_ANYBODY_S + 1)
    other = await slow.outcome()
    assert list(keys(other)) == ["q1"]
    retry = await asked.go_on(other, {keys(other)["q1"]: ACCEPT}, name="a")
    server.ask("q2", message="q2")
    assert list(keys(await retry.outcome())) == ["q2"], "nobody else is there"
    retry.call.cancel("the test is over")
    third.call.cancel("the test is over")


async def test_a_call_that_was_passed_over_is_asked_before_one_whose_client_is_being_asked(
    asked: Client, pool: ServerPool
) -> None:
    [slow, quick], server = await several(asked, pool, "a", "b")
    await done(server, quick, 1)
    third = await asked.send(name="c")
    for question, call in (("q1", third), ("q2", slow)):
        server.ask(question, message=question)
        assert list(keys(await call.outcome())) == [question]
    for each in (third, slow):
        each.call.cancel("the test is over")


async def test_a_call_whose_question_was_asked_elsewhere_takes_it_not_along_when_it_ends(
    asked: Client, pool: ServerPool, sessionless: SessionlessRequests
) -> None:
    [first, second], server = await several(asked, pool, "a", "b")
    server.ask("q1", message="q1")
    await first.outcome()
    sessionless.sweep(time.monotonic() + ASK_ELSEWHERE_S + 1)
    other = await second.outcome()
    first.call.cancel("the client did not come back in time")
    retry = await asked.go_on(other, {keys(other)["q1"]: ACCEPT}, name="b")
    assert (await server.replied("q1"))["result"] == ACCEPT
    await done(server, retry, 1)


async def test_what_the_process_withdraws_is_not_asked_of_the_call_that_has_it(asked: Client, pool: ServerPool) -> None:
    sent, server = await several(asked, pool, "a", "b")
    server.ask("q1", message="q1")
    server.say(method="notifications/cancelled", params={"requestId": "q1"})
    for number, each in enumerate(sent):
        await done(server, each, number)


async def test_a_log_message_goes_to_the_oldest_call_that_wants_it(
    pool: ServerPool, sessionless: SessionlessRequests, principal: Principal
) -> None:
    clients = [Client(sessionless, principal, ELICITS, log_level=level) for level in (None, "error", "info", "info")]
    sent = [await client.send(name="x") for client in clients]
    (server,) = pool.servers
    await anyio.wait_all_tasks_blocked()
    for level in ("debug", "info", "error"):
        server.say(method="notifications/message", params={"level": level, "data": level})
    heard: list[list[Any]] = []
    for number, each in enumerate(sent):
        answer(server, number)
        messages = await each.stream() if each.reply.stream is not None else []
        heard.append([message["params"]["data"] for message in messages[:-1]])
    assert heard == [[], ["error"], ["info"], []]
