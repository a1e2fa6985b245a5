"""JSON-RPC envelopes: what is checked is what is forwarded.

The envelope and the first level of `params` are decoded and written again by us; everything deeper travels
as the bytes it came in. Traps of msgspec that the code below answers (each has a test): `Raw` members are
not checked for UTF-8, of two equal keys the last one wins, unknown members vanish, and deep nesting ends in
a RecursionError, which is no DecodeError. What it refuses although it is JSON goes to `tolerant`.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from app.errors import InvalidMessage, ParseError
from app.memo import memo
from app.protocol import tolerant

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
UNSUPPORTED_PROTOCOL_VERSION = -32022
REQUEST_CANCELLED = -32800

MAX_ID_CHARACTERS = 256
MAX_METHOD_CHARACTERS = 200  # no revision has one of a quarter of that; calls keep theirs, cancelled ones too
ABSENT = msgspec.Raw()
Params = dict[str, msgspec.Raw]

# -32700, 1.0 and 1e3 are numbers too, but no ids: an id must come back as the same bytes from every peer.
_is_id_number = re.compile(rb"-?\d{1,30}\Z").match
# How some peers write an id of ours that they give back: as a string, or as the floating-point number it is to them.
_rewritten_number = re.compile(rb'"(\d{1,30})"\Z|(\d{1,30})(?:\.0{1,30})?(?:[eE][+-]?0{1,30})?\Z').match
_NULL = b"null"
_LINE_ENDS_TO_SPACES = bytes.maketrans(b"\r\n", b"  ")


class Envelope(msgspec.Struct, gc=False):
    """The members of any message, values unparsed."""

    jsonrpc: str = ""
    id: msgspec.Raw = ABSENT
    method: str | None = None
    params: msgspec.Raw = ABSENT
    result: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT


class Request(msgspec.Struct, gc=False):
    """A call that wants an answer. `id` are the bytes the peer wrote, quotes included."""

    id: bytes
    method: str
    params: Params | None


class Notification(msgspec.Struct, gc=False):
    """A call that wants no answer."""

    method: str
    params: Params | None


class Response(msgspec.Struct, gc=False):
    """An answer. `member` is "result" or "error", `value` its JSON; the id of an error is null where it has none."""

    id: bytes
    member: str
    value: msgspec.Raw


Message = Request | Notification | Response

MAX_BATCH = 1000  # messages of a backend's; more are none

_decode_envelope = msgspec.json.Decoder(Envelope).decode
_decode_params = msgspec.json.Decoder(Params).decode
_decode_batch = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_string = msgspec.json.Decoder(str).decode
encode = msgspec.json.Encoder().encode


@memo(64)
def quote_method(method: str) -> bytes:
    """The method as JSON."""
    return encode(method)


def parse_client(body: bytes) -> Message | list[Message]:
    """One message, or a batch, from a client: strict.

    Raises:
        ParseError: not JSON, not UTF-8, or nested too deeply.
        InvalidMessage: JSON, but not a message; a duplicate key in the envelope or the first level of params.
    """
    require_utf8(body)
    if b"\n" in body or b"\r" in body:
        body = on_one_line(body)
    if body.lstrip(b" \t")[:1] == b"[":
        return [_parse_one(bytes(item)) for item in _split_batch(body)]
    return _parse_one(body)


def parse_backend(line: bytes) -> Message:
    """One message from a backend's stdout: the last of two equal keys wins, as it does in any client.

    Raises:
        ParseError: not JSON or not UTF-8: noise, most often; else see `broken`.
        InvalidMessage: JSON, but not a message.
    """
    if not line.isascii():
        require_utf8(line)
    return _classify(_decode(line))


def require_utf8(data: bytes) -> None:
    """Raises ParseError unless this is strict UTF-8; msgspec does not look inside Raw members."""
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError:
            raise ParseError("the message is not UTF-8") from None


def compact(data: bytes) -> bytes:
    """The same JSON without whitespace between tokens, numbers and strings untouched."""
    try:
        return msgspec.json.format(data, indent=-1)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ParseError(f"the message is not JSON: {error}") from None


def on_one_line(body: bytes) -> bytes:
    """The same JSON without line ends. Raises ParseError."""
    try:
        return compact(body)
    except ParseError:
        tolerant.require_json(body)  # which has no line ends within strings
        return body.translate(_LINE_ENDS_TO_SPACES)


def _split_batch(body: bytes) -> Iterable[msgspec.Raw | bytes]:
    try:
        return _decode_batch(body)
    except (msgspec.DecodeError, RecursionError):
        return tolerant.items(body)


def _parse_one(body: bytes) -> Message:
    message = _classify(_decode(body))
    if len(dump(message)) != len(body):
        _refuse_duplicate_keys(body)
    return message


def several(line: bytes) -> list[bytes]:
    """The messages of a backend's line that has several: a batch, or one behind the other; none where it has one."""
    if line.lstrip()[:1] != b"[":
        return tolerant.messages(line)
    try:
        items = [bytes(item) for item in _split_batch(line)]
    except ParseError:
        return []
    return [] if len(items) > MAX_BATCH else [item for item in items if item[:1] == b"{"]


