"""Bodies: secrets to be compared with those that are stored."""

from typing import Annotated

from pydantic import BaseModel, Field, StringConstraints

from app.admin.schemas._upstream import MAX_HEADERS, HeaderName, HeaderValue
from app.admin.schemas.backends import EnvName, EnvValue
from app.admin.schemas.fields import Strict
from app.auth.outbound_urls import MAX_URL
from app.domain.resources.backends import MAX_ARGS_BYTES


class BackendComparison(Strict):
    """Values of a backend's `env` and `headers`, its `args` and its `url`. They are neither stored nor shown. `***` in
    `args` and `url` stands for the secret that is stored there."""

    env: dict[EnvName, EnvValue] = Field(default_factory=dict, max_length=128)
    headers: dict[HeaderName, HeaderValue] = Field(default_factory=dict, max_length=MAX_HEADERS)
    args: (
        Annotated[list[Annotated[str, StringConstraints(max_length=MAX_ARGS_BYTES)]], Field(max_length=256)] | None
    ) = None
    url: Annotated[str, StringConstraints(max_length=MAX_URL)] | None = None

    def names(self) -> list[str]:
        """What is compared."""
        whole = [name for name in ("args", "url") if getattr(self, name) is not None]
        return [f"env.{name}" for name in self.env] + [f"headers.{name}" for name in self.headers] + whole


class IssuerComparison(Strict):
    """The secret of an issuer. It is neither stored nor shown."""

    secret: Annotated[str, StringConstraints(max_length=1024)] | None = None


class Comparison(BaseModel):
    """What differs."""

    different: list[str] = Field(
        description="Members with another value than the stored one, or without one.", examples=[["env.TOKEN"]]
    )
