"""…/clients, of one tenant: programs that sign in at its own authorization server."""

from dataclasses import replace

from fastapi import Response
from pydantic import BaseModel, Field

from app.admin._resource import ResourceApi, Special
from app.admin.context import Access
from app.admin.schemas.declared import schemas_of
from app.domain.resources.clients import CLIENTS, OAuthClient
from app.errors import Conflict

_SCHEMAS = schemas_of(CLIENTS)


class NewClientAnswer(_SCHEMAS.answer):  # type: ignore[name-defined, misc]
    """A client. The answer to its creation alone has its secret."""

    secret: str | None = Field(None, description="Only of a new client with `authentication: secret`.")


async def _end_what_it_has(access: Access, old: OAuthClient | None, _new: OAuthClient | None) -> None:
    """What it has connected ends with it, and where it becomes another."""
    if old is not None:
        await access.admin.connections.end_of_client(access.tenant, old.name)


def _merged(access: Access, found: OAuthClient, patch: BaseModel) -> OAuthClient:
    """Raises Conflict: it has registered itself, or would have a secret that nobody has seen."""
    if found.has_registered_itself:
        raise Conflict("a client that has registered itself is not changed, only removed: create one of your own")
    changed: OAuthClient = replace(_API.merged(access, found, patch), salt=found.salt)
    if changed.authentication == "secret" != found.authentication:
        raise Conflict("only the answer to its creation shows a client's secret: create another one")
    return changed


def _new(access: Access, client: OAuthClient, response: Response) -> NewClientAnswer:
    response.headers["Cache-Control"] = "no-store"
    secret = access.admin.client_secrets.of(access.tenant, client) if client.authentication == "secret" else None
    return NewClientAnswer(**dict(_SCHEMAS.answer.of(client)), secret=secret)


async def _shown(access: Access, client: OAuthClient, _: object) -> NewClientAnswer:
    return NewClientAnswer(**dict(_SCHEMAS.answer.of(client)))


_API = ResourceApi(
    CLIENTS,
    _SCHEMAS,
    Special(before=_end_what_it_has, merged=_merged, shown=NewClientAnswer, show=_shown, show_new=_new),
)
router = _API.router
