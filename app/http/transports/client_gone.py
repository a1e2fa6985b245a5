"""unless_gone: cancels the work for a request whose client disconnects."""

from collections.abc import Awaitable, Callable
from typing import Protocol

import anyio
from starlette.types import Receive, Scope

from app.errors import GatewayError
from app.http.scope import LEFT, WHEN_GONE

Work = Callable[[], Awaitable[None]]


class ClientGone(Exception):
    """The client has disconnected; there is nobody to answer."""


class Watched(Protocol):
    """A request whose body has been read."""

    scope: Scope
    receive: Receive


async def unless_gone(request: Watched, work: Work) -> None:
    """Does the work for the request; raises ClientGone if its client disconnects first.

    Where the edge tells of that (`WHEN_GONE`) no task watches: one costs more than all else that a call needs here.
    """
    with anyio.CancelScope() as working:
        if WHEN_GONE in request.scope:
            failure = await _told(request.scope, working, work)
        else:
            failure = await _watched(request.receive, working, work)
    if working.cancel_called:
        raise ClientGone
    if failure is not None:
        raise failure


async def _told(scope: Scope, working: anyio.CancelScope, work: Work) -> GatewayError | None:
    if LEFT in scope:
        working.cancel()
    scope[WHEN_GONE] = working.cancel
    try:
        await work()
    except GatewayError as error:
        return error
    finally:
        scope[WHEN_GONE] = None
    return None


async def _watched(receive: Receive, working: anyio.CancelScope, work: Work) -> GatewayError | None:
    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        working.cancel()

    failure = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        try:
            await work()
        except GatewayError as error:
            failure = error
        tasks.cancel_scope.cancel()
    return failure
