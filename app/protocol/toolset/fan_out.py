"""FanOut: one session on one side, the members of a toolset on the other. Pass it lines; carry out what it returns.

The session's ids and progress tokens are unique, as its Exchange makes them: members get them as they are, and may only
answer what they were asked. Questions of members get ids of ours, as two members may use the same ones.
"""

from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from app.domain.resources.access import Kind
from app.errors import GatewayError, InvalidMessage, InvalidResponse, ParseError, ResponseTooLarge
from app.protocol import tolerant
from app.protocol._running_tasks import task_made
from app.protocol.commands import NOISE, Dropped
from app.protocol.eras.sessionless_envelope import LEVELS
from app.protocol.exchange import PING, replace_token
from app.protocol.jsonrpc import (
    ABSENT,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Notification,
    Params,
    Request,
    Response,
    dump_notification,
    dump_request,
    dump_response,
    encoded,
    error_response,
    object_in,
    parse_backend,
    refusal,
    result_response,
    several,
    string_of,
)
from app.protocol.toolset._answers import empty, invalid, is_success, no_tool, with_result
from app.protocol.toolset._member_calls import MemberCall, MemberCalls
from app.protocol.toolset._member_questions import MemberQuestion, MemberQuestions
from app.protocol.toolset.greeting import About, answer_to, reference_of, with_prompt
from app.protocol.toolset.listing import Place, ToolsetListing
from app.protocol.toolset.offer import LISTS
from app.protocol.toolset.outs import (
    INNER,
    FailCall,
    InnerCallAnswered,
    Listed,
    ListsChanged,
    Noise,
    Out,
    RunRecipe,
    ToMember,
    ToSession,
)
from app.protocol.toolset.searching import CALL, FIND, NO_SEARCH, Search, inner_call, listed_for

MAX_TASKS = 1024  # whose member is remembered; the oldest is forgotten
MAX_URIS = 256  # that a session may subscribe to
RESOURCE_NOT_FOUND = -32002

_OURS = b'"toolset-'
_ABOUT_RESOURCES = ("read", "subscribe", "unsubscribe")
_ABOUT_TASKS = ("get", "result", "cancel", "update")
_UPDATED = "notifications/resources/updated"
_SAME_TASK = "the server works on it as a task, under an id that is taken by a task of another server of this toolset"
_CHANGES = {
    "notifications/tools/list_changed": ("tools/list",),
    "notifications/prompts/list_changed": ("prompts/list",),
    "notifications/resources/list_changed": ("resources/list", "resources/templates/list"),
}


Count = Callable[[bytes, Kind, Place, str], GatewayError | None]  # of this call


def uncounted(call: bytes, kind: Kind, place: Place, shown: str) -> None:
    """Nothing has a limit."""


