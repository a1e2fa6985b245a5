"""The spawner: one thread, one select loop, until the node's end of the socket closes."""

import array
import contextlib
import errno
import json
import os
import signal
import socket
import time
from typing import NoReturn

from app.jail.spawner import _child as child
from app.jail.spawner import _confinement as confinement
from app.jail.spawner import _wrapped_process as inner
from app.jail.spawner import cgroups, syscalls, tree, wire
from app.jail.spawner._complaint import complaint_of
from app.jail.spawner._confinement import CONFINED, Prepared
from app.jail.spawner._sources import Sources
from app.jail.spawner._started_processes import Ending, Owners, Process
from app.jail.spawner._wrapped_process import Inner
from app.jail.spawner.forked.fork_requests import Birth, Births, refused

# The OOM killer takes the largest backend before the gateway, also in a small container: it counts in thousandths of
# the memory that there may be.
_OOM_SCORE = "900"
_NOBODY = -1  # the leader of a fork that has not come
_LOOK_AGAIN_S = 0.02  # between two looks for what is left of an ended tree
_LAST_LOOK_AGAIN_S = 0.005  # the same after the node has gone
# Shells and wrappers report it of their child by an exit status.
_ANCILLARY_BYTES = socket.CMSG_SPACE(wire.MAX_DESCRIPTORS * array.array("i").itemsize)
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE)


class _NodeGone(Exception):
    """The node closed its end, or died."""


