"""Bodies: API keys."""

from datetime import datetime, timedelta
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field, StringConstraints
from pydantic_core import PydanticCustomError

from app.admin.schemas.fields import Answer, KnownScope, SortedTexts, Strict, SwitchPatch, one_line

DEFAULT_KEY_LIFE = timedelta(days=90)
MAX_KEY_LIFE = timedelta(days=3650)


def _is_text(value: object) -> object:
    if not isinstance(value, str):
        raise PydanticCustomError("timestamp", "must be a timestamp such as 2030-01-31T12:00:00Z")
    return value


class KeyBody(Strict):
    """A new key. Without `expires_at` it is valid for 90 days; at most ten years; null: for ever."""

    name: Annotated[str, StringConstraints(max_length=200), AfterValidator(one_line)] = ""
    scopes: list[KnownScope] = Field(min_length=1, max_length=32)
    expires_at: Annotated[AwareDatetime, Field(strict=False), BeforeValidator(_is_text)] | None = None


class KeyPatch(SwitchPatch):
    """A merge patch."""


class KeyAnswer(Answer):
    """A key, without the key itself."""

    id: str
    tenant: str
    name: str
    scopes: SortedTexts
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    enabled: bool
    reason: str
    off_by_platform: bool = Field(description="Only a platform administrator can switch it on again.")


class NewKeyAnswer(KeyAnswer):
    """The only answer that contains the key itself."""

    key: str
