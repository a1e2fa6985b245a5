"""HttpProtocol: uvicorn's HTTP protocol behind what the edge demands (`edge_protocol`), with two differences.

1. The head of an answer goes out with the beginning of its body, as ASGI has it. uvicorn writes them one after the
   other, and uvloop sends each at once: one system call too many here, and often there.
2. A request by which another node opens a link (`app.routing.link`) takes its connection over.
"""

import asyncio
from typing import Any, Protocol, cast

from app.http.edge_protocol import EdgeProtocol
from app.routing.link import CHALLENGE, PATH, PROOF, UPGRADE

JOINED_BYTES = 64 << 10  # what is longer is not worth a copy
_HEAD, _INTERIM = b"HTTP/1.1 ", b"HTTP/1.1 1"  # the latter, like 100, is a whole answer
_REFUSAL = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class AcceptsLinks(Protocol):
    """Takes over connections from other nodes (`transports.node_links.NodeLinks`)."""

    def accept(self, challenge: bytes) -> tuple[bytes, asyncio.Protocol] | None:
        """The proof to answer with, and what speaks from then on; None where no node asks."""


class HttpProtocol(EdgeProtocol):
    """Hand it to uvicorn as `http`, with `links` bound. Without them there are no other nodes."""

    def __init__(self, *args: Any, links: AcceptsLinks | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._links = links
        self._connection: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Answers go through the transport that joins; flow control and addresses know the true one."""
        super().connection_made(transport)
        self._connection = transport
        self._joining = _Joining(transport)
        self.transport = cast("asyncio.Transport", self._joining)

    def on_response_complete(self) -> None:
        """uvicorn's; a head without a body has waited for it."""
        self._joining.flush()
        super().on_response_complete()

    def _should_upgrade(self) -> bool:
        """Whether this connection is to be another protocol's: to uvicorn that is a WebSocket, to us a link. Only at
        its beginning: what was asked before would be answered in the middle of the link."""
        is_first = self.cycle is None
        return is_first and self._links is not None and self.url == PATH and self._get_upgrade() == UPGRADE

    def handle_websocket_upgrade(self) -> None:
        """What uvicorn calls then."""
        assert self._links is not None
        assert self._connection is not None
        accepted = self._links.accept(dict(self.headers).get(CHALLENGE, b""))
        if accepted is None:
            self._connection.write(_REFUSAL)
            self._connection.close()
            return
        proof, link = accepted
        lines = (
            b"HTTP/1.1 101 Switching Protocols", b"connection: upgrade", b"upgrade: " + UPGRADE,
            b"%b: %b" % (PROOF, proof), b"", b"",
        )  # fmt: skip
        self._connection.write(b"\r\n".join(lines))
        self.connections.discard(self)
        self._connection.set_protocol(link)
        link.connection_made(self._connection)


class _Joining:
    """As much of a transport as uvicorn uses. A head waits for the next write, or for the end of the answer."""

    __slots__ = ("_head", "_transport", "is_closing")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._head = transport, b""
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        head = self._head
        if head:
            self._head = b""
            if len(data) > JOINED_BYTES:
                self._transport.write(head)
                self._transport.write(data)
            else:
                self._transport.write(head + data)
        elif data.startswith(_HEAD) and not data.startswith(_INTERIM):
            self._head = data
        else:
            self._transport.write(data)

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def flush(self) -> None:
        """Sends a head that has waited."""
        head, self._head = self._head, b""
        if head:
            self._transport.write(head)
