"""Authentication for FastAPI endpoints."""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any, cast

from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute

from app.auth.authenticator import Authenticator
from app.auth.tokens import Target
from app.domain import DEFAULT_TENANT, Principal
from app.http.client_address import client_address, limited_address
from app.http.scope import BY_KEY, LET_IN

# In the ASGI scope: the URL under which the client reaches us (set by Rest), and the Principal.
BASE_URL = "trunkline.base_url"
PRINCIPAL = "trunkline.principal"


async def authenticate(request: Request) -> Principal:
    """Raises:
    Unauthenticated: no credential, an invalid one, or several.
    RateLimited: too many invalid ones came from this address.
    StorageUnavailable: the credential cannot be looked up now.
    """
    authenticator, header_value, target = _asked(request)
    address = client_address(request.scope)
    principal = await authenticator.authenticate(header_value, target, limited_address(address))
    request.scope[LET_IN] = BY_KEY
    authenticator.uses.note(principal, address)
    return principal


async def authenticate_again(request: Request) -> Principal:
    """Asks the database whether the credential of this request, which was let in, still is what it was. Raises as
    `authenticate`."""
    authenticator, header_value, target = _asked(request)
    return await authenticator.authenticate_again(header_value or b"", target)


def _asked(request: Request) -> tuple[Authenticator, bytes | None, Target | None]:
    values = [value for name, value in request.scope["headers"] if name == b"authorization"]
    authenticator: Authenticator = request.app.state.admin_context.authenticator
    # Where Host was not checked (/metrics) there is no base URL, so no token can have us as its audience: only keys.
    base_url = request.scope.get(BASE_URL)
    tenant = request.path_params.get("tenant", DEFAULT_TENANT)
    # Two headers become one with a comma, which is no credential.
    header_value = b", ".join(values) if values else None
    return authenticator, header_value, None if base_url is None else Target(tenant, "", base_url)


class AuthenticatedRoute(APIRoute):
    """Authenticates before FastAPI reads the body, so that unauthenticated requests cost little and learn nothing."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = self.behind_authentication()

        async def authenticated(request: Request) -> Response:
            request.scope[PRINCIPAL] = await authenticate(request)
            return await handle(request)

        return authenticated

    def behind_authentication(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """For subclasses to wrap."""
        return super().get_route_handler()


def authenticated_principal(request: Request) -> Principal:
    return cast(Principal, request.scope[PRINCIPAL])


async def _current_principal(request: Request) -> Principal:
    return authenticated_principal(request)


CurrentPrincipal = Annotated[Principal, Depends(_current_principal)]
