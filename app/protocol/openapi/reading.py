"""Reads the text of a document: JSON, or YAML. Imported only by the process that reads them (`backends.openapi`)."""

import re
from typing import Any

import msgspec
import yaml

from app.protocol.openapi.document import UnfitDocument

_is_html = re.compile(rb"\s*<[!a-z]", re.IGNORECASE).match
_OTHER_IN_JSON = {"tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:bool"}


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Dates stay texts, and `on` and `yes` are no truth values, as in YAML 1.2."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as its base has it
        first: [(tag, pattern) for tag, pattern in found if tag not in _OTHER_IN_JSON]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile("(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)


def read(text: bytes) -> dict[str, Any]:
    """The object that the text has.

    Raises:
        UnfitDocument: it is neither JSON nor YAML, or no object.
    """
    text = text.removeprefix(b"\xef\xbb\xbf")
    if _is_html(text) is not None:
        raise UnfitDocument("this is HTML, not a document of OpenAPI: give the address or text of the document itself")
    try:
        text.decode()
        found = _json(text) if text.lstrip()[:1] in (b"{", b"[") else _yaml(text)
    except UnicodeDecodeError:
        raise UnfitDocument("the document is not in UTF-8") from None
    except RecursionError:
        raise UnfitDocument("the document is nested too deeply") from None
    if not isinstance(found, dict):
        raise UnfitDocument("the document is no object: it should begin with `openapi: 3.1.0` or `swagger: '2.0'`")
    return found


def _json(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        words = str(error)
    try:
        return _yaml(text)  # it has a notation with braces too
    except UnfitDocument as problem:
        raise UnfitDocument(f"the document is not JSON: {words}; {problem}") from None


def _yaml(text: bytes) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe one
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" (line {mark.line + 1})" if mark else ""
        raise UnfitDocument(f"the document is not YAML: {error.problem or error.context}{where}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise UnfitDocument(f"the document is not YAML: {' '.join(str(error).split())[:200]}") from None
