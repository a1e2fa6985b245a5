"""How an event stands in a journal. Errors of our own stand in it as what they are, so that the transport that sends
them in the end writes them as it would have."""

import msgspec

from app import errors
from app.errors import GatewayError
from app.protocol.commands import Call, Failed
from app.protocol.event_ids import EventId
from app.streams.streams import Entry, Fate


class Error(msgspec.Struct, array_like=True, frozen=True):
    """An error of ours: its class, what it says, what it advises, and what is known of its call."""

    kind: str
    message: str
    reason: str
    hint: str | None
    outcome: str | None = None


class Event(msgspec.Struct, array_like=True, frozen=True, tag="e"):
    """A message, or the error instead of one. `at` is of the wall clock; an answer has the id of its call."""

    stream: str
    number: int
    at: float
    item: bytes | Error
    id: bytes | None
    method: str
    coalesce: bytes | None
    question: bytes | None


class Gone(msgspec.Struct, array_like=True, frozen=True, tag="g"):
    """Events that are not there any more, by their serials."""

    serials: list[int]


_decode = msgspec.msgpack.Decoder(Event | Gone).decode
_KINDS: dict[str, type[GatewayError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, GatewayError)
}


def write(entry: Entry, at: float) -> bytes:
    """The event."""
    item = entry.item if isinstance(entry.item, bytes) else _written(entry.item.error)
    call, (stream, number) = entry.call, entry.id
    answered, method = (None, "") if call is None else (call.id, call.method)
    return msgspec.msgpack.encode(Event(stream, number, at, item, answered, method, entry.coalesce, entry.question))


def write_gone(serials: list[int]) -> bytes:
    """That these events are gone."""
    return msgspec.msgpack.encode(Gone(serials))


def read(form: bytes) -> Event | Gone:
    """What was written.

    Raises:
        msgspec.MsgspecError: it has another form.
    """
    event: Event | Gone = _decode(form)
    return event


def entry_of(event: Event, at: float, fate: Fate) -> Entry:
    """The event as a stream has it. The process that has asked a question is gone: it is a message like others."""
    call = None if event.id is None else call_of(event.id, event.method)
    item = event.item if isinstance(event.item, bytes) else Failed(call or call_of(b"null", ""), _read(event.item))
    entry = Entry(item, call, coalesce=event.coalesce)
    entry.id, entry.at, entry.fate = EventId(event.stream, event.number), at, fate
    entry.is_stored = True
    return entry


def call_of(call_id: bytes, method: str) -> Call:
    """A call that was on its way, as far as its answer needs it."""
    return Call(call_id, b"", method, None, True, 0.0, 0.0)


def _written(error: GatewayError) -> Error:
    message = str(error).encode("utf-8", "replace").decode()
    hint = None if error.hint is None else error.hint.encode("utf-8", "replace").decode()
    return Error(type(error).__name__, message, error.reason, hint, error.outcome)


def _read(form: Error) -> GatewayError:
    """An error of the same class: what else it carried is for others than its client."""
    kind = _KINDS.get(form.kind, GatewayError)
    error = kind.__new__(kind, form.message)
    GatewayError.__init__(error, form.message, hint=form.hint)
    error.reason, error.outcome = form.reason, form.outcome
    return error
