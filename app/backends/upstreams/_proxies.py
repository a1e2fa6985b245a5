"""A tunnel through an HTTP proxy to a server elsewhere, and why there is none."""

import asyncio

from app.backends.upstreams.requests import Headers
from app.domain.resources.backends import Connect
from app.jail.egress.http_proxies import answer_of, credentials, tunnel_request

TUNNEL_S = 20.0  # within which it has found the server, and connected to it


class NoTunnel(Exception):
    """The proxy does not connect to the server, in words. `hint`: what somebody can do."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def proxy_headers(connect: Connect) -> Headers:
    """Those for the proxy alone."""
    return credentials(connect.proxy_auth)


async def tunnel(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, destination: str, connect: Connect
) -> None:
    """Has the proxy at the other end connect to the destination, HOST:PORT.

    Raises:
        NoTunnel: it does not.
    """
    try:
        async with asyncio.timeout(TUNNEL_S):
            writer.write(tunnel_request(destination, connect.proxy_auth))
            answer = await reader.readuntil(b"\r\n\r\n")
    except TimeoutError:
        raise NoTunnel(f"did not connect to {destination} within {TUNNEL_S:.0f} s") from None
    except asyncio.LimitOverrunError:
        raise NoTunnel("answers with too many headers") from None
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise NoTunnel("does not answer as an HTTP proxy does", "Look at its address: scheme and port.") from None
        raise NoTunnel("closed the connection without an answer", "Look at its address: scheme and port.") from None
    except OSError as error:
        raise NoTunnel(f"broke the connection: {error.strerror or type(error).__name__}") from None
    _require_connected(answer, destination, connect)


def _require_connected(answer: bytes, destination: str, connect: Connect) -> None:
    found = answer_of(answer)
    if found is None:
        raise NoTunnel("does not answer as an HTTP proxy does", "Look at its address: scheme and port.")
    status, said = found
    if 200 <= status < 300:
        return
    if status == 407:
        wants = "wants credentials" if connect.proxy_auth is None else "does not accept `connect.proxy_auth`"
        raise NoTunnel(f"{wants} ({said})", "An administrator can give the backend another `connect.proxy_auth`.")
    if status in (502, 503, 504):
        words = f"cannot connect to {destination} ({said})"
        raise NoTunnel(words, "Whether name and port are right, and what stands in the log of the proxy.")
    raise NoTunnel(f"lets nobody through to {destination} ({said})", "Whoever runs the proxy can allow it there.")
