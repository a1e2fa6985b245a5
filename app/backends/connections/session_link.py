"""SessionLink: a session's side of its link, from before it has one until it is given back."""

from collections.abc import Callable, Collection

import anyio

from app.backends.connections._bridged import BridgedLink, BridgedSession
from app.backends.connections._captured import Tap, retapped
from app.backends.connections.source import Keeper, LinkLease, LinkSource, Parkable, Probed
from app.domain import BackendSpec, Limits, Principal, Rest
from app.errors import GatewayError, InvalidMessage
from app.processes.link import BackendLink
from app.telemetry.metrics import Metrics


class SessionLink:
    """Sends to the session's process, or to the bridge before it."""

    __slots__ = ("_asking", "_lease", "_link", "_metrics", "_parkable", "_tap", "rest", "send")

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._lease: LinkLease | None = None
        self._parkable: Parkable | None = None  # the lease, if it can rest
        self._link: BackendLink | None = None
        # Writes a line of the client, as BackendLink.send. Raises InvalidMessage while there is no process.
        self.send: Callable[[bytes], None] = _refuse
        self._tap: Tap | None = None
        self._asking: anyio.CancelScope | None = None
        self.rest: Rest | None = None

    @property
    def is_attached(self) -> bool:
        """Whether there is, or was, a process."""
        return self._link is not None

    @property
    def is_bridged(self) -> bool:
        """Whether a bridge stands before the process, which speaks 2026-07-28 only."""
        return isinstance(self._link, BridgedLink)

    @property
    def was_warm(self) -> bool:
        return self._lease is not None and self._lease.was_warm

    @property
    def process(self) -> str | None:
        """The process's id; None while there is none."""
        return None if self._lease is None else self._lease.link.id or None

    async def ask(
        self, source: LinkSource, spec: BackendSpec, limits: Limits, principal: Principal
    ) -> LinkLease | None:
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

    def attach(self, lease: LinkLease, session: BridgedSession) -> None:
        self._lease = lease
        kept: object = lease
        self._parkable = kept if isinstance(kept, Parkable) else None  # once: it looks at each attribute
        self._use(lease.link)
        lease.link.attach(session)
        self._put_tap(session)

    def bridge(self, session: BridgedSession) -> None:
        """Puts a bridge between the session and its process, which speaks 2026-07-28 only."""
        assert self._link is not None
        bare = self._link if self._tap is None else retapped(self._link, session, None)
        self._use(BridgedLink(bare, session))
        self._put_tap(session)  # behind the bridge

    def tap(self, tap: Tap | None, session: BridgedSession) -> None:
        """`tap` is told what passes the link from now on, also one that the session gets later; None: nobody any
        more."""
        had, self._tap = self._tap, tap
        if self._link is not None and (had is not None or tap is not None):
            self._use(retapped(self._link, session, tap))

    def _put_tap(self, session: BridgedSession) -> None:
        if self._tap is not None:
            self.tap(self._tap, session)

    def _use(self, link: BackendLink) -> None:
        self._link, self.send = link, link.send

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

    def handshake_succeeded(self) -> None:
        assert self._lease is not None
        self._lease.handshake_succeeded()

    def hold_up(self, held_up: bool) -> None:
        """Stops reading the process, or goes on."""
        if self._link is None:
            return
        if held_up:
            self._link.pause_reading()
        else:
            self._link.resume_reading()

    def asked_for(self, size: int) -> None:
        if self._link is not None:
            self._link.asked_for(size)

    def heard_noise(self, line: bytes) -> None:
        if self._link is not None:
            self._link.heard_noise(line)

    def answering(self) -> bytes | None:
        return None if self._link is None else self._link.answering()

    def park(self, keeper: Keeper) -> bool:
        """As Parkable.park; False if the link can be neither parked nor frozen."""
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
        """Gives the link back, or stops waiting for one."""
        if self._asking is not None:
            self._asking.cancel()
        if isinstance(self._link, BridgedLink):
            self._link.end()
        if self._lease is not None:
            self._lease.release(reason)


def _refuse(line: bytes) -> None:
    raise InvalidMessage("the first request of a session is `initialize`")
