"""Bodies: importing other programs' lists of servers, and the new backend of each entry.

Without the web framework, because the command line imports it too."""

import json
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field, StringConstraints, ValidationError, WithJsonSchema
from pydantic_core import PydanticCustomError

from app.admin.importing import Entry
from app.admin.schemas.backends import BackendBody, EnvValue
from app.admin.schemas.fields import Strict
from app.backends.upstreams.requests import is_own
from app.domain.resources.backends import HIDDEN

MAX_DOCUMENT_BYTES = 3 * 2**20  # with its escapes it fits a body of the usual 4 MiB


def _document(value: object) -> object:
    """The text of the document, which may also be sent as an object."""
    try:
        text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value
    except RecursionError:
        raise PydanticCustomError("depth", "is nested too deeply") from None
    if not isinstance(text, str):
        raise PydanticCustomError("document", "must be an object, or the text of a file")
    if len(text.encode("utf-8", "surrogatepass")) > MAX_DOCUMENT_BYTES:
        raise PydanticCustomError("too_long", "is more than 3 MiB")
    return text


_DOCUMENT_SCHEMA = {
    "anyOf": [{"type": "object", "additionalProperties": True}, {"type": "string", "maxLength": MAX_DOCUMENT_BYTES}],
    "description": "A file with `mcpServers` (also of its `projects`), `servers`, `mcp`, `mcp.servers` or "
    "`context_servers`, a `server.json` of the registry, the `manifest.json` of a bundle, or the text of one of them; "
    "as text also `mcp_servers` in TOML, and YAML. At most 3 MiB; with comments, as TOML or YAML, 1 MiB.",
}
Document = Annotated[str, BeforeValidator(_document), WithJsonSchema(_DOCUMENT_SCHEMA)]
# Not only names of variables: there are placeholders for inputs and files, too.
PlaceholderName = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class ImportBody(Strict):
    """Another program's list of servers. Without `apply` nothing is changed."""

    document: Document
    env: Annotated[
        dict[PlaceholderName, EnvValue],
        Field(max_length=128, description="Values for placeholders and variables, by name."),
    ] = Field(default_factory=dict)
    apply: bool = False


class ImportedEntry(BaseModel):
    """One server of the document."""

    source: str = Field(description="Its name in the document.")
    name: str | None = Field(description="The backend's name; null if none can be derived.")
    outcome: Literal["would_create", "created", "skipped"]
    becomes: str | None = Field(description="The command line or the URL, without secrets; null if it is skipped.")
    needs: list[str] = Field(
        description="Addresses and files that its definition names.",
        examples=[["network: db.internal:5432", "file: /srv/notes"]],
    )
    problems: list[str] = Field(description="Why it is skipped.")
    notes: list[str] = Field(description="What else there is to know of it: for example its project.")


class ImportAnswer(BaseModel):
    """What was done with a document, or would be."""

    applied: bool
    entries: list[ImportedEntry]


def body_of(entry: Entry) -> BackendBody:
    """The body of a POST for this entry. Raises ValidationError."""
    return BackendBody.model_validate(dict(entry.members))


def _without_own_headers(entry: Entry) -> Entry:
    """Clients name them too, with what the gateway sends anyway."""
    headers = entry.members.get("headers") or {}
    if not (own := [name for name in headers if is_own(name)]):
        return entry
    members = {**entry.members, "headers": {name: value for name, value in headers.items() if name not in own}}
    words = f"the gateway writes these headers itself: {ascii(', '.join(own))[1:-1]}"
    return replace(entry, members=members).noted(words)


def validated(entry: Entry) -> Entry:
    """The entry, without headers that it cannot set and with the errors of the model among its problems."""
    if entry.problems:
        return entry
    entry = _without_own_headers(entry)
    try:
        if body_of(entry).value().lacks_secrets:
            return entry.refused(f"has `{HIDDEN}` where a secret should be: write the secret into the file")
    except ValidationError as error:
        # Without the input: an env value may be a secret.
        found = error.errors(include_input=False, include_url=False, include_context=False)
        return entry.refused(*(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in found[:5]))
    return entry
