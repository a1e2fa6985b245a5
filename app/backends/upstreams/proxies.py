"""What an HTTP proxy is asked for, and what its answer means. Pure, but for `tunnel`."""

import asyncio
import base64
import re

from app import __version__
from app.backends.upstreams.requests import Headers
from app.domain.resources.backends import Connect

TUNNEL_S = 20.0  # within which it has found the server, and connected to it
_STATUS = re.compile(rb"HTTP/1\.[01] (?P<status>[1-5][0-9]{2})(?: (?P<words>[\x20-\x7e]{0,80}))?")


class NoTunnel(Exception):
    """The proxy does not connect to the server, in words. `hint`: what somebody can do."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def proxy_headers(connect: Connect) -> Headers:
    """Those for the proxy alone."""
    if connect.proxy_auth is None:
        return []
    return [(b"Proxy-Authorization", b"Basic " + base64.b64encode(connect.proxy_auth.encode()))]


async def tunnel(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, destination: str, connect: Connect
) -> None:
    """Has the proxy at the other end connect to the destination, HOST:PORT.

    Raises:
        NoTunnel: it does not.
    """
    head = [(b"Host", destination.encode()), (b"User-Agent", f"trunkline/{__version__}".encode())]
    lines = [b"%b: %b\r\n" % each for each in [*head, *proxy_headers(connect)]]
    try:
        async with asyncio.timeout(TUNNEL_S):
            writer.write(b"CONNECT %b HTTP/1.1\r\n%b\r\n" % (destination.encode(), b"".join(lines)))
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
    found = _STATUS.match(answer)
    if found is None:
        raise NoTunnel("does not answer as an HTTP proxy does", "Look at its address: scheme and port.")
    status = int(found["status"])
    if 200 <= status < 300:
        return
    said = f"HTTP {status} {(found['words'] or b'').decode().strip()}".rstrip()
    if status == 407:
        wants = "wants credentials" if connect.proxy_auth is None else "does not accept `connect.proxy_auth`"
        raise NoTunnel(f"{wants} ({said})", "An administrator can give the backend another `connect.proxy_auth`.")
    if status in (502, 503, 504):
        words = f"cannot connect to {destination} ({said})"
        raise NoTunnel(words, "Whether name and port are right, and what stands in the log of the proxy.")
    raise NoTunnel(f"lets nobody through to {destination} ({said})", "Whoever runs the proxy can allow it there.")
