"""HandshakeRecord: what a session has said to its process that a fresh one must hear too. No await, no clock."""

from collections.abc import Callable, Iterator
from typing import Self

import msgspec

from app.protocol.jsonrpc import (
    ABSENT,
    Notification,
    Params,
    Request,
    Response,
    dump_notification,
    dump_request,
    encode,
    members_of,
    parse_backend,
    string_of,
)

MAX_URIS = 256
_HELLOS = ("initialize", "server/discover")
_LISTEN = "subscriptions/listen"
_LISTS = ("tools", "prompts", "resources")
_ABOVE_WARNING = ("error", "critical", "alert", "emergency")
_OURS = b'"respawn-'
_NEWS = "The server was started anew: it has forgotten what it knew, and calls that were in flight have failed."


class _Snapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a record is written down as."""

    hello: bytes
    hello_id: bytes
    is_modern: bool = False
    is_initialized: bool = False
    capabilities: dict[str, bytes] = {}
    level: dict[str, bytes] | None = None
    uris: list[str] = []
    listening: dict[bytes, bytes] = {}
    serial: int = 0


class HandshakeRecord:
    """Reads along on one session's link, and knows what to say to the next process.

    A handshake is an `initialize` or a `server/discover` that was answered with a result. `on_change` is called
    when there is something new to be said to the next process.
    """

    def __init__(self) -> None:
        self.hello: bytes | None = None
        self.hello_id = b""
        self.is_modern = False
        self._capabilities: Params = {}
        self._pending: dict[bytes, tuple[str, bytes]] = {}  # id -> method, and the line where it may be sent again
        self._asked: dict[bytes, None] = {}  # ids of the process's questions
        self._is_initialized = False
        self._level: Params | None = None
        self._uris: dict[str, None] = {}
        self._serial = 0
        self.on_change: Callable[[], None] | None = None

    # --- for another node

    def snapshot(self) -> bytes | None:
        """Everything that the next process must hear; None before there was a handshake."""
        if self.hello is None:
            return None
        listening = {call: line for call, (method, line) in self._pending.items() if method == _LISTEN}
        snapshot = _Snapshot(
            hello=self.hello,
            hello_id=self.hello_id,
            is_modern=self.is_modern,
            is_initialized=self._is_initialized,
            capabilities=_bytes_of(self._capabilities),
            level=None if self._level is None else _bytes_of(self._level),
            uris=list(self._uris),
            listening=listening,
            serial=self._serial,
        )
        return msgspec.msgpack.encode(snapshot)

    @classmethod
    def restored(cls, snapshot: bytes) -> Self:
        """The record again; its process is gone.

        Raises:
            msgspec.MsgspecError: that is no snapshot.
        """
        kept = msgspec.msgpack.decode(snapshot, type=_Snapshot)
        record = cls()
        record.hello, record.hello_id, record.is_modern = kept.hello, kept.hello_id, kept.is_modern
        record._is_initialized, record._serial = kept.is_initialized, kept.serial
        record._capabilities = _raw_of(kept.capabilities)
        record._level = None if kept.level is None else _raw_of(kept.level)
        record._uris = dict.fromkeys(kept.uris)
        record._pending = {call: (_LISTEN, line) for call, line in kept.listening.items()}
        return record

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()

    # --- reading along

    def sent(self, line: bytes) -> bool:
        """A line of the session; False if it must not be sent: it answers a question of a process that is gone."""
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
            self._pending.pop(message.id, None)
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
            return not message.id.startswith(_OURS)
        if type(message) is Request:
            self._asked[message.id] = None
        elif type(message) is Notification and message.method == "notifications/cancelled":
            self._asked.pop(bytes((message.params or {}).get("requestId", ABSENT)), None)
        return True

    def _note_request(self, message: Request, line: bytes) -> None:
        method, params = message.method, message.params or {}
        is_repeatable = method in _HELLOS or method == _LISTEN
        self._pending[message.id] = method, line if is_repeatable else b""
        if method == "logging/setLevel":
            self._level = params
            self._changed()
        elif method in ("resources/subscribe", "resources/unsubscribe"):
            uri = string_of(params.get("uri")) or ""
            self._uris.pop(uri, None)
            if method == "resources/subscribe" and len(self._uris) < MAX_URIS:
                self._uris[uri] = None
            self._changed()

    def _note_hello(self, method: str, line: bytes, response: Response) -> None:
        if self.hello is not None and not (self.is_modern and method == "initialize"):
            return  # only what opened the session is said again
        self.hello, self.hello_id = line, response.id
        self.is_modern = method == "server/discover"
        self._capabilities = members_of(members_of(response.value).get("capabilities", msgspec.Raw(b"{}")))
        self._changed()

    # --- when the process is gone

    def lose(self) -> tuple[list[bytes], list[bytes]]:
        """The ids of the calls that nobody will answer, and notifications that take its questions back."""
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
        """What the next process hears once it has answered `hello`."""
        if self._is_initialized and not self.is_modern:
            yield dump_notification("notifications/initialized", None)
        if self._level is not None:
            yield self._ours("logging/setLevel", self._level)
        for uri in self._uris:
            yield self._ours("resources/subscribe", {"uri": msgspec.Raw(encode(uri))})
        for method, line in self._pending.values():
            if method == _LISTEN:
                yield line

    def _ours(self, method: str, params: Params) -> bytes:
        self._serial += 1
        return dump_request(_OURS + b'%d"' % self._serial, method, params)

    def news(self) -> Iterator[bytes]:
        """What the session is told, as if the process said so: that it is another one, and may offer other things."""
        if self.is_modern:
            return  # each request of this revision stands for itself, and says whether it wants to be told anything
        level = string_of((self._level or {}).get("level"))
        if "logging" in self._capabilities and level not in _ABOVE_WARNING:
            params = {"level": b'"warning"', "logger": b'"trunkline"', "data": encode(_NEWS)}
            yield dump_notification("notifications/message", {key: msgspec.Raw(raw) for key, raw in params.items()})
        for name in _LISTS:
            offered = members_of(self._capabilities.get(name, msgspec.Raw(b"{}")))
            if bytes(offered.get("listChanged", ABSENT)) == b"true":
                yield dump_notification(f"notifications/{name}/list_changed", None)


def _bytes_of(params: Params) -> dict[str, bytes]:
    return {name: bytes(raw) for name, raw in params.items()}


def _raw_of(kept: dict[str, bytes]) -> Params:
    return {name: msgspec.Raw(raw) for name, raw in kept.items()}
