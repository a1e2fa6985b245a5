"""The spans of requests that did not become a call of a session: refused ones, notifications, batches, the way to
another node. Those of calls are in sessions/call_observers.py."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from app.errors import GatewayError
from app.http.transports.request import ClientGone, McpRequest
from app.protocol.jsonrpc import Message, Request, Response
from app.sessions.call_observers import NAMED
from app.telemetry.call_history.history import name_of
from app.telemetry.tracing.context import new_span
from app.telemetry.tracing.spans import MAX_TEXT, Attributes
from app.telemetry.tracing.tracer import Tracer

BATCH = "batch"


def end_trace(tracer: Tracer, request: McpRequest) -> None:
    """The HTTP request is over. Records its span, unless a call does. One without a valid credential has none: else
    anybody could fill the collector."""
    context, message = request.ids.trace, request.message
    request.ids.end_trace()
    if (
        context is None
        or not context.is_recorded
        or context.is_taken
        or not (request.is_let_in or request.is_forwarded)
    ):
        return
    if message is None or type(message) is Response:
        return
    tracer.request_over(context, *_called(message), _about(request, message), context.error)


def message_over(request: McpRequest, message: Message, error: str = "") -> None:
    """A message of a batch that became no call of a session: a notification, or a request that was refused."""
    context, tracer = request.ids.trace, request.tracer
    if tracer is None or context is None or not context.is_recorded or type(message) is Response:
        return
    about = _about(request, message)
    tracer.request_over(context, *_called(message), about, error, part=new_span())


@contextmanager
def hop_to(node_id: str, request: McpRequest) -> Iterator[None]:
    """Within this block the request is on its way to that node. The hop takes the place of the request's own span here;
    that node records it, as a child of the hop."""
    context, tracer = request.ids.trace, request.tracer
    span = request.ids.hop() if request.method == "POST" else b""
    if context is None or tracer is None or not span:
        yield
        return
    began, error = time.monotonic(), "cancelled"
    context.take()
    try:
        yield
        error = ""
    except GatewayError as failure:
        error = failure.reason
        raise
    except ClientGone:
        error = "client_gone"
        raise
    finally:
        about = _place(request) | {"trunkline.node": node_id}
        tracer.hop_over(context, span, time.monotonic() - began, about, error)


def _about(request: McpRequest, message: Message | list[Message]) -> Attributes:
    about = _place(request)
    if type(message) is Request:
        about["jsonrpc.request.id"] = message.id.strip(b'"').decode("utf-8", "replace")[:MAX_TEXT]
    elif isinstance(message, list):
        about["trunkline.batch.size"] = len(message)
    if session := request.public_session:
        about["mcp.session.id"] = session
    return about


def _place(request: McpRequest) -> Attributes:
    """Tenant and backend as in the path: any word that the client likes."""
    names = {"trunkline.tenant": request.tenant, "trunkline.backend": request.backend}
    return {key: name[:MAX_TEXT].encode("ascii", "replace").decode("ascii") for key, name in names.items()}


def _called(message: Message | list[Message]) -> tuple[str, str]:
    """Method, and the tool or prompt."""
    if isinstance(message, list):
        return BATCH, ""
    assert not isinstance(message, Response)
    named = message.params.get("name") if message.method in NAMED and message.params else None
    return message.method, name_of(message.method, named)
