"""TaskOwners: whose each task of a shared process is. No await, no clock.

A task belongs to the principal whose call made it: its sessions share it, and for everybody else it does not exist.
What is not known to be somebody's is nobody's: a task that was forgotten is refused like one that never was.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

import msgspec

from app.protocol.calls.stream_choice import RELATED_TASK_KEY
from app.protocol.jsonrpc import ABSENT, Params, Request, encode, members_of, string_of
from app.protocol.running_tasks import task_id_of

MAX_TASKS = 2048  # of one process; for one more, who has most forgets the oldest
MAX_OF_ONE = 256  # of one principal; one more and the oldest is forgotten
MAX_TASK_ID = 256  # characters; a task with a longer id is nobody's
MAX_CURSORS = 16  # of one session, to go on with a list; the oldest is forgotten
MAX_CURSOR_BYTES = 1024
_LISTED = ("tasks", "nextCursor", "resultType", "_meta")  # whatever else a list says may be about others' tasks

_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode

Maker = TypeVar("Maker")


class NotYours(Exception):
    """What the request names is another principal's, or nobody's: the two must look the same."""


class Cursors:
    """One session's places in lists. The process's own may name another's task, so clients get ours."""

    def __init__(self) -> None:
        self._cursors: dict[str, msgspec.Raw] = {}
        self._last = 0

    def close(self, cursor: msgspec.Raw) -> str | None:
        """What the client gets for the process's cursor; None where there is none, or it is too long to keep."""
        if bytes(cursor) in (b"", b"null") or len(cursor) > MAX_CURSOR_BYTES:
            return None
        if len(self._cursors) >= MAX_CURSORS:
            del self._cursors[next(iter(self._cursors))]
        self._last += 1
        self._cursors[str(self._last)] = msgspec.Raw(bytes(cursor))
        return str(self._last)

    def open(self, params: Params) -> Params:
        """The params of a list as the process gets them. Raises NotYours: we have given no such cursor."""
        if "cursor" not in params:
            return params
        cursor = self._cursors.get(string_of(params["cursor"]) or "")
        if cursor is None:
            raise NotYours("Invalid cursor")
        return {**params, "cursor": cursor}


class _Task(Generic[Maker]):
    """Whose it is; its notifications go to the session that made it, for as long as that is there."""

    __slots__ = ("maker", "principal")

    def __init__(self, principal: Hashable, maker: Maker | None) -> None:
        self.principal, self.maker = principal, maker


class TaskOwners(Generic[Maker]):
    """Which principal, and which of its sessions, has made each task."""

    def __init__(self) -> None:
        self._tasks: dict[str, _Task[Maker]] = {}
        self._of: dict[Hashable, dict[str, None]] = {}  # each one's, oldest first

    def add(self, task: str, principal: Hashable, maker: Maker) -> None:
        """A call has made the task. An id that is another principal's already is nobody's from now on."""
        if len(task) > MAX_TASK_ID:
            return
        known = self._tasks.get(task)
        if known is not None:
            self._forget(task)
            if known.principal != principal:
                return
        if len(self._of.get(principal, ())) >= MAX_OF_ONE:
            self._forget(next(iter(self._of[principal])))
        elif len(self._tasks) >= MAX_TASKS:
            most = max(self._of, key=lambda each: len(self._of[each]))
            self._forget(next(iter(self._of[most])))
        self._tasks[task] = _Task(principal, maker)
        self._of.setdefault(principal, {})[task] = None

    def _forget(self, task: str) -> None:
        principal = self._tasks.pop(task).principal
        mine = self._of[principal]
        del mine[task]
        if not mine:
            del self._of[principal]

    def left(self, principal: Hashable, maker: Maker) -> None:
        """The session is over; the principal's other sessions keep its tasks, but nobody is told of them any more."""
        for task in self._of.get(principal, ()):
            if self._tasks[task].maker is maker:
                self._tasks[task].maker = None

    def is_of(self, principal: Hashable, task: str | None) -> bool:
        """Whether the task is this principal's."""
        known = None if task is None else self._tasks.get(task)
        return known is not None and known.principal == principal

    def is_known(self, task: str) -> bool:
        """Whether it is anybody's."""
        return task in self._tasks

    def maker_of(self, task: str) -> Maker | None:
        """The session that made it, if it is still there."""
        known = self._tasks.get(task)
        return None if known is None else known.maker

    # --- requests and answers

    def admit(self, principal: Hashable, cursors: Cursors, message: Request) -> Params | None:
        """The request's params as the process gets them.

        Raises:
            NotYours: it names a task or a cursor that is not this principal's.
        """
        params, method = message.params or {}, message.method
        if "_meta" in params:
            related = members_of(params["_meta"]).get(RELATED_TASK_KEY)
            if related is not None:
                self._require(principal, members_of(related).get("taskId"))
        if method == "tasks/list":
            return cursors.open(params)
        if method.startswith("tasks/"):
            self._require(principal, params.get("taskId"))
        elif method == "subscriptions/listen":
            return self._own_subscription(principal, params)
        return message.params

    def _require(self, principal: Hashable, task: msgspec.Raw | None) -> None:
        if not self.is_of(principal, string_of(task)):
            raise NotYours("Task not found")

    def _own_subscription(self, principal: Hashable, params: Params) -> Params:
        """2026-07-28: a subscription may name tasks; the acknowledgement says which of them it has."""
        wanted = members_of(params.get("notifications", ABSENT))
        if "taskIds" not in wanted:
            return params
        wanted["taskIds"] = _list_of(
            [raw for raw in _items(wanted["taskIds"]) if self.is_of(principal, string_of(raw))]
        )
        return {**params, "notifications": msgspec.Raw(encode(wanted))}

    def own_list(self, principal: Hashable, cursors: Cursors, result: msgspec.Raw) -> msgspec.Raw:
        """The result of `tasks/list`, with this principal's tasks only."""
        members = {name: value for name, value in members_of(result).items() if name in _LISTED}
        listed = _items(members.get("tasks", ABSENT))
        members["tasks"] = _list_of([raw for raw in listed if self.is_of(principal, task_id_of(raw))])
        cursor = cursors.close(members.pop("nextCursor", ABSENT))
        if cursor is not None:
            members["nextCursor"] = msgspec.Raw(encode(cursor))
        return msgspec.Raw(encode(members))


def task_named(method: str, params: Params, meta: Params) -> str | None:
    """The task that a notification is about."""
    if RELATED_TASK_KEY in meta:
        return task_id_of(meta[RELATED_TASK_KEY])
    return string_of(params.get("taskId")) if method.startswith("notifications/tasks") else None


def _items(raw: msgspec.Raw) -> list[msgspec.Raw]:
    try:
        return _decode_items(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []


def _list_of(items: list[msgspec.Raw]) -> msgspec.Raw:
    return msgspec.Raw(encode(items))
