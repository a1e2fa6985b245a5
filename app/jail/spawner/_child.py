"""What a child does between fork and exec. Nothing here returns, logs or starts a thread."""

import errno
import json
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NoReturn

from app.jail.spawner import _confinement as confinement
from app.jail.spawner import _network as network
from app.jail.spawner import _watcher as watcher
from app.jail.spawner import syscalls, tree
from app.jail.spawner._confinement import CONFINED, FORKED, Prepared, Step
from app.jail.spawner.wire import Order

_EXIT_NOT_STARTED = 127
_STDIO = 3
_CATCHABLE = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


def become(order: Order, prepared: Prepared, descriptors: Sequence[int], status: int, spawner: int) -> NoReturn:
    """Turns this freshly forked child into the backend.

    An error is written to the close-on-exec pipe `status`; EOF without any data means success.
    """
    stage = "descriptors"
    try:
        prepared.clock.note(FORKED)
        signal.set_wakeup_fd(-1)
        status = confinement.out_of_the_way(status)
        for step in _steps(order, prepared, descriptors, status, spawner):
            stage = step.stage
            step.do()
        stage = "exec"
        prepared.clock.note(CONFINED)
        os.execvpe(order["argv"][0], order["argv"], order["env"])
    except BaseException as error:  # noqa: BLE001 (this is the top of the process)
        os.write(status, _describe(error, stage, order))
    finally:
        os._exit(_EXIT_NOT_STARTED)


def _steps(order: Order, prepared: Prepared, descriptors: Sequence[int], status: int, spawner: int) -> Iterator[Step]:
    """In this order: each may need what a later one takes away."""
    confined = order["confinement"]
    yield Step("setsid", os.setsid)
    kept = [status]
    if order["is_watched"]:
        *descriptors, log = descriptors
        yield Step("watch", lambda: None)
        confined, channel, spawner = watcher.begin(order, log)
        kept.append(channel)
    is_template = order.get("start") == "template"
    if is_template:
        *descriptors, channel = map(confinement.out_of_the_way, descriptors)
        if prepared.inner_status is not None:
            prepared = replace(prepared, inner_status=confinement.out_of_the_way(prepared.inner_status))
        yield Step("template", lambda: None)
        kept += confinement.keep_for_template(order["text"], channel)
    yield Step("network", lambda: network.enter(confined, *descriptors[_STDIO:]))
    yield from confinement.with_rights(confined, prepared, descriptors[:_STDIO], *kept)
    yield Step("signals", _reset_signals)
    yield Step("limits", lambda: tree.wear(order["id"], is_template=is_template))
    if order["sched_batch"]:
        # So that a woken backend does not preempt the gateway during its write to the pipe.
        yield Step("scheduler", lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)))
    yield Step("chdir", lambda: os.chdir(order["cwd"]))
    yield Step("no_new_privs", syscalls.renounce_privileges)
    yield Step("death signal", lambda: _die_with(spawner))  # a change of uid would clear it
    yield from confinement.without_rights(confined)


def _die_with(spawner: int) -> None:
    syscalls.die_with_parent(signal.SIGKILL)
    if os.getppid() != spawner:  # it died before
        os._exit(_EXIT_NOT_STARTED)


def _reset_signals() -> None:
    """Ignored signals stay ignored after exec, and Python ignores SIGPIPE, which backends need."""
    for signum in _CATCHABLE:
        if signal.getsignal(signum) is not signal.SIG_DFL:
            signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _describe(error: BaseException, stage: str, order: Order) -> bytes:
    number = getattr(error, "errno", None) or errno.EINVAL  # ValueError: a NUL in an argument
    told = getattr(error, "strerror", None) or os.strerror(number)
    subject = {"exec": order["argv"][0], "chdir": order["cwd"]}.get(stage, stage)[:500]
    return json.dumps({"errno": number, "stage": stage, "message": f"{told}: {subject!r}"}).encode()
