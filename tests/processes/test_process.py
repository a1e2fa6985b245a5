"""BackendProcess on real pipes: what a session relies on."""

import asyncio
import logging
import os
import signal
import time
from itertools import pairwise

import anyio
import psutil
import pytest

from app.concurrency.loop_share import PIECE_S, used_s
from app.errors import BackendBusy, BackendExited
from app.processes.endings import Exit
from app.processes.pipes import LEAST_LINE_BYTES, LINES_A_TURN, PipeLimits
from app.processes.process import ProcessState
from app.processes.supervisor import Supervisor
from app.protocol._notification_rate import PER_SECOND
from tests.integration.stopwatch import stopwatch_of
from tests.processes.rig import Listener, Running, eventually, options_of, spec_of

NOTICE = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"working"}}\n'
PROGRESS = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":5,"progress":%d}}\n'
ANSWER = b'{"jsonrpc":"2.0","id":7,"result":{}}\n'


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request):
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture
async def running_with(metrics, tmp_path):
    """A supervisor with these pipe limits."""
    stack = []

    async def make(**limits) -> Running:
        supervisor = Supervisor(metrics, options_of(tmp_path, limits=PipeLimits(**limits)))
        stack.append(await supervisor.__aenter__())
        return Running(supervisor, metrics)

    yield make
    for supervisor in stack:
        await supervisor.__aexit__(None, None, None)


async def test_lines_go_down_and_come_up(running):
    process, listener = await running.start("echo")
    for number in range(1, 4):
        process.send(b'{"id":%d}' % number)
        assert await listener.line(number) == b'{"id":%d}' % number
    assert process.state is ProcessState.WARM


async def test_of_calls_that_fail_one_a_second_is_looked_at(running):
    process, _ = await running.start("echo")
    seen = [
        process.denied(b"EROFS: read-only file system, open '/srv/%d'" % (10 * at), at) for at in (100.0, 100.9, 101.0)
    ]
    assert [[each.what for each in found] for found in seen] == [["/srv/1000"], [], ["/srv/1010"]]


async def test_lines_are_put_together_from_pieces_without_cr_and_blank_ones(running):
    process, listener = await running.start("splits_lines")
    process.send(b'{"id":"a"}')
    process.send(b'{"id":"b"}')
    await listener.line(2)
    assert listener.lines == [b'{"id":"a"}', b'{"id":"b"}']


async def test_lines_sent_before_anyone_listens_are_kept_in_order(running):
    process = await running.supervisor.spawn(spec_of("noise", 3), running.gone.append)
    await eventually(lambda: len(process._stdout._unheard) == 3)
    listener = Listener()
    process.attach(listener)
    assert listener.lines == []
    process.send(b"asked")
    await listener.line(4)
    assert listener.lines == [b"noise 0", b"noise 1", b"noise 2", b"asked"]


async def test_noise_that_nobody_hears_stops_being_read(running_with):
    running = await running_with(unheard_lines=5)
    process = await running.supervisor.spawn(spec_of("flood"), running.gone.append)
    await eventually(lambda: process._stdout._paused)
    kept = len(process._stdout._unheard)
    await anyio.wait_all_tasks_blocked()
    assert len(process._stdout._unheard) == kept <= 3000  # what one read brings
    listener = Listener()
    process.attach(listener)
    await listener.line(kept + 1)


async def test_answers_written_before_death_arrive_before_the_news_of_it(running):
    process, listener = await running.start("last_words", 60_000)
    process.send(b"die")
    exit = await listener.exit()
    assert len(listener.lines) == 600
    assert exit.reason == "signaled"
    assert exit.description == "signal 9 (SIGKILL)"


async def test_last_words_of_a_paused_process_arrive_too(running):
    process, listener = await running.start("last_words", 60_000)
    process.pause_reading()
    process.send(b"die")
    await listener.exit()
    assert len(listener.lines) == 600


