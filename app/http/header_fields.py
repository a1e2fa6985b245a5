"""Headers that came in several lines, or in another's place: one value for each that is read."""

from collections.abc import Sequence

from app.http.errors import HttpRefusal

API_KEY, _AUTHORIZATION = b"x-api-key", b"authorization"
_WHOLE, _SPACES = (_AUTHORIZATION, b"mcp-session-id"), b" \t"

# Two of them could mean two things.
_UNIQUE = frozenset({
    b"authorization", b"content-length", b"content-type", b"host", b"idempotency-key", b"mcp-session-id", b"origin",
})  # fmt: skip
# Of those that we read; RFC 9110, 5.3. The last two are of Trace Context and Baggage.
_LISTS = frozenset({
    b"accept", b"accept-encoding", b"access-control-request-headers", b"if-match", b"if-none-match", b"tracestate",
    b"baggage",
})  # fmt: skip

Fields = list[tuple[bytes, bytes]]


def with_lists_joined(fields: Sequence[tuple[bytes, bytes]]) -> Fields:
    """Several lines of a list are one list."""
    joined = dict[bytes, bytes]()
    others: Fields = []
    for name, value in fields:
        if name not in _LISTS:
            others.append((name, value))
        elif name in joined:
            joined[name] += b", " + value
        else:
            joined[name] = value
    return [*others, *joined.items()]


def refuse_repeated(fields: Sequence[tuple[bytes, bytes]]) -> None:
    """Raises HttpRefusal where a header that must be unique is repeated."""
    names = [name for name, _ in fields]
    for name in _UNIQUE:
        if names.count(name) > 1:
            raise HttpRefusal(400, "repeated_header", f"the header {name.decode()} is repeated")


def trimmed(fields: Sequence[tuple[bytes, bytes]]) -> Fields:
    """Headers that are compared whole, without the spaces, which are no part of them (RFC 9110, 5.5); an empty one is
    none."""
    named = ((name, value.strip(_SPACES) if name in _WHOLE else value) for name, value in fields)
    return [(name, value) for name, value in named if value or name not in _WHOLE]


def with_one_credential(fields: Sequence[tuple[bytes, bytes]]) -> Fields:
    """`X-API-Key: K` is `Authorization: Bearer K`; nothing behind this knows it. An Authorization of another scheme, or
    without a token, is no credential.

    Raises:
        HttpRefusal: there are two credentials that differ.
    """
    others = [(name, value) for name, value in fields if name != API_KEY]
    found = {value.strip() for name, value in fields if name == API_KEY} - {b""}
    if not found:
        return others
    given = [value for name, value in others if name == _AUTHORIZATION and value[:7].lower() == b"bearer "]
    found |= {value[7:].strip() for value in given} - {b""}
    if len(found) > 1:
        words = "Authorization and X-API-Key, or two X-API-Key, have different credentials: send one of them"
        raise HttpRefusal(400, "two_credentials", words)
    return [*(field for field in others if field[0] != _AUTHORIZATION), (_AUTHORIZATION, b"Bearer " + found.pop())]
