"""Listeners: `subscriptions/listen` of 2026-07-28 clients in front of handshake-era processes.

Such a process tells its one client of every change, unasked. Here each subscription of the same caller gets what it
asked for, under its own id; the caller's lines subscribe to a resource once for all who want it.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from app.errors import GatewayError
from app.protocol.commands import ToStream
from app.protocol.eras.modern import complete, tagged
from app.protocol.jsonrpc import (
    METHOD_NOT_FOUND,
    Notification,
    Params,
    Request,
    dump_notification,
    encode,
    members_of,
    parse_backend,
    string_of,
)
from app.protocol.shared.subscriptions import concerns
from app.sessionless.pooled_session import CallerKey, Line
from app.sessionless.pooled_sessions import Caller, Lines, caller_key
from app.sessions.session import Session
from app.streams.streams import EventStream

MAX_LISTENERS = 16  # of one principal and backend; one more ends the oldest
MAX_URIS = 64  # of one listener; the acknowledgement says which
MAX_URI = 2048  # characters
_LIST_CHANGES = {
    "notifications/tools/list_changed": ("toolsListChanged", "tools"),
    "notifications/prompts/list_changed": ("promptsListChanged", "prompts"),
    "notifications/resources/list_changed": ("resourcesListChanged", "resources"),
}


@dataclass(eq=False, slots=True)
class Listener:
    """One subscription; it lives as long as its line, and its line is not idle while it lives."""

    subscription_id: bytes
    stream: EventStream
    line: Line
    kinds: frozenset[str]
    uris: frozenset[str]
    began_at: float = field(default_factory=time.monotonic)

    def wants(self, message: Notification) -> bool:
        """Whether it asked for this."""
        change = _LIST_CHANGES.get(message.method)
        if change is not None:
            return change[0] in self.kinds
        uri = string_of((message.params or {}).get("uri"))
        if message.method != "notifications/resources/updated" or uri is None:
            return False
        return any(concerns(uri, subscribed) for subscribed in self.uris)

    def tell(self, method: str, params: Params) -> None:
        """Sends a notification, under the subscription's id."""
        self.stream.push(ToStream(None, dump_notification(method, tagged(params, self.subscription_id))))

    def end(self) -> None:
        """The subscription's result, and the end of its stream."""
        result = complete(msgspec.Raw(encode(tagged({}, self.subscription_id))), "subscriptions/listen", None)
        self.stream.push(ToStream(None, b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (self.subscription_id, result)))
        self.stream.end()
        self.line.session.calls.count_request("subscriptions/listen", "", time.monotonic() - self.began_at)


class Listeners:
    """Every listener of this node, by caller."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._listeners: dict[CallerKey, list[Listener]] = {}
        lines.on_said, lines.on_closed = self._said, self._line_closed

    async def open(self, caller: Caller, line: Line, message: Request) -> Listener:
        """A listener with its acknowledgement in its stream; whoever reads the stream says `close`.

        Raises:
            GatewayError: the process died, or did not answer.
        """
        wanted = members_of((message.params or {}).get("notifications", msgspec.Raw(b"{}")))
        stream = EventStream(lambda full: None, _forget)
        listener = Listener(message.id, stream, line, _kinds(line, wanted), _uris(line, wanted))
        mine = self._listeners.setdefault(caller.key, [])
        if len(mine) >= MAX_LISTENERS:
            self.end(mine[0])
        subscribed = self._uris_of(line)
        mine.append(listener)
        line.session.streams.listen.attached = True
        try:
            for uri in sorted(listener.uris - subscribed):
                await self._subscribe(listener, uri)
        except BaseException:
            self.close(listener)
            raise
        honoured: dict[str, object] = dict.fromkeys(sorted(listener.kinds), True)
        if listener.uris:
            honoured["resourceSubscriptions"] = sorted(listener.uris)
        listener.tell("notifications/subscriptions/acknowledged", {"notifications": msgspec.Raw(encode(honoured))})
        return listener

    async def _subscribe(self, listener: Listener, uri: str) -> None:
        params: Params = {"uri": msgspec.Raw(encode(uri))}
        response = await self._lines.request(listener.line.session, "resources/subscribe", params)
        if response.member == "error":
            listener.uris -= {uri}

    def end(self, listener: Listener) -> None:
        """Ends a subscription that its client may not have any longer."""
        listener.end()
        self.close(listener)

    def close(self, listener: Listener) -> None:
        """The reader has left; what nobody else on the line wants is unsubscribed. Idempotent."""
        session = listener.line.session
        mine = self._listeners.get(caller_key(session), [])
        if listener not in mine:
            return
        mine.remove(listener)
        if not mine:
            del self._listeners[caller_key(session)]
        listener.stream.end()
        for uri in sorted(listener.uris - self._uris_of(listener.line)):
            try:
                self._lines.send(session, "resources/unsubscribe", {"uri": msgspec.Raw(encode(uri))})
            except GatewayError:
                break  # the line is gone, or at its limit: then it tells of what nobody wants
        session.streams.listen.attached = any(other.line is listener.line for other in mine)
        self._lines.let_go(listener.line)

    def _uris_of(self, line: Line) -> set[str]:
        mine = self._listeners.get(caller_key(line.session), [])
        return {uri for listener in mine if listener.line is line for uri in listener.uris}

    # --- from the lines

    def _said(self, session: Session, command: ToStream) -> None:
        """What a process says unasked: to each listener of the same caller that asked for it."""
        if command.question is not None:
            session.refuse_question(command.question, "there is no request to ask the client with", METHOD_NOT_FOUND)
            return
        message = parse_backend(command.payload)
        if not isinstance(message, Notification):
            return
        if message.method == "notifications/tools/list_changed":
            self._lines.tools_changed(session.spec.key)
        for listener in self._listeners.get(caller_key(session), []):
            if listener.wants(message):
                listener.tell(message.method, message.params or {})

    def _line_closed(self, session: Session) -> None:
        """Listeners whose line is gone hear the end of their subscription; their clients may listen again."""
        for listener in list(self._listeners.get(caller_key(session), [])):
            if listener.line.session is session:
                self.end(listener)

    def __len__(self) -> int:
        return sum(len(mine) for mine in self._listeners.values())


def _is_true(members: Mapping[str, msgspec.Raw], name: str) -> bool:
    return bytes(members.get(name, msgspec.Raw())) == b"true"


def _kinds(line: Line, wanted: Params) -> frozenset[str]:
    """The list changes that are wanted and that the backend tells of."""
    return frozenset(
        flag
        for flag, capability in _LIST_CHANGES.values()
        if _is_true(wanted, flag)
        and _is_true(members_of(line.capabilities.get(capability, msgspec.Raw(b"{}"))), "listChanged")
    )


def _uris(line: Line, wanted: Params) -> frozenset[str]:
    """The resources that are wanted, if the backend has subscriptions."""
    resources = members_of(line.capabilities.get("resources", msgspec.Raw(b"{}")))
    if "resourceSubscriptions" not in wanted or not _is_true(resources, "subscribe"):
        return frozenset()
    try:
        asked = json.loads(bytes(wanted["resourceSubscriptions"]))
    except (ValueError, RecursionError):
        asked = []
    found = asked[:MAX_URIS] if isinstance(asked, list) else []
    return frozenset(uri for uri in found if isinstance(uri, str) and len(uri) <= MAX_URI)


def _forget(reason: str, question: bytes | None) -> None:
    """A listener that does not keep up loses its oldest notifications; a change is told again by the next one."""
