"""A network of its own for a child: no way out but a listener on its loopback, which the node serves.

A socket belongs for ever to the network namespace in which it was made. So the child makes the listener in its new
namespace, before exec, and passes it on: what it executes finds a proxy at 127.0.0.1 that runs outside, and no
process, file or socket of the node is in the sandbox.
"""

import ctypes
import errno
import fcntl
import os
import socket
import struct

from app.jail.spawner import syscalls, wire

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP_RUNNING = 0x1 | 0x40
_INTERFACE_UP = struct.pack("16sh22x", b"lo", _IFF_UP_RUNNING)  # struct ifreq
_BACKLOG = 128

_libc = ctypes.CDLL(None, use_errno=True)
_unshare = _libc.unshare
_unshare.argtypes = [ctypes.c_int]


def enter(confinement: wire.Confinement, channel: int | None = None) -> None:
    """Leaves the machine's network if this child is to have its own; the listener goes through `channel`, a socket.

    To be called while the child may still do everything. Without the right to make namespaces it makes a user
    namespace too, in which nobody but its own uid exists; exec takes the capabilities there away, unless that is 0.
    """
    if not confinement.get("own_network", False):
        return
    if not _has_left(_CLONE_NEWNET):
        _enter_user_namespace()
    raise_loopback()
    if channel is not None:
        pass_listener(channel, confinement["proxy_port"])


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


def pass_listener(channel: int, port: int) -> None:
    """Sends a listener on this loopback through `channel`, a socket."""
    with socket.socket(fileno=os.dup(channel)) as node, socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen(_BACKLOG)
        socket.send_fds(node, [b"\0"], [listener.fileno()])
