"""What FastAPI endpoints share: who is asking, found out before anything else of a request is looked at."""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute

from app.auth import Authenticator
from app.domain import Principal


async def authenticate(request: Request) -> Principal:
    """The principal of the request.

    Raises:
        Unauthenticated: no credential, not a valid one, or several.
        StorageUnavailable: it cannot be looked up now.
    """
    values = [value for name, value in request.scope["headers"] if name == b"authorization"]
    authenticator: Authenticator = request.app.state.admin.authenticator
    # Two headers become one with a comma, which is no credential.
    return await authenticator.authenticate(b", ".join(values) if values else None)


class AuthenticatedRoute(APIRoute):
    """A route that authenticates before FastAPI reads the body, so that strangers cost and learn nothing."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The route's application, behind authentication."""
        handle = super().get_route_handler()

        async def authenticated(request: Request) -> Response:
            request.state.principal = await authenticate(request)
            return await handle(request)

        return authenticated


def _principal(request: Request) -> Principal:
    principal: Principal = request.state.principal
    return principal


CurrentPrincipal = Annotated[Principal, Depends(_principal)]
"""For endpoints on an AuthenticatedRoute."""
