"""SessionConnection: a session's side of its connection, from before it has one until it is given back."""

from collections.abc import Callable, Collection

import anyio

from app.backends.connections._bridged import BridgedConnection, BridgedSession
from app.backends.connections._captured import Capture, recaptured
from app.backends.connections.source import CallerSeen, ConnectionLease, ConnectionSource, Keeper, Parkable, Probed
from app.domain import BackendSpec, Limits, Principal, Rest
from app.errors import GatewayError, InvalidMessage
from app.processes.connection import BackendConnection
from app.telemetry.metrics import Metrics


class SessionConnection:
    """Sends to the session's process, or to the bridge before it."""

    __slots__ = ("_asking", "_capture", "_connection", "_lease", "_metrics", "_parkable", "rest", "send")

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._lease: ConnectionLease | None = None
        self._parkable: Parkable | None = None  # the lease, if it can rest
        self._connection: BackendConnection | None = None
        # Writes a line of the client, as BackendConnection.send. Raises InvalidMessage while there is no process.
        self.send: Callable[[bytes], None] = _refuse
        self._capture: Capture | None = None
        self._asking: anyio.CancelScope | None = None
        self.rest: Rest | None = None

    @property
    def is_attached(self) -> bool:
        """Whether there is, or was, a process."""
        return self._connection is not None

    @property
    def is_bridged(self) -> bool:
        """Whether a bridge stands before the process, which speaks 2026-07-28 only."""
        return isinstance(self._connection, BridgedConnection)

    @property
    def was_warm(self) -> bool:
        return self._lease is not None and self._lease.was_warm

    @property
    def process(self) -> str | None:
        """The process's id; None while there is none."""
        return None if self._lease is None else self._lease.connection.id or None

    async def ask(
        self, source: ConnectionSource, spec: BackendSpec, limits: Limits, principal: Principal
    ) -> ConnectionLease | None:
        """A lease to `attach`. `release` cancels the wait for it: then None.

        Raises:
            BackendError, ShuttingDown: no process is available.
        """
        with anyio.CancelScope() as asking:
            self._asking = asking
            lease = await source.lease(spec, limits, principal)
            if not asking.cancel_called:
                return lease
            lease.release("session_closed")
        return None

    def attach(self, lease: ConnectionLease, session: BridgedSession) -> None:
        self._lease = lease
        kept: object = lease
        self._parkable = kept if isinstance(kept, Parkable) else None  # once: it looks at each attribute
        self._use(lease.connection)
        lease.connection.attach(session)
        self._put_capture(session)

    def bridge(self, session: BridgedSession) -> None:
        """Puts a bridge between the session and its process, which speaks 2026-07-28 only."""
        assert self._connection is not None
        bare = self._connection if self._capture is None else recaptured(self._connection, session, None)
        self._use(BridgedConnection(bare, session))
        self._put_capture(session)  # behind the bridge

    def capture(self, capture: Capture | None, session: BridgedSession) -> None:
        """`capture` is told what passes the connection from now on, also one that the session gets later; None: nobody
        any more."""
        had, self._capture = self._capture, capture
        if self._connection is not None and (had is not None or capture is not None):
            self._use(recaptured(self._connection, session, capture))

    def _put_capture(self, session: BridgedSession) -> None:
        if self._capture is not None:
            self.capture(self._capture, session)

    def _use(self, connection: BackendConnection) -> None:
        self._connection, self.send = connection, connection.send

    def tell(self, line: bytes) -> None:
        """Writes a line of the gateway's own; if the process is gone or does not read, counts it as dropped."""
        try:
            self.send(line)
        except GatewayError:
            self._metrics.messages_dropped.labels("backend_deaf").inc()

    def probed(self) -> None:
        """As Probed; does nothing for other leases."""
        lease: object = self._lease
        if isinstance(lease, Probed):
            lease.probed()

    def caller_is(self, principal: Principal) -> None:
        """As CallerSeen; does nothing for other leases."""
        lease: object = self._lease
        if isinstance(lease, CallerSeen):
            lease.caller_is(principal)

    def handshake_succeeded(self) -> None:
        assert self._lease is not None
        self._lease.handshake_succeeded()

    def hold_up(self, held_up: bool) -> None:
        """Stops reading the process, or goes on."""
        if self._connection is None:
            return
        if held_up:
            self._connection.pause_reading()
        else:
            self._connection.resume_reading()

    def asked_for(self, size: int) -> None:
        if self._connection is not None:
            self._connection.asked_for(size)

    def heard_noise(self, line: bytes) -> None:
        if self._connection is not None:
            self._connection.heard_noise(line)

    def answering(self) -> bytes | None:
        return None if self._connection is None else self._connection.answering()

    def park(self, keeper: Keeper) -> bool:
        """As Parkable.park; False if the connection can be neither parked nor frozen."""
        return self._parkable is not None and self._parkable.park(keeper)

    def unsent(self) -> Collection[bytes]:
        """The ids of requests that still wait for a process. A bridge has ids of its own: then none."""
        return () if self._parkable is None or self.is_bridged else self._parkable.unsent()

    @property
    def has_process(self) -> bool:
        """Whether it has one to give back."""
        return self._parkable is None or self._parkable.has_process

    @property
    def is_without_process(self) -> bool:
        """Whether it is parked, and has not been given another process yet."""
        return self.rest == "parked" and self.process is None

    def now_rests(self, how: Rest | None) -> None:
        """Sets what administrators see."""
        self.rest = how

    def release(self, reason: str) -> None:
        """Gives the connection back, or stops waiting for one."""
        if self._asking is not None:
            self._asking.cancel()
        if isinstance(self._connection, BridgedConnection):
            self._connection.end()
        if self._lease is not None:
            self._lease.release(reason)


def _refuse(line: bytes) -> None:
    raise InvalidMessage("the first request of a session is `initialize`")
