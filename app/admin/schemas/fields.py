"""Fields that several bodies have, and the model that all bodies of requests are."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from pydantic_core import PydanticCustomError

from app.auth.policy import is_scope
from app.domain import NAME_PATTERN

MAX_REASON = 300


class Strict(BaseModel):
    """What a client may send: nothing unknown, nothing converted, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def no_nul(text: str) -> str:
    """For a validator: the text, if a program can be given it."""
    if "\0" in text:
        raise PydanticCustomError("nul", "must not contain NUL characters")
    return text


def one_line(text: str) -> str:
    """For a validator: the text, if all of it can be printed."""
    if not text.isprintable():
        raise PydanticCustomError("printable", "must be printable characters")
    return text


def known_scope(text: str) -> str:
    """For a validator: the text, if it is a scope."""
    if not is_scope(text):
        raise PydanticCustomError("scope", "there is no such scope")
    return text


Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN), Field(description="Lower-case letters, digits, `-`.")]
Reason = Annotated[
    str,
    StringConstraints(max_length=MAX_REASON),
    AfterValidator(one_line),
    Field(description="Why it is switched off, in one line; its callers are told. Gone when it is on again."),
]
