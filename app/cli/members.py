"""`name=value` words into the JSON body of a request.

    limits.sessions=100        a number, true, false, null, a list or an object in JSON; any other text is a text
    timeouts.call_s=30         a dot goes one level down
    args[]=--zone args[]=UTC   a list of texts
    env.TOKEN=@token.txt       the content of a file, @- of stdin: what is secret stays off the command line
    reason=@@home              a text that begins with @

Pure but for the files that are named.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from app.cli.text import read_text
from app.errors import InvalidRequest

MAX_FILE = 1024 * 1024
MAX_DEPTH = 8
# Members that are texts whatever they look like; what is new and not listed here may need quotes: reason='"2026"'.
TEXTS = frozenset({
    "command", "cwd", "description", "discovery_url", "expires_at", "isolation", "issuer", "jwks_url", "name", "reason",
    "recovery", "secret", "title", "token",
})  # fmt: skip
SECRET = frozenset({"secret", "token"})


def members_of(words: Sequence[str], *, unset: Iterable[str] = (), file: str | None = None) -> dict[str, Any]:
    """The body: what the file has, with the words put into it. `unset` are names that become null, which brings a
    default back.

    Raises:
        InvalidRequest: a word has no `=`, a name stands twice, or two names contradict each other.
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
            raise InvalidRequest(f"{name!r} stands twice")
        value = _content(text)
        if is_list:
            _append(body, name, value, is_first=name not in seen)
        else:
            _put(body, name, value if _is_text(name) or text.startswith("@") else _decoded(value))
        seen.add(name)
    for name in unset:
        _put(body, name, None)
    return body


def secrets_given_openly(words: Sequence[str]) -> list[str]:
    """Names whose value may be a secret and stands on the command line, where every user of the machine can read it."""
    pairs = (word.partition("=") for word in words)
    return [name for name, _, text in pairs if _may_be_secret(name) and text and text[0] != "@"]


def _may_be_secret(name: str) -> bool:
    return name.startswith("env.") or name in SECRET


def _is_text(name: str) -> bool:
    return name in TEXTS or name.startswith("env.")


def _content(text: str) -> str:
    if text.startswith("@@"):
        return text[1:]
    if not text.startswith("@"):
        return text
    return read_text(text[1:], MAX_FILE).removesuffix("\n").removesuffix("\r")


def _decoded(text: str) -> Any:
    """JSON where it is JSON; else the text."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(constant)

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError):
        if text[:1] in ("{", "["):
            raise InvalidRequest(f"{text[:100]!r} begins like JSON and is none") from None
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
        raise InvalidRequest(f"{name!r} is one value here and has members elsewhere")
    parent[last] = value


def _append(body: dict[str, Any], name: str, value: str, *, is_first: bool) -> None:
    parent, last = _parent(body, name)
    parent[last] = [value] if is_first else [*parent[last], value]


def _parent(body: dict[str, Any], name: str) -> tuple[dict[str, Any], str]:
    *path, last = name.split(".")
    if not all((*path, last)) or len(path) >= MAX_DEPTH:
        raise InvalidRequest(f"{name[:100]!r} is no name: it is like limits.sessions")
    for each in path:
        body = body.setdefault(each, {})
        if not isinstance(body, dict):
            raise InvalidRequest(f"{name!r} has members here and is one value elsewhere")
    return body, last