class FanOut:
    """`open` has the members with a process that is initialized. Starts, stops and asks nobody itself. `count`: counts
    a call of what is shown under a name, and may refuse it."""

    def __init__(
        self, about: About, listing: ToolsetListing, search: Search = NO_SEARCH, count: Count = uncounted
    ) -> None:
        self.listing = listing
        self._search, self._count = search, count
        self._searching, self._tools_listed = listed_for(NO_SEARCH, "", 0)  # until `initialize`
        self.hello: Params = {}  # the params of the session's `initialize`
        self._about = about
        self._open: set[int] = set()
        self._calls, self._questions = MemberCalls(), MemberQuestions()
        self._tasks: dict[str, int] = {}
        self._subscribed: dict[str, int] = {}
        self._level: str | None = None
        self._last_id = 0
        self._answer: dict[str, Callable[[Request], list[Out]]] = {
            "initialize": self._initialize,
            PING: lambda message: [ToSession(result_response(message.id, {}))],
            "tools/call": self._call_tool,
            "prompts/get": self._get_prompt,
            **dict.fromkeys((f"resources/{verb}" for verb in _ABOUT_RESOURCES), self._about_resource),
            "completion/complete": self._complete,
            "logging/setLevel": self._set_level,
            **dict.fromkeys((f"tasks/{verb}" for verb in _ABOUT_TASKS), self._about_task),
        }

    # --- what the owner tells

    def opened(self, member: int) -> Iterator[bytes]:
        """The member is initialized: the lines that it gets next."""
        self._open.add(member)
        yield dump_notification("notifications/initialized", None)
        if self._level is not None and member in self.listing.promise("logging"):
            yield self._level_line()
        for uri, subscribed in self._subscribed.items():
            if subscribed == member:
                yield dump_request(self._our_id(), "resources/subscribe", {"uri": encoded(uri)})

    def lost(self, member: int, error: GatewayError) -> list[Out]:
        """The member's process has ended, or could not be started: its calls fail, its questions are withdrawn."""
        self._open.discard(member)
        self._tasks = {task: owner for task, owner in self._tasks.items() if owner != member}
        outs: list[Out] = [FailCall(call, error) for call in self._calls.lose(member)]
        withdrawn = ({"requestId": msgspec.Raw(our_id)} for our_id in self._questions.lose(member))
        return [*outs, *(ToSession(dump_notification("notifications/cancelled", each)) for each in withdrawn)]

    def unsent(self, call: bytes) -> None:
        """The line of this call could not be written; the session knows."""
        self._calls.forget(call)

    def failed(self, call: bytes, error: GatewayError) -> list[Out]:
        """The member's own link has given this call up."""
        return [] if self._calls.forget(call) is None else [FailCall(call, error)]

    def show(self, listing: ToolsetListing, change: str = "") -> list[Out]:
        """From now on the toolset shows this, of the same members. The session is told of the lists that are others
        now, and of the `change` that a member has told."""
        before, had = {method: self._list(method) for method in LISTS}, self.listing.own
        self.listing = listing
        told = [
            ToSession(dump_notification(each, None))
            for each, methods in _CHANGES.items()
            if each == change or any(before[method] != self._list(method) for method in methods)
        ]
        changed = [uri for uri in listing.own.changed(had) if listing.is_own(self._subscribed.get(uri, -1))]
        return [*told, *(ToSession(dump_notification(_UPDATED, {"uri": encoded(uri)})) for uri in changed)]

    def end(self) -> None:
        self.listing = self.listing.emptied()  # it may have MiB, and a cycle of references keeps this for a while

    # --- from the session

    def from_session(self, line: bytes) -> list[Out]:
        """One line of the session's Exchange."""
        message = parse_backend(line)
        if type(message) is Request:
            return self._request(message)
        if type(message) is Response:
            question = self._questions.close(message.id)
            return [] if question is None else [self._calls.tell(question.member, dump_response(question.id, message))]
        assert type(message) is Notification
        return self._notify(message, line)

    def _request(self, message: Request) -> list[Out]:
        if message.method in LISTS:
            return [Listed(message.id, self._list(message.method))]
        answer = self._answer.get(message.method)
        if answer is None:
            words = f"a toolset has no `{message.method[:100]}`"
            return [ToSession(error_response(message.id, METHOD_NOT_FOUND, words))]
        return answer(message)

    def _list(self, method: str) -> bytes:
        return self._tools_listed(self.listing) if method == "tools/list" else self.listing.result(method)

    def _initialize(self, message: Request) -> list[Out]:
        self.hello = message.params or {}
        client = string_of(object_in(self.hello, "clientInfo").get("name")) or ""
        self._searching, self._tools_listed = listed_for(self._search, client, len(self.listing.tools))
        return [ToSession(answer_to(message, self._about, self.listing))]

    def _call_tool(self, message: Request) -> list[Out]:
        params, query, is_inner = message.params or {}, "", message.id.startswith(INNER)
        name = string_of(params.get("name")) or ""
        if self._searching is not None and not is_inner:
            if name == FIND:
                return [ToSession(self._searching.find(message, self.listing))]
            if name == CALL:
                params = inner_call(params)
                name = string_of(params["name"]) or ""
            query = self._searching.called()
        place = self.listing.tool(name)
        if type(place) is not Place or (is_inner and self.listing.is_own(place.member)):
            return no_tool(message, name, place)
        if (refused := self._count(message.id, "tools", place, name)) is not None:
            return [FailCall(message.id, refused)]
        if self.listing.is_own(place.member):
            learn = partial(self._searching.succeeded, query, name) if query and self._searching is not None else None
            return [RunRecipe(message.id, self.listing.own.recipes[place.name], params, learn)]
        if place.name != name or params is not message.params:
            params = {**params, "name": encoded(place.name)}
        call = MemberCall(message.id, place.member, message.method, "task" in params, "", query, name)
        return self._pass_on(message, call, params)

    def _get_prompt(self, message: Request) -> list[Out]:
        params = message.params or {}
        name = string_of(params.get("name")) or ""
        place = self.listing.prompt(name)
        if place is None:
            return invalid(message, f"Unknown prompt: {name[:200]}")
        if (refused := self._count(message.id, "prompts", place, name)) is not None:
            return [FailCall(message.id, refused)]
        if self.listing.is_own(place.member):
            return with_result(message, self.listing.own.prompt(place.name))
        call = MemberCall(message.id, place.member, message.method)
        return self._pass_on(message, call, {**params, "name": encoded(place.name)})

    def _about_resource(self, message: Request) -> list[Out]:
        uri = string_of((message.params or {}).get("uri")) or ""
        was = self._subscribed.get(uri) if message.method == "resources/unsubscribe" else None
        member = self._member_of_uri(uri) if was is None else was
        if member is None:
            words = f"Resource not found: {uri[:200]}"
            return [ToSession(error_response(message.id, RESOURCE_NOT_FOUND, words, {"uri": uri[:2000]}))]
        if message.method == "resources/read":
            refused = self._count(message.id, "resources", Place(member, uri), uri)
            if refused is not None:
                return [FailCall(message.id, refused)]
        if message.method == "resources/subscribe" and len(self._subscribed) >= MAX_URIS:
            return invalid(message, f"a session subscribes to at most {MAX_URIS} resources")
        if self.listing.is_own(member):
            return self._about_own(message, uri, member)
        return self._pass_on(message, MemberCall(message.id, member, message.method, uri=uri), message.params or {})

    def _about_own(self, message: Request, uri: str, own: int) -> list[Out]:
        if message.method == "resources/read":
            return with_result(message, self.listing.own.resource(uri))
        self._subscribed.pop(uri, None)
        if message.method == "resources/subscribe":
            self._subscribed[uri] = own
        return [empty(message)]

    def _member_of_uri(self, uri: str) -> int | None:
        """That which lists it; else, as a tool may name resources that are in no list, the member of the newest call
        that has resources, or the only one that has any."""
        found = self.listing.member_of_uri(uri)
        if found is not None or self.listing.refuses(uri):
            return found
        candidates = [each for each in self.listing.promise("resources") if self.listing.may_read(each, uri)]
        recent = self._calls.newest(candidates)
        if recent is not None:
            return recent
        started = [member for member in candidates if member in self._open]
        return next((choice[0] for choice in (started, candidates) if len(choice) == 1), None)

    def _complete(self, message: Request) -> list[Out]:
        params = message.params or {}
        kind, name = reference_of(params)
        if kind == "prompt" and (place := self.listing.prompt(name)) is not None:
            if self.listing.is_own(place.member):
                return with_result(message, b'{"completion":{"values":[]}}')
            call = MemberCall(message.id, place.member, message.method)
            return self._pass_on(message, call, with_prompt(params, place.name))
        member = self.listing.member_of_reference(name) if kind == "resource" else None
        if member is None:
            return invalid(message, "there is no such prompt or resource template")
        return self._pass_on(message, MemberCall(message.id, member, message.method), params)

    def _set_level(self, message: Request) -> list[Out]:
        level = string_of((message.params or {}).get("level"))
        if level not in LEVELS:
            return invalid(message, "unknown log level")
        self._level = level
        open_ones = (each for each in self.listing.promise("logging") if each in self._open)
        return [*(self._calls.tell(each, self._level_line()) for each in open_ones), empty(message)]

    def _about_task(self, message: Request) -> list[Out]:
        task = string_of((message.params or {}).get("taskId")) or ""
        member = self._tasks.get(task)
        if member is None:
            return invalid(message, "there is no such task")
        return self._pass_on(message, MemberCall(message.id, member, message.method), message.params or {})

    def _pass_on(self, message: Request, call: MemberCall, params: Params) -> list[Out]:
        self._calls.add(call)
        return [ToMember(call.member, dump_request(message.id, message.method, params), message.id)]

    def _notify(self, message: Notification, line: bytes) -> list[Out]:
        params = message.params or {}
        if message.method == "notifications/cancelled":
            call = self._calls.cancel(bytes(params.get("requestId", ABSENT)))
            return [] if call is None else [ToMember(call.member, line, cancels=call.id)]
        if message.method == "notifications/progress":
            question = self._questions.get(bytes(params.get("progressToken", ABSENT)))
            if question is None or question.token is None:
                return [Dropped("unknown_progress")]
            params = {**params, "progressToken": msgspec.Raw(question.token)}
            return [self._calls.tell(question.member, dump_notification(message.method, params))]
        if message.method == "notifications/initialized":
            return []  # each member is told when it is open
        return [self._calls.tell(member, line) for member in sorted(self._open)]

    # --- from a member

    def from_member(self, member: int, line: bytes, among: tuple[bytes, ...] | None = None) -> list[Out]:
        """One line of a member that is open; `among`: a question that belongs to one of these calls."""
        try:
            message = parse_backend(line)
        except InvalidMessage as error:
            return self._invalid_line(member, line, error)
        if type(message) is Response:
            return self._answered(member, message, line)
        if type(message) is Request:
            return self._asks(member, message, among)
        assert type(message) is Notification
        return self._told(member, message, line)

    def oversized(self, member: int, beginning: bytes, end: bytes = b"") -> list[Out]:
        """A line over the limit fails the member's call that its ends name, or its only one."""
        name = tolerant.answered(beginning, end)
        call = self._calls.of(member, name or b"")
        if name is None and end and tolerant.is_answer(beginning):
            call = self._calls.only(member)
        if call is None:
            return [Dropped("oversized")]
        return self.failed(call.id, ResponseTooLarge())

    def owns(self, member: int, call_id: bytes) -> bool:
        """Whether the member works on this call."""
        return self._calls.of(member, call_id) is not None

    def _answered(self, member: int, response: Response, line: bytes) -> list[Out]:
        call = self._calls.of(member, response.id)
        if call is None and (call := self._calls.unread(member, response)) is not None:
            line = dump_response(call.id, response)
        if call is None:
            return [] if response.id.startswith(_OURS) else [Dropped("unknown_answer")]
        self._calls.forget(call.id)
        if call.id.startswith(INNER):
            return [InnerCallAnswered(call.id, response)]
        if response.member == "result":
            if call.uri:
                self._subscription_answered(call)
            if call.query and self._searching is not None and is_success(response):
                self._searching.succeeded(call.query, call.tool)
            task = task_made(response.value) if call.may_make_task else None
            if task is not None:
                if self._tasks.setdefault(task, member) != member:
                    return [FailCall(call.id, InvalidResponse(_SAME_TASK))]
                if len(self._tasks) > MAX_TASKS:
                    del self._tasks[next(iter(self._tasks))]
        return [ToSession(line)]

    def _subscription_answered(self, call: MemberCall) -> None:
        if call.method == "resources/subscribe":
            self._subscribed[call.uri] = call.member
        elif call.method == "resources/unsubscribe":
            self._subscribed.pop(call.uri, None)

    def _asks(self, member: int, message: Request, among: tuple[bytes, ...] | None) -> list[Out]:
        if message.method == PING:
            return [ToMember(member, result_response(message.id, {}))]
        if not self._questions.may_open(member, message.id):
            words = "too many requests wait for the client, or one with this id does"
            return [ToMember(member, error_response(message.id, INTERNAL_ERROR, words))]
        our_id, params, token = self._our_id(), message.params, None
        if params is not None and "_meta" in params:
            try:
                params, token = replace_token(params, our_id)
            except InvalidMessage as error:
                return [ToMember(member, error_response(message.id, INVALID_PARAMS, str(error)))]
        self._questions.add(our_id, MemberQuestion(member, message.id, token))
        among = self._calls.may_ask(member) if among is None else among
        return [ToSession(dump_request(our_id, message.method, params), among)]

    def _told(self, member: int, message: Notification, line: bytes) -> list[Out]:
        method, params = message.method, message.params or {}
        if method in _CHANGES:
            return [ListsChanged(member, method, _CHANGES[method])]
        if method == "notifications/progress":
            token = bytes(params.get("progressToken", ABSENT))
            return [ToSession(line)] if self._calls.of(member, token) else [Dropped("unknown_progress")]
        if method == "notifications/cancelled":
            our_id = self._questions.withdraw(member, bytes(params.get("requestId", ABSENT)))
            if our_id is None:
                return [Dropped("unknown_cancel")]
            return [ToSession(dump_notification(method, {**params, "requestId": msgspec.Raw(our_id)}))]
        if method == _UPDATED and not self.listing.may_read(member, string_of(params.get("uri")) or ""):
            return [Dropped("not_allowed")]
        if method == "notifications/tasks/status":
            task = string_of(params.get("taskId")) or ""
            return [ToSession(line)] if self._tasks.get(task) == member else [Dropped("unknown_task")]
        return [ToSession(line)]

    def _invalid_line(self, member: int, line: bytes, error: InvalidMessage) -> list[Out]:
        """Several messages, a broken answer, a broken question, or noise."""
        messages = several(line)
        if messages:
            return [out for each in messages for out in self.from_member(member, each)]
        broken = tolerant.broken(line)
        call = self._calls.of(member, broken.answers or b"")
        if call is not None:
            return self.failed(call.id, InvalidResponse(f"the backend's answer is no JSON-RPC response: {error}"))
        refused = refusal(broken.asks or b"", error)
        if refused is not None:
            return [ToMember(member, refused)]
        return [Noise(member, line), Dropped(NOISE)] if isinstance(error, ParseError) else [Dropped("invalid")]

    # --- requests of our own

    def _our_id(self) -> bytes:
        self._last_id += 1
        return b'"toolset-%d"' % self._last_id

    def _level_line(self) -> bytes:
        return dump_request(self._our_id(), "logging/setLevel", {"level": encoded(self._level)})
