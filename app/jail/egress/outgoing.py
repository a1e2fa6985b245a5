"""What a process asks for, who decides about it, and another way to it."""

import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from app.domain.resources.destinations import Destination
from app.jail.egress.refusals import Reason, Refused
from app.text.public_addresses import Address

WEB_PORTS = frozenset({80, 443})


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A connection that a process of this backend asks for. `host`: a name in lower case, or an address."""

    tenant: str
    backend: str
    process: str
    host: Address | str
    port: int

    @property
    def destination(self) -> str:
        """As in a URL."""
        bracketed = not isinstance(self.host, str) and self.host.version == 6
        return f"[{self.host}]:{self.port}" if bracketed else f"{self.host}:{self.port}"


class Rule(Protocol):
    """Decides about connections before names are resolved."""

    async def permit(self, outgoing: Outgoing) -> Sequence[Destination]:
        """Which entries allow the connection: one of them must lead to the address. None: it must be public.

        Raises:
            Refused: it may not be made.
        """


class Detour(Protocol):
    """Another way than a connection from this machine, for some of what a rule permits."""

    def serves(self, outgoing: Outgoing) -> bool:
        """Whether it is the way there."""

    async def connect(self, outgoing: Outgoing) -> socket.socket:
        """A connection. Raises Refused: there is none."""


class NothingAllowed:
    """Refuses everything: for what is only to be asked where it would go."""

    async def permit(self, outgoing: Outgoing) -> Sequence[Destination]:
        raise Refused(Reason.RULE, "this backend has no network")


class PortRule:
    """Everything on these ports."""

    def __init__(self, ports: Collection[int] = WEB_PORTS) -> None:
        self._ports = ports

    async def permit(self, outgoing: Outgoing) -> Sequence[Destination]:
        if outgoing.port not in self._ports:
            allowed = " and ".join(map(str, sorted(self._ports)))
            raise Refused(Reason.PORT, f"port {outgoing.port} is not allowed, only {allowed} are")
        return ()
