"""Bridge: lets a session of the handshake era talk to a server that speaks only 2026-07-28.

Toward the session it is a handshake-era server: it answers `initialize`, `ping` and `logging/setLevel` itself, and
sends the server's questions as requests and its changes as notifications. Toward the server it is a client of
2026-07-28: every request gets its envelope, `input_required` results are repeated with the client's answers, and one
subscription carries the changes.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from app.protocol.eras.answers import as_handshake_era
from app.protocol.eras.input_required import NEEDS, as_client_knows, why_not_asked, with_key
from app.protocol.eras.sessionless_envelope import (
    CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    LEVELS,
    LOG_LEVEL_KEY,
    MISSING_CAPABILITY,
    SERVER_INFO_KEY,
    SESSIONLESS,
    VERSION_KEY,
    across_eras,
)
from app.protocol.exchange import SUBSCRIPTION_KEY
from app.protocol.jsonrpc import (
    ABSENT,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Notification,
    Params,
    Request,
    Response,
    code_of,
    dump_notification,
    dump_request,
    dump_response,
    encode,
    encoded,
    error_response,
    is_without_id,
    may_be_of_a_call,
    members_of,
    object_in,
    parse_backend,
    result_response,
    string_of,
)
from app.protocol.revisions import Revision, is_handshake

USUAL_LEVEL = "info"  # of a client that has set none
FIRST_PAUSE_S, MAX_PAUSE_S = 0.05, 5.0  # before a call is repeated that asked no question; doubles each time
MAX_URIS = 256  # that one session may subscribe to
_HANDSHAKE_ONLY = frozenset({"notifications/progress", "notifications/roots/list_changed"})  # of clients
_OF_CLIENTS = (*NEEDS.values(), "experimental", "extensions")
_OF_SERVERS = ("tools", "prompts", "resources", "logging", "completions", "experimental", "extensions")
_LISTS = {"tools": "toolsListChanged", "prompts": "promptsListChanged", "resources": "resourcesListChanged"}


class ToServer(msgspec.Struct, gc=False):
    """A line for the server. `call` is the id of a call's round: if it cannot be written, `abandon` the call."""

    line: bytes
    call: bytes | None = None


class ToSession(msgspec.Struct, gc=False):
    """A line for the session; for a question, `related` is the call that it belongs to."""

    line: bytes
    related: bytes | None = None


class Pause(msgspec.Struct, gc=False):
    """Call `go_on` for this round of a call after so many seconds."""

    call: bytes
    seconds: float


Out = ToServer | ToSession | Pause


class _Call(msgspec.Struct):
    """One request of the session, with all its rounds."""

    id: bytes
    method: str
    params: Params
    inner_id: bytes
    round: int = 0
    pauses: int = 0  # in a row
    is_paused: bool = False
    was_followed: bool = False  # by another message than a call
    state: msgspec.Raw | None = None
    waiting: dict[bytes, str] = {}  # our question's id -> the server's key
    answers: dict[str, msgspec.Raw] = {}

    def asked_again(self) -> None:
        """The next round is sent, with an id of its own."""
        self.is_paused = self.was_followed = False
        if self.round:
            self.inner_id = encode(f"{self.id.decode()}.{self.round}")

    def needs_input(self, state: msgspec.Raw | None, *, has_questions: bool) -> None:
        """The server has answered this round with `input_required`."""
        self.round += 1
        self.state, self.answers, self.waiting = state, {}, {}
        if has_questions:
            self.pauses = 0

    def follow(self) -> None:
        """The server got another message after this round."""
        self.was_followed = True

    def pause(self) -> float:
        """The server has asked no question; returns the seconds until the next round."""
        self.is_paused = True
        self.pauses += 1
        return min(FIRST_PAUSE_S * 2.0 ** (self.pauses - 1), MAX_PAUSE_S)