async def test_death_is_told_once_with_status_and_stderr(running):
    process, listener = await running.start("crash_in_handshake")
    process.send(b"{}")
    assert await listener.exit() == Exit("exited", "exit status 3", ["no idea what to do"])
    assert process.state is ProcessState.GONE
    assert running.gone == [process]
    assert len(listener.exits) == 1
    with pytest.raises(BackendExited, match="exit status 3") as caught:
        process.send(b"{}")
    assert caught.value.stderr == ["no idea what to do"]


async def test_who_attaches_to_a_dead_process_hears_of_it_soon(running):
    process = await running.supervisor.spawn(spec_of("crash_at_start"), running.gone.append)
    await process.wait_gone()
    listener = Listener()
    process.attach(listener)
    assert listener.exits == []
    exit = await listener.exit()
    assert exit.description == "exit status 1"
    assert exit.stderr == ["cannot start:\\x1b[31m no licence"]


async def test_a_grandchild_that_holds_the_pipe_does_not_delay_the_news(running):
    process, listener = await running.start("family")
    await listener.line()
    async with stopwatch_of([psutil.Process()]) as watch:
        os.kill(process.pid, signal.SIGKILL)
        await listener.exit()
        assert watch.seconds < 1.0


async def test_a_process_that_does_not_read_is_busy_at_once_and_killed_later(running_with):
    running = await running_with(write_bytes=900_000, stdin_stall_s=0.2)
    process, listener = await running.start("never_reads")
    await listener.line()
    for _ in range(9):
        process.send(b"x" * 100_000)
    with pytest.raises(BackendBusy):
        process.send(b"x" * 100_000)
    assert process._stdin.writer.get_write_buffer_size() <= 900_000
    exit = await listener.exit()
    assert (exit.reason, exit.description) == ("killed", "killed: it does not read its input")


async def test_one_message_may_be_larger_than_what_may_wait(running_with):
    running = await running_with(write_bytes=1000)
    process, listener = await running.start("echo")
    process.send(b"x" * 2_000_000)
    assert len(await listener.line()) == 2_000_000


async def test_an_overlong_line_is_reported_and_the_next_one_arrives(running_with):
    running = await running_with(line_bytes=1 << 20)
    process, listener = await running.start("huge_line", 3 << 20)
    process.send(b"now")
    assert await listener.line() == b"after"
    assert listener.overlong == [(b"x" * 4096, b""), (b"x" * 4096, b"x" * 4096)]
    assert process.exit is None


async def test_an_endless_line_kills(running_with):
    running = await running_with(line_bytes=100_000)
    process, listener = await running.start("huge_line", 0)
    process.send(b"now")  # what it writes before anybody listens is nobody's
    exit = await listener.exit()
    assert exit.description == "killed: it wrote a line without end"
    await eventually(lambda: len(listener.overlong) == 1)


async def test_a_flood_is_slowed_to_the_sustained_rate_and_logged_once(running_with, caplog):
    running = await running_with(stdout_burst_bytes=1 << 20, stdout_bytes_per_s=1 << 20)
    process, listener = await running.start("flood")
    started = time.monotonic()
    await listener.line(12_000)  # as short ones they count 3 MB, of which 1 MB is the burst
    assert time.monotonic() - started > 0.8
    assert process.exit is None
    assert sum("more slowly" in message for message in caplog.messages) == 1


async def test_many_short_lines_leave_the_loop_turns_and_stay_in_order(running):
    process, listener = await running.start("echo")
    stdout, lines = process._stdout, [b"%d" % number for number in range(1000)]
    allowed = stdout._allowance
    stdout.data_received(b"\n".join(lines) + b"\n")
    assert allowed - stdout._allowance == 1000 * LEAST_LINE_BYTES
    heard = [len(listener.lines)]
    while len(listener.lines) < 1000:
        process.send(b"after")  # it is not read before the others are handed over
        await asyncio.sleep(0)
        heard.append(len(listener.lines))
    assert max(after - before for before, after in pairwise(heard)) <= LINES_A_TURN
    await listener.line(1001)
    assert listener.lines[:1001] == [*lines, b"after"]


