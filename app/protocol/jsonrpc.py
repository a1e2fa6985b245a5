"""JSON-RPC envelopes: what is checked is what is forwarded.

The envelope and the first level of `params` are decoded and written again; everything deeper is forwarded as the bytes
that came. Traps of msgspec that are handled here (each has a test): `Raw` members are not checked for UTF-8, the last
of two equal keys wins, unknown members are dropped, and deep nesting raises RecursionError, which is no DecodeError.
JSON that msgspec refuses goes to `tolerant`.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from app.errors import InvalidMessage, ParseError
from app.protocol import tolerant
from app.text.memo import memo

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
UNSUPPORTED_PROTOCOL_VERSION = -32022
REQUEST_CANCELLED = -32800

MAX_ID_CHARACTERS = 256
MAX_METHOD_CHARACTERS = 200  # those of the protocol have less than 50; calls keep theirs in memory
ABSENT = msgspec.Raw()
Params = dict[str, msgspec.Raw]

# 1.0 and 1e3 are not accepted: a peer might write them differently when it gives the id back.
_is_id_number = re.compile(rb"-?\d{1,30}\Z").match
_is_nothing = re.compile(rb"null|\[\s*\]").fullmatch  # PHP writes an empty object as []
# How some peers give back a number of ours: as a string, or as a floating-point number.
_rewritten_number = re.compile(rb'"(\d{1,30})"\Z|(\d{1,30})(?:\.0{1,30})?(?:[eE][+-]?0{1,30})?\Z').match
_NULL = b"null"
_NOTIFICATIONS = "notifications/"  # some serialisers write a member that is not there as null: such an id too
_LINE_ENDS_TO_SPACES = bytes.maketrans(b"\r\n", b"  ")


class Envelope(msgspec.Struct, gc=False):
    """The members of any message; values are not parsed."""

    jsonrpc: str = ""
    id: msgspec.Raw = ABSENT
    method: str | None = None
    params: msgspec.Raw = ABSENT
    result: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT


class Request(msgspec.Struct, gc=False):
    """`id` has the bytes that the peer wrote, quotes included."""

    id: bytes
    method: str
    params: Params | None


class Notification(msgspec.Struct, gc=False):
    method: str
    params: Params | None


class Response(msgspec.Struct, gc=False):
    """`member` is "result" or "error", `value` its JSON. The id of an error may be null."""

    id: bytes
    member: str
    value: msgspec.Raw


Message = Request | Notification | Response

MAX_BATCH = 1000  # messages of a backend's batch; a longer one is dropped

_decode_envelope = msgspec.json.Decoder(Envelope).decode
_decode_params = msgspec.json.Decoder(Params).decode
_decode_batch = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_string = msgspec.json.Decoder(str).decode
encode = msgspec.json.Encoder().encode


@memo(64)
def quote_method(method: str) -> bytes:
    return encode(method)


def encoded(value: Any) -> msgspec.Raw:
    """The value as JSON, to be a member of something else."""
    return msgspec.Raw(encode(value))


def parse_client(body: bytes) -> Message | list[Message]:
    """One message, or a batch, from a client: strict.

    Raises:
        ParseError: not JSON, not UTF-8, or nested too deeply.
        InvalidMessage: not a message, or a duplicate key in the envelope or the first level of params.
    """
    if not body.isascii():
        body = body.removeprefix(tolerant.BYTE_ORDER_MARK)  # "parsers MAY ignore" it (RFC 8259 §8.1)
        require_utf8(body)
    if b"\n" in body or b"\r" in body:
        body = on_one_line(body)
    if body.lstrip(b" \t")[:1] == b"[":
        return [_parse_one(bytes(item)) for item in _split_batch(body)]
    return _parse_one(body)


def parse_backend(line: bytes) -> Message:
    """One message from a backend's stdout; of two equal keys the last wins, as in other clients.

    Raises:
        ParseError: not JSON or not UTF-8: mostly noise; `tolerant.broken` may tell whose message it is.
        InvalidMessage: JSON, but not a message.
    """
    if not line.isascii():
        require_utf8(line)
    return _classify(_decode(line))


def require_utf8(data: bytes) -> None:
    """Raises ParseError unless this is UTF-8; msgspec does not check Raw members."""
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError:
            raise ParseError("the message is not UTF-8") from None


def compact(data: bytes) -> bytes:
    """The same JSON without whitespace between tokens. Raises ParseError."""
    try:
        return msgspec.json.format(data, indent=-1)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ParseError(f"the message is not JSON: {error}") from None


def on_one_line(body: bytes) -> bytes:
    """The same JSON without line ends. Raises ParseError."""
    try:
        return compact(body)
    except ParseError:
        tolerant.require_json(body)  # then there are no line ends within strings
        return body.translate(_LINE_ENDS_TO_SPACES)


def _split_batch(body: bytes) -> Iterable[msgspec.Raw | bytes]:
    try:
        return _decode_batch(body)
    except (msgspec.DecodeError, RecursionError):
        return tolerant.items(body)


def _parse_one(body: bytes) -> Message:
    envelope = _decode(body)
    try:
        message = _classify(envelope)
    except InvalidMessage as error:
        raise error.about(bytes(envelope.id) if _is_id(bytes(envelope.id)) else _NULL) from None
    written = dump(message)
    if len(written) != len(body):
        _refuse_duplicate_keys(body, written)
    return message


def several(line: bytes) -> list[bytes]:
    """The messages of a backend's line that has several: a batch, or concatenated. Empty if it has one."""
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
        if not raw_id or (raw_id == _NULL and envelope.method.startswith(_NOTIFICATIONS)):
            return Notification(envelope.method, _params_of(envelope.params))
        return Request(_checked_id(raw_id), envelope.method, _params_of(envelope.params))
    has_result, has_error = envelope.result is not ABSENT, envelope.error is not ABSENT
    if has_result and has_error:  # as in JSON-RPC 1.0, where one of them is null
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
    """The id of an answer as we wrote it: a peer may give 5 back as "5", 5.0 or 5e0."""
    number = _rewritten_number(raw)
    return raw if number is None else number[1] or number[2]


