"""RunningTasks: the tasks of one session that its process works on, as far as its messages tell. No await, no clock.

A session with one is not idle, though no call of it is in flight. Who tells of no end, and sets no time, runs on.
"""

import math

import msgspec

from app.protocol.jsonrpc import ABSENT, Params, members_of, string_of

MAX_TASKS = 256  # that are told apart; of a session with more it counts as certain that one runs
MAX_HANDLE_BYTES = 64 << 10  # of a result that says which task was made
ABOUT_TASKS = frozenset({"tasks/get", "tasks/cancel", "tasks/result"})
_OVER = frozenset({"completed", "failed", "cancelled"})


class RunningTasks:
    """By id, with the time at which each is forgotten by its server."""

    __slots__ = ("_are_too_many", "_until")

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._are_too_many = False

    def answered(self, method: str, asked_for: str | None, result: msgspec.Raw, now: float) -> None:
        """A request that may make a task, or is about one, has got this result."""
        if method == "tasks/result":
            self._until.pop(asked_for or "", None)
        elif method in ABOUT_TASKS:
            self.seen(members_of(result), now)
        elif (task := task_made(result)) is not None:
            members = members_of(result)
            self._note(task, members_of(members["task"]) if "task" in members else members, now)

    def seen(self, members: Params, now: float) -> None:
        """The state of a task, in an answer or a notification."""
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
        """Whether one may still run."""
        self._until = {task: until for task, until in self._until.items() if until > now}
        return self._are_too_many or bool(self._until)


def _lives_s(members: Params) -> float:
    """How long the server keeps the task, by its own word."""
    try:
        milliseconds = float(bytes(members.get("ttl", members.get("ttlMs", ABSENT))))
    except ValueError:
        return math.inf
    return milliseconds / 1000 if math.isfinite(milliseconds) else math.inf


def task_made(result: msgspec.Raw) -> str | None:
    """The task that a call has become: `task` in 2025-11-25, the result itself in 2026-07-28."""
    if len(result) > MAX_HANDLE_BYTES or b'"taskId"' not in bytes(result):
        return None
    members = members_of(result)
    if string_of(members.get("resultType")) == "task":
        return string_of(members.get("taskId"))
    return task_id_of(members["task"]) if "task" in members else None


def task_id_of(raw: msgspec.Raw) -> str | None:
    """The id of a task in an object that has it."""
    return string_of(members_of(raw).get("taskId"))
