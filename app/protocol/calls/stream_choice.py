"""Which stream gets a message of the backend that names no call of ours, or names it in its `_meta` only.

Progress names its call, a question that is withdrawn was put on a stream, and changes of lists and resources are for
the Listen stream: that is seen in `exchange.py` itself. Here is the rest.
"""

import msgspec

from app.protocol.commands import Call, Listen, Stream
from app.protocol.jsonrpc import ABSENT, Params, members_of, string_of

RELATED_TASK_KEY = "io.modelcontextprotocol/related-task"
SUBSCRIPTION_KEY = "io.modelcontextprotocol/subscriptionId"
_FEEDBACK = frozenset({"tools/call", "prompts/get", "resources/read"})  # what may ask and log while it runs


def stream_for_feedback(running: dict[bytes, Call], params: Params | None, *, listening: bool) -> Stream:
    """The stream for a question or a log message; stdio does not say to which call it belongs.

    0. It names a task: the stream of the `tasks/result` that waits for it, else the Listen stream.
    1. Exactly one call is in flight: its stream.
    2. Several are, or one that cannot stream, and somebody listens: the Listen stream.
    3. Nobody listens: the stream of the oldest call that may ask.
    4. No call can carry it: the Listen stream, where it waits for a reader.
    """
    if params is not None and "_meta" in params:
        task = _task_of(members_of(params["_meta"]).get(RELATED_TASK_KEY))
        if task is not None:
            waiting = (call.stream for call in running.values() if call.task == task and call.may_stream)
            return next(waiting, Listen.STREAM)
    candidates = [call for call in running.values() if call.may_stream and not call.cancelled]
    if len(running) == 1 and candidates:
        return candidates[0].stream
    if not listening:
        for call in candidates:
            if call.method in _FEEDBACK:
                return call.stream
    return Listen.STREAM


def subscription_of(running: dict[bytes, Call], params: Params) -> Call | None:
    """The `subscriptions/listen` (2026-07-28) that a notification is sent for; its id is our request's."""
    return running.get(bytes(members_of(params["_meta"]).get(SUBSCRIPTION_KEY, ABSENT)))


def _task_of(related: msgspec.Raw | None) -> str | None:
    """The task that a message of 2025-11-25 belongs to."""
    return None if related is None else string_of(members_of(related).get("taskId"))
