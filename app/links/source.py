"""Links: where a session gets its process from, by what the backend's administrator said of it.

A link is its own lease where something stands between the session and the pool's process.
"""

from typing import Protocol, runtime_checkable

from app.domain import BackendSpec, Limits, Principal
from app.errors import GatewayError
from app.processes.link import BackendLink, BackendListener
from app.protocol.jsonrpc import INTERNAL_ERROR, error_response


class ProcessLink(BackendLink, Protocol):
    """A link that knows its process."""

    @property
    def id(self) -> str:
        """The process's id."""


class LinkLease(Protocol):
    """One session's claim on a link; ends with `release`."""

    @property
    def link(self) -> ProcessLink:
        """What the session talks to."""

    @property
    def was_warm(self) -> bool:
        """Whether the process ran already when somebody asked for one."""

    def handshake_succeeded(self) -> None:
        """The backend has answered `initialize`. Idempotent."""

    def release(self, reason: str) -> None:
        """The session is done; its listener hears nothing more. Idempotent, never waits."""


class LinkSource(Protocol):
    """Where links come from."""

    async def lease(self, spec: BackendSpec, limits: Limits, principal: Principal) -> LinkLease:
        """A link to a process of this backend, for a session of this principal.

        Raises:
            BackendError, ShuttingDown: there is none to be had.
        """


@runtime_checkable
class CallListener(Protocol):
    """A listener that can be told of one call's end; a Session is one."""

    def backend_failed(self, call: bytes, error: GatewayError) -> None:
        """The call with this id comes to nothing; the session goes on."""


def fail_call(listener: BackendListener, call: bytes, error: GatewayError) -> None:
    """Tells whoever listens that this call comes to nothing: one that translates gets it as the server's answer."""
    if isinstance(listener, CallListener):
        listener.backend_failed(call, error)
    else:
        listener.backend_sent(error_response(call, INTERNAL_ERROR, str(error), {"reason": error.reason}))
