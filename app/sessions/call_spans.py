"""CallSpans: the spans of one session's calls, and of its clients' requests. Made only where traces are on."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from app.backends.connections.session_link import SessionLink
from app.domain import BackendSpec, public_id
from app.errors import GatewayError
from app.processes.process import BackendProcess
from app.protocol.commands import Call
from app.protocol.eras.sessionless_envelope import SESSIONLESS
from app.protocol.exchange import MAX_KEPT
from app.protocol.jsonrpc import Request, encode
from app.sessions.call_notes import Asked, ids_now
from app.telemetry.call_history.history import name_of
from app.telemetry.tracing.context import TraceContext, Traced, new_span
from app.telemetry.tracing.spans import MAX_TEXT, Attributes
from app.telemetry.tracing.tracer import Tracer

NAMED = frozenset({"tools/call", "prompts/get"})  # a resource's URI may hold secrets


class Spanned(Protocol):
    """The session."""

    id: str
    spec: BackendSpec
    version: str
    link: SessionLink
    is_pooled: bool  # its requests are not those of clients


class CallSpan(NamedTuple):
    """The span of a call, until it is over. `is_whole`: that of the client's request ends with it. `message`: the span
    of a message of a batch, which does."""

    context: TraceContext
    span: bytes
    is_whole: bool
    message: bytes = b""


class CallSpans:
    """Of one session."""

    __slots__ = ("_session", "_tracer")

    def __init__(self, tracer: Tracer, session: Spanned) -> None:
        self._tracer, self._session = tracer, session

    def begin(self, message: Request, ids: Traced | None) -> tuple[Request, CallSpan | None]:
        """The message for the backend, with the context of this call; and the span of the call, if it is recorded.

        What is kept and sent to later processes too is left as it came; of `initialize` only what came is kept.
        """
        context = None if ids is None else ids.trace
        if context is None:
            return message, None
        span = new_span() if context.is_recorded else b""
        if message.method not in MAX_KEPT:
            message = Request(message.id, message.method, context.passed_on(message.params, span))
        elif message.method == "initialize":
            params = context.passed_on(message.params, span)
            if len(encode(params)) <= MAX_KEPT["initialize"]:
                message = Request(message.id, message.method, params)
        if not span:
            return message, None
        if context.is_batch:
            return message, CallSpan(context, span, is_whole=False, message=new_span())
        return message, CallSpan(context, span, not self._session.is_pooled)

    def over(self, call: Call, error_type: str, seconds: float) -> None:
        """The call has its outcome, so many seconds after it came."""
        context, span, is_whole, part = call.span
        named = call.method, name_of(call.method, call.target) if call.method in NAMED else ""
        about = self._about() | {"jsonrpc.request.id": call.gateway_id.decode("ascii")}
        ids = span, part or context.span
        self._tracer.call_over(context, ids, named, seconds - call.waited_s, about, error_type)
        if is_whole or part:
            if is_whole:
                context.take()
            version = self._session.version
            about = self._about_request(call.id, version) | {"mcp.session.id": public_id(self._session.id)}
            self._tracer.request_over(context, *named, about, error_type, part=part)

    def answered(self, asked: Asked, error_type: str) -> None:
        """A request of a 2026-07-28 client has its answer."""
        context = None if asked.ids is None else asked.ids.trace
        if context is None or not context.is_recorded or context.is_taken:
            return
        context.take()
        name = name_of(asked.method, asked.target) if asked.method in NAMED else ""
        self._tracer.request_over(context, asked.method, name, self._about_request(asked.id, SESSIONLESS), error_type)

    def _about_request(self, request_id: bytes, version: str) -> Attributes:
        return {
            "trunkline.tenant": self._session.spec.tenant,
            "trunkline.backend": self._session.spec.name,
            "mcp.protocol.version": version[:MAX_TEXT],
            "jsonrpc.request.id": request_id.strip(b'"').decode("utf-8", "replace")[:MAX_TEXT],
        }

    def _about(self) -> Attributes:
        spec = self._session.spec
        transport = "pipe" if spec.url is None else "tcp"
        return {"trunkline.tenant": spec.tenant, "trunkline.backend": spec.name, "network.transport": transport}


@contextmanager
def waiting_for_a_process(tracer: Tracer, spec: BackendSpec) -> Iterator[Callable[[BackendProcess], None]]:
    """Records the wait in the pool and the start of the process, as two. Whoever waits tells which process it has got.

    1. None: all of it was a wait. 2. One that was there before, and was not allowed yet: the same. 3. One that was
    started meanwhile: until then it has waited.
    """
    ids, asked_at, error, got = ids_now(), time.time(), "cancelled", list[BackendProcess]()
    context = None if ids is None else ids.trace
    try:
        yield got.append
        error = ""
    except GatewayError as failure:
        error = failure.reason
        raise
    finally:
        if context is not None and context.is_recorded:
            about: Attributes = {"trunkline.tenant": spec.tenant, "trunkline.backend": spec.name}
            began = now = time.time()
            if got:
                about["trunkline.process.id"] = got[0].id
                is_new = got[0].started_at + got[0].spawn_seconds > asked_at
                began = max(asked_at, got[0].started_at) if is_new else now
            tracer.part_over(context, "wait for a process", (asked_at, began), dict(about), error)
            if began < now:
                tracer.part_over(context, "start a process", (began, now), about)


@contextmanager
def getting_a_process(tracer: Tracer | None, session: Spanned) -> Iterator[None]:
    """Records the wait for a process, or its start, within the request that needs it."""
    ids = ids_now()
    context = None if tracer is None or ids is None else ids.trace
    if tracer is None or context is None or not context.is_recorded:
        yield
        return
    spec, began, error = session.spec, time.monotonic(), "cancelled"
    about: Attributes = {"trunkline.tenant": spec.tenant, "trunkline.backend": spec.name}
    span = new_span()
    try:
        with context.inside(span):
            yield
        error = ""
        about["trunkline.process.start"] = "warm" if session.link.was_warm else "cold"
        about["trunkline.process.id"] = session.link.process or ""
    except GatewayError as failure:
        error = failure.reason
        raise
    finally:
        tracer.opening_over(context, span, time.monotonic() - began, about, error)