class Spawner:
    """Starts processes for the node, kills their trees, reaps them and reports."""

    def __init__(self, node: socket.socket) -> None:
        self._node = node
        self._pid = os.getpid()
        self._processes: dict[str, Process] = {}
        self._by_pid: dict[int, Process] = {}
        self._starting: dict[str, tuple[Process, Inner]] = {}  # inside a wrapper, not executed yet
        self._ending: dict[str, Ending] = {}
        self._births = Births(self._pid)
        self._nameless: set[int] = set()
        self._buffer = bytearray(wire.MAX_PACKET_BYTES)
        self._sources = Sources()
        self._wake_read, wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        wake_write.setblocking(False)
        self._wake_write = wake_write
        signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._sources.watch(node, self._on_order, is_vital=True)
        self._sources.watch(self._wake_read, self._on_child, is_vital=True)

    def run(self) -> None:
        """Serves until the node is gone, then ends everything that was started."""
        with contextlib.suppress(_NodeGone):
            self._report({"event": "ready", "pid": self._pid})
            while True:
                self._sources.wait(self._pause_s())
                self._look_for_starts()
                if self._ending:
                    self._end_trees()
        self._end_everything()

    def _pause_s(self) -> float | None:
        """Until the next look at what does not report itself."""
        if self._starting:
            youngest_at = max(process.started_at for process, _ in self._starting.values())
            return inner.look_again_s(time.monotonic() - youngest_at)
        return _LOOK_AGAIN_S if self._ending else None

    def _report(self, report: wire.Report) -> None:
        """May block while the node is slow to read: no deadlock, as the node never waits for the spawner to read."""
        try:
            self._node.send(wire.encode(report))
        except OSError:
            raise _NodeGone from None

    # --- orders

    def _on_order(self) -> None:
        try:
            size, ancillary, _, _ = self._node.recvmsg_into(
                [self._buffer], _ANCILLARY_BYTES, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError:
            raise _NodeGone from None
        descriptors = array.array("i")
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
        if size == 0:
            raise _NodeGone
        self._obey(json.loads(self._buffer[:size]), descriptors.tolist())

    def _obey(self, order: wire.Order, descriptors: list[int]) -> None:
        process = self._processes.get(order["id"])
        if order["do"] == "spawn" and order["start"] == "fork":
            self._fork(order, descriptors)
        elif order["do"] == "spawn":
            self._spawn(order, descriptors)
        elif process is None:
            if order["do"] == "kill" and (birth := self._births.of(order["id"])) is not None:
                self._on_unborn(birth, refused("it is not wanted any more"))
            return  # it has ended; the report is on its way to the node
        elif order["do"] == "signal":
            self._signal(process, order["signum"])
        elif order["do"] == "kill":
            self._end(process)

    def _signal(self, process: Process, signum: int) -> None:
        if process.inner is None:
            tree.send_group(process.pid, signum)
        else:
            process.inner.signal(signum)

    def _spawn(self, order: wire.Order, descriptors: list[int]) -> None:
        started_at = time.monotonic()
        status: list[int] = []
        group = cgroups.group_of(order)
        wrapped: Inner | None = None
        stage = "fork"
        try:
            # The kernel drops those that do not fit into our table.
            if len(descriptors) != wire.descriptors_of(order):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            confinement.assemble(order["confinement"])
            status += os.pipe()
            wrapped = Inner() if order["confinement"].get("is_wrapped") else None
            prepared = Prepared(group.joins if group is not None else (), wrapped.sink if wrapped is not None else None)
            if order["start"] == "exec":
                order["env"][tree.MARKER] = order["id"]
            if group is not None:
                stage = "cgroup"
                group.make()
                stage = "fork"
            pid = os.fork()
            if pid == 0:
                child.become(order, prepared, descriptors, status[1], self._pid)
        except OSError as error:
            _close(*status)
            if group is not None:
                group.remove()
            if wrapped is not None:
                wrapped.forked()
                wrapped.close()
            self._report_failure(order["id"], error.errno or errno.EIO, stage, error.strerror or "")
        else:
            os.close(status[1])
            if wrapped is not None:
                wrapped.forked()
            process = Process(order["id"], pid, started_at, prepared.clock, status[0], group, wrapped)
            self._processes[process.id] = self._by_pid[pid] = process
            self._sources.watch(status[0], lambda: self._on_exec(process))
        finally:
            _close(*descriptors)

    def _fork(self, order: wire.Order, descriptors: list[int]) -> None:
        """Has a template fork; `_on_born` goes on when the fork is there."""
        try:
            birth = self._births.begin(order, descriptors)
        except OSError as error:
            self._report_failure(order["id"], error.errno or errno.EIO, wire.FORK_STAGE, error.strerror or "")
        else:
            self._sources.watch(birth.channel, lambda: self._on_born(birth))

    def _on_born(self, birth: Birth) -> None:
        if self._births.of(birth.id) is not birth:  # it was given up in this very turn of the loop
            return
        try:
            if birth.is_outside:
                report = self._births.house(birth, self._by_pid)
                self._sources.unwatch(birth.channel)
                self._sources.watch(report, lambda: self._on_housed(birth, report))
                return
            process = self._births.born(birth, self._by_pid)
        except OSError as error:
            self._on_unborn(birth, error)
        else:
            self._processes[process.id] = self._by_pid[process.pid] = process
            self._sources.unwatch(birth.channel)
            self._sources.watch(birth.channel, lambda: self._on_exec(process))

    def _on_housed(self, birth: Birth, report: socket.socket) -> None:
        """Its room is there, or will never be."""
        self._sources.unwatch(report)
        if self._births.of(birth.id) is None:  # it was given up
            report.close()
            return
        self._sources.watch(birth.channel, lambda: self._on_born(birth))
        try:
            with report:
                self._births.housed(birth, report)
        except OSError as error:
            self._on_unborn(birth, error)

    def _on_unborn(self, birth: Birth, error: OSError) -> None:
        self._sources.unwatch(birth.channel)
        self._births.end(birth)
        if birth.group is not None:
            self._ending[birth.id] = Ending(_NOBODY, birth.group)
        self._report_failure(birth.id, error.errno or errno.EIO, wire.FORK_STAGE, error.strerror or "")

    def _on_exec(self, process: Process) -> None:
        """The status pipe is readable: exec has closed it, or the child has written an error."""
        if process.status is None:
            return
        self._sources.unwatch(process.status)
        complaint = process.exec_over()
        if complaint:
            self._report_failure(process.id, *complaint_of(complaint))
            process.clock.close()
            if process.is_fork and process.inner is None:  # it may be anybody's: nobody tells when it has ended
                self._end(process)
                del self._processes[process.id], self._by_pid[process.pid]
        elif isinstance(process.inner, Inner):
            self._starting[process.id] = (process, process.inner)
        else:
            self._on_started(process)

    def _on_started(self, process: Process) -> None:
        now = time.monotonic()
        self._report({
            "event": "spawned", "id": process.id, "pid": process.pid, "seconds": now - process.started_at,
            "phases": process.clock.phases(process.started_at, now),
        })  # fmt: skip
        process.clock.close()

    def _look_for_starts(self) -> None:
        for process, wrapped in list(self._starting.values()):
            if wrapped.runs():
                self._on_inner_started(process)

    def _on_inner_started(self, process: Process) -> None:
        del self._starting[process.id]
        process.clock.note(CONFINED)  # what the wrapper did belongs to the sandbox
        self._on_started(process)

    def _on_wrapper_ended(self, process: Process, wrapped: Inner) -> None:
        if process.id in self._starting and wrapped.has_run():
            self._on_inner_started(process)
        elif process.id in self._starting:
            del self._starting[process.id]
            process.clock.close()
            process.fail()
            self._report(wrapped.failure(process.id))
        wrapped.close()

    def _report_failure(self, process_id: str, number: int, stage: str, message: str) -> None:
        self._report({"event": "failed", "id": process_id, "errno": number, "stage": stage, "message": message})

    # --- ends

    def _on_child(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake_read.recv(4096):
                pass
        with contextlib.suppress(ChildProcessError):
            while dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                process = self._by_pid.get(dead.si_pid)
                if process is not None:
                    report = self._report_of(process, dead)
                    self._on_leader(process)
                os.waitid(os.P_PID, dead.si_pid, os.WEXITED)
                if process is not None:
                    self._forget(process, report)

    def _on_leader(self, process: Process) -> None:
        """Ends the tree of a leader that has exited. It is still a zombie, so its pid and group id are not reused."""
        self._on_exec(process)
        if isinstance(process.inner, Inner):
            self._on_wrapper_ended(process, process.inner)
        tree.send_group(process.pid, signal.SIGKILL)
        self._end(process)
        self._end_trees()

    def _end(self, process: Process) -> None:
        self._ending.setdefault(process.id, Ending(process.pid, process.group))

    def _report_of(self, process: Process, dead: os.waitid_result) -> wire.Report:
        """The report of its end, made while its group is there."""
        report: wire.Report = {"event": "exited", "id": process.id}
        if dead.si_code == os.CLD_EXITED:
            report["code"] = dead.si_status
        else:
            report["signal"] = dead.si_status
        if process.inner is not None:
            process.inner.read()
            process.inner.correct(report)
        if process.group is not None:
            report["usage"] = process.group.usage()
            if process.id not in self._ending:
                report["limit"] = process.group.limit_that_killed()
        return report

    def _forget(self, process: Process, report: wire.Report) -> None:
        self._processes.pop(process.id, None)
        self._by_pid.pop(process.pid, None)
        if not process.failed:  # else that was reported
            self._report(report)

    def _end_trees(self) -> None:
        """One look for what is left of the ending trees.

        Members of a tree are 1. what is in its control group, the leader and all below it, 2. orphans with its mark,
        its marker or its session, 3. orphans with none of these, if no other tree can have started them; but only at
        the second look, because a process in the middle of its exec has no environment for a moment.
        """
        owners = Owners(self._processes.values(), self._ending)
        seen = {process_id for process_id, ending in self._ending.items() if ending.kill_group()}
        doomed = {process.pid: process.id for process in self._processes.values() if process.id in self._ending}
        nameless = set()
        for pid in tree.children(self._pid):
            if pid in self._by_pid or pid == self._births.rooms.pid:
                continue
            owner = owners.of(pid)
            if owner is None:
                nameless.add(pid)
            elif owner in self._ending:
                doomed[pid] = owner
        nobodys = {pid for pid in nameless & self._nameless if not self._may_be_of_the_living(pid)}
        tree.end([*doomed, *nobodys])
        self._nameless = nameless
        self._count_quiet_looks(seen.union(doomed.values()))

    def _may_be_of_the_living(self, orphan: int) -> bool:
        """Whether a tree that is not ending is old enough to have started this orphan. In doubt the orphan stays; it is
        killed with the last of those trees."""
        births = [tree.born(process.pid) for process in self._processes.values() if process.id not in self._ending]
        orphan_born = tree.born(orphan)
        return orphan_born is None or any(birth is not None and birth <= orphan_born for birth in births)

    def _count_quiet_looks(self, seen: set[str]) -> None:
        for process_id, ending in list(self._ending.items()):
            if ending.looked(process_id in seen) and process_id not in self._processes:
                del self._ending[process_id]
        if not self._ending:
            self._nameless.clear()

    def _end_everything(self) -> None:
        """Kills and reaps every descendant until none is left; orphans become our children as their parents die."""
        groups = [each.group for each in self._processes.values() if each.group is not None]
        groups += [each.group for each in self._ending.values() if each.group is not None]
        while True:
            for group in groups:
                group.kill()
            tree.end(tree.children(self._pid))
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                groups = [group for group in groups if not group.remove()]
                if not groups:
                    return
            time.sleep(_LAST_LOOK_AGAIN_S)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def serve(descriptor: int) -> NoReturn:
    """Runs a spawner on this socket; exits when the node and everything that was started are gone."""
    node = socket.socket(fileno=descriptor)
    node.set_inheritable(False)
    for signum in _IGNORED:
        signal.signal(signum, signal.SIG_IGN)
    syscalls.adopt_orphans()
    # Inherited by every backend; not permitted after refuse_inspection.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(_OOM_SCORE)
    syscalls.refuse_inspection()
    Spawner(node).run()
    os._exit(0)  # a closing node waits for this: no interpreter shutdown
