"""What a file can have of a tenant, kind by kind: the model of its members, and how the gateway would show them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel

from app.admin.schemas.backends import BackendAnswer, BackendBody
from app.admin.schemas.declared import Schemas, schemas_of
from app.admin.schemas.issuers import IssuerBody, TenantsBody
from app.admin.schemas.recipes import SCHEMAS as RECIPE_SCHEMAS
from app.admin.schemas.toolsets import SCHEMAS as TOOLSET_SCHEMAS
from app.domain.resources import guides, recipes, toolsets
from app.domain.resources.resource import Resource
from app.protocol.openapi.document import known_by

LEFT_ALONE = ("enabled", "reason")  # while a file does not name them: what somebody has switched off stays off
IS_THERE = "has_client_secret"  # what the gateway says of a `client_secret`
_NONE = (IS_THERE, False)
_NEVER = datetime.fromtimestamp(0, UTC)  # of objects that are not stored


@dataclass(frozen=True, slots=True)
class Kind:
    """One section of a tenant. `example` is the least that a body of this kind has. `secret_maps`: objects some of
    whose values are secret, or all; all may be references. `documents`: members that may name a file beside the one
    that has them; the gateway shows what their text is known by. `signs_in`: a member with a `client_secret`, of which
    the gateway only shows that there is one."""

    section: str
    one: str
    about: str
    body: type[BaseModel]
    answer: Callable[[Any], BaseModel]
    example: Mapping[str, Any]
    named_by: str = "name"
    secret_maps: tuple[str, ...] = ()
    secret_parts: tuple[str, ...] = ()  # members of which parts are secrets
    secrets: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()
    signs_in: str = ""
    list_is_whole: bool = True

    @property
    def has_references(self) -> bool:
        """Whether some of its members may be references, so that in the others their form is escaped."""
        return bool(self.secret_maps or self.secrets)

    @property
    def members(self) -> list[str]:
        """Of its body, without its name and what is never shown."""
        return [name for name in self.body.model_fields if name not in (self.named_by, *self.secrets)]

    def is_filled(self, name: str) -> bool:
        """Whether the member is an object that the gateway fills with defaults. Others are as they were given."""
        kind = self.body.model_fields[name].annotation
        return isinstance(kind, type) and issubclass(kind, BaseModel)

    def shown(self, body: BaseModel) -> dict[str, Any]:
        """The members as the gateway would show them, with the values of secrets hidden."""
        found = self.answer(body).model_dump(mode="json")
        found |= {name: known_by(found[name]) for name in self.documents if found[name]}
        if (client := found.get(self.signs_in)) and client.pop("client_secret") is not None:
            client[IS_THERE] = True
        return {name: found[name] for name in self.members}

    def seen(self, members: Mapping[str, Any]) -> dict[str, Any]:
        """What the gateway shows, without saying of a secret that it is not there, which not every gateway does."""
        client = members.get(self.signs_in)
        if not isinstance(client, dict):
            return dict(members)
        return {**members, self.signs_in: {name: each for name, each in client.items() if (name, each) != _NONE}}

    def defaults(self) -> dict[str, Any]:
        """What the gateway shows of members that nobody has given."""
        name = "https://x" if self.named_by == "issuer" else "x"
        body = self.body.model_validate({self.named_by: name, **self.example})
        return {name: value for name, value in self.shown(body).items() if name not in self.example}


def _issuer(body: IssuerBody) -> IssuerBody:
    """With lists in the order in which the gateway shows them, and each entry of `tenants` in its long form."""
    return body.model_copy(
        update={
            "algorithms": list(dict.fromkeys(body.algorithms)),
            "max_scopes": sorted(set(body.max_scopes)),
            "tenants": None if body.tenants is None else TenantsBody.of(body.tenants.served()),
        }
    )


def section_of(resource: Resource[Any], example: Mapping[str, Any], schemas: Schemas[Any] | None = None) -> Kind:
    """The section of a declared resource."""
    made = schemas or schemas_of(resource)
    shown, is_whole = lambda body: made.answer.of(body.value(_NEVER)), not resource.unlisted
    return Kind(resource.name, resource.one, resource.about, made.body, shown, example, list_is_whole=is_whole)


BACKENDS = Kind(
    "backends", "backend", "Servers: a `command` that the gateway starts, a `url`, or an API (`openapi`).", BackendBody,
    lambda body: BackendAnswer.of(body.value()), {"command": "x"}, secret_maps=("env", "headers", "connect"),
    secret_parts=("args", "url"), documents=("openapi",),
)  # fmt: skip
TOOLSETS = section_of(toolsets.TOOLSETS, {}, TOOLSET_SCHEMAS)
GUIDES = section_of(guides.GUIDES, {"text": "x"})
RECIPES = section_of(recipes.RECIPES, {"toolset": "x", "steps": [{"id": "x", "tool": "x"}]}, RECIPE_SCHEMAS)
ISSUERS = Kind(
    "issuers", "issuer", "Issuers of tokens, by the claim `iss` of their tokens.", IssuerBody, _issuer,
    {"algorithms": ["HS256"], "secret": "x" * 32}, named_by="issuer", secrets=("secret",),
    signs_in="sign_in",
)  # fmt: skip

# In the order in which they are made: a toolset needs its backends, a recipe its toolset.
KINDS = (BACKENDS, GUIDES, TOOLSETS, RECIPES, ISSUERS)
