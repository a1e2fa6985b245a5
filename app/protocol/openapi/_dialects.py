"""Parameters, bodies and servers of an operation, whichever of the three dialects says them: OpenAPI 3.0, 3.1, or
Swagger 2.0, which is brought into the form of the others."""

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from app.protocol.openapi._references import LeftOut, References
from app.protocol.openapi.document import UnfitDocument

_COLLECTIONS: Mapping[str, tuple[str | None, bool]] = {
    "csv": (None, False), "ssv": ("spaceDelimited", False), "tsv": ("tabDelimited", False),
    "pipes": ("pipeDelimited", False), "multi": (None, True),
}  # fmt: skip
_OF_SCHEMA = (
    "type", "format", "enum", "default", "items", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "minLength", "maxLength", "pattern", "minItems", "maxItems", "uniqueItems", "multipleOf",
)  # fmt: skip

Ways = tuple[tuple[str, ...], ...]  # each has the names of credentials

_is_path = re.compile(r"/(?![/\\])[^\s{}?#]*").fullmatch


def is_swagger(document: dict[str, Any]) -> bool:
    """Whether the document is one of Swagger 2.0. Raises UnfitDocument: it is none at all, or of another version."""
    version, swagger = str(document.get("openapi", "")), str(document.get("swagger", ""))
    if swagger == "2.0":
        return True
    if not version and not swagger:
        raise UnfitDocument(
            "this is no document of OpenAPI: it has neither a member `openapi` nor a member `swagger` with its version"
        )
    if re.fullmatch(r"3(\.\d+){0,2}(-\S*)?", version) is None:
        shown = (version or swagger)[:20]
        raise UnfitDocument(f"the document is of version {shown}: OpenAPI 3.x and Swagger 2.0 can be read")
    return False


def server_of(document: dict[str, Any], *, swagger: bool) -> str:
    """The base address that the document names: the first absolute one, else a path at the document's own server; empty
    if it is neither."""
    if not swagger:
        named = [each.get("url") for each in _list(document.get("servers")) if isinstance(each, dict)]
        paths = [each for each in named if isinstance(each, str) and _is_path(each)]
        return next(iter((*servers_of(document), *paths)), "" if named else "/")
    schemes = [each for each in _list(document.get("schemes")) if each in ("https", "http")] or ["https"]
    scheme = "https" if "https" in schemes else schemes[0]
    host, path = document.get("host"), document.get("basePath")
    base = path if isinstance(path, str) and _is_path(path) else "/"
    return _absolute(f"{scheme}://{host}{base}") if isinstance(host, str) and host else base


def servers_of(node: dict[str, Any]) -> list[str]:
    """The absolute addresses in `servers`, with the defaults of their variables."""
    found = list[str]()
    for each in _list(node.get("servers")):
        url = each.get("url") if isinstance(each, dict) else None
        if isinstance(url, str) and (absolute := _absolute(_filled(url, each.get("variables")))):
            found.append(absolute)
    return found


def _filled(url: str, variables: Any) -> str:
    for name, each in variables.items() if isinstance(variables, dict) else ():
        default = each.get("default") if isinstance(each, dict) else None
        url = url.replace(f"{{{name}}}", str(default))
    return url


def _absolute(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return url.rstrip("/") if parts.scheme in ("https", "http") and parts.netloc and "{" not in url else ""


def credentials_of(document: dict[str, Any], references: References, *, swagger: bool) -> dict[str, tuple[str, str]]:
    """Where each security scheme has a credential, `query` or `header`, and its name there."""
    above = document if swagger else document.get("components")
    schemes = above.get("securityDefinitions" if swagger else "securitySchemes") if isinstance(above, dict) else None
    found = dict[str, tuple[str, str]]()
    for own, each in schemes.items() if isinstance(schemes, dict) else ():
        try:
            scheme = references.resolved(each)
        except LeftOut:
            continue
        kind, name, place = scheme.get("type"), scheme.get("name"), scheme.get("in")
        if kind == "apiKey" and isinstance(name, str) and place in ("query", "header"):
            found[own] = place, name
        elif kind == "apiKey" and place == "cookie":
            found[own] = "header", "Cookie"
        elif kind in ("http", "basic", "oauth2", "openIdConnect"):
            found[own] = "header", "Authorization"
    return found


def asked_of(document: dict[str, Any], operation: dict[str, Any], credentials: dict[str, tuple[str, str]]) -> Ways:
    """The ways to call it: what each needs, perhaps nothing."""
    ways = [each for each in _list(operation.get("security", document.get("security"))) if isinstance(each, dict)]
    return tuple(sorted({tuple(sorted({credentials[each][1] for each in way if each in credentials})) for way in ways}))


def as_openapi(
    document: dict[str, Any], operation: dict[str, Any], parameters: Iterable[dict[str, Any]]
) -> dict[str, Any]:
    """An operation of Swagger 2.0 with these parameters, as OpenAPI 3 says it."""
    consumes = _list(operation.get("consumes", document.get("consumes"))) or ["application/json"]
    found, body = list[dict[str, Any]](), None
    for each in parameters:
        if each.get("in") == "body":
            content = {str(kind): {"schema": each.get("schema", {})} for kind in consumes}
            body = {"content": content, "required": each.get("required"), "description": each.get("description")}
        elif each.get("in") == "formData":
            kind = "multipart/form-data" if each.get("type") == "file" else str(consumes[0])
            body = {"content": {kind if kind != "application/json" else "multipart/form-data": {}}, "required": True}
        else:
            found.append(_parameter(each))
    return {**operation, "parameters": found, **({"requestBody": body} if body else {})}


def _parameter(each: dict[str, Any]) -> dict[str, Any]:
    collection = str(each.get("collectionFormat", "csv"))
    style, explode = _COLLECTIONS.get(collection, (collection, False))
    schema = {name: each[name] for name in _OF_SCHEMA if name in each}
    kept = {name: value for name, value in each.items() if name not in _OF_SCHEMA}
    return {**kept, "schema": schema, "explode": explode, **({"style": style} if style else {})}


def _list(found: Any) -> list[Any]:
    return found if isinstance(found, list) else []
