"""A backend that misbehaves hurts nobody but its own session: docs/misbehaving-backends.md, row by row.

A bystander of another tenant calls all the while. `--long` does ten times as much of everything, again and again for
some seconds, and compares the bystander's time with that of the last rounds beside a server that behaves.
"""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import anyio
import pytest

from tests.integration.arena import Arena, Cost, open_arena, percentile
from tests.integration.gateway import Endpoint, running_gateway, until
from tests.integration.wire import RpcError, Wire, answer, rpc, wire

TIMES, LONG_TIMES = 2, 20
ROUNDS, ROUND_S, ENDS = 5, 3.0, 4  # a family that ignores everything takes twenty times as long to end as to attack
SLOWER = 3.0  # times: the bystander's p99 while it is attacked, against its own before
TOLD_WITHIN_S = 1.0  # of a death
GONE_WITHIN_S = 6.0

pytestmark = pytest.mark.timeout(900)


@dataclass(frozen=True)
class Row:
    """What comes of an attack: the text of the answer, or the reason of the error; what is counted as dropped; and
    whether the session goes on; None if it depends on how much it was."""

    text: str = "done"
    error: str = ""
    dropped: str = ""
    goes_on: bool | None = True


DEAD = Row(error="backend_exited", goes_on=False)
INVALID = Row(error="invalid_response")
THINNED = Row(dropped="notification_rate")
BEHAVES = "behaves"
ROWS = {
    BEHAVES: Row(),
    "log-messages": THINNED,
    "progress": THINNED,
    "list-changes": THINNED,
    "updates": THINNED,
    "strange-progress": Row(dropped="unknown_progress"),
    "strange-cancels": Row(dropped="unknown_cancel"),
    "unasked-answers": Row(dropped="unknown_answer"),
    "wrong-ids": Row(dropped="unknown_answer"),
    "many-answers": Row(dropped="unknown_answer"),
    "early": Row(dropped="unknown_answer"),
    "questions": Row(),
    "pings": Row(),
    "blank-lines": Row(),
    "banner": Row(dropped="noise"),
    "noise": Row(error="backend_exited", dropped="noise", goes_on=False),
    "long-line": Row(error="response_too_large", goes_on=None),
    "endless-line": Row(error="backend_exited", dropped="oversized", goes_on=False),
    "half-a-line": DEAD,
    "nan": INVALID,
    "latin-1": INVALID,
    "bare-surrogate": INVALID,
    "broken-off": INVALID,
    "surrogate": Row(),
    "deep": Row(),
    "huge-int": Row(),
    "duplicate-keys": Row(),
    "stderr": Row(),
    "stderr-line": Row(),
    "dies": DEAD,
    "kills-itself": DEAD,
    "closes-stdout": DEAD,
    "closes-stdin": DEAD,
    "closes-stderr": Row(),
    "stubborn": Row(),
    "dies-with-a-daemon": DEAD,
}


OFTEN = {"log-messages", "many-answers", "questions", "noise", "long-line", "broken-off", "dies", "closes-stdout"}
FIELDS = {"stubborn": {"limits": {"pids": None}}}  # more of a family than a backend may have by default


@pytest.fixture(scope="module")
def times(pytestconfig: pytest.Config) -> int:
    return LONG_TIMES if pytestconfig.getoption("--long") else TIMES


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory, *, full: bool) -> Iterator[Arena]:
    directory = tmp_path_factory.mktemp("arena")
    settings = {} if full else {"MAX_LINE_BYTES": str(4 << 20)}  # a line without end takes long to reach 64 MiB
    with running_gateway(directory / "data", **settings) as gateway, open_arena(gateway, directory / "calls") as arena:
        yield arena


async def attack(session: Wire, within_s: float = 90.0) -> tuple[str, str]:
    """The text of the answer, or the reason of the error."""
    params = {"name": "attack", "arguments": {}, "_meta": {"progressToken": "p"}}
    with anyio.fail_after(within_s):
        response = await session.post(rpc("tools/call", "attack", params))
    try:
        return str(answer(response)["content"][0]["text"]), ""
    except RpcError as error:
        return "", str(error.reason)
    except (RecursionError, ValueError):  # it arrives as it is, and this client cannot read it
        return "done" if b'"text":"done"' in response.content else response.text, ""


