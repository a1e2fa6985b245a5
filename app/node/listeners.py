"""The sockets that a node listens on, and their addresses."""

import contextlib
import socket
import sys
from collections.abc import Iterator

from app.errors import SettingsError
from app.settings.hosts import is_wildcard
from app.settings.settings import Settings

BACKLOG = 2048


def listen(settings: Settings) -> socket.socket:
    """Listens on HOST and PORT. Raises SettingsError: they are taken."""
    try:
        return socket.create_server((settings.host, settings.port), family=_family(settings), backlog=BACKLOG)
    except OSError as error:
        raise _taken(settings, error) from None


def share_port(settings: Settings) -> socket.socket:
    """Binds HOST and PORT together with other processes, and does not listen yet: the kernel gives each listener its
    part of the connections, ready or not. Raises SettingsError: they are taken."""
    shared = socket.socket(_family(settings))
    try:
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        shared.bind((settings.host, settings.port))
    except OSError as error:
        shared.close()
        raise _taken(settings, error) from None
    return shared


@contextlib.contextmanager
def reserve_port(settings: Settings) -> Iterator[socket.socket]:
    """A socket that never listens: it keeps the port while no node has it, and turns port 0 into a real one. Raises
    SettingsError: it is taken."""
    if settings.port:  # with SO_REUSEPORT we would silently join whoever listens there
        listen(settings).close()
    with share_port(settings) as port, socket.socket(socket.AF_UNIX) as mark:
        host, number = port.getsockname()[:2]
        try:  # nor must we join who has reserved it, and does not listen yet
            if sys.platform == "linux":  # the name is in no file system, and goes with this process
                mark.bind(f"\0trunkline {host} {number}")
        except OSError as error:
            raise _taken(settings, error) from None
        yield port


def listen_inside() -> socket.socket:
    """Listens where the other nodes of a fleet reach this one alone."""
    return socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)


def take_all(listener: socket.socket) -> list[socket.socket]:
    """Accepts the connections that wait, and closes the listener at once."""
    taken = list[socket.socket]()
    with listener, contextlib.suppress(OSError):  # BlockingIOError: none waits; or no file descriptor is left
        listener.setblocking(False)
        while True:
            taken.append(listener.accept()[0])
    return taken


def url_of(listener: socket.socket, *, is_tls: bool) -> str:
    """Its address as a URL."""
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if is_tls else 'http'}://{shown}:{port}"


def from_here(url: str) -> str:
    """The URL for clients on this machine: loopback in place of a wildcard address."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def own_url(settings: Settings, listener: socket.socket, *, is_tls: bool) -> str | None:
    """How other nodes reach the listener; None where there are none. Raises SettingsError: NODE_URL must say it."""
    if not is_wildcard(listener.getsockname()[0]):
        return url_of(listener, is_tls=is_tls)
    if settings.redis_url is None:
        return None
    example = "https://node-1.example.com:8080" if is_tls else "http://10.0.0.5:8080"
    raise SettingsError(
        f"TRUNKLINE_NODE_URL: must be set where TRUNKLINE_REDIS_URL is set and TRUNKLINE_HOST is {settings.host}: "
        f"how other nodes reach this one, like {example}"
    )


def _family(settings: Settings) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in settings.host else socket.AF_INET


def _taken(settings: Settings, error: OSError) -> SettingsError:
    where = f"{settings.host}:{settings.port}"
    return SettingsError(f"cannot listen on {where}: {error.strerror}; choose another with --host or --port")
