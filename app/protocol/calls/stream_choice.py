"""Which stream gets a message of the backend that names no call, or only in its `_meta`. For other messages (progress,
cancelled questions, changes of lists and resources) `exchange.py` decides."""

from app.protocol._running_tasks import task_id_of
from app.protocol.commands import Call, Listen, Stream
from app.protocol.jsonrpc import ABSENT, Params, answered_id, members_of

RELATED_TASK_KEY = "io.modelcontextprotocol/related-task"
SUBSCRIPTION_KEY = "io.modelcontextprotocol/subscriptionId"
FEEDBACK = frozenset({"tools/call", "prompts/get", "resources/read"})  # may ask and log while they run


def stream_for_feedback(running: dict[bytes, Call], params: Params | None, *, listening: bool) -> Stream:
    """The stream for a question or a log message; stdio does not say to which call it belongs.

    0. It names a task: the stream of the `tasks/result` that waits for it, else the Listen stream.
    1. Exactly one call is in flight: its stream.
    2. Several are, or one that cannot stream, and somebody listens: the Listen stream.
    3. Nobody listens: the stream of the oldest call that may ask.
    4. Else the Listen stream, where it waits for a reader.
    """
    if params is not None and "_meta" in params:
        related = members_of(params["_meta"]).get(RELATED_TASK_KEY)
        task = None if related is None else task_id_of(related)
        if task is not None:
            waiting = (call.stream for call in running.values() if call.task == task and call.may_stream)
            return next(waiting, Listen.STREAM)
    candidates = [call for call in running.values() if call.may_stream and not call.cancelled]
    if len(running) == 1 and candidates:
        return candidates[0].stream
    if not listening:
        for call in candidates:
            if call.method in FEEDBACK:
                return call.stream
    return Listen.STREAM


def subscription_of(running: dict[bytes, Call], params: Params) -> Call | None:
    """The `subscriptions/listen` (2026-07-28) that a notification is sent for; the subscription has its id."""
    return running.get(answered_id(bytes(members_of(params["_meta"]).get(SUBSCRIPTION_KEY, ABSENT))))
