"""SessionlessCall: one request of a 2026-07-28 client, on its way through a line to a backend.

In front of a handshake-era process it may outlive its HTTP request: when the process asks the client
something, that request is answered with `input_required`, the call is suspended, and a later request with
the sealed state goes on where it stopped (patterns/mrtr).
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from app.errors import BackendTimeout, CallCutOff
from app.protocol.commands import Answer, Call, Failed, ToStream
from app.protocol.eras.input_required import MAX_ROUNDS, NEEDS
from app.protocol.eras.modern import LEVELS, MAY_ASK, Envelope, complete, tagged
from app.protocol.eras.sessionless_answers import as_sessionless, error_answer, retagged
from app.protocol.eras.url_required import is_url_required, required_urls, was_opened
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
from app.sessionless.questions import Question, as_input_request, lacking_for, lacking_mode
from app.sessions.calls import error_type_of
from app.sessions.session import Session
from app.streams.streams import EventStream, Reply

DEBOUNCE_S = 0.03  # a server that asks several things at once writes them within this
ASK_ELSEWHERE_S = 10.0  # people think so long; a call whose question another's client took with it only waits
ASK_ANYBODY_S = 30.0  # also calls that the process has had for longer than the one that was asked


class SessionlessCall:
    """Where the session delivers what belongs to the call (it takes a Reply's place there).

    `reply` is the HTTP request that waits now, None while suspended. Its owner hears `on_suspended` with the call
    when it needs the client, `on_answered` when the process has answered, or is not waited for any more though it may
    go on, and `on_done` when there is nothing left to wait for; a cancelled call is done before it is answered.
    """

    may_stream = True  # toward the Exchange: what cannot be streamed is dropped here

    def __init__(
        self,
        line: Session,
        message: Request,
        envelope: Envelope,
        *,
        passes_unchanged: bool,
        seal: Callable[[Response], Response] = lambda response: response,
    ) -> None:
        """`seal` closes the state in an answer of a process that speaks 2026-07-28 itself (`passes_unchanged`)."""
        self.id = secrets.token_urlsafe(18)
        self.began_at = self.fed_at = time.monotonic()  # the process was told the last answer then
        self.line, self.message, self.envelope = line, message, envelope
        self.passes_unchanged, self._seal = passes_unchanged, seal
        self.server_info: msgspec.Raw | None = None
        self.line_id = b""  # the id of this call on its line
        self.round = 0
        self.deadline: float | None = None  # while suspended; its owner sets and looks at it
        self.is_done = False
        self.expires_at: float | None = None  # of the credential that it came with
        self.questions: dict[str, Question] = {}
        self.times_asked = 0  # with what it was refused to ask
        self._shown: set[str] = set()  # keys of questions that the client has got
        self._shown_at = self._tried_at = 0.0
        self.repeats = 0  # how often the request was sent before, and refused until URLs were opened
        self._url_required: Response | None = None  # the refusal; the questions are its URLs then
        self.on_suspended: Callable[[SessionlessCall], str] = lambda call: ""
        self.on_answered: Callable[[SessionlessCall, bool], None] = lambda call, may_go_on: None
        self.on_done: Callable[[SessionlessCall], None] = lambda call: None
        self.on_result: Callable[[Response], object] = lambda response: None  # what the process has answered
        self.on_reacted: Callable[[Call], None] = lambda call: None
        self.on_late: Callable[[], None] = lambda: None  # the process took too long
        self.ask_others: Callable[[Question, float, SessionlessCall | None], None] = lambda question, since, after: None
        self.hears_others: Callable[[], bool] = lambda: False  # whether what is logged may be another call's
        self._reply: Reply | None = None
        self._asked_at = 0.0  # when the request that waits began
        self._kept: Answer | None = None  # an answer that came while nobody waited
        self._unheard: EventStream | None = None  # notifications that did; bounded, and the oldest go first
        self._lacking: dict[str, Any] | None = None  # the capabilities that the process would have needed
        self._debounce: asyncio.TimerHandle | None = None

    # --- the HTTP request that waits

    def come_back(self, message: Request, envelope: Envelope) -> None:
        """The client goes on with another request: its id, its progress token and its log level count from now on."""
        self.message, self.envelope, self.deadline = message, envelope, None

    def wait_with(self, reply: Reply) -> None:
        """From now on this request waits for the outcome, or for the next question."""
        self._reply, self._asked_at = reply, time.monotonic()
        if self._unheard is None:
            self._catch_up(reply)
        else:  # not before the transport knows the call, whose stream this becomes
            asyncio.get_running_loop().call_soon(self._catch_up, reply)

    def _catch_up(self, reply: Reply) -> None:
        """Tells the request what has come while nobody waited."""
        if self._reply is not reply:
            return
        self._tell_unheard()
        if self._kept is not None:
            self._finish(self._kept)
        elif self.questions:
            self._ask_soon()

    def leave(self, reply: Reply) -> None:
        """The client has closed this stream: that cancels the request (basic/utilities/cancellation). Not where it has
        come back with another one since: it had read to the end of this one."""
        if self._reply is reply and not self.is_done:
            self._reply = None
            self.cancel("the client closed the stream")

    def expire(self, reply: Reply) -> None:
        """The credential of this request is over. If it waits it gets an error, and the process is not waited for."""
        if self._reply is reply and not self.is_done:
            error = CallCutOff("the credential has expired while this call was under way; its outcome is not known")
            self._answer_client(Failed(self._as_call(), error))
            self.cancel("the client's credential has expired")

    def cancel(self, why: str) -> None:
        """Tells the process that nobody waits any more; the call is over."""
        if self.is_done:
            return
        self._over(why)
        params = {"requestId": msgspec.Raw(self.line_id), "reason": msgspec.Raw(encode(why))}
        self.line.try_notify(Notification("notifications/cancelled", params))

    # --- from the session (takes a Reply's place)

    @property
    def stream(self) -> EventStream | None:
        """See Sink."""
        return None if self._reply is None else self._reply.stream

    @property
    def is_read(self) -> bool:
        """See Sink. Who is to answer and does not come back is given up by the owner of suspended calls."""
        return not self.is_done

    def answer(self, outcome: Answer | Failed) -> None:
        """The process has answered, or will not."""
        if isinstance(outcome, Answer):
            self.on_reacted(outcome.call)
        elif isinstance(outcome.error, BackendTimeout):
            self.on_late()
        self.on_answered(self, isinstance(outcome, Failed) and outcome.may_go_on)
        if isinstance(outcome, Answer):
            self.on_result(outcome.response)
        if self.is_done:
            return
        if self._reply is not None:
            self._finish(outcome)
        elif isinstance(outcome, Answer):
            self._kept = outcome  # the process did without the client
        else:
            self._over()

    def push(self, command: ToStream) -> None:
        """A notification that belongs to the call, or a question of the process."""
        message = parse_backend(command.payload)
        if isinstance(message, Request):
            self._asked(message)
        elif isinstance(message, Notification):
            self._told(message)

    @property
    def is_waited_for(self) -> bool:
        """Whether a request of the client is there to be answered."""
        return self._reply is not None

    def wants(self, params: Params) -> bool:
        """Log messages go only to requests that ask for them, from their level on."""
        level, least = string_of(params.get("level")), self.envelope.log_level
        return least is not None and level in LEVELS and LEVELS.index(level) >= LEVELS.index(least)

    def become_stream(self) -> None:
        """Silent for long: the client gets its first byte."""
        if self._reply is not None and self._reply.may_stream:
            self._reply.become_stream()

    def _told(self, message: Notification) -> None:
        params = message.params or {}
        if message.method == "notifications/cancelled" and not self.passes_unchanged:
            withdrawn = bytes(params.get("requestId", msgspec.Raw()))
            self.questions = {key: asked for key, asked in self.questions.items() if asked.id != withdrawn}
            return
        may_be_others = not self.passes_unchanged and self.hears_others()
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
        """The client is answering a question, and the process goes on meanwhile: the retry hears of it."""
        if self._unheard is None:
            self._unheard = self.line.streams.new()
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
            self.line.refuse_question(question.id, "there is no request to ask the client with", METHOD_NOT_FOUND)
            return
        need = NEEDS.get(question.method)
        self.times_asked += 1
        lacking = lacking_for(question, self.envelope)
        if self.passes_unchanged or need is None or lacking:
            self._lacking = lacking or self._lacking
            self.line.refuse_question(question.id, "the client does not support this", METHOD_NOT_FOUND)
            return
        key = f"{need}-{question.id.decode()}"
        self.questions[key] = as_input_request(question)
        if self._reply is not None:
            self._ask_soon()

    def _ask_soon(self) -> None:
        if self._debounce is not None:
            self._debounce.cancel()
        self._debounce = asyncio.get_running_loop().call_later(DEBOUNCE_S, self._ask)

    def _ask(self) -> None:
        """Answers the HTTP request with what the process wants to know, and suspends the call."""
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
            "requestState": self.on_suspended(self),
        }
        # Who comes back sends the request again; ten thousand calls may wait for that.
        self.message = Request(self.message.id, self.message.method, None)
        value = complete(msgspec.Raw(encode(result)), self.message.method, self.server_info)
        self._answer_client(self._as_answer(Response(b"", "result", msgspec.Raw(value))))

    def ask_elsewhere(self, now: float) -> None:
        """The client has been asked long ago, and may have given up, of which this revision has no message. What it was
        asked may be the question of another call that was there: if its request waits it is asked too, first one that
        came after this one. The first answer counts."""
        if now - self._tried_at > ASK_ELSEWHERE_S:
            self._tried_at = now
            slower_than = None if now - self._shown_at > ASK_ANYBODY_S else self
            for key in self._shown & set(self.questions):
                if self.line.exchange.questions.asked_on(self.questions[key].id) is self:
                    self.ask_others(self.questions[key], self._shown_at, slower_than)

    def feed(self, answers: Mapping[str, msgspec.Raw]) -> None:
        """What the client answered; unknown keys are ignored, missing ones are asked for again."""
        for key, value in answers.items():
            if self._url_required is not None:
                self._feed_url(key, value, self._url_required)
                continue
            question = self.questions.pop(key, None)
            if question is not None:
                self.line.respond(Response(question.id, "result", value))
                self.fed_at = time.monotonic()

    # --- a process that wants URLs opened first

    @property
    def is_to_be_repeated(self) -> bool:
        """Every URL was opened: the request is to be sent again, by another call."""
        return self._url_required is not None and not self.questions and self._kept is None

    def give_way(self) -> None:
        """Another call is this request from now on."""
        self._over()

    def _wants_urls(self, response: Response) -> bool:
        """Makes questions of a refusal; False where the client hears of it as an error."""
        urls = required_urls(response) if is_url_required(response) and self.message.method in MAY_ASK else []
        if self.passes_unchanged or not urls or self.repeats >= MAX_ROUNDS:
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
        if isinstance(outcome, Answer):
            self._answer_client(self._as_answer(self._shaped(outcome.response)))
        else:
            self._answer_client(Failed(self._as_call(), outcome.error))
        self._over()

    def _answer_client(self, outcome: Answer | Failed) -> None:
        self._tell_unheard()
        reply, self._reply = self._reply, None
        assert reply is not None
        if isinstance(outcome, Answer):
            error_type = error_type_of(self.message.method, outcome.response)
        else:
            error_type = outcome.error.reason
        outcome.call.error_type = error_type if isinstance(outcome, Answer) else ""
        self.line.calls.count_request(self.message.method, error_type, time.monotonic() - self._asked_at)
        reply.answer(outcome)

    def _over(self, given_up: str = "") -> None:
        if not self.is_done:
            self.is_done = True
            if self._debounce is not None:
                self._debounce.cancel()
            self.on_done(self)
            self._leave_questions(given_up)

    def _leave_questions(self, given_up: str) -> None:
        """They may be other calls' (stdio does not say): so others are asked what this client has not heard yet, and
        what it has, if the call was answered. Who was asked and gave up will not be asked again elsewhere."""
        questions, self.questions = self.questions, {}
        for key, question in questions.items():
            if self.line.exchange.questions.asked_on(question.id) is not self:  # over, or another call was asked since
                continue
            if given_up and key in self._shown:
                self.line.refuse_question(question.id, given_up, INVALID_PARAMS)
            else:
                self.line.streams.listen.push(question.as_command())

    def _shaped(self, response: Response) -> Response:
        """The process's answer as its client's revision has it."""
        if self.passes_unchanged:
            is_subscription = self.message.method == "subscriptions/listen" and response.member == "result"
            return retagged(response, self.message.id) if is_subscription else self._seal(response)
        return as_sessionless(response, self.message, self.server_info, self._lacking)

    def _as_call(self) -> Call:
        return Call(self.message.id, b"", self.message.method, self, True, 0.0, 0.0)

    def _as_answer(self, response: Response) -> Answer:
        return Answer(self._as_call(), response)
