"""MirroredHeaders: which arguments of a backend's tools clients must repeat in headers (x-mcp-header).

Learnt from the lists that clients ask for, and from lists that the gateway asks for itself.
"""

import json
import time
from collections.abc import Callable

import anyio
import msgspec

from app.errors import GatewayError
from app.protocol.commands import Answer
from app.protocol.eras.sessionless_envelope import MirroredParameter, mirrored_parameters
from app.protocol.jsonrpc import Notification, Params, Request, Response, members_of
from app.sessions.session import Session
from app.sessions.streams.streams import Reply

MIRRORS_S = 60.0  # how long a list is taken as current
LOOK_S = 10.0  # for all pages; then the list is cancelled
MAX_PAGES = 20  # of a backend's tools
MAX_MIRRORED = 1000  # parameters that are remembered; headers of others are not checked
MAX_TOOL_NAME = 200
ANNOTATION = b"x-mcp-header"

Found = dict[str, list[MirroredParameter]]


class MirroredHeaders:
    """The annotated parameters by tool, for one group of pooled sessions."""

    def __init__(self) -> None:
        self._known: Found | None = None
        self._seen_at = self._asked_at = float("-inf")
        self._look: _Look | None = None

    def of(self, tool: str) -> list[MirroredParameter] | None:
        """The tool's parameters; None while nothing is known."""
        return None if self._known is None else self._known.get(tool, [])

    def changed(self) -> None:
        """The tools have changed: what is known is out of date."""
        self._seen_at = self._asked_at = float("-inf")

    def saw(self, asked: Params | None, response: Response) -> None:
        """A page that a client has listed."""
        if response.member == "result":
            page = members_of(response.value)
            self._learn(_of_page(page), is_all="cursor" not in (asked or {}) and _next_cursor(page) is None)

    def is_due(self) -> bool:
        return max(self._seen_at, self._asked_at) + MIRRORS_S < time.monotonic()

    def look(self, session: Session, ids: Callable[[], bytes], params: Params, *, max_age_s: float) -> anyio.Event:
        """Lists all pages, unless what is known is at most `max_age_s` old. The event is set at the end."""
        if self._look is None:
            if self._seen_at + max_age_s > time.monotonic():
                done = anyio.Event()
                done.set()
                return done
            self._asked_at = time.monotonic()
            self._look = look = _Look(session, ids, params, self._over)
            look.next()
            return look.done
        return self._look.done

    def sweep(self, now: float, *, is_leaving: bool) -> bool:
        """Cancels a listing that takes too long; whether one is under way."""
        if self._look is not None and (is_leaving or self._asked_at + LOOK_S < now):
            self._look.give_up()
        return self._look is not None

    def _over(self, found: Found | None) -> None:
        self._look = None
        if found is not None:
            self._learn(found, is_all=True, at=self._asked_at)

    def _learn(self, found: Found, *, is_all: bool, at: float | None = None) -> None:
        if is_all:
            self._known, self._seen_at = {}, time.monotonic() if at is None else at
        known = self._known = self._known or {}
        room = MAX_MIRRORED - sum(map(len, known.values()))
        for name, mirrored in found.items():
            room += len(known.pop(name, []))
            if mirrored and len(mirrored) <= room and len(name) <= MAX_TOOL_NAME:
                known[name] = mirrored
                room -= len(mirrored)


class _Look:
    """Lists all pages, without a task: each answer asks for the next page."""

    def __init__(
        self, session: Session, ids: Callable[[], bytes], params: Params, on_over: Callable[[Found | None], None]
    ) -> None:
        self._session, self._ids, self._params, self._on_over = session, ids, params, on_over
        self._id = b""  # of the request for the current page
        self._found: Found = {}
        self._pages = 0
        self._is_given_up = False
        self.done = anyio.Event()

    def next(self) -> None:
        self._pages += 1
        self._id = self._ids()
        reply = self._session.reply(1, may_stream=False)
        try:
            self._session.request(Request(self._id, "tools/list", dict(self._params)), reply, is_own=True)
        except GatewayError:
            self._end(None)
            return
        reply.outcome.add_done_callback(lambda _: self._came(reply))

    def give_up(self) -> None:
        """Cancels the request. Idempotent."""
        if not self._is_given_up:
            self._is_given_up = True
            params = {"requestId": msgspec.Raw(self._id), "reason": msgspec.Raw(b'"it takes too long"')}
            self._session.try_notify(Notification("notifications/cancelled", params))

    def _came(self, reply: Reply) -> None:
        outcome = reply.outcomes[0] if reply.outcomes else None
        if not isinstance(outcome, Answer) or self._is_given_up:
            self._end(None)
            return
        page = members_of(outcome.response.value) if outcome.response.member == "result" else {}
        self._found |= _of_page(page)
        cursor = _next_cursor(page)
        if cursor is None or self._pages >= MAX_PAGES:
            self._end(self._found)
            return
        self._params = {**self._params, "cursor": cursor}
        self.next()

    def _end(self, found: Found | None) -> None:
        self._on_over(found)
        self.done.set()


def _of_page(page: Params) -> Found:
    tools = page.get("tools", msgspec.Raw())
    if ANNOTATION not in bytes(tools):
        return {}
    try:
        found = json.loads(bytes(tools))
    except (ValueError, RecursionError):
        return {}
    named = [tool for tool in found if isinstance(tool, dict)] if isinstance(found, list) else []
    return {str(tool.get("name")): mirrored_parameters(tool.get("inputSchema")) for tool in named}


def _next_cursor(page: Params) -> msgspec.Raw | None:
    cursor = page.get("nextCursor")
    return None if cursor is None or bytes(cursor) == b"null" else cursor
