"""StepStream: the steps of a check while they are taken, then its answer, as server-sent events."""

import json
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import asdict
from http import HTTPStatus
from typing import Any, Generic, TypeVar

import anyio
import anyio.abc
from anyio.streams.memory import MemoryObjectSendStream
from fastapi import Request, Response
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from app.backends.checks.steps import Begun, Step, Steps
from app.errors import GatewayError
from app.http.problems import problem_of
from app.protocol.headers import EVENTS, parse_accept
from app.protocol.sse_format import one_line

SILENT_S = 10.0  # then a comment: proxies end responses in which nothing comes
MAX_UNSENT = 64  # events; a check has some ten steps, with two each

A = TypeVar("A", bound=BaseModel)
Check = Callable[[Steps], Awaitable[A]]

# For OpenAPI.
RESPONSES: dict[int | str, dict[str, Any]] = {
    HTTPStatus.OK.value: {"content": {EVENTS: {"schema": {"type": "string"}}}}
}


def wants_steps(request: Request) -> bool:
    """Whether only a stream is accepted. With an Idempotency-Key the answer is kept, so it is one document."""
    accepted = parse_accept(request.headers.get("accept", "").encode("latin-1"))
    return accepted.events and not accepted.json and "idempotency-key" not in request.headers


class StepStream(Response, Generic[A]):
    """`checking` surrounds the check; what it raises at first is answered like any refusal. If the client leaves, or
    `require_still` raises a GatewayError before an event, the check is cancelled."""

    def __init__(
        self,
        request: Request,
        checking: AbstractAsyncContextManager[Check[A]],
        require_still: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__()
        self._request, self._checking, self._require_still = request, checking, require_still

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._checking as check, anyio.create_task_group() as tasks:
            tasks.start_soon(_until_gone, receive, tasks)
            events, heard = anyio.create_memory_object_stream[bytes](MAX_UNSENT)
            tasks.start_soon(self._work, check, events)
            headers = [
                (b"content-type", EVENTS.encode()),
                (b"cache-control", b"no-store"),
                (b"x-accel-buffering", b"no"),
            ]
            await send({"type": "http.response.start", "status": HTTPStatus.OK, "headers": headers})
            with heard:
                while (event := await _next(heard)) is not None:
                    refusal = await self._refusal()
                    await send({"type": "http.response.body", "body": refusal or event, "more_body": True})
                    if refusal:
                        break
                await send({"type": "http.response.body", "body": b""})
            tasks.cancel_scope.cancel()

    async def _refusal(self) -> bytes:
        """The last event of one who may not know the steps any more; else nothing."""
        try:
            await self._require_still()
        except GatewayError as error:
            return self._problem(error)
        return b""

    def _problem(self, error: GatewayError) -> bytes:
        return _event("problem", bytes(problem_of(self._request, error).body))

    async def _work(self, check: Check[A], events: MemoryObjectSendStream[bytes]) -> None:
        def told(step: Begun | Step) -> None:
            kind, members = ("begun", asdict(step)) if isinstance(step, Begun) else ("taken", asdict(step))
            with suppress(anyio.BrokenResourceError):  # the client has left, and the check is being cancelled
                events.send_nowait(_event(kind, json.dumps({"step": members.pop("name"), **members}).encode()))

        with events:
            try:
                answer = await check(Steps(told))
                last = _event("result", answer.model_dump_json().encode())
            except GatewayError as error:
                last = self._problem(error)
            await events.send(last)


async def _until_gone(receive: Receive, tasks: anyio.abc.TaskGroup) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    tasks.cancel_scope.cancel()


async def _next(heard: anyio.abc.ObjectReceiveStream[bytes]) -> bytes | None:
    """The next event, or a comment; None at the end."""
    with anyio.move_on_after(SILENT_S):
        try:
            return await heard.receive()
        except anyio.EndOfStream:
            return None
    return b": it goes on\n\n"


def _event(kind: str, data: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), one_line(data))
