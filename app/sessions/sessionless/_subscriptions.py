"""Subscriptions: `subscriptions/listen` of 2026-07-28 clients in front of handshake-era processes.

Such a process sends its notifications unasked: each subscription of the caller gets those that it asked for, under its
own id. A pooled session subscribes to a resource once for all subscriptions.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from app.errors import GatewayError
from app.protocol.commands import ToStream
from app.protocol.eras.answers import complete, tagged
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
from app.sessions.session import Session
from app.sessions.sessionless.pooled_session import CallerKey, PooledSession
from app.sessions.sessionless.pooled_sessions import Caller, PooledSessions, caller_key
from app.sessions.streams.streams import EventStream

MAX_SUBSCRIPTIONS = 16  # of one principal and backend; one more ends the oldest
MAX_URIS = 64  # of one subscription; the acknowledgement says which
MAX_URI = 2048  # characters
_LIST_CHANGES = {
    "notifications/tools/list_changed": ("toolsListChanged", "tools"),
    "notifications/prompts/list_changed": ("promptsListChanged", "prompts"),
    "notifications/resources/list_changed": ("resourcesListChanged", "resources"),
}


@dataclass(eq=False, slots=True)
class Subscription:
    """Ends with its pooled session, which does not count as idle while it has subscriptions."""

    id: bytes
    stream: EventStream
    pooled: PooledSession
    kinds: frozenset[str]
    uris: frozenset[str]
    began_at: float = field(default_factory=time.monotonic)

    def wants(self, message: Notification) -> bool:
        change = _LIST_CHANGES.get(message.method)
        if change is not None:
            return change[0] in self.kinds
        uri = string_of((message.params or {}).get("uri"))
        if message.method != "notifications/resources/updated" or uri is None:
            return False
        return any(concerns(uri, subscribed) for subscribed in self.uris)

    def refused(self, uri: str) -> None:
        """The backend has refused to subscribe to this resource."""
        self.uris -= {uri}

    def tell(self, method: str, params: Params) -> None:
        """Sends a notification, under the subscription's id."""
        self.stream.push(ToStream(None, dump_notification(method, tagged(params, self.id))))

    def end(self) -> None:
        """Sends the result, and ends the stream."""
        result = complete(msgspec.Raw(encode(tagged({}, self.id))), "subscriptions/listen", None)
        self.stream.push(ToStream(None, b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (self.id, result)))
        self.stream.end()
        self.pooled.session.calls.count_request("subscriptions/listen", "", time.monotonic() - self.began_at)


