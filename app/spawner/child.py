"""What a child does between fork and exec. Nothing here returns, logs or starts a thread."""

import errno
import json
import os
import resource
import signal
from collections.abc import Sequence
from typing import NoReturn

from app.spawner import network, syscalls, tree
from app.spawner.wire import Order

_EXIT_NOT_STARTED = 127
_STDIO = 3
_CATCHABLE = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


def become(order: Order, descriptors: Sequence[int], status: int, spawner: int) -> NoReturn:
    """Turns this freshly forked child into the backend.

    An error is written to the close-on-exec pipe `status`; EOF without any data means success.
    """
    stage = "setsid"
    try:
        signal.set_wakeup_fd(-1)
        os.setsid()
        stage = "network"
        network.enter(order["confinement"], *descriptors[_STDIO:])
        stage = "descriptors"
        for target, descriptor in enumerate(descriptors[:_STDIO]):
            os.dup2(descriptor, target)
        syscalls.close_all_but(status)
        stage = "signals"
        _reset_signals()
        stage = "limits"
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        tree.wear(order["id"])
        if order["sched_batch"]:
            # So that a woken backend does not preempt the gateway during its write to the pipe.
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        stage = "chdir"
        os.chdir(order["cwd"])
        stage = "no_new_privs"
        syscalls.renounce_privileges()
        # The sandbox belongs here: after everything that needs rights, before the death signal.
        stage = "death signal"
        # Last, because a change of uid would clear it. The spawner may have died before it was set.
        syscalls.die_with_parent(signal.SIGKILL)
        if os.getppid() != spawner:
            os._exit(_EXIT_NOT_STARTED)
        stage = "exec"
        os.execvpe(order["argv"][0], order["argv"], order["env"])
    except BaseException as error:  # noqa: BLE001 (this is the top of the process)
        os.write(status, _describe(error, stage, order))
    finally:
        os._exit(_EXIT_NOT_STARTED)


def _reset_signals() -> None:
    """Ignored signals stay ignored after exec, and Python ignores SIGPIPE, which backends need."""
    for signum in _CATCHABLE:
        if signal.getsignal(signum) is not signal.SIG_DFL:
            signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _describe(error: BaseException, stage: str, order: Order) -> bytes:
    number = getattr(error, "errno", None) or errno.EINVAL  # ValueError: a NUL in an argument
    subject = {"exec": order["argv"][0], "chdir": order["cwd"]}.get(stage, stage)[:500]
    return json.dumps({"errno": number, "stage": stage, "message": f"{os.strerror(number)}: {subject!r}"}).encode()
