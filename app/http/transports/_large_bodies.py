"""Large bodies: reading one can take the loop tens of milliseconds, and cannot be cut. So it has a turn, and is
counted."""

from app.http.transports.request import McpRequest
from app.limits.loop_shares import LoopShares
from app.protocol.jsonrpc import Message

HEAVY_BODY = 64 << 10  # bytes: from here on its tenant is charged for reading it


async def turn_for(request: McpRequest, body: bytes, shares: LoopShares) -> None:
    """Waits until this body may be read. Raises what `require_still_allowed` raises."""
    if len(body) >= HEAVY_BODY:
        await shares.turn(request.tenant)
        await request.require_still_allowed()


def parsed(request: McpRequest, body: bytes, shares: LoopShares) -> Message | list[Message]:
    """What is in it."""
    if len(body) < HEAVY_BODY:
        return request.parse(body)
    with shares.measured(request.tenant):
        return request.parse(body)


async def read_in_turn(request: McpRequest, body: bytes, shares: LoopShares) -> Message | list[Message]:
    """Both. Whoever handles the message reads it again: that has a turn of its own."""
    await turn_for(request, body, shares)
    message = parsed(request, body, shares)
    await turn_for(request, body, shares)
    return message
