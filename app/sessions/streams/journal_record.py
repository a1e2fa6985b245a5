"""The form of events in a journal. Errors of the gateway keep their class and fields, so that the node that sends them
writes them as this one would have."""

import msgspec

from app import errors
from app.errors import GatewayError
from app.protocol.commands import Call, Failed
from app.protocol.event_ids import EventId
from app.sessions.streams.entry import Entry, Fate, bytes_of


class Error(msgspec.Struct, array_like=True, frozen=True):
    """An error of the gateway; `kind` is the name of its class."""

    kind: str
    message: str
    reason: str
    hint: str | None
    outcome: str | None = None


class Event(msgspec.Struct, array_like=True, frozen=True, tag="e"):
    """A message, or an error instead of one. `at` is Unix time; `id` and `method` are those of an answer's call."""

    stream: str
    number: int
    at: float
    item: bytes | Error
    id: bytes | None
    method: str
    coalesce: bytes | None
    question: bytes | None


class Gone(msgspec.Struct, array_like=True, frozen=True, tag="g"):
    """Events that are no longer in the log, by their serials."""

    serials: list[int]


_decode = msgspec.msgpack.Decoder(Event | Gone).decode
_KINDS: dict[str, type[GatewayError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, GatewayError)
}


def write(entry: Entry, at: float) -> bytes:
    item = _written(entry.item.error) if isinstance(entry.item, Failed) else bytes_of(entry.item)
    call, (stream, number) = entry.call, entry.id
    answered, method = (None, "") if call is None else (call.id, call.method)
    return msgspec.msgpack.encode(Event(stream, number, at, item, answered, method, entry.coalesce, entry.question))


def write_gone(serials: list[int]) -> bytes:
    return msgspec.msgpack.encode(Gone(serials))


def read(form: bytes) -> Event | Gone:
    """Raises msgspec.MsgspecError if it has another form."""
    event: Event | Gone = _decode(form)
    return event


def entry_of(event: Event, at: float, fate: Fate) -> Entry:
    """The event as a stream's entry. Questions become plain messages, as the process that asked them is gone."""
    call = None if event.id is None else call_of(event.id, event.method)
    item = event.item if isinstance(event.item, bytes) else Failed(call or call_of(b"null", ""), _read(event.item))
    place = EventId(event.stream, event.number)
    entry = Entry(item, call, id=place, at=at, fate=fate, coalesce=event.coalesce)
    entry.stored()
    return entry


def call_of(call_id: bytes, method: str) -> Call:
    """A call of another node, with what its answer needs."""
    return Call(call_id, b"", method, None, True, 0.0, 0.0)


def _written(error: GatewayError) -> Error:
    message = str(error).encode("utf-8", "replace").decode()
    hint = None if error.hint is None else error.hint.encode("utf-8", "replace").decode()
    return Error(type(error).__name__, message, error.reason, hint, error.outcome)


def _read(form: Error) -> GatewayError:
    """An error of the same class, with the fields that its client sees."""
    kind = _KINDS.get(form.kind, GatewayError)
    error = kind.__new__(kind, form.message)
    GatewayError.__init__(error, form.message, hint=form.hint)
    return error.recorded(form.reason, form.outcome)