def _decode(data: bytes) -> Envelope:
    try:
        return _decode_envelope(data)
    except msgspec.ValidationError as error:
        raise InvalidMessage(f"not a JSON-RPC message: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _envelope_of(dict(tolerant.members(data)))


def _envelope_of(members: Params) -> Envelope:
    method = string_of(members.get("method"))
    if method is None and "method" in members:
        raise InvalidMessage('not a JSON-RPC message: "method" must be a string')
    version = string_of(members.get("jsonrpc")) or ""
    values = (members.get(name, ABSENT) for name in ("params", "result", "error"))
    return Envelope(version, members.get("id", ABSENT), method, *values)


def _classify(envelope: Envelope) -> Message:
    if envelope.jsonrpc != "2.0":
        raise InvalidMessage('not a JSON-RPC 2.0 message: "jsonrpc" must be "2.0"')
    raw_id = bytes(envelope.id)  # empty where it is absent
    if envelope.method is not None:
        if len(envelope.method) > MAX_METHOD_CHARACTERS:
            raise InvalidMessage(f'a "method" has at most {MAX_METHOD_CHARACTERS} characters')
        params = _params_of(envelope.params)
        if not raw_id:
            return Notification(envelope.method, params)
        return Request(_checked_id(raw_id), envelope.method, params)
    has_result, has_error = envelope.result is not ABSENT, envelope.error is not ABSENT
    if has_result and has_error:  # as JSON-RPC 1.0 has it: one of them is null
        has_result, has_error = bytes(envelope.result) != _NULL, bytes(envelope.error) != _NULL
    if has_result == has_error:
        raise InvalidMessage('a message has a "method", or exactly one of "result" and "error"')
    if not raw_id.isdigit():
        if not raw_id and has_result:
            raise InvalidMessage('a response needs an "id"')
        raw_id = answered_id(raw_id) or _NULL
    if has_result:
        return Response(raw_id, "result", envelope.result)
    return Response(raw_id, "error", envelope.error)


def answered_id(raw: bytes) -> bytes:
    """The id that an answer names, as we wrote it; a peer may give a number back as a string, as 5.0 or as 5e0."""
    number = _rewritten_number(raw)
    return raw if number is None else number[1] or number[2]


def _params_of(raw: msgspec.Raw) -> Params | None:
    if raw is ABSENT:
        return None
    try:
        return _decode_params(raw)
    except msgspec.ValidationError:
        if bytes(raw) == _NULL:
            return None
        raise InvalidMessage('"params" must be an object') from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _writable(tolerant.members(bytes(raw)))


def _writable(members: Iterable[tuple[str, msgspec.Raw]]) -> Params:
    """Refuses keys that cannot be written again."""
    found = dict(members)
    try:
        encode(list(found))
    except UnicodeEncodeError:
        raise InvalidMessage("a key is cut in the middle of a character") from None
    return found


def refusal(request_id: bytes, error: InvalidMessage) -> bytes | None:
    """The answer to a request that is no message; None where the id cannot be given back."""
    try:
        _checked_id(request_id)
    except InvalidMessage:
        return None
    if string_of(request_id) is None and request_id[:1] == b'"':
        return None
    return error_response(request_id, INVALID_REQUEST, str(error))


def _checked_id(raw: bytes) -> bytes:
    """The id's bytes, if it may be one: an integer of up to 30 digits or a string of up to 256 characters."""
    if raw[:1] == b'"':
        if len(raw) <= MAX_ID_CHARACTERS + 2 or len(string_of(raw) or raw) <= MAX_ID_CHARACTERS:
            return raw
        raise InvalidMessage(f'an "id" has at most {MAX_ID_CHARACTERS} characters')
    if _is_id_number(raw):
        return raw
    raise InvalidMessage('an "id" is an integer of up to 30 digits or a string')


def dump(message: Message) -> bytes:
    """The message as we write it: one line, the envelope's members once and in a fixed order."""
    if isinstance(message, Response):
        return b'{"jsonrpc":"2.0","id":%b,"%b":%b}' % (message.id, message.member.encode(), message.value)
    if isinstance(message, Request):
        return dump_request(message.id, message.method, message.params)
    return dump_notification(message.method, message.params)


def dump_request(request_id: bytes, method: str, params: Params | None) -> bytes:
    """A request with these id bytes."""
    if params is None:
        return b'{"jsonrpc":"2.0","id":%b,"method":%b}' % (request_id, quote_method(method))
    return b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}' % (request_id, quote_method(method), encode(params))