class Subscriptions:
    """Every subscription of this node, by caller."""

    def __init__(self, pooled_sessions: PooledSessions) -> None:
        self._pooled_sessions = pooled_sessions
        self._subscriptions: dict[CallerKey, list[Subscription]] = {}
        pooled_sessions.said.listen(self._said)
        pooled_sessions.ended.listen(self._session_ended)

    async def open(self, caller: Caller, pooled: PooledSession, message: Request) -> Subscription:
        """A subscription whose stream begins with the acknowledgement; the reader of the stream must `close` it.

        Raises:
            GatewayError: the process died, or did not answer.
        """
        wanted = members_of((message.params or {}).get("notifications", msgspec.Raw(b"{}")))
        stream = EventStream(lambda full: None, _forget)
        subscription = Subscription(message.id, stream, pooled, _kinds(pooled, wanted), _uris(pooled, wanted))
        mine = self._subscriptions.setdefault(caller.key, [])
        if len(mine) >= MAX_SUBSCRIPTIONS:
            self.end(mine[0])
        subscribed = self._uris_of(pooled)
        mine.append(subscription)
        pooled.session.streams.listen.attach()
        try:
            for uri in sorted(subscription.uris - subscribed):
                await self._subscribe(subscription, uri)
        except BaseException:
            self.close(subscription)
            raise
        honoured: dict[str, object] = dict.fromkeys(sorted(subscription.kinds), True)
        if subscription.uris:
            honoured["resourceSubscriptions"] = sorted(subscription.uris)
        subscription.tell("notifications/subscriptions/acknowledged", {"notifications": msgspec.Raw(encode(honoured))})
        return subscription

    async def _subscribe(self, subscription: Subscription, uri: str) -> None:
        params: Params = {"uri": msgspec.Raw(encode(uri))}
        response = await self._pooled_sessions.request(subscription.pooled.session, "resources/subscribe", params)
        if response.member == "error":
            subscription.refused(uri)

    def end(self, subscription: Subscription) -> None:
        subscription.end()
        self.close(subscription)

    def close(self, subscription: Subscription) -> None:
        """Unsubscribes from what no other subscription of the pooled session wants. Idempotent."""
        session = subscription.pooled.session
        mine = self._subscriptions.get(caller_key(session), [])
        if subscription not in mine:
            return
        mine.remove(subscription)
        if not mine:
            del self._subscriptions[caller_key(session)]
        subscription.stream.end()
        for uri in sorted(subscription.uris - self._uris_of(subscription.pooled)):
            try:
                self._pooled_sessions.send(session, "resources/unsubscribe", {"uri": msgspec.Raw(encode(uri))})
            except GatewayError:
                break  # the pooled session is gone, or at its limit: unwanted notifications are harmless
        if not any(other.pooled is subscription.pooled for other in mine):
            session.streams.listen.detach()
        self._pooled_sessions.let_go(subscription.pooled)

    def _uris_of(self, pooled: PooledSession) -> set[str]:
        mine = self._subscriptions.get(caller_key(pooled.session), [])
        return {uri for subscription in mine if subscription.pooled is pooled for uri in subscription.uris}

    # --- from the pooled sessions

    def _said(self, session: Session, command: ToStream) -> None:
        """A message that belongs to no call goes to the caller's subscriptions that asked for it."""
        if command.question is not None:
            session.refuse_question(command.question, "no open request to ask the client on", METHOD_NOT_FOUND)
            return
        message = parse_backend(command.payload)
        if not isinstance(message, Notification):
            return
        if message.method == "notifications/tools/list_changed":
            self._pooled_sessions.tools_changed(session.spec.key)
        for subscription in self._subscriptions.get(caller_key(session), []):
            if subscription.wants(message):
                subscription.tell(message.method, message.params or {})

    def _session_ended(self, session: Session) -> None:
        """Ends the subscriptions of this pooled session; their clients may listen again."""
        for subscription in list(self._subscriptions.get(caller_key(session), [])):
            if subscription.pooled.session is session:
                self.end(subscription)

    def __len__(self) -> int:
        return sum(len(mine) for mine in self._subscriptions.values())


def _is_true(members: Mapping[str, msgspec.Raw], name: str) -> bool:
    return bytes(members.get(name, msgspec.Raw())) == b"true"


def _kinds(pooled: PooledSession, wanted: Params) -> frozenset[str]:
    """The list changes that are wanted and that the backend notifies of."""
    return frozenset(
        flag
        for flag, capability in _LIST_CHANGES.values()
        if _is_true(wanted, flag)
        and _is_true(members_of(pooled.capabilities.get(capability, msgspec.Raw(b"{}"))), "listChanged")
    )


def _uris(pooled: PooledSession, wanted: Params) -> frozenset[str]:
    """The resources that are wanted, if the backend supports subscriptions."""
    resources = members_of(pooled.capabilities.get("resources", msgspec.Raw(b"{}")))
    if "resourceSubscriptions" not in wanted or not _is_true(resources, "subscribe"):
        return frozenset()
    try:
        asked = json.loads(bytes(wanted["resourceSubscriptions"]))
    except (ValueError, RecursionError):
        asked = []
    found = asked[:MAX_URIS] if isinstance(asked, list) else []
    return frozenset(uri for uri in found if isinstance(uri, str) and len(uri) <= MAX_URI)


def _forget(reason: str, question: bytes | None) -> None:
    """A slow reader loses its oldest notifications, which carry no content that the next change would not repeat."""
