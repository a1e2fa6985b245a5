"""What the node does when its spawner has died: when it starts another; ends and reaps the processes that are left."""

import asyncio
import os
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable

from app.jail.spawner import tree
from app.jail.spawner.cgroups import Group

_LOOK_AGAIN_S = 0.02
_QUIET_LOOKS = 5  # nothing is left when so many looks in a row found nothing
_GIVE_UP_S = 10.0  # a process may be stuck in the kernel
_WITHIN_S = 10.0
_AT_ONCE = 3  # so many deaths within that time delay nothing
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.05, 5.0


class BackOff:
    """How long the next start waits: not at all, unless a spawner dies again and again."""

    def __init__(self) -> None:
        self._deaths: deque[float] = deque(maxlen=_AT_ONCE + 8)  # which is the longest delay

    def died(self, now: float) -> None:
        self._deaths.append(now)

    def delay_s(self, now: float) -> float:
        over = sum(now - each < _WITHIN_S for each in self._deaths) - _AT_ONCE
        if over <= 0:
            return 0.0
        return max(0.0, self._deaths[-1] + min(_FIRST_DELAY_S * 2.0 ** (over - 1), _LONGEST_DELAY_S) - now)


class CleanUp:
    """Looks for processes of the dead spawner until none are left; then `done`.

    When the spawner dies, the kernel kills the leaders; this process becomes the parent of their descendants. They are
    those in `groups`, the control groups that it has left. Others are recognised by mark, marker or session, which for
    the maker of rooms is that of the spawner; a daemon without any of these is left alone: it could be a child of our
    own. Who is not reaped is not gone: the namespace of its processes stays, with the first of them.
    """

    def __init__(
        self,
        spawner: subprocess.Popen[bytes],
        process_ids: Iterable[str],
        leaders: Iterable[int],
        groups: Callable[[], Iterable[Group]],
        forget: Callable[["CleanUp"], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._spawner = spawner
        self._markers = frozenset(process_ids)
        self._marks = frozenset(mark for each in self._markers for mark in tree.marks(each))
        self._pids = set(leaders)
        self._sessions = frozenset({*self._pids, spawner.pid})
        self._groups = groups
        self._forget = forget
        self._looks = 0
        self._quiet_looks = 0
        self._give_up_at = time.monotonic() + _GIVE_UP_S
        self.done: asyncio.Future[None] = self._loop.create_future()
        self._loop.call_soon(self._look)

    def _look(self) -> None:
        groups_left = [group for group in self._groups() if group.kill() or not group.remove()]
        remains = {pid for pid in tree.children(os.getpid()) if self._is_ours(pid)}
        self._pids |= tree.end(remains)
        self._pids -= {pid for pid in self._pids if _reap(pid)}
        self._looks += 1
        status = self._spawner.poll()
        if status is None and self._looks >= _QUIET_LOOKS:
            self._spawner.kill()  # it closed its socket but lives
        self._quiet_looks = self._quiet_looks + 1 if status is not None and not remains and not groups_left else 0
        # A spawner that exited with 0 has left nothing behind.
        if status == 0 or self._quiet_looks >= _QUIET_LOOKS or time.monotonic() > self._give_up_at:
            self._forget(self)
            self.done.set_result(None)
        else:
            self._loop.call_later(_LOOK_AGAIN_S, self._look)

    def _is_ours(self, pid: int) -> bool:
        if pid == self._spawner.pid:
            return False
        if pid in self._pids or tree.session(pid) in self._sessions:
            return True
        return tree.mark_of(pid) in self._marks or tree.marker(pid) in self._markers


def _reap(pid: int) -> bool:
    """Whether this process is gone: reaped now, or not our child."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return not os.path.exists(f"/proc/{pid}")
