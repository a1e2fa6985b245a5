"""NodeLinks: the links that other nodes have opened to this one, and the requests that come over them.

To what answers it, such a request looks like one of ASGI; the body is there from the beginning.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from urllib.parse import unquote

import anyio
from starlette.types import Message, Scope

from app.memo import memo
from app.routing.frames import (
    CANCEL,
    CHUNK_BYTES,
    CREDIT,
    DATA,
    LEAVING,
    MAX_HEAD_BYTES,
    REMEMBERED,
    REQUEST,
    RESPONSE,
    WINDOW_BYTES,
    Frame,
    LinkBroken,
    RequestHead,
    decode_number,
    decode_request,
    encode_number,
    encode_response,
)
from app.routing.link import Link
from app.routing.node_proof import LinkKeys, NodeProof
from app.routing.peer_link import MAX_STREAMS

MAX_LINKS = 4096  # more than there can be nodes
SILENT_S = 10.0  # whoever opens a link and says nothing has only repeated what a node once said

_TOO_MANY = encode_response(503, ((b"retry-after", b"1"), (b"content-length", b"0")))

log = logging.getLogger(__name__)

Serve = Callable[["LinkedRequest"], Awaitable[None]]


class LinkedRequest:
    """A request that another node has sent on; `head` is that node's word, which can be relied on."""

    __slots__ = ("_begin", "_credit", "_has_begun", "_is_asked", "_link", "_more", "_stream", "body", "head", "is_over")

    def __init__(self, link: "ServingLink", stream: int, head: RequestHead, body: bytes) -> None:
        self.head, self.body = head, body
        self._link, self._stream = link, stream
        self._credit = WINDOW_BYTES
        self._begin: bytes | None = None  # the head of the answer, until there is some of its body
        self._has_begun = self._is_asked = False
        self.is_over = False  # answered to its end, or nobody waits for it
        self._more: asyncio.Future[None] | None = None  # until there is credit, or nobody waits any more

    def scope(self) -> Scope:
        """The ASGI scope, less what is not known here: addresses and names."""
        path, raw_path, query = _split(self.head.target)
        return {
            "type": "http", "http_version": "1.1", "method": self.head.method, "scheme": "http", "root_path": "",
            "path": path, "raw_path": raw_path, "query_string": query, "headers": self.head.headers,
        }  # fmt: skip

    async def receive(self) -> Message:
        """The end of the body, which is `body`; then waits until the client leaves."""
        if not self._is_asked:
            self._is_asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        while not self.is_over:
            await self._change()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Sends a part of the answer, once the other node has room for it. When nobody waits for it, it is dropped."""
        if self.is_over:
            return
        if message["type"] == "http.response.start":
            head = encode_response(message["status"], message.get("headers", ()))
            if len(head) > MAX_HEAD_BYTES:
                raise ValueError("the headers are too long to be sent to another node")
            self._begin = head
            return
        body: bytes = message.get("body", b"")
        is_end = not message.get("more_body", False)
        if len(body) > self._credit or self._link.is_paused:
            await self._send_slowly(body)
            body = b""
        self._credit -= len(body)
        if body or is_end or self._begin is not None:
            self._send_data(body, is_end=is_end)

    def cut_off(self) -> None:
        """There will be no more of the answer; where it is not complete, the other node is told."""
        if self.is_over:
            return
        if self._has_begun:
            self._link.send(CANCEL, self._stream)
        else:
            self._link.send(RESPONSE, self._stream, encode_response(500, ()), is_end=True)
        self._link.answered(self._stream)
        self.end()

    # --- from the link

    def credited(self, size: int) -> None:
        """The other node has room for so much more."""
        self._credit += size
        self._changed()

    def end(self) -> None:
        """Nobody waits for more of it."""
        self.is_over = True
        self._changed()

    # ---

    async def _send_slowly(self, body: bytes) -> None:
        """As much at a time as there is credit for: whoever has given some may wait for its use to give more."""
        at = 0
        while at < len(body) and not self.is_over:
            if self._link.is_paused:
                await self._link.writable()
            elif not self._credit:
                await self._change()
            else:
                part = body[at : at + min(self._credit, CHUNK_BYTES)]
                at += len(part)
                self._credit -= len(part)
                self._send_data(part, is_end=False)

    def _send_data(self, body: bytes, *, is_end: bool) -> None:
        if self.is_over:
            return
        kind = DATA
        if self._begin is not None:
            kind, body, self._begin, self._has_begun = RESPONSE, self._begin + body, None, True
        self._link.send(kind, self._stream, body, is_end=is_end, is_alone=is_end and self._link.has_one)
        if is_end:
            self._link.answered(self._stream)
            self.end()

    async def _change(self) -> None:
        if self._more is None:
            self._more = self._link.loop.create_future()
        await asyncio.shield(self._more)

    def _changed(self) -> None:
        more, self._more = self._more, None
        if more is not None and not more.done():
            more.set_result(None)


class ServingLink(Link):
    """The end of a link that answers. The tasks that do are also in `tasks`: they may outlive it."""

    def __init__(
        self,
        keys: LinkKeys,
        serve: Serve,
        max_body_bytes: int,
        tasks: set[asyncio.Task[None]],
        on_closed: Callable[["ServingLink"], None],
    ) -> None:
        super().__init__(keys.answers, keys.requests)
        self._serve, self._max_body_bytes, self._on_closed = serve, max_body_bytes, on_closed
        self._all_tasks = tasks
        self._requests: dict[int, LinkedRequest] = {}
        self._bodies: dict[int, _Body] = {}  # of requests that are not here to their end yet
        self._tasks = set[asyncio.Task[None]]()
        self._last = 0
        self._is_leaving = False
        self._silence = self.loop.call_later(SILENT_S, self._is_silent)

    def __len__(self) -> int:
        """How many requests are here."""
        return len(self._tasks) + len(self._bodies)

    @property
    def has_one(self) -> bool:
        """Whether a single request waits for its answer."""
        return len(self._requests) == 1

    def leave(self) -> None:
        """What comes from now on is not answered here; the other node closes the link once it has its answers."""
        if not self._is_leaving:
            self._is_leaving = True
            self.send(LEAVING, 0, encode_number(self._last))

    def answered(self, stream: int) -> None:
        """The answer is complete."""
        self._requests.pop(stream, None)

    def frame_received(self, frame: Frame) -> None:
        if frame.kind == REQUEST:
            self._requested(frame)
        elif frame.kind == DATA:
            self._body_received(frame)
        elif frame.kind == CREDIT and frame.stream in self._requests:
            self._requests[frame.stream].credited(decode_number(frame.payload))
        elif frame.kind == CANCEL and frame.stream in self._requests:
            self._requests.pop(frame.stream).end()

    def closed(self) -> None:
        self._silence.cancel()
        requests, self._requests = self._requests, {}
        self._bodies.clear()
        for request in requests.values():
            request.end()
        self._on_closed(self)

    def _requested(self, frame: Frame) -> None:
        if self._is_leaving:  # the other node knows that it is not answered
            return
        if frame.stream <= self._last:
            raise LinkBroken
        self._last = frame.stream
        if len(self) >= MAX_STREAMS:  # some of which nobody waits for any more: the other node may have fewer
            self.send(RESPONSE, frame.stream, _TOO_MANY, is_end=True)
            return
        head, body = decode_request(frame.payload)
        if frame.is_end:
            self._answer(frame.stream, head, body)
        else:
            self._bodies[frame.stream] = _Body(head, self._max_body_bytes)

    def _body_received(self, frame: Frame) -> None:
        body = self._bodies.get(frame.stream)
        if body is None:  # of a request that is not answered
            return
        body.append(frame.payload)
        if frame.is_end:
            del self._bodies[frame.stream]
            self._answer(frame.stream, body.head, b"".join(body.parts))

    def _answer(self, stream: int, head: RequestHead, body: bytes) -> None:
        request = self._requests[stream] = LinkedRequest(self, stream, head, body)
        task = self.loop.create_task(self._run(request))
        self._tasks.add(task)
        self._all_tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._all_tasks.discard(task)

    async def _run(self, request: LinkedRequest) -> None:
        try:
            await self._serve(request)
        except Exception:
            log.exception("a request that another node has sent on was not answered")
        finally:
            request.cut_off()

    def _is_silent(self) -> None:
        if not self._last:
            self.abort()

    def __repr__(self) -> str:
        return f"<ServingLink [{len(self)} requests, {self._last} in all]>"


class NodeLinks:
    """Accepts links (fulfils `http.uvicorn_protocol.AcceptsLinks`) and has what comes over them served. Owns the tasks
    that do: a request is served to its end also when its link is lost."""

    def __init__(self, proof: NodeProof, serve: Serve, *, max_body_bytes: int) -> None:
        self._proof, self._serve, self._max_body_bytes = proof, serve, max_body_bytes
        self._links, self._tasks = set[ServingLink](), set[asyncio.Task[None]]()
        self._all_closed: asyncio.Event | None = None  # once this node is leaving

    def accept(self, challenge: bytes) -> tuple[bytes, ServingLink] | None:
        """The proof that this is a node, and the link that begins with it; None where no node asks."""
        proved = self._proof.prove(challenge)
        if proved is None or len(self._links) >= MAX_LINKS:
            return None
        proof, keys = proved
        link = ServingLink(keys, self._serve, self._max_body_bytes, self._tasks, self._closed)
        self._links.add(link)
        if self._all_closed is not None:
            link.leave()
        return proof, link

    async def leave(self, seconds: float) -> None:
        """Takes no more requests, and returns when the other nodes have their answers, or the time is over."""
        self._all_closed = asyncio.Event()
        for link in self._links:
            link.leave()
        if self._links:
            with anyio.move_on_after(seconds):
                await self._all_closed.wait()

    def close(self) -> None:
        """Ends whatever is left at once."""
        for link in list(self._links):
            link.abort()
        for task in self._tasks:
            task.cancel()

    def _closed(self, link: ServingLink) -> None:
        self._links.discard(link)
        if not self._links and self._all_closed is not None:
            self._all_closed.set()

    def __repr__(self) -> str:
        return f"<NodeLinks [{len(self._links)} links, {sum(map(len, self._links))} requests]>"


@memo(REMEMBERED)
def _split(target: bytes) -> tuple[str, bytes, bytes]:
    """The path, the same as it came, and the query."""
    path, _, query = target.partition(b"?")
    return unquote(path.decode("ascii")), path, query


class _Body:
    """What has come of a body. Kept up to just above the limit, so that it shows that it is too long."""

    __slots__ = ("_room", "head", "parts")

    def __init__(self, head: RequestHead, limit: int) -> None:
        self.head, self.parts, self._room = head, list[bytes](), limit + 1

    def append(self, part: bytes) -> None:
        kept = part[: self._room]
        self._room -= len(kept)
        self.parts.append(kept)
