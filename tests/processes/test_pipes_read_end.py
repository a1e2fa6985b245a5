"""A process whose tenant is over its share of the loop is read a piece at a time."""

import asyncio
import time

import pytest

from app.concurrency.loop_share import LoopShare
from app.processes.pipes import Pause, Stdout
from tests.concurrency.test_loop_share import Shares
from tests.processes.rig import Running, eventually

pytestmark = pytest.mark.real


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request):
    return "asyncio", {"use_uvloop": request.param}


class Greedy(LoopShare):
    """Each piece takes a second."""

    def took(self, seconds: float) -> None:
        super().took(1.0)


async def test_stdout_is_read_and_handed_over_when_it_has_a_turn(running: Running):
    process, listener = await running.start("echo")
    shares, stdout = Shares(), process._stdout
    shares.over, stdout._share = True, Greedy(shares, "acme")
    stdout.data_received(b"{}\n" * 40)
    assert stdout._paused & Pause.SHARE
    process.send(b"later")
    for _ in range(20):
        await asyncio.sleep(0)
    assert (len(listener.lines), shares.turns) == (0, 1)
    assert shares.charges[0][0] == "acme"
    shares.gate.set()
    await listener.line(41)
    assert listener.lines == [b"{}"] * 40 + [b"later"]
    assert shares.turns >= 3  # for each piece
    await eventually(lambda: not stdout._paused)


async def test_stderr_is_read_when_it_has_a_turn(running: Running):
    process, _ = await running.start("echo")
    shares, stderr = Shares(), process._stderr
    shares.over, stderr._share = True, Greedy(shares, "acme")
    stderr.data_received(b"trouble\n")
    await asyncio.sleep(0)
    assert shares.turns == 1
    assert not stderr._transport.is_reading()
    shares.gate.set()
    await eventually(stderr._transport.is_reading)


async def test_a_process_that_ends_while_it_waits_for_a_turn_is_heard_to_the_end(running: Running):
    process, listener = await running.start("echo")
    shares, stdout = Shares(), process._stdout
    shares.over, stdout._share = True, Greedy(shares, "acme")
    stdout.data_received(b"{}\n" * 40)
    await running.stop(process)
    assert len(listener.lines) == 40
    assert stdout._turn is None or stdout._turn.done()


async def test_the_loop_has_a_turn_after_each_read_of_a_process_that_writes_faster(running: Running, monkeypatch):
    """libuv reads on at once, 32 times at most, as long as it gets as much as it has room for."""
    in_a_row, reads = [0], Stdout.data_received

    def read(stdout: Stdout, data: bytes) -> None:
        if not in_a_row[-1]:
            asyncio.get_running_loop().call_soon(in_a_row.append, 0)
        in_a_row[-1] += 1
        time.sleep(0.002)  # the loop does nothing else, and the process fills the pipe again
        reads(stdout, data)

    monkeypatch.setattr(Stdout, "data_received", read)
    process, listener = await running.start("hostile", "endless-line")
    process.send(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"attack"}}')
    await listener.until(lambda: bool(listener.overlong))
    assert sum(in_a_row) > 20
    assert max(in_a_row) == 1
