"""Messages between node and spawner: one JSON object per packet of a SOCK_SEQPACKET socket pair.

Node to spawner: `spawn` (with descriptors: `descriptors_of`), `signal`, `kill`.
Spawner to node: `ready`, `spawned` or `failed`, `exited`.
"""

import json
import socket
import struct
from collections.abc import Sequence
from typing import Literal, TypedDict

# An order with larger arguments and environment is refused with E2BIG; where net.core.wmem_max is less, the kernel
# refuses earlier.
MAX_PACKET_BYTES = 1 << 20
MAX_DESCRIPTORS = 5
MISSED_BYTES = 256 << 10  # how much a watcher writes down


class Landlock(TypedDict, total=False):
    """Rules of the kernel for files and TCP ports. A list that is missing is not restricted.

    `read` includes executing and listing; `write` includes reading, creating and removing. Paths that do not exist are
    left out. `connect`, `bind`: TCP ports. `scoped`: no signals to, and no abstract sockets of, processes outside.
    """

    read: list[str]
    write: list[str]
    connect: list[int]
    bind: list[int]
    scoped: bool


class Cgroup(TypedDict, total=False):
    """A group for one process and everything it starts, below one of its tenant.

    `roots`: by controller (`memory`, `pids`, `cpu`, `freezer`; `unified` for version 2) the directory in which this
    node makes its groups. `tenant`: the name of the tenant's group there. A limit that is missing is not set;
    `tenant_memory_bytes` is of the tenant's group, `cpu` is in cores.
    """

    roots: dict[str, str]
    tenant: str
    memory_bytes: int
    tenant_memory_bytes: int
    pids: int
    cpu: float


class Forwarded(TypedDict):
    """What a network of its own has besides its loopback: all addresses of `networks` are local there, and at each of
    `ports` there is a listener for any address."""

    networks: list[str]
    ports: list[int]


class Room(TypedDict, total=False):
    """What a fork has of its own, of a template that has namespaces of its own; all else is as the template has it.

    `uid`: the template's user, if it is not the spawner's. `own_network`, `proxy_port`, `forwarded`: as in Confinement.
    `tmp_bytes`, `shm_bytes`: the sizes of /tmp and /dev/shm. `directories`: to be made in /tmp. `shown`, `links`: files
    and symbolic links that the sandbox has below /tmp. `cwd`, `variables`: of the program, which is not wrapped any
    more.
    """

    uid: int
    own_network: bool
    proxy_port: int
    forwarded: Forwarded
    hostname: str
    tmp_bytes: int
    shm_bytes: int
    directories: list[str]
    shown: list[str]
    links: list[tuple[str, str]]
    cwd: str
    variables: dict[str, str]


class Confinement(TypedDict, total=False):
    """What a child gives up between fork and exec, in this order. A field that is missing restricts nothing.

    `limits`: resource limits by name without `RLIMIT_` (`NOFILE`, `FSIZE`, `NPROC`, `CORE`). `uid`: user and group to
    become; all capabilities go with it. `capabilities`: to be kept by root, for bubblewrap; an empty list drops all.
    `seccomp`: names of filters (`seccomp.FILTERS`) for the child itself. `inner_seccomp`: for what a wrapper such as
    bubblewrap executes: their program can be read from descriptor INNER_SECCOMP_FD after exec. `is_wrapped`: `argv` is
    such a wrapper, which writes the pid of what it started to INNER_STATUS_FD (`--json-status-fd`). What it executes
    finds stdin and stdout at INNER_STDIN_FD and INNER_STDOUT_FD (TAKES_PIPES). `inner_texts`: what the program,
    or the wrapper and what it executes, can read from descriptors, by their numbers.
    `own_network`: a network namespace that has only a loopback; a wrapper inherits it and makes none. `proxy_port`:
    the port of 127.0.0.1 there at which a listener is made. `forwarded`: more listeners. They are sent through the
    order's fourth descriptor, a socket, in one message.
    `room`: with `start: fork`, instead of a wrapper.
    """

    room: Room
    own_network: bool
    proxy_port: int
    forwarded: Forwarded
    cgroup: Cgroup
    limits: dict[str, int]
    uid: int
    capabilities: list[str]
    landlock: Landlock
    seccomp: list[str]
    inner_seccomp: list[str]
    inner_texts: dict[str, str]
    is_wrapped: bool


