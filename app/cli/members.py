"""`NAME=VALUE` words (see `trunkline backends set --help`) as the JSON body of a request."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from app.cli.files.text import read_document, read_text
from app.domain import ApiKey, BackendSpec, Issuer, Tenant, Toolset
from app.domain.resources.backends import SECRETS_OF_CONNECT
from app.domain.resources.clients import OAuthClient
from app.domain.resources.guides import Guide
from app.domain.resources.members import declared_members
from app.domain.resources.recipes import Recipe
from app.errors import InvalidRequest

MAX_FILE = 1024 * 1024
MAX_DEPTH = 8
DECLARED = (Tenant, BackendSpec, Toolset, Guide, Recipe, Issuer, ApiKey, OAuthClient)
GIVEN = frozenset({"secret", "token", "sign_in.client_secret"})
UNDECLARED = GIVEN | {"expires_at"}
SECRET = GIVEN.union(f"connect.{name}" for name in SECRETS_OF_CONNECT)


def members_of(words: Sequence[str], *, unset: Iterable[str] = (), file: str | None = None) -> dict[str, Any]:
    """The body: the members of the file, overridden by the words; those in `unset` are null, which restores a default.

    Raises:
        InvalidRequest: a word has no `=`, a name is given twice, or two names contradict each other.
    """
    if [word.partition("=")[2] for word in words].count("@-") + (file == "-") > 1:
        raise InvalidRequest("only one value can come from stdin")
    body = _object(file) if file else {}
    seen = set[str]()
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise InvalidRequest(f"{word[:100]!r} is not of the form name=value")
        is_list = name.endswith("[]")
        name = name.removesuffix("[]")
        if name in seen and not is_list:
            raise InvalidRequest(f"{name!r} is given twice")
        is_document = name == "openapi" and text.startswith("@") and not text.startswith("@@")
        value = read_document(text[1:]) if is_document else content_of(text)
        if is_list:
            _append(body, name, value, is_first=name not in seen)
        else:
            is_given = name in UNDECLARED or name.startswith(("env.", "headers.")) or text.startswith("@")
            is_plain = is_given or (is_text(name) and value != "null")
            _put(body, name, value if is_plain else _decoded(value))
        seen.add(name)
    for name in unset:
        _put(body, name, None)
    return body


def is_text(name: str) -> bool:
    """Whether this member is text even if it looks like JSON, but for `null`, which restores a default; the value of
    any other one may need quotes: note='"2026"'."""
    texts = (each for model in DECLARED for each in declared_members(model) if each.is_text)
    return name in UNDECLARED or any(each.name == name for each in texts)


def secrets_given_openly(words: Sequence[str]) -> list[str]:
    """Members that may be secret and are given on the command line, where every user of the machine can read them."""
    pairs = (word.partition("=") for word in words)
    return [
        name
        for name, _, text in pairs
        if (name.startswith(("env.", "headers.")) or name in SECRET) and text and text[0] != "@"
    ]


def content_of(text: str) -> str:
    """The text, or the content of the file that `@FILE` names; of `@@…` what is behind the first."""
    if text.startswith("@") and not text.startswith("@@"):
        return read_text(text[1:], MAX_FILE).removesuffix("\n").removesuffix("\r")
    return text[1:] if text.startswith("@@") else text


def refuse_constant(constant: str) -> NoReturn:
    """As `parse_constant`: `NaN` and the like are no JSON."""
    raise ValueError(constant)


def _decoded(text: str) -> Any:
    """The parsed text if it is JSON, else the text itself."""
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        if text[:1] in ("{", "["):
            raise InvalidRequest(f"{text[:100]!r} begins like JSON but is not valid JSON") from None
        return text


def _object(path: str) -> dict[str, Any]:
    try:
        document = json.loads(read_text(path, MAX_FILE))
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise InvalidRequest(f"{path!r} does not hold a JSON object")
    return document


def _put(body: dict[str, Any], name: str, value: object) -> None:
    parent, last = _parent(body, name)
    if isinstance(parent.get(last), Mapping) and parent[last] and not isinstance(value, Mapping) and value is not None:
        raise InvalidRequest(f"{name!r} is a single value here and has members elsewhere")
    parent[last] = value


def _append(body: dict[str, Any], name: str, value: str, *, is_first: bool) -> None:
    parent, last = _parent(body, name)
    parent[last] = [value] if is_first else [*parent[last], value]


def _parent(body: dict[str, Any], name: str) -> tuple[dict[str, Any], str]:
    *path, last = name.split(".")
    if not all((*path, last)) or len(path) >= MAX_DEPTH:
        raise InvalidRequest(f"{name[:100]!r} is not a name like limits.sessions")
    for each in path:
        body = body.setdefault(each, {})
        if not isinstance(body, dict):
            raise InvalidRequest(f"{name!r} has members here and is a single value elsewhere")
    return body, last