async def test_lines_that_take_long_to_read_leave_the_loop_turns_and_stay_in_order(running, monkeypatch):
    """As JSON does that only `tolerant` reads."""
    process, listener = await running.start("echo")
    stdout, take, lines = process._stdout, listener.backend_sent, [b"%d" % number for number in range(2 * LINES_A_TURN)]

    def slowly(line: bytes) -> None:
        until = used_s() + PIECE_S
        while used_s() < until:
            pass
        take(line)

    monkeypatch.setattr(listener, "backend_sent", slowly)
    stdout.listen(listener)
    for some in (lines[:5], lines[5:]):  # at once, or kept as there are many
        stdout.data_received(b"\n".join(some) + b"\n")
        heard = [len(listener.lines)]
        while len(listener.lines) < int(some[-1]) + 1:
            await asyncio.sleep(0)
            heard.append(len(listener.lines))
        assert heard[0] <= int(some[0]) + 1
        assert max(after - before for before, after in pairwise(heard)) == 1
    assert listener.lines == lines


async def test_blank_lines_count_as_output_too(running):
    process, listener = await running.start("echo")
    stdout = process._stdout
    allowed = stdout._allowance
    stdout.data_received(b"\n" * 1000 + b"a line\n")
    assert allowed - stdout._allowance == 1001 * LEAST_LINE_BYTES
    await listener.line()
    assert listener.lines == [b"a line"]


async def test_notifications_of_a_flood_are_dropped_unread_and_the_answer_behind_them_arrives(running):
    process, listener = await running.start("echo")
    stdout = process._stdout
    allowed, many = stdout._allowance, NOTICE * 500
    for _ in range(80):
        stdout.data_received(many)
    stdout.data_received(PROGRESS % 1 + PROGRESS % 2 + ANSWER)
    assert allowed - stdout._allowance < 81 * len(many) // 2  # it is read much faster than what is passed on
    await listener.line(2 * PER_SECOND + 2)
    *_, answer, progress = listener.lines
    assert (answer + b"\n", progress + b"\n") == (ANSWER, PROGRESS % 2)  # the newest, held for a moment


async def test_half_a_line_is_no_message_when_its_process_has_ended(running):
    process, listener = await running.start("half_a_line")
    process.send(b"now")
    exit = await listener.exit()
    assert (listener.lines, exit.description) == ([b"whole"], "exit status 0")


async def test_a_process_that_writes_too_much_noise_is_killed(running_with):
    running = await running_with(noise_lines_per_minute=3)
    process, listener = await running.start("echo")
    for number in range(3):
        process.heard_noise(b"noise %d" % number)
    process.send(b"it lives")
    await listener.line()
    process.send(b"a last word")
    process.heard_noise(b"one more")
    exit = await listener.exit()
    assert listener.lines == [b"it lives"]
    assert exit.description == "killed: it wrote more than 3 lines in a minute that are no JSON"


async def test_lines_that_wait_for_their_turn_wait_for_a_paused_session_too(running):
    process, listener = await running.start("echo")
    process._stdout.data_received(b"x\n" * 1000)
    await asyncio.sleep(0)
    process.pause_reading()
    heard = len(listener.lines)
    await anyio.wait_all_tasks_blocked()
    assert len(listener.lines) == heard < 1000
    process.resume_reading()
    await listener.line(1000)


async def test_lines_that_wait_for_their_turn_precede_an_overlong_one_and_the_end(running_with):
    running = await running_with(line_bytes=100)
    process, listener = await running.start("echo")
    overlong_after: list[int] = []
    listener.backend_sent_too_much = lambda beginning, end=b"": overlong_after.append(len(listener.lines))
    process._stdout.data_received(b"x\n" * 1000 + b"y" * 101)
    process.kill()
    await listener.exit()
    assert (len(listener.lines), overlong_after) == (1000, [1000])


async def test_lines_that_wait_for_their_turn_are_dropped_with_the_listener(running):
    process, listener = await running.start("echo")
    process._stdout.data_received(b"x\n" * 1000)
    process.detach()
    await anyio.wait_all_tasks_blocked()
    assert listener.lines == []


async def test_the_last_lines_of_a_dead_process_are_bounded(running, monkeypatch):
    monkeypatch.setattr("app.processes.pipes._LAST_LINES", 300)
    process, listener = await running.start("echo")
    process._stdout.data_received(b"x\n" * 1000)
    process._stdout.drain()
    await anyio.wait_all_tasks_blocked()
    assert len(listener.lines) == 300


