"""HandshakeRecord: what a session has sent to its process that a new process needs as well."""

from collections.abc import Callable, Iterator
from typing import Self

import msgspec

from app.protocol import tolerant
from app.protocol.jsonrpc import (
    ABSENT,
    Notification,
    Params,
    Request,
    Response,
    dump_notification,
    dump_request,
    encode,
    encoded,
    members_of,
    object_in,
    parse_backend,
    string_of,
)

MAX_URIS = 256
_HELLOS = ("initialize", "server/discover")
_LISTEN, _SUBSCRIBE = "subscriptions/listen", "resources/subscribe"
_LISTS = ("tools", "prompts", "resources")
_ABOVE_WARNING = ("error", "critical", "alert", "emergency")
_PLACE = ("traceparent", "tracestate", "baggage")  # members of `_meta` (SEP-414)
_OURS = b'"respawn-'
_NEWS = "The server was restarted: its state is lost, and calls that were in flight have failed."


class _Snapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    hello: bytes
    hello_id: bytes
    is_sessionless: bool = False
    is_initialized: bool = False
    capabilities: dict[str, bytes] = {}
    level: dict[str, bytes] | None = None
    uris: list[str] = []
    listening: dict[bytes, bytes] = {}
    serial: int = 0


class HandshakeRecord:
    """Follows the lines of one session, and knows what to send to the next process. A handshake is an `initialize` or a
    `server/discover` that was answered with a result."""

    def __init__(self) -> None:
        self.hello: bytes | None = None
        self.hello_id = b""
        self.is_sessionless = False
        self._capabilities: Params = {}
        self._pending: dict[bytes, tuple[str, bytes]] = {}  # id -> method, and the line if it may be sent again
        self._asked: dict[bytes, None] = {}  # ids of the process's questions
        self._is_initialized = False
        self._level: Params | None = None
        self._uris: dict[str, None] = {}
        self._has_more_uris = False  # than are recorded, from then on
        self._serial = 0
        self._on_change: Callable[[], None] | None = None

    @property
    def is_at_rest(self) -> bool:
        """Whether `replay` is all that the next process needs to go on where this one is: nothing waits for an answer,
        and nothing is subscribed to, about which only a process can tell."""
        is_open = self.hello is not None and (self._is_initialized or self.is_sessionless)
        return is_open and not (self._pending or self._asked or self._uris or self._has_more_uris)

    def watch(self, on_change: Callable[[], None] | None) -> None:
        """`on_change` is called whenever the snapshot has changed; None stops that."""
        self._on_change = on_change

    # --- for another node

    def snapshot(self) -> bytes | None:
        """Everything that the next process needs; None before the handshake."""
        if self.hello is None:
            return None
        snapshot = _Snapshot(
            self.hello,
            self.hello_id,
            self.is_sessionless,
            self._is_initialized,
            {name: bytes(raw) for name, raw in self._capabilities.items()},
            None if self._level is None else {name: bytes(raw) for name, raw in self._level.items()},
            list(self._uris),
            {call: line for call, (method, line) in self._pending.items() if method == _LISTEN},
            self._serial,
        )
        return msgspec.msgpack.encode(snapshot)

    @classmethod
    def restored(cls, snapshot: bytes) -> Self:
        """The record of a snapshot, without a process. Raises msgspec.MsgspecError if it is malformed."""
        kept = msgspec.msgpack.decode(snapshot, type=_Snapshot)
        record = cls()
        record.hello, record.hello_id, record.is_sessionless = kept.hello, kept.hello_id, kept.is_sessionless
        record._is_initialized, record._serial = kept.is_initialized, kept.serial
        record._capabilities = {name: msgspec.Raw(raw) for name, raw in kept.capabilities.items()}
        if kept.level is not None:
            record._level = {name: msgspec.Raw(raw) for name, raw in kept.level.items()}
        record._uris = dict.fromkeys(kept.uris)
        record._pending = {call: (_LISTEN, line) for call, line in kept.listening.items()}
        return record

    def _changed(self) -> None:
        if self._on_change is not None:
            self._on_change()

    # --- following the lines

    def sent(self, line: bytes) -> bool:
        """A line of the session; False if it must not be sent: it answers a question of an earlier process."""
        message = parse_backend(line)
        if type(message) is Request:
            self._note_request(message, line)
        elif type(message) is Response:
            return self._asked.pop(message.id, self) is None
        elif type(message) is Notification:
            if message.method == "notifications/initialized":
                self._is_initialized = True
                self._changed()
            elif message.method == "notifications/cancelled":
                self._pending.pop(bytes((message.params or {}).get("requestId", ABSENT)), None)
        return True

    def unsent(self, line: bytes) -> None:
        """The line could not be written."""
        message = parse_backend(line)
        if type(message) is Request:
            method, request = self._pending.pop(message.id, ("", b""))
            if method == _SUBSCRIBE:
                self._not_subscribed(request)
        elif type(message) is Response:
            self._asked[message.id] = None

    def received(self, line: bytes) -> bool:
        """A line of the process; False if the session must not see it: it answers what we have replayed.

        Raises:
            InvalidMessage: it is no message, but may be several.
        """
        message = parse_backend(line)
        if type(message) is Response:
            method, request = self._pending.pop(message.id, ("", b""))
            if method in _HELLOS and message.member == "result":
                self._note_hello(method, request, message)
            elif method == _SUBSCRIBE and message.member == "error":
                self._not_subscribed(request)
            return not message.id.startswith(_OURS)
        if type(message) is Request:
            self._asked[message.id] = None
        elif type(message) is Notification and message.method == "notifications/cancelled":
            self._asked.pop(bytes((message.params or {}).get("requestId", ABSENT)), None)
        return True

    def _not_subscribed(self, request: bytes) -> None:
        """The process has refused it, or has not got it. Without a line it was subscribed before."""
        message = parse_backend(request) if request else None
        if type(message) is Request:
            self._uris.pop(string_of((message.params or {}).get("uri")) or "", None)
            self._changed()

    def received_too_much(self, beginning: bytes, end: bytes) -> None:
        """The ends of a line of the process that was too long to be kept: an answer, if one can be told."""
        named = tolerant.answered(beginning, end)
        if named is not None:
            self._pending.pop(named, None)

    def _note_request(self, message: Request, line: bytes) -> None:
        method, params = message.method, message.params or {}
        is_repeatable = method in _HELLOS or method == _LISTEN
        self._pending[message.id] = method, line if is_repeatable else b""
        if method == "logging/setLevel":
            self._level = params
            self._changed()
        elif method in (_SUBSCRIBE, "resources/unsubscribe"):
            uri = string_of(params.get("uri")) or ""
            is_new = uri not in self._uris
            self._uris.pop(uri, None)
            if method == _SUBSCRIBE and len(self._uris) >= MAX_URIS:
                self._has_more_uris = True
            elif method == _SUBSCRIBE:
                self._uris[uri] = None
                self._pending[message.id] = method, line if is_new else b""  # it may be refused
            self._changed()

    def _note_hello(self, method: str, line: bytes, response: Response) -> None:
        if self.hello is not None and not (self.is_sessionless and method == "initialize"):
            return  # only the one that opened the session is repeated
        self.hello, self.hello_id = to_be_repeated(line), response.id
        self.is_sessionless = method == "server/discover"
        self._capabilities = object_in(members_of(response.value), "capabilities")
        self._changed()

    # --- when the process has ended

    def lose(self) -> tuple[list[bytes], list[bytes]]:
        """The ids of the calls that it will not answer, and the cancellations of its questions."""
        calls = [call for call, (method, _) in self._pending.items() if method != _LISTEN]
        for call in calls:
            del self._pending[call]
        withdrawn = [
            dump_notification("notifications/cancelled", {"requestId": msgspec.Raw(question)})
            for question in self._asked
        ]
        self._asked.clear()
        return calls, withdrawn

    def replay(self) -> Iterator[bytes]:
        """The lines for the next process, after it has answered `hello`."""
        if self._is_initialized and not self.is_sessionless:
            yield dump_notification("notifications/initialized", None)
        if self._level is not None:
            yield self._ours("logging/setLevel", self._level)
        for uri in self._uris:
            yield self._ours("resources/subscribe", {"uri": encoded(uri)})
        for method, line in self._pending.values():
            if method == _LISTEN:
                yield line

    def _ours(self, method: str, params: Params) -> bytes:
        self._serial += 1
        return dump_request(_OURS + b'%d"' % self._serial, method, params)

    def news(self, *, lost: bool = True) -> Iterator[bytes]:
        """Notifications for the session: that its lists may have changed; and if the last process was `lost`, a warning
        that this one is new."""
        if self.is_sessionless:
            return  # in this revision each request stands for itself, and has its own log level
        level = string_of((self._level or {}).get("level"))
        if lost and "logging" in self._capabilities and level not in _ABOVE_WARNING:
            params = {"level": encoded("warning"), "logger": encoded("trunkline"), "data": encoded(_NEWS)}
            yield dump_notification("notifications/message", params)
        for name in _LISTS:
            if bytes(object_in(self._capabilities, name).get("listChanged", ABSENT)) == b"true":
                yield dump_notification(f"notifications/{name}/list_changed", None)


def to_be_repeated(line: bytes) -> bytes:
    """A handshake without its place in a trace: what is sent again later is no part of that."""
    message = parse_backend(line) if _PLACE[0].encode() in line else None
    params = dict(message.params or {}) if type(message) is Request else {}
    meta = members_of(params["_meta"]) if "_meta" in params else {}
    if message is None or _PLACE[0] not in meta:
        return line
    kept = {name: value for name, value in meta.items() if name not in _PLACE}
    params["_meta"] = msgspec.Raw(encode(kept))
    if not kept:
        del params["_meta"]
    assert type(message) is Request
    return dump_request(message.id, message.method, params)
