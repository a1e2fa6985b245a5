"""Who observes the calls of one session: metrics, the history of calls, traces, and a capture while one is open.

`observers_of` makes the list; `SessionCalls` walks it. Also program_of: the client program behind a session.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import msgspec

from app.backends.connections.session_connection import SessionConnection
from app.domain import BackendSpec, Principal, public_id
from app.errors import GatewayError
from app.limits.tenant_limits import TenantGate
from app.processes.process import BackendProcess
from app.protocol.commands import TARGETS, Answer, Failed
from app.protocol.eras.sessionless_envelope import SESSIONLESS, SUPPORTED
from app.protocol.exchange import MAX_KEPT, asked_version
from app.protocol.jsonrpc import Params, Request, encode, members_of, string_of
from app.telemetry.call_history.history import CallHistory, Named, Origin, name_of
from app.telemetry.logs import current
from app.telemetry.metrics import Metrics, method_label
from app.telemetry.tracing.context import TraceContext, Traced, new_span
from app.telemetry.tracing.spans import MAX_TEXT, Attributes
from app.telemetry.tracing.tracer import Tracer

MAX_NAME = 80  # characters of a client's name and version
REFUSED_EVERY_S = 1.0  # of the calls that a session's limits refuse one in so long is noted
NAMED = frozenset({"tools/call", "prompts/get"})  # a resource's URI may hold secrets
KNOWN_VERSIONS = frozenset(SUPPORTED)
_LEFT_OUT = frozenset({"ping"})  # some clients send it every second


class Observed(Protocol):
    """The session."""

    id: str
    principal: Principal
    spec: BackendSpec
    hello: bytes | None
    client_info: msgspec.Raw | None
    version: str
    transport: str
    connection: SessionConnection
    is_pooled: bool  # its requests are not those of clients


class Asked(NamedTuple):
    """A request of a 2026-07-28 client, until it is answered."""

    method: str
    target: bytes | None
    size: int
    ids: Named | None
    began_at: float
    id: bytes = b""


class Watchers(NamedTuple):
    """Who is told of the calls of all sessions, where anybody is."""

    history: CallHistory | None = None
    tracer: Tracer | None = None
    failed: "Callable[[Observed, Answer], None] | None" = None  # calls that their backend has answered with an error


UNWATCHED = Watchers()
Outcome = Answer | Failed


class CallObserver(Protocol):
    """Of one session. `error_type` is the label of an outcome: "" for a success; `size` its bytes."""

    def refused(self, message: Request, error: GatewayError, now: float) -> None:
        """A client's call was refused before it was sent."""

    def over(self, outcome: Outcome, error_type: str, seconds: float, size: int) -> None:
        """A call has its outcome."""

    def served(self, asked: Asked, outcome: Outcome, error_type: str, seconds: float, size: int) -> None:
        """A request of a 2026-07-28 client has its answer."""


class CallObservers(NamedTuple):
    """Those of one session, besides a capture."""

    metrics: "CallMetrics"
    notes: "CallNotes | None"
    spans: "CallSpans | None"
    failed: "FailedCalls | None" = None


def observers_of(session: Observed, gate: TenantGate, metrics: Metrics, watchers: Watchers) -> CallObservers:
    """A list for `SessionCalls` to walk."""
    history, tracer, failed = watchers
    return CallObservers(
        CallMetrics(metrics, gate, session),
        None if history is None else CallNotes(history, session),
        None if tracer is None else CallSpans(tracer, session),
        None if failed is None else FailedCalls(failed, session),
    )


class CallMetrics:
    """Counts the time of calls, for the metrics and the tenant's tally."""

    __slots__ = ("_gate", "_metrics", "_session")

    def __init__(self, metrics: Metrics, gate: TenantGate, session: Observed) -> None:
        self._metrics, self._gate, self._session = metrics, gate, session

    def refused(self, message: Request, error: GatewayError, now: float) -> None:
        """Counted where it is refused."""

    def over(self, outcome: Outcome, error_type: str, seconds: float, size: int) -> None:
        call, session = outcome.call, self._session
        method = method_label(call.method)
        if isinstance(outcome, Answer) or outcome.was_sent:
            self._metrics.client_operations.labels(method, error_type).observe(seconds - call.waited_s)
        if session.is_pooled:
            return
        self._gate.tally.done(seconds, error_type)
        version = session.version if session.version in KNOWN_VERSIONS else "_OTHER"  # a backend may say anything
        if error_type and method == "initialize" and session.hello is not None:
            asked = asked_version(session.hello)  # nothing was agreed on
            version = asked if asked in KNOWN_VERSIONS else version
        self._metrics.server_operations.labels(method, error_type, session.transport, version).observe(seconds)

    def served(self, asked: Asked, outcome: Outcome, error_type: str, seconds: float, size: int) -> None:
        self.count(asked.method, error_type, seconds)

    def count(self, method: str, error_type: str, seconds: float) -> None:
        """Counts a request of a 2026-07-28 client that this pooled session served."""
        if method != "subscriptions/listen":  # which takes as long as its client listens
            self._gate.tally.done(seconds, error_type)
        labels = method_label(method), error_type, self._session.transport, SESSIONLESS
        self._metrics.server_operations.labels(*labels).observe(seconds)


