"""Handshake: a connection where the gateway serves TLS, until its handshake is over; then an HTTP protocol has it.

It is counted among all connections from its first byte on, and has a deadline. What arrives is handled in turns with
other connections, because a signature takes 0.02 ms (P-256) to 4 ms (an RSA key of 4096 bits).
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

from app.http.client_address import UNKNOWN
from app.http.edge._refusals import HANDSHAKE_TIMEOUT, PLAIN_HTTP, SILENT, TLS_FAILED, TLS_REFUSED, Refusal
from app.http.edge._tls_transport import Tls, TlsTransport
from app.http.edge.connections import Connections
from app.http.request_ids import request_ids

HANDSHAKE_RECORD = 22  # RFC 8446 §5.1: how each TLS connection begins


class Handshake(asyncio.BufferedProtocol):
    """For uvicorn's `http` option, before the protocol `http`, which is made with the same options when it is due."""

    has_unread = False
    is_kept = is_dispensable = True  # see Connections: a request may follow; it may be closed to make room
    is_stuck = False
    scope = None  # no request yet

    def __init__(
        self,
        *,
        http: Callable[..., asyncio.Protocol],
        context: Callable[[], ssl.SSLContext],
        connections: Connections,
        **options: Any,
    ) -> None:
        """`context` has the certificate of the moment."""
        self._make_http, self._options, self._server_state = http, options, options["server_state"]
        self._context, self._among = context, connections
        self._tls: Tls | None = None
        self._arrived = b""  # what was read and waits for its turn
        self._lingers = False  # refused; waits until the client has read why
        self.since = connections.now
        self.deadline = self.since + connections.limits.handshake_s

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admits the connection, or closes it: there is no answer before the handshake."""
        self._socket = transport
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if peer else UNKNOWN
        self._server_state.connections.add(self)
        refusal = self._among.admit(self, self._address, transport.get_extra_info("socket").fileno())
        if refusal is not None:
            self.give_up(refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()

    def _leave(self) -> None:
        self._server_state.connections.discard(self)
        self._among.leave(self)
        self._among.leave_line(self._go_on)

    # --- what comes in

    def get_buffer(self, sizehint: int) -> memoryview:
        """One buffer for all connections; `buffer_updated` copies what was read."""
        return self._among.read_into

    def buffer_updated(self, nbytes: int) -> None:
        self._arrived = bytes(self._among.read_into[:nbytes])
        self._socket.pause_reading()
        self._among.take_turns(self._go_on)

    def _go_on(self) -> None:
        if self._tls is None:
            if self._arrived[0] != HANDSHAKE_RECORD:
                self._socket.write(PLAIN_HTTP.response(b"", request_ids({})))
                self._refuse(PLAIN_HTTP)
                return
            self._tls = Tls.begin(self._context())
        self._tls.incoming.write(self._arrived)
        self._arrived = b""
        try:
            self._tls.state.do_handshake()
        except ssl.SSLWantReadError:
            self._flush(self._tls)
            self._socket.resume_reading()
        except ssl.SSLError as error:
            self._flush(self._tls)  # an alert
            self._refuse(TLS_REFUSED if "ALERT" in str(error.reason) else TLS_FAILED)
        else:
            self._flush(self._tls)
            self._give_to_http(self._tls)

    def _flush(self, tls: Tls) -> None:
        if tls.outgoing.pending:
            self._socket.write(tls.outgoing.read())

    def _give_to_http(self, tls: Tls) -> None:
        protocol = self._make_http(connections=self._among, handshake=self, **self._options)
        self._server_state.connections.discard(self)
        TlsTransport(self._socket, tls, self._among).begin(protocol)

    def _refuse(self, refusal: Refusal) -> None:
        """Closes it in a moment: at once would reset it before the client has read the alert or the answer."""
        self._lingers, self.deadline = True, self._among.now + self._among.limits.lingering_s
        self._among.on_refused(refusal.reason, self._address, "")

    # --- for Connections and uvicorn

    def look(self) -> None:
        """Closes it if its deadline has passed."""
        if self.deadline > self._among.now:
            return
        if self._lingers:
            self._socket.abort()
        else:
            self.give_up(SILENT if self._tls is None else HANDSHAKE_TIMEOUT)

    def give_up(self, refusal: Refusal) -> None:
        """Closes it at once."""
        self._among.on_refused(refusal.reason, self._address, "")
        self._leave()
        self._socket.abort()

    def end_with_answer(self) -> None:
        """There is none yet."""

    def shutdown(self) -> None:
        """The node ends."""
        self._socket.abort()
