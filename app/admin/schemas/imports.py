"""The bodies about lists of servers that other programs have."""

import json
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field, StringConstraints, WithJsonSchema
from pydantic_core import PydanticCustomError

from app.admin.schemas.backends import EnvValue
from app.admin.schemas.fields import Strict

MAX_DOCUMENT_BYTES = 256 * 1024


def _document(value: object) -> object:
    """The text of the document, which may be an object too."""
    try:
        text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value
    except RecursionError:
        raise PydanticCustomError("depth", "is nested too deeply") from None
    if not isinstance(text, str):
        raise PydanticCustomError("document", "must be an object, or the text of a file")
    if len(text.encode("utf-8", "surrogatepass")) > MAX_DOCUMENT_BYTES:
        raise PydanticCustomError("too_long", "is more than 256 KiB")
    return text


_DOCUMENT_SCHEMA = {
    "anyOf": [{"type": "object", "additionalProperties": True}, {"type": "string", "maxLength": MAX_DOCUMENT_BYTES}],
    "description": "A file with `mcpServers`, `servers`, `mcp` or `mcp.servers`, a `server.json` of the registry, or "
    "the text of one of them; as text also `mcp_servers` in TOML. At most 256 KiB.",
}
Document = Annotated[str, BeforeValidator(_document), WithJsonSchema(_DOCUMENT_SCHEMA)]
# Not only what a variable can be called: inputs and files have placeholders as well.
PlaceholderName = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class ImportBody(Strict):
    """Servers as another program lists them. Without `apply` nothing is changed."""

    document: Document
    env: Annotated[
        dict[PlaceholderName, EnvValue],
        Field(max_length=128, description="Values for placeholders and variables, by name."),
    ] = Field(default_factory=dict)
    apply: bool = False


class ImportedEntry(BaseModel):
    """One server of the document."""

    source: str = Field(description="What the document calls it.")
    name: str | None = Field(description="The backend's name; null if none can be made of it.")
    outcome: Literal["would_create", "created", "skipped"]
    problems: list[str] = Field(description="Why it is skipped.")


class ImportAnswer(BaseModel):
    """What became of a document, or would."""

    applied: bool
    entries: list[ImportedEntry]