def dropped(arena: Arena, reason: str) -> float:
    return arena.gateway.metrics().get(f'trunkline_messages_dropped_total{{reason="{reason}"}}', 0.0)


async def suffer(arena: Arena, mode: str, endpoint: Endpoint) -> Cost:
    """One attack, from the opening of its session to its end."""
    row = ROWS[mode]
    counted = dropped(arena, row.dropped)
    async with arena.attack() as cost, wire(endpoint) as session:
        assert await attack(session) == ("" if row.error else row.text, row.error)
        if row.goes_on and mode != "stubborn":
            assert await session.call("anything") == "0"
        elif row.goes_on is False:
            assert (await session.post(rpc("ping", 9))).status_code == 404
    await until(lambda: not row.dropped or dropped(arena, row.dropped) > counted)
    return cost


@dataclass
class Calls:
    """The bystander's beside servers of this mode, in seconds, and the most memory that was used meanwhile."""

    arena: Arena
    mode: str
    times: int
    endpoint: Endpoint | None = None
    seconds: list[float] = field(default_factory=list)
    peak_bytes: int = 0

    @property
    def p99(self) -> float:
        return percentile(self.seconds, 0.99)

    async def during(self, at_least_s: float) -> None:
        """One session after the other, for so long, or until their ends take too long; one if no time is given."""
        lasted_s, over_at = 0.0, time.monotonic() + ENDS * at_least_s
        while not lasted_s or (lasted_s < at_least_s and time.monotonic() < over_at):
            cost = await suffer(self.arena, self.mode, self._server())
            self.seconds += [call.seconds for call in self.arena.calls(cost.began_at, cost.ended_at)]
            self.peak_bytes = max(self.peak_bytes, cost.peak_bytes)
            lasted_s += cost.ended_at - cost.began_at

    def _server(self) -> Endpoint:
        """The same for all sessions, unless they end its process: starts of one that dies often are delayed."""
        if self.endpoint is None or ROWS[self.mode].goes_on is not True:
            self.endpoint = self.arena.endpoint(self.mode, self.times, **FIELDS.get(self.mode, {}))
        return self.endpoint


@pytest.fixture(scope="module")
def calm() -> deque[Calls]:
    """The last rounds beside a server that behaves. Every attack is followed by one more."""
    return deque(maxlen=ROUNDS)


@pytest.mark.alone
@pytest.mark.parametrize(
    "mode",
    [pytest.param(mode, marks=() if mode in OFTEN else pytest.mark.long) for mode in ROWS if mode != BEHAVES],
)
async def test_it_hurts_nobody_else(
    arena: Arena, calm: deque[Calls], mode: str, times: int, *, full: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --long also: no more than sessions of a server that behaves, which are opened and closed in the same way."""
    attacked = Calls(arena, mode, times)
    if not full:
        await attacked.during(0.0)
        return

    async def calm_round() -> None:
        calm.append(Calls(arena, BEHAVES, times))
        await calm[-1].during(ROUND_S)

    while len(calm) < ROUNDS - 1:
        await calm_round()
    await attacked.during(ROUNDS * ROUND_S)
    await calm_round()
    p99 = percentile([seconds for each in calm for seconds in each.seconds], 0.99)
    with capsys.disabled():
        print(
            f"\n{mode}: p99 {p99 * 1e3:.1f} ms beside a server that behaves, {attacked.p99 * 1e3:.1f} ms "
            f"attacked: x {attacked.p99 / p99:.1f}, max {max(attacked.seconds) * 1e3:.0f} ms of "
            f"{len(attacked.seconds)}, memory + {attacked.peak_bytes / (1 << 20):.1f} MiB"
        )
    assert attacked.p99 <= SLOWER * p99
