"""inquire: starts a process of a backend, asks what it offers, and stops it."""

from collections.abc import Awaitable, Callable, Iterable

import anyio
import msgspec

from app import __version__
from app.backends.connections._toolset_member import ToolsetMember
from app.backends.connections.era import Era
from app.backends.connections.source import ConnectionLease
from app.errors import BackendTimeout, GatewayError
from app.processes.endings import Exit
from app.protocol.jsonrpc import Params, encoded
from app.protocol.revisions import HANDSHAKE
from app.protocol.toolset.offer import Offer, promised
from app.protocol.toolset.pages import Pages

_HELLO: Params = {
    "protocolVersion": encoded(HANDSHAKE[-1]),
    "capabilities": msgspec.Raw(b"{}"),
    "clientInfo": encoded({"name": "trunkline-catalog", "version": __version__}),
}


class _Nobody:
    """The side of an inquiry: it wants nothing but answers."""

    hello = _HELLO

    def opened(self, member: int) -> Iterable[bytes]:
        return [b'{"jsonrpc":"2.0","method":"notifications/initialized"}']

    def member_sent(self, member: int, line: bytes, among: tuple[bytes, ...] | None = None) -> None:
        pass

    def member_sent_too_much(self, member: int, beginning: bytes, end: bytes) -> None:
        pass

    def member_failed(self, call: bytes, error: GatewayError) -> None:
        pass

    def member_lost(self, member: int, error: GatewayError, exit: Exit | None) -> None:
        pass


async def inquire(lease: Callable[[], Awaitable[ConnectionLease]], within_s: float) -> Offer:
    """What the process offers that `lease` gives; it is given back afterwards. Of a list that fails there is what could
    be read.

    Raises:
        GatewayError: there is no process, or it answers nothing as it should within this time.
    """
    member = ToolsetMember(0, _Nobody(), lease, None, within_s, Era())
    try:
        with anyio.fail_after(within_s) as patience:
            return await _with_lists(member, await member.greeted(), patience.deadline)
    except TimeoutError:
        raise BackendTimeout(f"the backend did not say what it offers within {within_s:.0f} s") from None
    finally:
        member.release("inquired")


async def _with_lists(member: ToolsetMember, offer: Offer, until: float) -> Offer:
    """Each list may take a part of the time that is left, so that one without an answer leaves some to the others."""
    failures: list[GatewayError] = []
    methods = promised(offer.capabilities)
    for method in methods:
        pages, left = Pages(method), until - anyio.current_time()
        try:
            with anyio.fail_after(left / (2 if method == "tools/list" else 4)):
                await member.read(pages)
        except TimeoutError:
            pages.fail(BackendTimeout("the server did not answer in time"))
        except GatewayError as error:
            pages.fail(error)
        offer = pages.list_in(offer)
        if pages.failure is not None:
            failures.append(pages.failure)
    if failures and len(failures) == len(methods) and not any(offer.lists.values()):
        raise failures[0]
    return offer
