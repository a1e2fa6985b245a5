"""The calls of one upstream session that are under way, and which messages of the server belong to one."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from app.backends.upstreams._flow import Flow
from app.backends.upstreams.requests import is_sessionless
from app.errors import GatewayError, InvalidMessage, ParseError
from app.protocol.framing import RELEASE_S, Flood
from app.protocol.jsonrpc import Request, Response, dump_response, on_one_line, parse_backend, several
from app.protocol.tolerant import BYTE_ORDER_MARK


@dataclass(eq=False, slots=True)
class Call:
    """One request. `answered`: its answer has come, or it is given up."""

    id: bytes
    method: str
    is_sessionless: bool
    task: asyncio.Task[None] | None = None
    answered: asyncio.Event = field(default_factory=asyncio.Event)

    def runs_in(self, task: asyncio.Task[None]) -> None:
        """The task that sends it, and reads its answer."""
        self.task = task

    @property
    def is_open(self) -> bool:
        return not self.answered.is_set()


class Calls:
    """What came is passed on once it is known to be a message, and an answer to a call.

    `deliver` gets whole lines; `saw_answer` is told which call an answer belongs to; `dropped` counts the rest.
    """

    def __init__(
        self,
        deliver: Callable[[bytes], None],
        saw_answer: Callable[[Call, Response], None],
        dropped: Callable[[str], None],
        flow: Flow,
    ) -> None:
        self._deliver, self._saw_answer, self._dropped, self._flow = deliver, saw_answer, dropped, flow
        self._flood = Flood()
        self._release: asyncio.TimerHandle | None = None  # of what the flood holds
        self._open: dict[bytes, Call] = {}

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, request: Request) -> Call:
        call = self._open[request.id] = Call(request.id, request.method, is_sessionless(request))
        return call

    def give_up(self, request_id: bytes) -> Call | None:
        """The call with this id, whose answer is no longer wanted."""
        call = self._open.pop(request_id, None)
        if call is not None:
            call.answered.set()
        return call

    def received(self, data: bytes, within: Call | None = None) -> None:
        """A message of the server, or a batch. `within`: the call whose answer is being read."""
        data = data.removeprefix(BYTE_ORDER_MARK)
        if self._flood.takes(data, time.monotonic()):
            self._flow.dropped(len(data))
            self._hold()
            return
        self._flow.came(len(data))
        self._parsed(data, within)

    def _hold(self) -> None:
        for _ in range(self._flood.take_dropped()):
            self._dropped("notification_rate")
        if self._flood.held and self._release is None:
            self._release = asyncio.get_running_loop().call_later(RELEASE_S, self._tell_held)

    def _tell_held(self) -> None:
        self._release = None
        for line in self._flood.take_held():
            self._parsed(line)

    def close(self) -> None:
        """Nothing more is passed on."""
        if self._release is not None:
            self._release.cancel()

    def _parsed(self, data: bytes, within: Call | None = None) -> None:
        try:
            message = parse_backend(data)
        except ParseError:
            self._dropped("upstream_noise")
            return
        except InvalidMessage:
            messages = several(data)
            for each in messages:
                self._parsed(each, within)
            if not messages:
                self._dropped("upstream_noise")
            return
        line = on_one_line(data) if b"\n" in data or b"\r" in data else data
        if isinstance(message, Response):
            self._answered(message, line, within)
        else:
            self._deliver(line)

    def _answered(self, response: Response, line: bytes, within: Call | None) -> None:
        """An answer to a call that was never made, or has been answered, is dropped."""
        request_id = response.id
        if request_id == b"null" and within is not None:  # the server could not read which call it refuses
            request_id = within.id
            line = dump_response(request_id, response)
        call = self.give_up(request_id)
        if call is None:
            self._dropped("upstream_unasked")
            return
        self._saw_answer(call, response)
        self._deliver(line)

    def fail(self, call: Call, error: GatewayError, tell: Callable[[bytes, GatewayError], None]) -> None:
        """Tells who made the call, unless it has been answered."""
        if self.give_up(call.id) is call:
            tell(call.id, error)
