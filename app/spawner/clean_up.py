"""What the node does when its spawner has died: ends and reaps the processes that are left."""

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Iterable

from app.spawner import tree

_LOOK_AGAIN_S = 0.02
_QUIET_LOOKS = 5  # nothing is left when so many looks in a row found nothing
_GIVE_UP_S = 10.0  # a process may be stuck in the kernel


class CleanUp:
    """Looks for processes of the dead spawner until none are left; then `done`.

    When the spawner dies, the kernel kills the leaders; this process becomes the parent of their descendants. They are
    recognised by mark, marker or session. A daemon without any of these is left alone: it could be a child of our own.
    """

    def __init__(
        self,
        spawner: subprocess.Popen[bytes],
        process_ids: Iterable[str],
        leaders: Iterable[int],
        forget: Callable[["CleanUp"], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._spawner = spawner
        self._markers = frozenset(process_ids)
        self._marks = frozenset(map(tree.mark, self._markers))
        self._leaders = frozenset(leaders)
        self._pids = set(self._leaders)
        self._forget = forget
        self._looks = 0
        self._quiet_looks = 0
        self._give_up_at = time.monotonic() + _GIVE_UP_S
        self.done: asyncio.Future[None] = self._loop.create_future()
        self._loop.call_soon(self._look)

    def _look(self) -> None:
        remains = {pid for pid in tree.children(os.getpid()) if self._is_ours(pid)}
        self._pids |= tree.end(remains)
        self._pids -= {pid for pid in self._pids if _reap(pid)}
        self._looks += 1
        status = self._spawner.poll()
        if status is None and self._looks >= _QUIET_LOOKS:
            self._spawner.kill()  # it closed its socket but lives
        self._quiet_looks = self._quiet_looks + 1 if status is not None and not remains else 0
        # A spawner that exited with 0 has left nothing behind.
        if status == 0 or self._quiet_looks >= _QUIET_LOOKS or time.monotonic() > self._give_up_at:
            self._forget(self)
            self.done.set_result(None)
        else:
            self._loop.call_later(_LOOK_AGAIN_S, self._look)

    def _is_ours(self, pid: int) -> bool:
        if pid in self._pids or tree.session(pid) in self._leaders:
            return True
        return tree.mark_of(pid) in self._marks or tree.marker(pid) in self._markers


def _reap(pid: int) -> bool:
    """Whether this process is gone: reaped now, or not our child."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return not os.path.exists(f"/proc/{pid}")