def _params_of(raw: msgspec.Raw) -> Params | None:
    if raw is ABSENT:
        return None
    try:
        return _decode_params(raw)
    except msgspec.ValidationError:
        if _is_nothing(raw):
            return None
        raise InvalidMessage('"params" must be an object') from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _writable(tolerant.members(bytes(raw)))


def _writable(members: Iterable[tuple[str, msgspec.Raw]]) -> Params:
    """Raises InvalidMessage if a key cannot be encoded again (a lone surrogate)."""
    found = dict(members)
    try:
        encode(list(found))
    except UnicodeEncodeError:
        raise InvalidMessage("a key contains a lone surrogate") from None
    return found


def refusal(request_id: bytes, error: InvalidMessage) -> bytes | None:
    """The error answer to an invalid request; None if its id is not valid either."""
    return error_response(request_id, INVALID_REQUEST, str(error)) if _is_id(request_id) else None


def _is_id(raw: bytes) -> bool:
    try:
        return string_of(_checked_id(raw)) is not None or raw[:1] != b'"'
    except InvalidMessage:
        return False


def _checked_id(raw: bytes) -> bytes:
    """Raises InvalidMessage unless it is an integer of up to 30 digits or a string of up to 256 characters."""
    if raw[:1] == b'"':
        if len(raw) <= MAX_ID_CHARACTERS + 2 or len(string_of(raw) or raw) <= MAX_ID_CHARACTERS:
            return raw
        raise InvalidMessage(f'an "id" has at most {MAX_ID_CHARACTERS} characters')
    if _is_id_number(raw):
        return raw
    raise InvalidMessage('an "id" is an integer of up to 30 digits or a string')


def dump(message: Message) -> bytes:
    """The message on one line, each member of the envelope once and in a fixed order."""
    if type(message) is Request:
        return dump_request(message.id, message.method, message.params)
    if type(message) is Response:
        return dump_response(message.id, message)
    assert type(message) is Notification
    return dump_notification(message.method, message.params)


def dump_request(request_id: bytes, method: str, params: Params | None) -> bytes:
    if params is None:
        return b'{"jsonrpc":"2.0","id":%b,"method":%b}' % (request_id, quote_method(method))
    return b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}' % (request_id, quote_method(method), encode(params))


def dump_notification(method: str, params: Params | None) -> bytes:
    if params is None:
        return b'{"jsonrpc":"2.0","method":%b}' % quote_method(method)
    return b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (quote_method(method), encode(params))


def dump_response(request_id: bytes, response: Response) -> bytes:
    """The response under another id."""
    if response.member == "result":
        return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (request_id, response.value)
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (request_id, response.value)


def result_response(request_id: bytes, result: Any) -> bytes:
    """A successful answer by the gateway."""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (request_id, encode(result))


def error_response(request_id: bytes, code: int, message: str, data: Any = None) -> bytes:
    """An error answer by the gateway; `request_id` is b"null" if it is not known."""
    error: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (request_id, encode(error))


def members_of(raw: msgspec.Raw) -> Params:
    """An object's members, values not parsed; empty if it is not an object or cannot be read."""
    try:
        return _decode_params(raw)
    except msgspec.ValidationError:
        return {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            return _writable(tolerant.members(bytes(raw)))
        except InvalidMessage:
            return {}


def object_in(members: Params, name: str) -> Params:
    """The members of the object with this name; empty if there is none, or as `members_of`."""
    return members_of(members[name]) if name in members else {}


def code_of(response: Response) -> int | None:
    """The code of an error; None for a result, or if it is not an integer of 32 bits."""
    if response.member != "error":
        return None
    try:
        code = int(bytes(members_of(response.value)["code"]))
    except (KeyError, ValueError):
        return None
    return code if -(1 << 31) <= code < 1 << 31 else None


def string_of(raw: msgspec.Raw | bytes | None) -> str | None:
    """The decoded string; None if it is not a string."""
    if raw is None:
        return None
    try:
        return _decode_string(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


# --- duplicate keys: the slow way, taken only if our own output is not as long as the input


class _Pairs(list[tuple[str, Any]]):
    """An object's members in order, with duplicates."""


_slow_decoder = json.JSONDecoder(object_pairs_hook=_Pairs, parse_int=str, parse_float=str)


def _refuse_duplicate_keys(body: bytes, written: bytes) -> None:
    """`written`: what we have made of it."""
    try:
        tight = compact(body)
    except ParseError:
        _refuse_duplicate_keys_slowly(body)
        return
    if len(compact(written)) == len(tight):
        return  # they differed only in whitespace
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
        raise InvalidMessage("duplicate key in the message")


_UNREADABLE = (PARSE_ERROR, INVALID_REQUEST)  # for which JSON-RPC has an id of null; others name what was read
_FIRST = ("initialize", "server/discover")


def is_without_id(response: Response) -> bool:
    """Whether this is an error that names no request."""
    return response.id == b"null" and response.member == "error"


def may_be_of_a_call(response: Response, method: str) -> bool:
    """Whether this is an error without an id of a server that may not have been able to read the call, which is the
    only one, and the last message that it got. Any other error may be about what failed beside the call; but before the
    first message there is nothing."""
    return is_without_id(response) and (method in _FIRST or code_of(response) in _UNREADABLE)