class CallNotes:
    """Notes the calls of one session when they are over. Costs about a microsecond for each."""

    __slots__ = ("_history", "_origin", "_refused_at", "_session")

    def __init__(self, history: CallHistory, session: Observed) -> None:
        self._history, self._session = history, session
        self._origin: Origin | None = None
        self._refused_at = -REFUSED_EVERY_S

    def refused(self, message: Request, error: GatewayError, now: float) -> None:
        """Floods of them would push everything else out of the history."""
        if now - self._refused_at >= REFUSED_EVERY_S:
            self._refused_at = now
            self._note(asked_now(message, now), error.reason, 0.0, 0)

    def over(self, outcome: Outcome, error_type: str, seconds: float, size: int) -> None:
        call = outcome.call
        method = call.method
        if method not in _LEFT_OUT and not self._session.is_pooled:
            name, origin = name_of(method, call.target), self._origin or self._from()
            self._history.note(origin, method, name, error_type or "ok", seconds, call.size, size, call.origin)

    def served(self, asked: Asked, outcome: Outcome, error_type: str, seconds: float, size: int) -> None:
        self._note(asked, error_type or "ok", seconds, size)

    def _note(self, asked: Asked, outcome: str, seconds: float, bytes_out: int) -> None:
        method, target, size, ids = asked[:4]
        origin = self._origin or self._from()
        self._history.note(origin, method, name_of(method, target), outcome, seconds, size, bytes_out, ids)

    def _from(self) -> Origin:
        """At the first call: until then the session may not know its client."""
        session, program = self._session, program_of(self._session)
        client = program.get("name", ""), program.get("version", "")
        self._origin = Origin(session.spec.key, session.principal.identity, public_id(session.id), client)
        return self._origin


class FailedCalls:
    """Tells of calls of one session that its backend has answered with an error."""

    __slots__ = ("_session", "_told")

    def __init__(self, told: Callable[[Observed, Answer], None], session: Observed) -> None:
        self._told, self._session = told, session

    def refused(self, message: Request, error: GatewayError, now: float) -> None:
        """Its backend has not heard of it."""

    def over(self, outcome: Outcome, error_type: str, seconds: float, size: int) -> None:
        if error_type and isinstance(outcome, Answer):
            self._told(self._session, outcome)

    def served(self, asked: Asked, outcome: Outcome, error_type: str, seconds: float, size: int) -> None:
        """What it took of the backend is over already."""


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

    def __init__(self, tracer: Tracer, session: Observed) -> None:
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

    def refused(self, message: Request, error: GatewayError, now: float) -> None:
        """Its span is that of its HTTP request."""

    def over(self, outcome: Outcome, error_type: str, seconds: float, size: int) -> None:
        call = outcome.call
        if call.span is None:
            return
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

    def served(self, asked: Asked, outcome: Outcome, error_type: str, seconds: float, size: int) -> None:
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
def getting_a_process(tracer: Tracer | None, session: Observed) -> Iterator[None]:
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
        about["trunkline.process.start"] = "warm" if session.connection.was_warm else "cold"
        about["trunkline.process.id"] = session.connection.process or ""
    except GatewayError as failure:
        error = failure.reason
        raise
    finally:
        tracer.opening_over(context, span, time.monotonic() - began, about, error)


def asked_now(message: Request, now: float | None = None) -> Asked:
    """The request that is being served."""
    params = message.params
    size = 0 if params is None else sum(map(len, params.values()))
    target = params.get(TARGETS.get(message.method, "")) if params else None
    # Not a view of it, which would keep the whole request in memory.
    kept = None if target is None or len(target) > 2048 else bytes(target)
    return Asked(message.method, kept, size, ids_now(), time.monotonic() if now is None else now, message.id)


def ids_now() -> Named | None:
    """The ids of the HTTP request that is being served."""
    served = current.get()
    return None if served is None else served.ids


def program_of(session: Observed) -> Mapping[str, str]:
    """`name` and `version` from the client's `clientInfo`, as far as it sent them."""
    info = session.client_info
    try:
        if info is None and session.hello is not None:
            params: Params = members_of(members_of(msgspec.Raw(session.hello))["params"])
            info = params["clientInfo"]
    except KeyError:
        return {}
    said = {} if info is None else members_of(info)
    named = {name: string_of(said.get(name)) for name in ("name", "version")}
    return {name: printable(text[:MAX_NAME]) for name, text in named.items() if text}


def printable(text: str) -> str:
    """A client's text, safe to show on a terminal."""
    return "".join(each if each.isprintable() else "?" for each in text)
