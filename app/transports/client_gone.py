"""unless_gone: cancels the work for a request whose client disconnects."""

from collections.abc import Awaitable, Callable

import anyio
from starlette.types import Receive

from app.errors import GatewayError


class ClientGone(Exception):
    """The client has disconnected; there is nobody to answer."""


async def unless_gone(receive: Receive, work: Callable[[], Awaitable[None]]) -> None:
    """Does the work for a request whose body has been read; raises ClientGone if the client disconnects first."""
    is_gone, failure = False, None

    async def watch() -> None:
        nonlocal is_gone
        while (await receive())["type"] != "http.disconnect":
            pass
        is_gone = True
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        try:
            await work()
        except GatewayError as error:
            failure = error
        tasks.cancel_scope.cancel()
    if is_gone:
        raise ClientGone
    if failure is not None:
        raise failure