class Bridge:
    """Translates one session; pass it lines from either side, and carry out what it returns, in order."""

    def __init__(self, *, for_sessionless: bool = False) -> None:
        """`for_sessionless`: a client of 2026-07-28 is behind the session, whose requests become those of a handshake
        on their way. So it gets the errors of that revision, and questions under the server's own keys; and the server
        must say that it speaks it, as those of the handshake era may answer whatever they do not know."""
        self._for_sessionless = for_sessionless
        self._client: Params = {}
        self._version = Revision.R2025_11_25.value
        self._client_capabilities: Params = {}
        self._server_capabilities: Params = {}
        self._log_level: str | None = None
        self._calls: dict[bytes, _Call] = {}  # by the id of the current round
        self._initialize_id: bytes | None = None
        self._listening: bytes | None = None  # the id of the subscription
        self._uris: dict[str, None] = {}
        self._serial = 0

    # --- from the session

    def from_session(self, line: bytes) -> Iterator[Out]:
        message = parse_backend(line)
        if isinstance(message, Request):
            yield from self._request(message)
        elif isinstance(message, Notification):
            yield from self._notification(message)
        else:
            yield from self._answered(message)

    def _request(self, message: Request) -> Iterator[Out]:
        params = message.params or {}
        if message.method == "initialize":
            yield self._discover(message.id, params)
        elif message.method == "ping":
            yield ToSession(result_response(message.id, {}))
        elif message.method == "logging/setLevel":
            yield self._set_level(message.id, string_of(params.get("level")))
        elif message.method in ("resources/subscribe", "resources/unsubscribe"):
            yield from self._subscribe(message, string_of(params.get("uri")))
        else:
            call = _Call(message.id, message.method, params, message.id)
            yield self._send(call)

    def _set_level(self, request_id: bytes, level: str | None) -> Out:
        if level not in LEVELS:
            return ToSession(error_response(request_id, INVALID_PARAMS, "unknown log level"))
        self._log_level = level
        return ToSession(result_response(request_id, {}))

    def _discover(self, request_id: bytes, params: Params) -> Out:
        self._initialize_id = request_id
        asked = string_of(params.get("protocolVersion")) or ""
        self._version = asked if is_handshake(asked) else Revision.R2025_11_25.value
        self._client = params
        self._client_capabilities = object_in(params, "capabilities")
        return ToServer(dump_request(request_id, "server/discover", {"_meta": self._envelope(None)}))

    def _subscribe(self, message: Request, uri: str | None) -> Iterator[Out]:
        if uri is None or (len(self._uris) >= MAX_URIS and uri not in self._uris):
            yield ToSession(error_response(message.id, INVALID_PARAMS, "no uri, or too many subscriptions"))
            return
        if message.method == "resources/subscribe":
            self._uris[uri] = None
        else:
            self._uris.pop(uri, None)
        yield from self._listen()
        yield ToSession(result_response(message.id, {}))

    def _notification(self, message: Notification) -> Iterator[Out]:
        params = message.params or {}
        if message.method == "notifications/initialized":
            yield from self._listen()
        elif message.method == "notifications/cancelled":
            cancelled = bytes(params.get("requestId", msgspec.Raw()))
            for call in [call for call in self._calls.values() if call.id == cancelled]:
                del self._calls[call.inner_id]
                if call.is_paused:
                    continue
                if call.waiting:  # the server has answered this round: only the client's questions are open
                    yield from self._withdraw(call)
                    continue
                self._follow()
                params = {**params, "requestId": msgspec.Raw(call.inner_id)}
                yield ToServer(dump_notification("notifications/cancelled", params))
        elif message.method not in _HANDSHAKE_ONLY:
            self._follow()
            yield ToServer(dump_notification(message.method, message.params))

    def _answered(self, response: Response) -> Iterator[Out]:
        """The client's answer to a question; after the last one of a round the next round is sent."""
        for call in list(self._calls.values()):
            key = call.waiting.pop(response.id, None)
            if key is None:
                continue
            if response.member == "error":
                del self._calls[call.inner_id]
                yield ToSession(dump_response(call.id, response))
                yield from self._withdraw(call)
                return
            call.answers[key] = response.value
            if not call.waiting:
                yield self._send(call)

    def _follow(self) -> None:
        for call in self._calls.values():
            call.follow()

    def _withdraw(self, call: _Call) -> Iterator[Out]:
        for question in call.waiting:
            yield ToSession(dump_notification("notifications/cancelled", {"requestId": msgspec.Raw(question)}))

    # --- toward the server

    def _send(self, call: _Call) -> Out:
        """Sends the call's next round."""
        self._calls.pop(call.inner_id, None)
        call.asked_again()
        self._calls[call.inner_id] = call
        params: Params = {**call.params, "_meta": self._envelope(call.params.get("_meta"))}
        if call.answers:
            params["inputResponses"] = encoded(call.answers)
        if call.state is not None:
            params["requestState"] = call.state
        return ToServer(dump_request(call.inner_id, call.method, params), call.inner_id)

    def go_on(self, inner_id: bytes) -> Iterator[Out]:
        """The pause of this round is over; the call may have ended meanwhile."""
        call = self._calls.get(inner_id)
        if call is not None and call.is_paused:
            yield self._send(call)

    def abandon(self, inner_id: bytes) -> bytes | None:
        """Forgets a call by the id of its round; returns the session's id of it, or None if there is none."""
        if inner_id == self._initialize_id:
            self._initialize_id = None
            return inner_id
        call = self._calls.pop(inner_id, None)
        return None if call is None else call.id

    def call_of(self, inner_id: bytes) -> bytes | None:
        """The session's id of a call, by the id of its round."""
        call = self._calls.get(inner_id)
        return None if call is None else call.id

    def _envelope(self, meta: msgspec.Raw | None) -> msgspec.Raw:
        members = members_of(meta) if meta is not None else {}
        members[VERSION_KEY] = encoded(SESSIONLESS)
        members[CAPABILITIES_KEY] = encoded(across_eras(self._client_capabilities, _OF_CLIENTS))
        if "clientInfo" in self._client:
            members[CLIENT_INFO_KEY] = self._client["clientInfo"]
        if self._log_level is not None or "logging" in self._server_capabilities:
            members[LOG_LEVEL_KEY] = encoded(self._log_level or USUAL_LEVEL)
        return encoded(members)

    def _listen(self) -> Iterator[Out]:
        """Replaces the subscription by one with what is wanted now; cancels the old one after sending the new one."""
        wanted: dict[str, Any] = {
            flag: True
            for name, flag in _LISTS.items()
            if bytes(object_in(self._server_capabilities, name).get("listChanged", ABSENT)) == b"true"
        }
        if self._uris:
            wanted["resourceSubscriptions"] = list(self._uris)
        self._follow()
        before, self._listening = self._listening, None
        if wanted:
            self._serial += 1
            self._listening = encode(f"listen-{self._serial}")
            params: Params = {"_meta": self._envelope(None), "notifications": encoded(wanted)}
            yield ToServer(dump_request(self._listening, "subscriptions/listen", params))
        if before is not None:
            yield ToServer(dump_notification("notifications/cancelled", {"requestId": msgspec.Raw(before)}))

    # --- from the server

    def from_server(self, line: bytes) -> Iterator[Out]:
        """One line of the server. Raises InvalidMessage if it is not a message."""
        message = parse_backend(line)
        if isinstance(message, Response):
            yield from self._response(message)
        elif isinstance(message, Notification):
            yield from self._told(message, line)
        else:  # forbidden in this revision
            yield ToServer(error_response(message.id, METHOD_NOT_FOUND, "this revision has no requests from servers"))

    def _response(self, response: Response) -> Iterator[Out]:
        hello = self._initialize_id
        if hello is not None and (response.id == hello or is_without_id(response)):  # nothing else was sent
            self._initialize_id = None
            yield self._initialized(Response(hello, response.member, response.value))
            return
        call = self._calls.get(response.id) or self._answered_without_id(response)
        if call is None or call.is_paused:
            return
        result = members_of(response.value) if response.member == "result" else {}
        if string_of(result.get("resultType")) == "input_required":
            yield from self._input_required(call, result)
            return
        del self._calls[call.inner_id]
        if not (self._for_sessionless and code_of(response) == MISSING_CAPABILITY):
            response = as_handshake_era(response)
        yield ToSession(dump_response(call.id, response))

    def _answered_without_id(self, response: Response) -> _Call | None:
        """The only call, if the server could not read its id."""
        call = next(iter(self._calls.values())) if len(self._calls) == 1 else None
        if call is None or call.was_followed or not may_be_of_a_call(response, call.method):
            return None
        return call

    def _initialized(self, response: Response) -> Out:
        if response.member == "error":
            return ToSession(dump_response(response.id, response))
        about = members_of(response.value)
        if self._for_sessionless and SESSIONLESS.encode() not in bytes(about.get("supportedVersions", ABSENT)):
            return ToSession(error_response(response.id, INTERNAL_ERROR, f"the server does not speak {SESSIONLESS}"))
        self._server_capabilities = object_in(about, "capabilities")
        meta = object_in(about, "_meta")
        result: dict[str, Any] = {
            "protocolVersion": self._version,
            "capabilities": across_eras(self._server_capabilities, _OF_SERVERS),
            "serverInfo": meta.get(SERVER_INFO_KEY, msgspec.Raw(b'{"name":"unnamed","version":"0"}')),
        }
        if "instructions" in about:
            result["instructions"] = about["instructions"]
        return ToSession(result_response(response.id, result))

    def _input_required(self, call: _Call, result: Params) -> Iterator[Out]:
        """Asks the client the server's questions; without any the next round begins after a pause."""
        asked = object_in(result, "inputRequests")
        call.needs_input(result.get("requestState"), has_questions=bool(asked))
        refusal = why_not_asked(asked, call.round, self._client_capabilities, self._version)
        if refusal is not None:
            del self._calls[call.inner_id]
            yield ToSession(error_response(call.id, INTERNAL_ERROR, refusal))
            return
        for key, raw in asked.items():
            question = members_of(raw)
            method = string_of(question.get("method")) or ""
            self._serial += 1
            question_id = encode(f"ask-{self._serial}")
            call.waiting[question_id] = key
            params = as_client_knows(question, self._version, self._serial)
            if self._for_sessionless:
                params = with_key(params, key)
            yield ToSession(dump_request(question_id, method, params), related=call.id)
        if not asked:
            yield Pause(call.inner_id, call.pause())

    def _told(self, message: Notification, line: bytes) -> Iterator[Out]:
        params = message.params or {}
        meta = object_in(params, "_meta")
        subscription = meta.pop(SUBSCRIPTION_KEY, None)
        if subscription is None:
            if message.method != "notifications/message" or self._hears(string_of(params.get("level"))):
                yield ToSession(line)
            return
        if bytes(subscription) != self._listening or message.method == "notifications/subscriptions/acknowledged":
            return
        rest = {name: value for name, value in params.items() if name != "_meta"}
        if meta:
            rest["_meta"] = encoded(meta)
        yield ToSession(dump_notification(message.method, rest or None))

    def _hears(self, level: str | None) -> bool:
        """Whether the session gets messages of this level: a shared server may log more."""
        return level not in LEVELS or LEVELS.index(level) >= LEVELS.index(self._log_level or USUAL_LEVEL)
