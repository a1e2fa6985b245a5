"""MirroredHeaders: which arguments of a backend's tools clients repeat in headers (x-mcp-header), as far as was seen.

It is learnt from lists that clients ask for, and from our own, which no call waits for that can do without.
"""

import json
import time
from collections.abc import Callable

import anyio
import msgspec

from app.errors import GatewayError
from app.protocol.commands import Answer
from app.protocol.eras.modern import MirroredParameter, mirrored_parameters
from app.protocol.jsonrpc import Notification, Params, Request, Response, members_of
from app.sessions.session import Session
from app.streams.streams import Reply

MIRRORS_S = 60.0  # how long a list is taken for the present one
LOOK_S = 10.0  # for all pages; a process that needs longer is not held up, and not kept for it
MAX_PAGES = 20  # of a backend's tools
MAX_MIRRORED = 1000  # parameters of them that are remembered; headers are not held against what is beyond
MAX_TOOL_NAME = 200
ANNOTATION = b"x-mcp-header"

Found = dict[str, list[MirroredParameter]]


class MirroredHeaders:
    """The annotated parameters by tool, of the lines of one group."""

    def __init__(self) -> None:
        self._known: Found | None = None
        self._seen_at = self._asked_at = float("-inf")
        self._look: _Look | None = None

    def of(self, tool: str) -> list[MirroredParameter] | None:
        """The tool's parameters; None while nothing is known."""
        return None if self._known is None else self._known.get(tool, [])

    def changed(self) -> None:
        """The tools are others now: what was seen of them is old."""
        self._seen_at = self._asked_at = float("-inf")

    def saw(self, asked: Params | None, response: Response) -> None:
        """A page that a client has asked for."""
        if response.member == "result":
            page = members_of(response.value)
            self._learn(_of_page(page), is_all="cursor" not in (asked or {}) and _next_cursor(page) is None)

    def is_due(self) -> bool:
        """Whether the tools are to be looked up again."""
        return max(self._seen_at, self._asked_at) + MIRRORS_S < time.monotonic()

    def look(self, session: Session, ids: Callable[[], bytes], params: Params, *, max_age_s: float) -> anyio.Event:
        """Asks for all pages, unless that was done just now; the event is set when it is over, for better or worse."""
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
        """Gives up a look that takes long; whether there is one still."""
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
    """One pass over all pages. Starts no task: each answer asks for the next page."""

    def __init__(
        self, session: Session, ids: Callable[[], bytes], params: Params, on_over: Callable[[Found | None], None]
    ) -> None:
        self._session, self._ids, self._params, self._on_over = session, ids, params, on_over
        self._id = b""  # of the request for the present page
        self._found: Found = {}
        self._pages = 0
        self._is_given_up = False
        self.done = anyio.Event()

    def next(self) -> None:
        """Asks for the first page, or the next."""
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
        """The process need not answer any more. Idempotent."""
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
    """The annotated parameters of each tool of a page, none for most."""
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
