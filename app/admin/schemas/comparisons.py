"""Bodies: secrets to be compared with those that are stored."""

from typing import Annotated

from pydantic import BaseModel, Field, StringConstraints

from app.admin.schemas._upstream import MAX_HEADERS, ConnectKey, HeaderName, HeaderValue, ProxyAuth
from app.admin.schemas.backends import EnvName, EnvValue
from app.admin.schemas.fields import Strict
from app.auth.issuer_rules import MAX_CLIENT_KEY
from app.auth.outbound_urls import MAX_URL
from app.domain.resources.backends import MAX_ARGS_BYTES


class SecretsOfConnect(Strict):
    """The secrets of `connect`."""

    proxy_auth: ProxyAuth = None
    key: ConnectKey = None


class BackendComparison(Strict):
    """Values of a backend's `env` and `headers`, secrets of its `connect`, its `args` and its `url`. They are neither
    stored nor shown. `***` in `args` and `url` stands for the secret that is stored there."""

    env: dict[EnvName, EnvValue] = Field(default_factory=dict, max_length=128)
    headers: dict[HeaderName, HeaderValue] = Field(default_factory=dict, max_length=MAX_HEADERS)
    connect: SecretsOfConnect = Field(default_factory=SecretsOfConnect)
    args: (
        Annotated[list[Annotated[str, StringConstraints(max_length=MAX_ARGS_BYTES)]], Field(max_length=256)] | None
    ) = None
    url: Annotated[str, StringConstraints(max_length=MAX_URL)] | None = None

    def values(self) -> dict[str, str]:
        """Single values that are compared, by name."""
        members = {name: value for name, value in self.connect if value is not None}
        groups = (("env", self.env), ("headers", self.headers), ("connect", members))
        return {f"{group}.{name}": value for group, values in groups for name, value in values.items()}

    def names(self) -> list[str]:
        """What is compared."""
        return [*self.values(), *(name for name in ("args", "url") if getattr(self, name) is not None)]


class SecretOfSignIn(Strict):
    """The secret of `sign_in`."""

    client_secret: Annotated[str, StringConstraints(max_length=MAX_CLIENT_KEY)] | None = None


class IssuerComparison(Strict):
    """The secrets of an issuer. They are neither stored nor shown."""

    secret: Annotated[str, StringConstraints(max_length=1024)] | None = None
    sign_in: SecretOfSignIn = Field(default_factory=SecretOfSignIn)


class Comparison(BaseModel):
    """What differs."""

    different: list[str] = Field(
        description="Members with another value than the stored one, or without one.", examples=[["env.TOKEN"]]
    )
