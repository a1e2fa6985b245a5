"""RFC 9728: what a client may learn before it has a credential, and the challenges that point there.

Public. Whether a backend exists is never looked up, so nobody learns it; a tenant without issuers is answered
like one that does not exist. That a tenant has issuers, and which, is what the document is for.
"""

from collections.abc import Awaitable, Callable, Sequence

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from app.auth.tokens import Target
from app.domain import Scope, is_name
from app.errors import Forbidden, NotFound, Unauthenticated
from app.http.dependencies import BASE_URL

PREFIX = "/.well-known/oauth-protected-resource"

AuthorizationServers = Callable[[str], Awaitable[Sequence[str]]]
"""The issuers of a tenant that clients can go to; `main.py` puts it on `app.state.authorization_servers`."""

router = APIRouter(include_in_schema=False)


@router.get(PREFIX + "/t/{tenant}/{backend}/mcp")
async def resource_metadata(request: Request, tenant: str, backend: str) -> JSONResponse:
    """Where tokens for this endpoint come from."""
    if not (is_name(tenant) and is_name(backend)):
        raise NotFound("There is nothing at this address")
    ask: AuthorizationServers = request.app.state.authorization_servers
    servers = await ask(tenant)
    content = {
        "resource": Target(tenant, backend, request.scope[BASE_URL]).resource,
        **({"authorization_servers": list(servers)} if servers else {}),  # RFC 9728, 3.2: no empty arrays
        "scopes_supported": [Scope.CONNECT],
        "bearer_methods_supported": ["header"],
        "resource_name": f"{backend} of {tenant}",
    }
    # The front has refused origins that may not call us; a page that may, may read this.
    return JSONResponse(content, headers={"Access-Control-Allow-Origin": "*", "Cache-Control": "no-store"})


def challenge(error: Unauthenticated | Forbidden, target: Target) -> bytes:
    """The WWW-Authenticate of a refusal by an MCP endpoint."""
    # Names are checked, because what stands in the path goes into a header.
    is_ours = is_name(target.tenant) and is_name(target.backend)
    url = f"{target.base_url}{PREFIX}/t/{target.tenant}/{target.backend}/mcp"
    where = f'resource_metadata="{url}"' if is_ours else ""
    scope = f'scope="{Scope.CONNECT}"'
    if isinstance(error, Forbidden):
        words = ['error="insufficient_scope"', scope, where]
    else:
        words = ['error="invalid_token"' if error.token_was_sent else "", where, scope]
    return ("Bearer " + ", ".join(filter(None, words))).encode("latin-1")
