"""Each row of the table in docs/protocol.md, "Refused, or perhaps carried out": the error of the situation itself, and
how it is answered. What is real about a row (processes, nodes) is in tests/integration."""

import json
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app.cluster.peers.client import PeerLost
from app.domain import Principal
from app.errors import (
    UNKNOWN,
    BackendExited,
    BackendUnavailable,
    CallCutOff,
    Disabled,
    GatewayError,
    NodeUnavailable,
    RoutesUnavailable,
    StateRefused,
    StorageUnavailable,
)
from app.http.errors import http_status, retry_after, rpc_error
from app.limits.overload import Passed
from app.protocol.commands import Failed
from app.protocol.jsonrpc import parse_client
from app.sessions.registry import SessionRegistry
from app.sessions.session import Session
from app.sessions.streams.streams import Reply
from tests.sessions.fakes import FakeConnection, FakePool

TABLE = (Path(__file__).parents[2] / "docs/protocol.md").read_text().split("## Refused, or perhaps", 1)[1]
ROWS = {
    int(row[0]): row
    for row in (
        [cell.strip() for cell in line.strip("| ").split(" | ")]
        for line in TABLE.split("\n## ", 1)[0].splitlines()
        if re.match(r"\| \d", line)
    )
}


@dataclass
class Rig:
    """A session with a call in flight."""

    registry: SessionRegistry
    principal: Principal
    pool: FakePool
    session: Session
    connection: FakeConnection
    reply: Reply

    def ask(self, number: int) -> Reply:
        reply = self.session.reply(1, may_stream=False)
        body = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": "t"}}
        self.session.request(parse_client(json.dumps(body).encode()), reply)  # type: ignore[arg-type]
        return reply

    def refusal(self) -> GatewayError:
        with pytest.raises(GatewayError) as caught:
            self.ask(99)
        return caught.value

    def failure(self) -> GatewayError:
        (outcome,) = self.reply.outcomes
        assert isinstance(outcome, Failed)
        return outcome.error


@pytest.fixture
async def rig(registry: SessionRegistry, principal: Principal, pool: FakePool) -> Rig:
    session = await registry.open(principal, "acme", "echo", "streamable_http")
    await registry.connect(session)
    hello: Any = parse_client(b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}')
    session.request(hello, session.reply(1, may_stream=False))
    connection = pool.leases[-1].connection
    connection.answer({"protocolVersion": "2025-11-25", "capabilities": {}})
    rig = Rig(registry, principal, pool, session, connection, session.reply(1, may_stream=False))
    rig.reply = rig.ask(1)
    return rig


async def quota(rig: Rig) -> GatewayError:
    for number in range(2, 2 * rig.session.spec.calls_per_session + 1):
        rig.ask(number)
    return rig.refusal()


async def deaf(rig: Rig) -> GatewayError:
    rig.connection.is_busy = True
    return rig.refusal()


async def breaker(rig: Rig) -> GatewayError:
    return await no_process(rig, BackendUnavailable().again_after(3.0))


async def stopping(rig: Rig) -> GatewayError:
    rig.registry.take_no_more()
    with pytest.raises(GatewayError) as caught:
        await rig.registry.open(rig.principal, "acme", "echo", "streamable_http")
    return caught.value


async def unproved(rig: Rig) -> GatewayError:
    rig.registry.standstill.ticked_at -= 10
    return rig.refusal()


async def not_started(rig: Rig) -> GatewayError:
    return await no_process(rig, BackendExited(started=False))


async def no_process(rig: Rig, error: Any) -> GatewayError:
    rig.pool.error = error
    session = await rig.registry.open(rig.principal, "acme", "echo", "streamable_http")
    with pytest.raises(GatewayError) as caught:
        await rig.registry.connect(session)
    session.close("not_initialized")
    return caught.value


async def gone(rig: Rig) -> GatewayError:
    def send(line: bytes) -> None:
        raise BackendExited

    rig.session.connection.send = send
    return rig.refusal()


async def ended(rig: Rig) -> GatewayError:
    rig.session.close("deleted")
    return rig.refusal()


async def died(rig: Rig) -> GatewayError:
    rig.connection.die()
    return rig.failure()


async def overdue(rig: Rig) -> GatewayError:
    rig.session.sweep(time.monotonic() + 1000)
    return rig.failure()


async def too_long(rig: Rig) -> GatewayError:
    rig.session.backend_sent_too_much(b'{"result":', b"}}")
    return rig.failure()


async def nonsense(rig: Rig) -> GatewayError:
    rig.connection.say(id=rig.connection.sent[-1]["id"], result=1, error=2)
    return rig.failure()


async def cancelled(rig: Rig) -> GatewayError:
    note: Any = parse_client(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}')
    rig.session.notify(note)
    return await overdue(rig)


async def withdrawn(rig: Rig) -> GatewayError:
    for number in range(2, rig.session.spec.calls_per_session + 1):
        rig.ask(number)
    rig.reply = rig.ask(99)
    note: Any = parse_client(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":99}}')
    rig.session.notify(note)
    return rig.failure()


async def drained(rig: Rig) -> GatewayError:
    assert await rig.registry.drain(0.05) == 1
    return rig.failure()


async def taken_over(rig: Rig) -> GatewayError:
    rig.registry._sessions.lost(rig.session.id)
    return rig.failure()


async def revoked(rig: Rig) -> GatewayError:
    rig.registry.close_where(lambda session: True, "key_revoked")
    return rig.failure()


async def shed(rig: Rig) -> GatewayError:
    rig.registry.overload.calls = Passed("memory", "97% of memory is used")
    return rig.refusal()


Situation = Callable[[Rig], Awaitable[GatewayError]]
SITUATIONS: dict[int, Situation] = {
    1: quota, 2: deaf, 3: breaker, 4: stopping, 5: unproved, 7: not_started, 8: ended, 9: died, 10: overdue,
    11: too_long, 12: nonsense, 13: cancelled, 14: drained, 15: taken_over, 17: revoked,
    20: shed, 21: gone, 22: withdrawn,
}  # fmt: skip


def must_be_as_written(row: int, error: GatewayError) -> None:
    """What the client gets is what the table says."""
    _, _, status, code, reasons, outcome, _ = ROWS[row]
    told = json.loads(rpc_error(error))["error"]
    assert (str(http_status(error)), str(told["code"])) == (status, code)
    assert f"`{told['data']['reason']}`" in reasons
    assert told["data"].get("outcome", "not sent") == outcome or status == "400"
    assert (retry_after(error) is not None) is (status in ("429", "503"))
    assert status not in ("429", "503") or "outcome" not in told["data"]


@pytest.mark.parametrize("row", SITUATIONS)
async def test_a_call_hears_what_is_known_of_it(rig: Rig, row: int) -> None:
    must_be_as_written(row, await SITUATIONS[row](rig))


def test_the_other_rows_are_as_written() -> None:
    """Their situations are those of other tests: test_suspended_calls.py, tests/routing, tests/integration."""
    others: dict[int, list[GatewayError]] = {
        5: [RoutesUnavailable(), NodeUnavailable()],
        6: [StorageUnavailable()],
        16: [PeerLost()],
        18: [CallCutOff()],
        19: [StateRefused("state_lost")],
        23: [Disabled("tenant", "acme", "unpaid"), Disabled("key")],
        24: [Disabled("backend", "echo").again(outcome=UNKNOWN)],
    }
    for row, errors in others.items():
        for error in errors:
            must_be_as_written(row, error)
    assert {*SITUATIONS, *others} == set(ROWS)
