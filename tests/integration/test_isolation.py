"""Nobody gets another's answer: the flaw this gateway exists to be free of, looked for in volume."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import pytest
from mcp_clients import CallFailed, SseSession, StreamableSession

from tests.integration.gateway import ECHO, Endpoint, Gateway, until
from tests.integration.servers import TRANSPORTS, Transport
from tests.integration.shared_transport import shared_transport

SESSIONS, CALLS, AT_ONCE = 40, 20, 20
LONG_SESSIONS = 2000

Session: TypeAlias = StreamableSession | SseSession
Opener = Callable[[], Session]


@dataclass
class Findings:
    """What went wrong, counted; `answers` is what went right."""

    answers: int = 0
    crossed: int = 0
    lost: int = 0
    repeated: int = 0
    failed: Counter[str] = field(default_factory=Counter)

    @property
    def faults(self) -> int:
        return self.crossed + self.lost + self.repeated + self.failed.total()


async def converse(session: Session, name: str, calls: int, findings: Findings, *, timeout_s: float) -> None:
    """Calls with the ids 1, 2, 3 … that everyone uses, and checks that each answer is this session's own."""
    for number in range(calls):
        text = f"{name} call {number}"
        try:
            answer = await session.call_tool("echo", {"text": text}, timeout=timeout_s)
        except CallFailed as error:
            if error.kind == "timeout":
                findings.lost += 1
            else:
                findings.failed[str(error)] += 1
        else:
            findings.answers += answer == text
            findings.crossed += answer != text
    # What came without having been asked for: a second answer of ours, or someone else's.
    for stray in session.strays:
        if "result" in stray:
            mine = name in json.dumps(stray)
            findings.repeated += mine
            findings.crossed += not mine


async def live(session: Session, name: str, calls: int, findings: Findings) -> None:
    """A whole session: opened, conversed in, closed."""
    try:
        await session.open()
        await converse(session, name, calls, findings, timeout_s=30)
    except CallFailed as error:
        findings.failed[f"open: {error}"] += 1
    finally:
        await session.close()


def opener(endpoint: Endpoint, transport: Transport) -> Opener:
    if transport == "sse":
        return lambda: SseSession(endpoint.sse, endpoint.headers)
    return lambda: StreamableSession(endpoint.mcp, endpoint.headers)


async def clients_at_once(open_one: Opener, count: int, calls: int, *, timeout_s: float) -> Findings:
    """The check: `count` clients connect, then all call at the same time."""
    findings, sessions = Findings(), [open_one() for _ in range(count)]
    try:
        for session in sessions:
            await session.open()
        await asyncio.gather(
            *(
                converse(session, f"client {number}", calls, findings, timeout_s=timeout_s)
                for number, session in enumerate(sessions)
            )
        )
    finally:
        for session in sessions:
            session.abort()
    return findings


async def test_several_sse_clients_of_one_backend_each_get_their_own_answers(echo: Endpoint) -> None:
    findings = await clients_at_once(opener(echo, "sse"), 5, 20, timeout_s=20)
    assert findings.faults == 0, findings
    assert findings.answers == 100


async def test_the_same_check_finds_the_flaw_in_a_server_with_one_shared_transport() -> None:
    async with shared_transport() as url:
        findings = await clients_at_once(lambda: SseSession(url), 5, 4, timeout_s=0.5)
    assert findings.crossed > 0, findings
    assert findings.lost > 0, findings


@pytest.mark.alone
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_many_sessions_with_the_same_ids_never_get_crossed_lost_or_repeated_answers(
    gateway: Gateway, transport: Transport, request: pytest.FixtureRequest
) -> None:
    sessions = LONG_SESSIONS if request.config.getoption("--long") else SESSIONS
    # Two tenants, so that a mix-up between them would show as well.
    openers = [opener(gateway.endpoint(ECHO, warm=4), transport) for _ in range(2)]
    findings, gate = Findings(), asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with gate:
            await live(openers[number % 2](), f"session {number}", CALLS, findings)

    await asyncio.gather(*(one(number) for number in range(sessions)))
    assert findings.faults == 0, findings
    assert findings.answers == sessions * CALLS


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_what_a_backend_asks_or_tells_one_session_no_other_hears(echo: Endpoint, transport: Transport) -> None:
    sessions = [opener(echo, transport)() for _ in range(4)]
    try:
        for session in sessions:
            await session.open()
            await session.listen()

        async def talk(number: int, session: Session) -> None:
            await session.call_tool("notify", {"text": f"secret of {number}"})
            meta = {"progressToken": "same-for-all"}
            await session.call_tool("progress", {"n": 3}, meta=meta)

        await asyncio.gather(*(talk(number, session) for number, session in enumerate(sessions)))
        for number, session in enumerate(sessions):
            await until(partial(_told, session), 20)
            heard = json.dumps(session.strays)
            assert [other for other in range(4) if f"secret of {other}" in heard] == [number]
            progress = [each for each in session.strays if each.get("method") == "notifications/progress"]
            assert [each["params"]["progress"] for each in progress] == [0, 1, 2]
            assert {each["params"]["progressToken"] for each in progress} == {"same-for-all"}
    finally:
        for session in sessions:
            session.abort()


def _told(session: Session) -> bool:
    return any(each.get("method") == "notifications/message" for each in session.strays)
