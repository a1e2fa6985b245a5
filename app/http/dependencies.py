"""What FastAPI endpoints share: who is asking, found out before anything else of a request is looked at."""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute

from app.auth import Authenticator
from app.auth.tokens import Target
from app.domain import DEFAULT_TENANT, Principal
from app.http.client_address import client_address, limited_address
from app.http.request_ids import named
from app.http.scope import BY_KEY, LET_IN

BASE_URL = "trunkline.base_url"  # the front's word in the ASGI scope: under which URL the client reaches us


async def authenticate(request: Request) -> Principal:
    """The principal of the request.

    Raises:
        Unauthenticated: no credential, not a valid one, or several.
        RateLimited: too many that were not valid came from this address.
        StorageUnavailable: it cannot be looked up now.
    """
    values = [value for name, value in request.scope["headers"] if name == b"authorization"]
    authenticator: Authenticator = request.app.state.admin.authenticator
    # Where the Host was not checked (/metrics) there is no base URL, so no token can be meant for us: only keys count.
    base_url = request.scope.get(BASE_URL)
    tenant = request.path_params.get("tenant", DEFAULT_TENANT)
    target = None if base_url is None else Target(tenant, "", base_url)
    # Two headers become one with a comma, which is no credential.
    address = client_address(request.scope)
    header_value = b", ".join(values) if values else None
    principal = await authenticator.authenticate(header_value, target, limited_address(address))
    request.scope[LET_IN] = BY_KEY
    authenticator.uses.note(principal, address)
    return principal


class AuthenticatedRoute(APIRoute):
    """A route that authenticates before FastAPI reads the body, so that strangers cost and learn nothing."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The route's application. Its request has an id, which the front has given it."""
        handle = self.behind_authentication()

        async def authenticated(request: Request) -> Response:
            request.state.request_id = _request_id(request)
            request.state.principal = await authenticate(request)
            return await handle(request)

        return authenticated

    def behind_authentication(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What runs once it is known who asks; for subclasses to wrap."""
        return super().get_route_handler()


def _request_id(request: Request) -> str:
    return named(request.scope).request


def _principal(request: Request) -> Principal:
    principal: Principal = request.state.principal
    return principal


CurrentPrincipal = Annotated[Principal, Depends(_principal)]
"""For endpoints on an AuthenticatedRoute."""