INNER_SECCOMP_FD, INNER_STATUS_FD = 10, 11
INNER_STDIN_FD, INNER_STDOUT_FD, INNER_VARIABLES_FD = 7, 8, 9  # a shell inside knows only those of one digit
INNER_PASSWD_FD, INNER_GROUP_FD, INNER_HOSTS_FD = 12, 13, 16
TEMPLATE_SOCKET_FD, TEMPLATE_TEXT_FD = 14, 15  # forked/inside.py knows them too
ROOM = b"room"  # what a fork is sent, with descriptors of the namespaces that it is led into
CREDENTIALS = struct.Struct("3i")  # as the kernel adds them to a message: pid, uid, gid
FORK_STAGE = "fork from the template"  # of a report that a template made no process
WRAPPER_STAGE = "bubblewrap"  # of a report that a wrapper did not start its program
SHELL = "/bin/sh"
# What this shell does first inside. The wrapper keeps its own stdin, stdout and stderr open, and nothing else.
TAKES_PIPES = f"exec <&{INNER_STDIN_FD} >&{INNER_STDOUT_FD} {INNER_STDIN_FD}<&- {INNER_STDOUT_FD}>&-"


class Missed(TypedDict, total=False):
    """What a watched process asked for and could not get, although this machine has it.

    `kind`: `file`, `address`, `system call`, or `unwatched`, with the reason in `what`. `access`: `read` or `write`, of
    a file. `is_new`: it is not there yet. `is_hidden`: the process has a directory of its own in the place of one above
    it, such as /tmp. `uid`: the sandbox shows the file, but its mode keeps it from this user, as whom the process runs.
    `is_heard`: False if nobody listens at this address of the machine's loopback.
    """

    kind: str
    what: str
    access: str
    is_directory: bool
    is_new: bool
    is_hidden: bool
    uid: int
    is_heard: bool


Start = Literal["exec", "template", "fork"]


class Order(TypedDict, total=False):
    """From the node; `do` says which of the fields are there. `is_watched`: what the process misses (`Missed`) is
    written to the last descriptor. `start`: `exec`; `template`: the same, and it finds `text` and the last descriptor,
    a socket; `fork`: that socket's other end is the last descriptor, and a fork of the template becomes this process.
    """

    start: Start
    text: str
    do: str
    id: str
    argv: list[str]
    env: dict[str, str]
    cwd: str
    sched_batch: bool
    confinement: Confinement
    is_watched: bool
    signum: int


class Report(TypedDict, total=False):
    """From the spawner; `event` says which of the fields are there.

    `phases`: seconds by phase of a start: `fork`, `sandbox`, `exec`. `limit`: which limit ended the process: `memory`
    or `tenant_memory`. `usage`: of its control group (`cgroups.Usage`).
    """

    event: str
    id: str
    pid: int
    seconds: float
    phases: dict[str, float]
    limit: str
    usage: Sequence[int]
    errno: int
    stage: str
    message: str
    code: int
    signal: int


def has_listeners(confinement: Confinement) -> bool:
    """Whether listeners are sent from its network."""
    return "proxy_port" in confinement or "forwarded" in confinement


def descriptors_of(order: Order) -> int:
    """How many come with it: stdin, stdout, stderr, what listeners are sent through, a watcher's file, a socket."""
    has_socket = order.get("start", "exec") != "exec"
    return 3 + has_listeners(order["confinement"]) + order["is_watched"] + has_socket


def encode(message: Order | Report) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends, with send buffers for large environments."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_PACKET_BYTES)
    return ends
