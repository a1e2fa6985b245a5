"""A network of its own for a child: no way out but listeners in it, which the node serves.

A socket belongs for ever to the network namespace in which it was made. So the child makes the listeners in its new
namespace, before exec, and passes them on: what it executes finds a proxy at 127.0.0.1 that runs outside, and no
process, file or socket of the node is in the sandbox. Where certain addresses are to be reached, they are local there
(a route of type `local`, which ip-route calls AnyIP), so that a listener for any address has their connections too, and
its connections say for which address they were meant.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterable

from app.jail.spawner import syscalls, wire

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP_RUNNING = 0x1 | 0x40
_INTERFACE_UP = struct.pack("16sh22x", b"lo", _IFF_UP_RUNNING)  # struct ifreq
_BACKLOG = 128
_NEW_ROUTE, _REQUEST, _ACKNOWLEDGE, _CREATE = 24, 0x1, 0x4, 0x400  # of rtnetlink(7)
_LOCAL_TABLE, _BOOT, _HOST_SCOPE, _LOCAL = 255, 3, 254, 2
_DESTINATION, _INTERFACE = 1, 4
_REPLY_BYTES = 4096

_NOTHING = wire.Forwarded(networks=[], ports=[])

_libc = ctypes.CDLL(None, use_errno=True)
_unshare = _libc.unshare
_unshare.argtypes = [ctypes.c_int]


def enter(confinement: wire.Confinement, channel: int | None = None) -> None:
    """Leaves the machine's network if this child is to have its own; its listeners go through `channel`, a socket.

    To be called while the child may still do everything. Without the right to make namespaces it makes a user
    namespace too, in which nobody but its own uid exists; exec takes the capabilities there away, unless that is 0.
    """
    if not confinement.get("own_network", False):
        return
    if not _has_left(_CLONE_NEWNET):
        _enter_user_namespace()
    furnish(confinement, channel)


def furnish(confinement: wire.Confinement | wire.Room, channel: int | None) -> None:
    """What is in a new network namespace. Its listeners are sent through `channel`, a socket."""
    raise_loopback()
    forwarded = confinement.get("forwarded", _NOTHING)
    if forwarded["networks"]:
        _make_local(forwarded["networks"])
    if channel is not None:
        _pass_listeners(channel, confinement.get("proxy_port"), forwarded["ports"])


def raise_loopback() -> None:
    """In a new network namespace it is down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, _INTERFACE_UP)


def _has_left(flags: int) -> bool:
    """False if that takes a right that this process does not have."""
    if _unshare(flags) == 0:
        return True
    number = ctypes.get_errno()
    if number == errno.EPERM and not flags & _CLONE_NEWUSER:
        return False
    raise OSError(number, os.strerror(number))


def _enter_user_namespace() -> None:
    uid, gid = os.getuid(), os.getgid()
    _has_left(_CLONE_NEWUSER | _CLONE_NEWNET)
    # The files of a process that may not be inspected belong to root. A fork of the spawner is such a process.
    syscalls.permit_inspection()
    try:
        for name, content in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            _write(f"/proc/self/{name}", content)
    finally:
        syscalls.refuse_inspection()


def _write(path: str, content: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, content.encode())
    finally:
        os.close(descriptor)


def _make_local(networks: Iterable[str]) -> None:
    """All their addresses are this network's own, as with `ip route add local NETWORK dev lo`."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        for each in networks:
            kernel.send(_route(each))
            reply = kernel.recv(_REPLY_BYTES)
            (number,) = struct.unpack_from("i", reply, _HEADER.size)  # of an acknowledgement
            if number:
                raise OSError(-number, f"{each} in a network of its own: {os.strerror(-number)}")


_HEADER = struct.Struct("IHHII")  # struct nlmsghdr


def _route(network: str) -> bytes:
    address, _, bits = network.partition("/")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    route = struct.pack("8BI", family, int(bits), 0, 0, _LOCAL_TABLE, _BOOT, _HOST_SCOPE, _LOCAL, 0)
    packed = socket.inet_pton(family, address)
    attributes = struct.pack("HH", 4 + len(packed), _DESTINATION) + packed
    attributes += struct.pack("HHI", 8, _INTERFACE, socket.if_nametoindex("lo"))
    size = _HEADER.size + len(route) + len(attributes)
    return _HEADER.pack(size, _NEW_ROUTE, _REQUEST | _ACKNOWLEDGE | _CREATE, 1, 0) + route + attributes


def _pass_listeners(channel: int, proxy_port: int | None, ports: Iterable[int]) -> None:
    """Sends a listener on this loopback, and those on the ports, through `channel`, a socket."""
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(socket.socket(fileno=os.dup(channel)))
        listeners = [] if proxy_port is None else [_listener(socket.AF_INET, "127.0.0.1", proxy_port)]
        for each in listeners:
            stack.enter_context(each)
        listeners += [stack.enter_context(_of_any_address(port)) for port in ports]
        socket.send_fds(node, [b"\0"], [each.fileno() for each in listeners])


def _of_any_address(port: int) -> socket.socket:
    """Of both families, where the kernel has both."""
    try:
        return _listener(socket.AF_INET6, "::", port)
    except OSError as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            raise
    return _listener(socket.AF_INET, "0.0.0.0", port)  # noqa: S104 - of a network that is the child's own


def _listener(family: int, address: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((address, port))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener
