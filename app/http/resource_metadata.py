"""RFC 9728: what a client may learn before it has a credential, and the challenges that point there.

Public. Whether a backend exists is never looked up, so nobody learns it; a tenant without issuers is answered
like one that does not exist. That a tenant has issuers, and which, is what the document is for.
"""

from typing import Protocol
from urllib.parse import urlsplit

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from app.auth.tokens import Target
from app.domain import Scope, is_name
from app.errors import Forbidden, GatewayError, NotFound, Unauthenticated
from app.storage.issuers import Issuer

PREFIX = "/.well-known/oauth-protected-resource"
BASE_URL = "trunkline.base_url"  # in the ASGI scope of requests whose Host was checked

router = APIRouter(include_in_schema=False)


class Issuers(Protocol):
    """Where issuers are kept; `main.py` puts it on `app.state.issuers`."""

    async def list(self, tenant: str) -> "list[Issuer]":
        """The tenant's."""


@router.get(PREFIX + "/t/{tenant}/{backend}/mcp")
@router.get(PREFIX + "/t/{tenant}/{backend}/mcp/")
async def resource_metadata(request: Request, tenant: str, backend: str) -> JSONResponse:
    """Where tokens for this endpoint come from."""
    if not (is_name(tenant) and is_name(backend)):
        raise NotFound("There is nothing at this address")
    ...
