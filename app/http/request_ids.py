"""RequestIds: X-Request-Id and `traceparent`, by which a request is found in the logs of nodes and of its client."""

import os
import re
from collections.abc import Mapping, MutableMapping
from typing import Any

REQUEST_ID, TRACEPARENT = b"x-request-id", b"traceparent"
IDS = "trunkline.request_ids"  # in the ASGI scope

_is_request_id = re.compile(rb"[A-Za-z0-9._:-]{1,64}\Z").match
# https://www.w3.org/TR/trace-context/#traceparent-header: a later version may say more behind what is known
_traceparent = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})(-.*)?\Z"
).match

_POOL = 256  # ids made at once: one by one each would cost a system call


class _Source:
    """Random hex digits, 32 per request. A forked process must `forget` those of its parent."""

    __slots__ = ("_digits", "_place")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._digits, self._place = b"", 0

    def next(self) -> bytes:
        place = self._place
        if place >= len(self._digits):
            self._digits, place = os.urandom(16 * _POOL).hex().encode("ascii"), 0
        self._place = place + 32
        return self._digits[place : place + 32]


_source = _Source()
_next_id = _source.next
os.register_at_fork(after_in_child=_source.forget)


class RequestIds:
    """X-Request-Id and `traceparent` (W3C Trace Context) of one request. The edge puts both into every answer."""

    __slots__ = ("_request", "_traceparent")

    def __init__(self, request: bytes, traceparent: bytes | None = None) -> None:
        self._request, self._traceparent = request, traceparent

    @property
    def traceparent(self) -> bytes:
        """The client's with a parent id of ours; or one that begins here, with the request id as its trace."""
        return self._traceparent or b"00-" + self._request + b"-" + self._request[16:] + b"-00"

    @property
    def headers(self) -> tuple[tuple[bytes, bytes], tuple[bytes, bytes]]:
        """Both, for a request that is forwarded to another node."""
        return ((REQUEST_ID, self._request), (TRACEPARENT, self.traceparent))

    @property
    def lines(self) -> bytes:
        return b"x-request-id: " + self._request + b"\r\ntraceparent: " + self.traceparent + b"\r\n"

    @property
    def request(self) -> str:
        """The client's X-Request-Id, or one made here."""
        return self._request.decode("ascii")

    def names(self) -> tuple[str, str]:
        """The request id and the trace id."""
        request = self.request
        return request, request if self._traceparent is None else self._traceparent[3:35].decode("ascii")

    def fields(self) -> dict[str, object]:
        """Both as fields of a log line."""
        return dict(zip(("request", "trace"), self.names(), strict=True))


def request_ids(headers: Mapping[bytes, bytes]) -> RequestIds:
    """The ids of a request with these headers. Missing or malformed ones are made, both from one number."""
    made = _next_id()
    if TRACEPARENT not in headers and REQUEST_ID not in headers:  # most clients
        return RequestIds(made)
    trace, flags = made, b"00"
    found = _traceparent(headers.get(TRACEPARENT, b""))
    if found is not None and not (found[1] == b"00" and found[4] is not None):
        trace, flags = found[2], found[3]
    given = headers.get(REQUEST_ID, b"")
    request = given if _is_request_id(given) else made
    return RequestIds(request, b"00-%b-%b-%b" % (trace, made[16:], flags))


def named(scope: MutableMapping[str, Any]) -> RequestIds:
    """The ids of the request with this ASGI scope, which keeps them."""
    ids: RequestIds | None = scope.get(IDS)
    if ids is None:
        ids = scope[IDS] = request_ids(dict(scope["headers"]))
    return ids
