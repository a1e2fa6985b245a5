"""RunningTasks: the tasks that the process of a session works on, as far as its messages tell.

A session with a running task is not idle. A task without an end and without a ttl counts as running for ever.
"""

import math
from dataclasses import dataclass, field

import msgspec

from app.protocol.jsonrpc import ABSENT, Params, members_of, object_in, string_of

MAX_TASKS = 256  # remembered; a session with more always counts as having one
MAX_HANDLE_BYTES = 64 << 10  # of a result that is searched for a task
ABOUT_TASKS = frozenset({"tasks/get", "tasks/cancel", "tasks/result"})
_OVER = frozenset({"completed", "failed", "cancelled"})


@dataclass(slots=True, eq=False)
class RunningTasks:
    _until: dict[str, float] = field(default_factory=dict)  # by id: when its server forgets it
    _are_too_many: bool = False

    def answered(self, method: str, asked_for: str | None, result: msgspec.Raw, now: float) -> None:
        """The result of a request that may have made a task, or was about the task `asked_for`."""
        if method == "tasks/result":
            self._until.pop(asked_for or "", None)
        elif method in ABOUT_TASKS:
            self.seen(members_of(result), now)
        elif (task := task_made(result)) is not None:
            members = members_of(result)
            self._note(task, object_in(members, "task") or members, now)

    def seen(self, members: Params, now: float) -> None:
        """A task's state, from an answer or a notification."""
        task = string_of(members.get("taskId"))
        if task is not None and (task in self._until or string_of(members.get("status")) is not None):
            self._note(task, members, now)

    def _note(self, task: str, members: Params, now: float) -> None:
        if string_of(members.get("status")) in _OVER:
            self._until.pop(task, None)
        elif task in self._until or len(self._until) < MAX_TASKS:
            self._until[task] = now + _lives_s(members)
        else:
            self._are_too_many = True

    def is_any(self, now: float) -> bool:
        self._until = {task: until for task, until in self._until.items() if until > now}
        return self._are_too_many or bool(self._until)


def _lives_s(members: Params) -> float:
    """The ttl that the server has told."""
    try:
        milliseconds = float(bytes(members.get("ttl", members.get("ttlMs", ABSENT))))
    except ValueError:
        return math.inf
    return milliseconds / 1000 if math.isfinite(milliseconds) else math.inf


def task_made(result: msgspec.Raw) -> str | None:
    """The id of the task that a call has become: `task` in 2025-11-25, the result itself in 2026-07-28."""
    if len(result) > MAX_HANDLE_BYTES or b'"taskId"' not in bytes(result):
        return None
    members = members_of(result)
    if string_of(members.get("resultType")) == "task":
        return string_of(members.get("taskId"))
    return task_id_of(members["task"]) if "task" in members else None


def task_id_of(raw: msgspec.Raw) -> str | None:
    """The `taskId` of an object."""
    return string_of(members_of(raw).get("taskId"))