def dump_notification(method: str, params: Params | None) -> bytes:
    """A notification."""
    if params is None:
        return b'{"jsonrpc":"2.0","method":%b}' % quote_method(method)
    return b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (quote_method(method), encode(params))


def dump_response(request_id: bytes, response: Response) -> bytes:
    """The response under another id."""
    if response.member == "result":
        return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (request_id, response.value)
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (request_id, response.value)


def result_response(request_id: bytes, result: Any) -> bytes:
    """A successful answer of our own."""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (request_id, encode(result))


def error_response(request_id: bytes, code: int, message: str, data: Any = None) -> bytes:
    """An error answer of our own; `request_id` is b"null" where there is none to name."""
    error: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (request_id, encode(error))


def readable_members_of(raw: msgspec.Raw) -> Params:
    """As `members_of`.

    Raises:
        InvalidMessage: it is an object, and one that cannot be read, or not be written again.
    """
    members = members_of(raw)
    if not members and bytes(raw)[:1] == b"{" and bytes(raw)[1:].strip() != b"}":
        raise InvalidMessage("an object in the message cannot be read")
    return members


def members_of(raw: msgspec.Raw) -> Params:
    """An object's members, values unparsed; empty where it is none, or cannot be read."""
    try:
        return _decode_params(raw)
    except msgspec.ValidationError:
        return {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            return _writable(tolerant.members(bytes(raw)))
        except InvalidMessage:
            return {}


def code_of(response: Response) -> int | None:
    """The code of an error, where it is an integer of 32 bits."""
    try:
        code = int(bytes(members_of(response.value)["code"]))
    except (KeyError, ValueError):
        return None
    return code if -(1 << 31) <= code < 1 << 31 else None


def string_of(raw: msgspec.Raw | bytes | None) -> str | None:
    """The string, or None where it is none."""
    if raw is None:
        return None
    try:
        return _decode_string(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


# --- duplicate keys: the slow way, taken only where our own output is not as long as the input


class _Pairs(list[tuple[str, Any]]):
    """An object's members in order, duplicates included."""


_slow_decoder = json.JSONDecoder(object_pairs_hook=_Pairs, parse_int=str, parse_float=str)


def _refuse_duplicate_keys(body: bytes) -> None:
    try:
        tight = compact(body)
    except ParseError:
        _refuse_duplicate_keys_slowly(body)
        return
    if len(dump(_classify(_decode(tight)))) == len(tight):
        return  # only white space made the difference
    try:
        members = _slow_decoder.decode(tight.decode())
    except (ValueError, RecursionError) as error:
        raise ParseError(f"the message is not JSON: {error}") from None
    _require_unique(members)
    for key, value in members:
        if key == "params" and isinstance(value, _Pairs):
            _require_unique(value)


def _refuse_duplicate_keys_slowly(body: bytes) -> None:
    members = tolerant.members(body)
    _require_unique(members)
    for key, value in members:
        if key == "params" and bytes(value)[:1] == b"{":
            _require_unique(tolerant.members(bytes(value)))


def _require_unique(members: Sequence[tuple[str, Any]]) -> None:
    keys = [key for key, _ in members]
    if len(set(keys)) != len(keys):
        raise InvalidMessage("a key stands twice in the message")
