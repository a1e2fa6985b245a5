"""SessionlessCall: one request of a 2026-07-28 client, on its way through a pooled session to a backend.

When a handshake-era process asks the client something, the HTTP request is answered with `input_required` and the call
is suspended, until another request continues it with the sealed state (patterns/mrtr).
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from app.errors import CallCutOff, InvalidResponse, ResponseTooLarge
from app.limits.caller_limits import Allowance
from app.protocol.commands import Answer, Call, Failed, ToStream
from app.protocol.eras.answers import (
    as_sessionless,
    complete,
    error_answer,
    is_url_required,
    required_urls,
    retagged,
    tagged,
    was_opened,
)
from app.protocol.eras.input_required import MAX_ROUNDS, NEEDS
from app.protocol.eras.sessionless_envelope import LEVELS, MAY_ASK, Envelope
from app.protocol.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Notification,
    Params,
    Request,
    Response,
    dump_notification,
    encode,
    members_of,
    parse_backend,
    string_of,
)
from app.sessions._calls import error_type_of
from app.sessions.call_observers import asked_now
from app.sessions.sessionless._questions import Question, as_input_request, lacking_for, lacking_mode
from app.sessions.sessionless.pooled_session import PooledSession
from app.sessions.streams.streams import EventStream, Reply

DEBOUNCE_S = 0.03  # a server that asks several questions at once writes them within this
ASK_ELSEWHERE_S = 10.0  # a person may think so long before another call is asked the same question
ASK_ANYBODY_S = 30.0  # then also calls that the process has had for longer than the one that was asked


class Surroundings(NamedTuple):
    """What a call is given by its owner. A cancelled call is done before it is answered."""

    pooled: PooledSession
    gateway_id: bytes  # the id of this call on its pooled session
    expires_at: float | None  # of the credential that it came with
    on_suspended: Callable[["SessionlessCall"], str]  # returns the state for the client to come back with
    on_outcome: Callable[["SessionlessCall", Answer | Failed], None]  # the process has answered, or will not
    on_done: Callable[["SessionlessCall"], None]  # there is nothing left to wait for
    ask_others: Callable[[Question, float, "SessionlessCall | None"], None]  # UnsolicitedMessages.ask_waiting
    seal: Callable[[Response], Response]  # RequestStateSeal.sealed


class SessionlessCall:
    """The Sink of the call on its pooled session, in place of a Reply."""

    may_stream = True  # what the HTTP request cannot stream is dropped here

    def __init__(self, message: Request, envelope: Envelope, around: Surroundings, repeats: int) -> None:
        self.id = secrets.token_urlsafe(18)
        self.began_at = self.fed_at = time.monotonic()  # fed: when the process was given the last answer
        self.message, self.envelope, self._around = message, envelope, around
        self._pooled, self.gateway_id, self.expires_at = around[:3]
        self.session, self._passes_unchanged = self._pooled.session, self._pooled.is_sessionless
        self.round = 0
        self.deadline: float | None = None  # while suspended
        self.is_done = False
        self.questions: dict[str, Question] = {}
        self.times_asked = 0  # including questions that were refused
        self._shown: set[str] = set()  # keys of the questions that the client was asked
        self._shown_at = self._tried_at = 0.0
        self.repeats = repeats  # how often the process has refused the request until URLs were opened
        self._url_required: Response | None = None  # that refusal; `questions` are its URLs then
        self._reply: Reply | None = None  # of the HTTP request that waits now
        self._served = asked_now(message)  # that request
        self._size = 0  # of its line for the process, in bytes
        self._kept: Answer | None = None  # an answer that came while no request waited
        self._unheard: EventStream | None = None  # notifications that did; bounded, the oldest are dropped
        self._lacking: dict[str, Any] | None = None  # client capabilities that the process would have needed
        self._debounce: asyncio.TimerHandle | None = None

    # --- the HTTP request that waits

    def suspend(self, deadline: float) -> None:
        self.deadline = deadline

    def come_back(self, message: Request, envelope: Envelope) -> None:
        """The client continues with this request: its id, progress token and log level count from now on."""
        self.message, self.envelope, self.deadline = message, envelope, None
        if self.session.calls.capture is not None:
            self.session.calls.capture.came_back(message)

    def wait_with(self, reply: Reply) -> None:
        """The HTTP request that waits for the outcome or the next question."""
        self._reply, self._served = reply, asked_now(self.message)
        if self._unheard is None:
            self._catch_up(reply)
        else:  # once the transport has the call, of which the reply may need a stream
            asyncio.get_running_loop().call_soon(self._catch_up, reply)

    def _catch_up(self, reply: Reply) -> None:
        """Delivers what came while no request waited."""
        if self._reply is not reply:
            return
        self._tell_unheard()
        if self._kept is not None:
            self._finish(self._kept)
        elif self.questions:
            self._ask_soon()

    def leave(self, reply: Reply) -> None:
        """The HTTP request has ended. Without an answer that cancels the call (basic/utilities/cancellation), unless
        another request has continued it."""
        if self._reply is reply and not self.is_done:
            self._reply = None
            self.cancel("the client closed the stream")

    def expire(self, reply: Reply) -> None:
        """The credential of this request has expired: if it still waits, it gets an error and the call is cancelled."""
        if self._reply is reply and not self.is_done:
            error = CallCutOff("the credential has expired while this call was under way; its outcome is not known")
            self._answer_client(Failed(self._as_call(), error))
            self.cancel("the client's credential has expired")

    def cancel(self, why: str) -> None:
        """Ends the call, and tells the process to cancel it."""
        if self.is_done:
            return
        self._over(why)
        params = {"requestId": msgspec.Raw(self.gateway_id), "reason": msgspec.Raw(encode(why))}
        self.session.try_notify(Notification("notifications/cancelled", params))

    # --- from the session (takes a Reply's place)

    @property
    def stream(self) -> EventStream | None:
        return None if self._reply is None else self._reply.stream

    @property
    def is_read(self) -> bool:
        """A suspended call counts as read: SuspendedCalls gives up clients that do not come back."""
        return not self.is_done

    def answer(self, outcome: Answer | Failed) -> None:
        self._around.on_outcome(self, outcome)
        self._size = outcome.call.size
        if self.is_done:
            return
        if self._reply is not None:
            self._finish(outcome)
        elif isinstance(outcome, Answer):
            self._kept = outcome
        else:
            self._over()

    def push(self, command: ToStream) -> None:
        """A notification for the call, or a question of the process."""
        message = parse_backend(command.payload)
        if isinstance(message, Request):
            self._asked(message)
        elif isinstance(message, Notification):
            self._told(message)

    def counted(self, allowances: Sequence[Allowance]) -> None:
        if self._reply is not None:
            self._reply.counted(allowances)

    @property
    def is_waited_for(self) -> bool:
        """Whether an HTTP request waits for an answer."""
        return self._reply is not None

    def wants(self, params: Params) -> bool:
        """Whether a log message with these params has at least the level that the request asked for."""
        level, least = string_of(params.get("level")), self.envelope.log_level
        return least is not None and level in LEVELS and LEVELS.index(level) >= LEVELS.index(least)

    def become_stream(self) -> None:
        if self._reply is not None and self._reply.may_stream:
            self._reply.become_stream()

    def _told(self, message: Notification) -> None:
        params = message.params or {}
        if message.method == "notifications/cancelled" and not self._passes_unchanged:
            withdrawn = bytes(params.get("requestId", msgspec.Raw()))
            self.questions = {key: asked for key, asked in self.questions.items() if asked.id != withdrawn}
            return
        may_be_others = not self._passes_unchanged and self._pooled.may_still_ask
        if message.method == "notifications/message" and (may_be_others or not self.wants(params)):
            return
        if self.is_done:
            return
        if self._reply is None or self._unheard is not None:
            self._keep(message)
            return
        if message.method == "notifications/progress":
            token = members_of((self.message.params or {}).get("_meta", msgspec.Raw(b"{}"))).get("progressToken")
            if token is None:
                return
            params["progressToken"] = token
        if self.message.method == "subscriptions/listen":
            params = tagged(params, self.message.id)
        if self._reply.may_stream:
            self._reply.push(ToStream(self, dump_notification(message.method, params or None)))

    def _keep(self, message: Notification) -> None:
        """Keeps a notification for the next HTTP request."""
        if self._unheard is None:
            self._unheard = self.session.streams.new()
        self._unheard.push(ToStream(self, dump_notification(message.method, message.params)))

    def _tell_unheard(self) -> None:
        unheard, self._unheard = self._unheard, None
        for item in [] if unheard is None else unheard.take_all():
            assert isinstance(item, bytes)
            message = parse_backend(item)
            assert isinstance(message, Notification)
            self._told(message)

    def _asked(self, question: Request) -> None:
        if self.message.method not in MAY_ASK:
            self.session.refuse_question(question.id, "no open request to ask the client on", METHOD_NOT_FOUND)
            return
        need = NEEDS.get(question.method)
        self.times_asked += 1
        lacking = lacking_for(question, self.envelope)
        if self._passes_unchanged or need is None or lacking:
            self._lacking = lacking or self._lacking
            self.session.refuse_question(question.id, "the client does not support this", METHOD_NOT_FOUND)
            return
        asked, key = as_input_request(question)
        if key in self.questions:  # two members of a toolset may use one
            key = f"{key}-{question.id.decode()}"
        self.questions[key] = asked
        if self._reply is not None:
            self._ask_soon()

    def _ask_soon(self) -> None:
        if self._debounce is not None:
            self._debounce.cancel()
        self._debounce = asyncio.get_running_loop().call_later(DEBOUNCE_S, self._ask)

    def _ask(self) -> None:
        """Answers the HTTP request with the questions, and suspends the call."""
        if self._reply is None or not self.questions or self.is_done:
            return
        self.round += 1
        self._shown, self._shown_at = set(self.questions), time.monotonic()
        self._tried_at = self._shown_at
        result = {
            "resultType": "input_required",
            "inputRequests": {
                key: {"method": asked.method, "params": asked.params} for key, asked in self.questions.items()
            },
            "requestState": self._around.on_suspended(self),
        }
        # Without params, to save memory: the client sends the request again.
        self.message = Request(self.message.id, self.message.method, None)
        value = complete(msgspec.Raw(encode(result)), self.message.method, self._pooled.about.get("serverInfo"))
        self._answer_client(self._as_answer(Response(b"", "result", msgspec.Raw(value))))

    def ask_elsewhere(self, now: float) -> None:
        """Asks another call too, where the client was asked long ago and may have given up: the question may have been
        that call's. At first only calls that came after this one. The first answer counts."""
        if now - self._tried_at > ASK_ELSEWHERE_S:
            self._tried_at = now
            slower_than = None if now - self._shown_at > ASK_ANYBODY_S else self
            for key in self._shown & set(self.questions):
                if self.session.exchange.questions.asked_on(self.questions[key].id) is self:
                    self._around.ask_others(self.questions[key], self._shown_at, slower_than)

    def feed(self, answers: Mapping[str, msgspec.Raw]) -> None:
        """The client's answers. Unknown keys are ignored, missing ones are asked for again."""
        for key, value in answers.items():
            if self._url_required is not None:
                self._feed_url(key, value, self._url_required)
                continue
            question = self.questions.pop(key, None)
            if question is not None:
                self.session.respond(Response(question.id, "result", value))
                self.fed_at = time.monotonic()

    # --- a process that wants URLs opened first

    @property
    def is_to_be_repeated(self) -> bool:
        """Whether every URL was opened, so that the request has to be sent again by another call."""
        return self._url_required is not None and not self.questions and self._kept is None

    def give_way(self) -> None:
        """Another call takes over this request."""
        self._over()

    def _wants_urls(self, response: Response) -> bool:
        """Turns a refusal into questions; False where the client gets it as an error."""
        urls = required_urls(response) if is_url_required(response) and self.message.method in MAY_ASK else []
        if self._passes_unchanged or not urls or self.repeats >= MAX_ROUNDS:
            return False
        if lacking := lacking_mode(self.envelope, "url"):
            self._lacking = lacking
            return False
        self._url_required = response
        self.questions = {
            f"url-{number}": Question(b"", "elicitation/create", params) for number, params in enumerate(urls, 1)
        }
        return True

    def _feed_url(self, key: str, answer: msgspec.Raw, refusal: Response) -> None:
        is_opened = was_opened(answer)
        if key not in self.questions or is_opened is None:
            return
        del self.questions[key]
        if not is_opened:
            self.questions.clear()
            why = string_of(members_of(refusal.value).get("message")) or "a URL was not opened"
            self._kept = self._as_answer(error_answer(INTERNAL_ERROR, why, {"reason": "elicitation_declined"}))

    # --- the end

    def _finish(self, outcome: Answer | Failed) -> None:
        if isinstance(outcome, Answer) and self._wants_urls(outcome.response):
            self._kept = None
            self._ask()
            return
        self._answer_client(self._as_outcome(outcome))
        self._over()

    def _answer_client(self, outcome: Answer | Failed) -> None:
        self._tell_unheard()
        reply, self._reply = self._reply, None
        assert reply is not None
        if isinstance(outcome, Answer):
            try:
                outcome = self.session.calls.kept(outcome)
            except ResponseTooLarge as error:
                outcome = Failed(outcome.call, error.after_sending())
        if isinstance(outcome, Answer):
            error_type, size = error_type_of(self.message.method, outcome.response), len(outcome.response.value)
            outcome.call.answered_as(error_type)
        else:
            error_type, size = outcome.error.reason, 0
        self.session.calls.served(self._served, outcome, error_type, size)
        reply.answer(outcome)

    def _over(self, given_up: str = "") -> None:
        if not self.is_done:
            self.is_done = True
            if self._debounce is not None:
                self._debounce.cancel()
            self._around.on_done(self)
            self._leave_questions(given_up)

    def _leave_questions(self, given_up: str) -> None:
        """Open questions may be other calls' (stdio does not say), so they are asked there; except, where the call was
        given up, those that its client was asked."""
        questions, self.questions = self.questions, {}
        for key, question in questions.items():
            if self.session.exchange.questions.asked_on(question.id) is not self:  # answered, or asked on another call
                continue
            if given_up and key in self._shown:
                self.session.refuse_question(question.id, given_up, INVALID_PARAMS)
            else:
                self.session.streams.listen.push(question.as_command())

    def _shaped(self, response: Response) -> Response:
        """The process's answer in the form of 2026-07-28."""
        if self._passes_unchanged:
            is_subscription = self.message.method == "subscriptions/listen" and response.member == "result"
            return retagged(response, self.message.id) if is_subscription else self._around.seal(response)
        return as_sessionless(response, self.message, self._pooled.about.get("serverInfo"), self._lacking)

    def _as_call(self) -> Call:
        return Call(self.message.id, b"", self.message.method, self, True, 0.0, 0.0, size=self._size)

    def _as_outcome(self, outcome: Answer | Failed) -> Answer | Failed:
        if isinstance(outcome, Failed):
            return Failed(self._as_call(), outcome.error)
        try:
            return self._as_answer(self._shaped(outcome.response))
        except InvalidResponse as error:
            return Failed(self._as_call(), error)

    def _as_answer(self, response: Response) -> Answer:
        return Answer(self._as_call(), response)