async def test_a_paused_process_is_not_read_and_goes_on_when_resumed(running):
    process, listener = await running.start("flood")
    await listener.line()
    process.pause_reading()
    process.pause_reading()
    heard = len(listener.lines)
    await anyio.wait_all_tasks_blocked()
    assert len(listener.lines) == heard
    process.resume_reading()
    process.resume_reading()
    await listener.line(heard + 1)


async def test_a_flood_of_stderr_never_blocks_and_never_grows(running):
    process, listener = await running.start("stderr_flood", 20)
    assert await listener.line() == b"done"
    assert len(process.stderr._bytes) <= 128 << 10
    assert process.stderr.last_lines(1) == ["complaint " * 10]


async def test_a_process_that_closed_its_output_is_ended(running, monkeypatch):
    monkeypatch.setattr("app.processes.process._MUTE_GRACE_S", 0.05)
    _, listener = await running.start("closes_stdout")
    assert (await listener.exit()).description == "killed: it closed its input or output and lived on"


async def test_after_a_standstill_of_the_node_a_process_may_read_what_waits_before_it_is_killed(running):
    """It may have read all that was in its pipe, which the node fills only now."""
    process, listener = await running.start("never_reads")
    await listener.line()
    process.send(b"x" * 1_000_000)
    now = time.monotonic()
    process.sweep(now)
    process.sweep(now + PipeLimits().stdin_stall_s + 1)
    assert not process.is_being_killed
    process.sweep(now + PipeLimits().stdin_stall_s + 2)
    assert (await listener.exit()).description == "killed: it does not read its input"


async def test_after_a_standstill_of_the_node_a_process_that_has_ended_is_not_taken_for_one_that_lives_on(running):
    """The end of its output was read before the standstill; how it ended is read after the first look."""
    process, listener = await running.start("echo")
    process._stdout.eof_received()
    process.sweep(time.monotonic() + 5)
    assert not process.is_being_killed
    os.kill(process.pid, signal.SIGKILL)
    assert (await listener.exit()).reason == "signaled"


async def test_a_listener_that_fails_does_not_stop_the_reading(running, caplog):
    process, listener = await running.start("echo")
    heard = listener.backend_sent
    failed: list[bytes] = []

    def fail_first(line: bytes) -> None:
        if not failed:
            failed.append(line)
            raise ValueError("not mine")
        heard(line)

    listener.backend_sent = fail_first
    process.attach(listener)
    with caplog.at_level(logging.CRITICAL):
        process.send(b"one")
        process.send(b"two")
        assert await listener.line() == b"two"
    assert failed == [b"one"]


async def test_a_detached_listener_hears_nothing_more(running):
    process, listener = await running.start("last_words", 1000)
    process.detach()
    process.send(b"die")
    await process.wait_gone()
    await anyio.wait_all_tasks_blocked()
    assert (listener.lines, listener.exits) == ([], [])


async def test_a_round_trip_takes_no_task(running):
    process, listener = await running.start("echo")
    process.send(b"first")
    await listener.line()
    tasks = len(asyncio.all_tasks())
    for number in range(2, 50):
        process.send(b"again")
        await listener.line(number)
    assert len(asyncio.all_tasks()) <= tasks  # one of before may have ended meanwhile


async def test_who_asks_a_process_that_has_closed_its_input_and_said_nothing_hears_of_its_end(running, monkeypatch):
    monkeypatch.setattr("app.processes.process._MUTE_GRACE_S", 600.0)
    code = "import os, signal; os.close(0); signal.pause()"
    process, listener = await running.start("closes", args=("-I", "-S", "-c", code))
    await eventually(lambda: process._stdin.writer is None)
    process.send(b"{}")
    monkeypatch.setattr("app.processes.process._MUTE_GRACE_S", 0.05)
    assert (await listener.exit()).description == "killed: it closed its input or output and lived on"
    with pytest.raises(BackendExited, match="lived on"):
        process.send(b"{}")
