"""A response of the API becomes the result of a call."""

import base64
import codecs
import re
import string
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import msgspec

from app.protocol.jsonrpc import compact
from app.protocol.openapi.api import encoded

MAX_ERROR_BYTES = 16 << 10  # of the body of an error
LEAST_SECRET = 6  # characters: less is not looked for, as it would be found everywhere
HIDDEN = "***"
_PLAIN = frozenset(string.ascii_letters + string.digits + "-._~")
_ALSO = {" ": r"|\+", "/": r"|\\/"}
_MOST_OF_CHARACTER = 12  # bytes: percent-encoded, of four
_is_text = re.compile(
    rb"text/.*|application/(.+\+)?(json|xml|yaml|x-yaml|javascript|x-www-form-urlencoded|x-ndjson).*"
).fullmatch
_is_json = re.compile(rb"[\w.+-]+/([\w.+-]+\+)?json\s*(;.*)?").fullmatch
_CHARSET = re.compile(rb"charset\s*=\s*\"?([\w.:-]{1,40})", re.IGNORECASE)
_is_media_type = re.compile(r"[\w.+-]{1,80}/[\w.+-]{1,80}").fullmatch


class Secrets:
    """The values that nobody is shown, even where the API repeats them."""

    def __init__(self, values: Iterable[str]) -> None:
        both = (word for value in values for word in (value, value.rpartition(" ")[2]))
        words = sorted({word for word in both if len(word) >= LEAST_SECRET}, key=len, reverse=True)
        forms = dict.fromkeys(form for word in words for form in (re.escape(word), "".join(map(_written, word))))
        self._pattern = re.compile("|".join(forms).encode()) if forms else None
        # Bytes of an error that have to be read: a secret in what is shown of it must be there as a whole.
        self.most_of_error = MAX_ERROR_BYTES + _MOST_OF_CHARACTER * max(map(len, words), default=0)

    def hidden_in(self, body: bytes, most: int | None = None) -> bytes:
        """The body, or its first bytes, without them."""
        if self._pattern is None:
            return body[:most]
        if most is not None:
            cut = (each.end() for each in self._pattern.finditer(body) if each.start() < most < each.end())
            body = body[: next(cut, most)]
        return self._pattern.sub(HIDDEN.encode(), body)


def _written(character: str) -> str:
    """A pattern: as it may stand in an address or in a text of JSON. No text can be read in many ways."""
    if character in _PLAIN:
        return re.escape(character)
    plain, percent = re.escape(encoded(character)[1:-1].decode()), quote(character, safe="")
    return rf"(?:{plain}|(?i:{percent}|\\u{ord(character):04x}){_ALSO.get(character, '')})"


def result_of(status: int, media_type: bytes, body: bytes, uri: str, secrets: Secrets) -> bytes:
    """The result, as JSON, without the secrets. `uri` names what was asked for."""
    if not 200 <= status < 300:
        return error_result(_failed(status, media_type, body, secrets))
    body = secrets.hidden_in(body)
    kind = media_type.strip().lower()
    if not body:
        return _result([_text(f"HTTP {status}: the answer has no content")])
    if _is_json(kind) is not None and (found := _object_in(body)) is not None:
        text, is_object = found
        return _result([_text(text.decode())], text if is_object else None)
    if _is_text(kind) is not None or (not kind and _is_utf8(body)):
        return _result([_text(_decoded(media_type, body))])
    return _result([_binary(kind, body, uri)])


def error_result(words: str) -> bytes:
    """The result of a call that has failed, in words for the model."""
    return encoded({"content": [_text(words)], "isError": True})


def _result(content: list[dict[str, Any]], structured: bytes | None = None) -> bytes:
    made: dict[str, Any] = {"content": content}
    if structured is not None:
        made["structuredContent"] = msgspec.Raw(structured)
    return encoded({**made, "isError": False})


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _object_in(body: bytes) -> tuple[bytes, bool] | None:
    """The JSON on one line, and whether it is an object; None: it is no JSON."""
    try:
        body.decode()
        msgspec.json.decode(body)
        text = compact(body)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError, ValueError):
        return None
    return text, text[:1] == b"{"


def _is_utf8(body: bytes, *, is_whole: bool = True) -> bool:
    try:
        return "\0" not in codecs.utf_8_decode(body, "strict", is_whole)[0]
    except UnicodeDecodeError:
        return False


def _decoded(media_type: bytes, body: bytes) -> str:
    named = _CHARSET.search(media_type)
    try:
        return body.decode(named[1].decode() if named else "utf-8", "replace")
    except LookupError:
        return body.decode("utf-8", "replace")


def _binary(kind: bytes, body: bytes, uri: str) -> dict[str, Any]:
    plain = kind.partition(b";")[0].strip().decode("latin-1")
    mime, data = plain if _is_media_type(plain) else "application/octet-stream", base64.b64encode(body).decode()
    for name in ("image", "audio"):
        if mime.startswith(f"{name}/"):
            return {"type": name, "data": data, "mimeType": mime}
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime, "blob": data}}


def _failed(status: int, media_type: bytes, body: bytes, secrets: Secrets) -> str:
    try:
        phrase = f" {HTTPStatus(status).phrase}"
    except ValueError:
        phrase = ""
    words = f"The API answered HTTP {status}{phrase}."
    is_whole = len(body) <= MAX_ERROR_BYTES
    if not body or not (_is_text(media_type.strip().lower()) or _is_utf8(body, is_whole=is_whole)):
        return words
    more = "" if is_whole else "…"
    return f"{words}\n\n{_decoded(media_type, secrets.hidden_in(body, MAX_ERROR_BYTES))}{more}"
