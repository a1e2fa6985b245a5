"""TaskOwners: whose each task of a shared process is.

A task belongs to the principal whose call made it: its sessions share it, and for everybody else it does not exist.
Unknown and forgotten tasks belong to nobody.
"""

from collections.abc import Hashable
from typing import NamedTuple

import msgspec

from app.protocol._running_tasks import task_id_of
from app.protocol.exchange import RELATED_TASK_KEY
from app.protocol.jsonrpc import ABSENT, Params, Request, encoded, members_of, object_in, string_of
from app.protocol.shared.shared_call import Member

MAX_TASKS = 2048  # of one process; for one more, the principal with most tasks loses its oldest
MAX_OF_ONE = 256  # of one principal; for one more its oldest is forgotten
MAX_TASK_ID = 256  # characters; a task with a longer id is nobody's
MAX_CURSORS = 16  # of one session; for one more its oldest is forgotten
MAX_CURSOR_BYTES = 1024
_LISTED = ("tasks", "nextCursor", "resultType", "_meta")  # other members of a list may be about others' tasks

_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


class NotYours(Exception):
    """The task or cursor is another principal's, or nobody's: both must look the same."""


class _Cursors:
    """The cursors of one session's lists. Those of the process may contain others' tasks, so clients get ours."""

    def __init__(self) -> None:
        self._cursors: dict[str, msgspec.Raw] = {}
        self._last = 0

    def close(self, cursor: msgspec.Raw) -> str | None:
        """The client's cursor for one of the process; None if there is none, or it is too long."""
        if bytes(cursor) in (b"", b"null") or len(cursor) > MAX_CURSOR_BYTES:
            return None
        if len(self._cursors) >= MAX_CURSORS:
            del self._cursors[next(iter(self._cursors))]
        self._last += 1
        self._cursors[str(self._last)] = msgspec.Raw(bytes(cursor))
        return str(self._last)

    def open(self, params: Params) -> Params:
        """The params of a list for the process. Raises NotYours for an unknown cursor."""
        if "cursor" not in params:
            return params
        cursor = self._cursors.get(string_of(params["cursor"]) or "")
        if cursor is None:
            raise NotYours("Invalid cursor")
        return {**params, "cursor": cursor}


class _Task(NamedTuple):
    principal: Hashable
    maker: Member | None  # the session that gets its notifications, until its end


class TaskOwners:
    def __init__(self) -> None:
        self._tasks: dict[str, _Task] = {}
        self._of: dict[Hashable, dict[str, None]] = {}  # the tasks of each principal, oldest first
        self._cursors: dict[Member, _Cursors] = {}

    def add(self, task: str, maker: Member) -> None:
        """A call of this session has made the task. An id that two principals have got is nobody's."""
        if len(task) > MAX_TASK_ID:
            return
        principal, known = maker.principal, self._tasks.get(task)
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

    def left(self, member: Member) -> None:
        """The session has ended; other sessions of its principal keep its tasks, but get no notifications of them."""
        self._cursors.pop(member, None)
        for task in self._of.get(member.principal, ()):
            if self._tasks[task].maker is member:
                self._tasks[task] = _Task(member.principal, None)

    def is_of(self, principal: Hashable, task: str | None) -> bool:
        known = None if task is None else self._tasks.get(task)
        return known is not None and known.principal == principal

    def told(self, task: str) -> list[Member] | None:
        """Who gets notifications of this task; None for an unknown one."""
        known = self._tasks.get(task)
        if known is None:
            return None
        return [] if known.maker is None else [known.maker]

    # --- requests and answers

    def admit(self, member: Member, message: Request) -> Params | None:
        """The request's params for the process. Raises NotYours for a task or cursor of somebody else."""
        params, method = message.params or {}, message.method
        if "_meta" in params:
            related = members_of(params["_meta"]).get(RELATED_TASK_KEY)
            if related is not None:
                self._require(member, members_of(related).get("taskId"))
        if method == "tasks/list":
            return self._cursors_of(member).open(params)
        if method.startswith("tasks/"):
            self._require(member, params.get("taskId"))
        elif method == "subscriptions/listen":
            return self._own_subscription(member, params)
        return message.params

    def _require(self, member: Member, task: msgspec.Raw | None) -> None:
        if not self.is_of(member.principal, string_of(task)):
            raise NotYours("Task not found")

    def _cursors_of(self, member: Member) -> _Cursors:
        return self._cursors.setdefault(member, _Cursors())

    def _own_subscription(self, member: Member, params: Params) -> Params:
        """2026-07-28: removes others' tasks; the acknowledgement says which are left."""
        wanted = object_in(params, "notifications")
        if "taskIds" not in wanted:
            return params
        listed = _items(wanted["taskIds"])
        wanted["taskIds"] = encoded([raw for raw in listed if self.is_of(member.principal, string_of(raw))])
        return {**params, "notifications": encoded(wanted)}

    def own_list(self, member: Member, result: msgspec.Raw) -> msgspec.Raw:
        """The result of `tasks/list` without others' tasks."""
        members = {name: value for name, value in members_of(result).items() if name in _LISTED}
        listed = _items(members.get("tasks", ABSENT))
        members["tasks"] = encoded([raw for raw in listed if self.is_of(member.principal, task_id_of(raw))])
        cursor = self._cursors_of(member).close(members.pop("nextCursor", ABSENT))
        if cursor is not None:
            members["nextCursor"] = encoded(cursor)
        return encoded(members)


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
