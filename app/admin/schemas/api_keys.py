"""The bodies about API keys."""

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, Field, StringConstraints
from pydantic_core import PydanticCustomError

from app.admin.schemas.fields import Reason, Strict, known_scope, one_line
from app.storage import ApiKey

DEFAULT_KEY_LIFE = timedelta(days=90)
MAX_KEY_LIFE = timedelta(days=3650)


def _is_text(value: object) -> object:
    if not isinstance(value, str):
        raise PydanticCustomError("timestamp", "must be a timestamp such as 2030-01-31T12:00:00Z")
    return value


class KeyBody(Strict):
    """A new key. Without `expires_at` it lives for 90 days; ten years is the most, null is for ever."""

    name: Annotated[str, StringConstraints(max_length=200), AfterValidator(one_line)] = ""
    scopes: list[Annotated[str, AfterValidator(known_scope)]] = Field(min_length=1, max_length=32)
    expires_at: Annotated[AwareDatetime, Field(strict=False), BeforeValidator(_is_text)] | None = None


class KeyPatch(Strict):
    """A merge patch."""

    enabled: bool | None = None
    reason: Reason | None = None


class KeyAnswer(BaseModel):
    """A key, as far as it can be shown again."""

    id: str
    tenant: str
    name: str
    scopes: list[str]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    enabled: bool
    reason: str
    off_by_platform: bool = Field(description="Only a platform administrator can switch it on again.")

    @classmethod
    def of(cls, record: ApiKey, **more: str) -> Self:
        """Shows the value."""
        shown = {name: value for name, value in asdict(record).items() if name in KeyAnswer.model_fields}
        return cls(**{**shown, "scopes": sorted(record.scopes), **more})


class NewKeyAnswer(KeyAnswer):
    """The one answer that carries the key itself."""

    key: str
