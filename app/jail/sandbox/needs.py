"""What a command must see to run: its program, its interpreter, files among its arguments, the system's libraries.

In its sandbox it sees nothing else of the machine. What is inferred is as narrow as works, and never a home directory.
Reads the disk: to be called in a thread.
"""

import errno
import glob
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from app.jail.sandbox.environment import chain, interpreter_of
from app.jail.sandbox.paths import NEVER, OWN_IN_EVERY_SANDBOX
from app.jail.sandbox.scripts import MODULES, beside, beside_program, is_script_of
from app.jail.spawner.client import SpawnFailed

# No file that only root may read is among them: `/etc` as a whole is not seen. Programs that others start, such as a
# browser or Java, do not start without their settings.
SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store",
    "/etc/alternatives", "/etc/ca-certificates", "/etc/ca-certificates.conf", "/etc/chromium.d",
    "/etc/crypto-policies", "/etc/fonts", "/etc/gai.conf", "/etc/group", "/etc/host.conf", "/etc/hosts", "/etc/java",
    "/etc/java-*-openjdk", "/etc/ld.so.cache", "/etc/ld.so.conf",
    "/etc/ld.so.conf.d", "/etc/localtime", "/etc/magic", "/etc/mime.types", "/etc/nsswitch.conf", "/etc/os-release",
    "/etc/passwd", "/etc/pki/ca-trust", "/etc/pki/tls/certs", "/etc/pki/tls/cert.pem", "/etc/pki/tls/openssl.cnf",
    "/etc/protocols", "/etc/resolv.conf", "/etc/services", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem",
    "/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/timezone",
)  # fmt: skip
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")

_BROAD = frozenset({
    *OWN_IN_EVERY_SANDBOX, "/data", "/etc", "/home", "/media", "/mnt", "/opt", "/root", "/srv", "/var", "/var/lib",
    "/var/opt",
})  # fmt: skip
_SIGNS_OF_A_HOME = (".ssh", ".gnupg", ".aws", ".kube", ".netrc", ".profile", ".bashrc", ".bash_history", ".zshrc")
_MAX_LINKS = 40  # as in the kernel
_MAX_DEPTH = 4  # a script's interpreter may be a script
_PATH_FILES = 64  # *.pth files of a virtual environment that are read
_KEEP, _KEEP_S = 256, 5.0

_is_python = re.compile(r"python[0-9.]*t?").fullmatch


@dataclass(frozen=True, slots=True)
class Needs:
    """What a process sees, as absolute paths without symbolic links; no path is below another of them.

    `links`: symbolic links on the way to them, and their targets. They exist inside as outside.
    `program`: `argv[0]` as found in the PATH.
    """

    program: str
    read: tuple[str, ...]
    write: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Wanted:
    """A command whose needs are asked for. `path`: the PATH; `cwd`: absolute; `read`, `write`: what is declared.
    `installed`: the folder of its package, which it may see although it is among the gateway's data."""

    argv: tuple[str, ...]
    path: str
    cwd: str | None = None
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    installed: str = ""


class NeedsFinder:
    """Finds out what commands need, and remembers it for some seconds.

    `forbidden`: what no process may see, such as the gateway's data and the homes of others.
    """

    def __init__(self, forbidden: Iterable[str], clock: Callable[[], float] = time.monotonic) -> None:
        given = tuple(forbidden)
        self.forbidden = tuple(sorted({*NEVER, *given, *map(os.path.realpath, given)}))
        self._clock = clock
        self._known: dict[Wanted, tuple[float, Needs]] = {}

    def find(self, wanted: Wanted) -> Needs:
        """
        Raises:
            SpawnFailed: there is no such program (stage "exec"), or a path is forbidden or missing ("sandbox").
        """
        now = self._clock()
        known = self._known.get(wanted)
        if known is not None and now - known[0] < _KEEP_S and _leads_nowhere_else(known[1]):
            return known[1]
        try:
            needs = _Search(wanted, self.forbidden).needs()
        except OSError as error:
            number = error.errno or errno.EIO
            raise SpawnFailed(number, "sandbox", f"{os.strerror(number)}: {error.filename!r}") from error
        while len(self._known) >= _KEEP:
            self._known.pop(next(iter(self._known)), None)
        self._known[wanted] = (now, needs)
        return needs

    def opened(self, read: tuple[str, ...], write: tuple[str, ...]) -> Mapping[str, str]:
        """What is declared, without symbolic links: for a process that sees nothing else of the machine.

        Raises:
            SpawnFailed: a path is forbidden or missing (stage "sandbox").
        """
        try:
            return _Search(Wanted(("",), "", None, read, write), self.forbidden).declared()
        except OSError as error:
            number = error.errno or errno.EIO
            raise SpawnFailed(number, "sandbox", f"{os.strerror(number)}: {error.filename!r}") from error


class _Search:
    """One search: collects what is to be opened."""

    def __init__(self, wanted: Wanted, forbidden: Sequence[str]) -> None:
        self._wanted = wanted
        self._forbidden = forbidden
        self._read: set[str] = set()
        self._write: set[str] = set()
        self._named: tuple[str, ...] = ()  # what is declared
        self._installed = (os.path.realpath(wanted.installed),) if wanted.installed else ()
        self._links: dict[str, str] = {}
        self._seen: set[str] = set()

    def needs(self) -> Needs:
        for path in SYSTEM:
            self._read |= {self._follow(each) for each in glob.glob(path) if os.path.exists(each)}
        wanted = self._wanted
        self._write = {self._follow(path) for path in wanted.write}
        declared = {self._declared(path, "write") for path in wanted.write}
        declared |= {self._declared(path, "read") for path in wanted.read}
        self._read |= declared - self._write
        self._named = tuple(declared)
        self._read |= set(self._installed) - self._write
        program = self._resolve(wanted.argv[0])
        self._program(program)
        if wanted.cwd is not None and os.path.isdir(wanted.cwd):
            self._infer(self._permitted(wanted.cwd, "the working directory"))
        for argument in wanted.argv[1:]:
            self._argument(argument)
        write = _outermost(self._write)
        read = tuple(path for path in _outermost(self._read) if not _is_within(path, write))
        links = {path: to for path, to in self._links.items() if not _is_within(path, (*read, *write))}
        return Needs(program, read, write, tuple(sorted(links.items())))

    def declared(self) -> dict[str, str]:
        """What is declared, and what it is without links."""
        wanted = self._wanted
        self._write = {self._follow(path) for path in wanted.write}
        writable = {path: self._declared(path, "write") for path in wanted.write}
        return writable | {path: self._declared(path, "read") for path in wanted.read}

    # --- paths

    def _follow(self, path: str) -> str:
        """The path without symbolic links; notes every link on the way."""
        real, links = _followed(path)
        self._links |= links
        return real

    def _permitted(self, path: str, what: str) -> str:
        """The path without links, if nothing forbids it.

        A link that the process itself may have made, in a directory that it may write, leads to what is declared only.
        """
        real, links = _followed(path)
        self._links |= links
        for each in () if _is_within(real, self._installed) else self._forbidden:
            if _is_within(real, (each,)):
                raise _refused(f"{what} {path!r} is in {each!r}, which no sandbox opens")
        if not _is_within(real, self._named):
            for root in self._write:
                link = next((each for each in links if _is_within(each, (root,))), None)
                if link is not None and not _is_within(real, (root,)):
                    raise _refused(
                        f"{what} {path!r} is {real!r} by the link {link!r}, which this backend may write: "
                        "list in sandbox.read what it shall see"
                    )
        return real

    def _declared(self, path: str, where: str) -> str:
        real = self._permitted(path, f"sandbox.{where}:")
        if not os.path.exists(real):
            raise _refused(f"sandbox.{where}: there is no {path!r} on this node", errno.ENOENT)
        for each in self._forbidden:
            if _is_within(each, (real,)):
                raise _refused(f"sandbox.{where}: {path!r} contains {each!r}, which no sandbox opens")
        if real in OWN_IN_EVERY_SANDBOX:
            raise _refused(f"sandbox.{where}: {path!r} is the sandbox's own: name a directory in it")
        return real

    def _may_infer(self, directory: str) -> bool:
        """Whether a directory is narrow enough to be opened although nobody has named it."""
        return not is_broad(directory) and not any(_is_within(each, (directory,)) for each in self._forbidden)

    def _infer(self, path: str) -> bool:
        if not os.path.isdir(path) or self._may_infer(path):
            self._read.add(path)
            return True
        return False

    # --- programs

    def _resolve(self, command: str) -> str:
        """The program as exec would find it."""
        base = self._wanted.cwd or "/"
        found = shutil.which(os.path.join(base, command) if "/" in command else command, path=self._wanted.path)
        if found is None:
            exists = "/" in command and os.path.exists(os.path.join(base, command))
            number = errno.EACCES if exists else errno.ENOENT
            raise SpawnFailed(number, "exec", f"{os.strerror(number)}: {command!r}")
        return os.path.abspath(found)

    def _program(self, path: str, depth: int = 0) -> None:
        if path in self._seen or depth > _MAX_DEPTH:
            return
        self._seen.add(path)
        real = self._permitted(path, "the program")
        self._read.add(real)
        for place in chain(path):
            self._prefix(place, depth)
        self._modules(real)
        interpreter = self._interpreter(real)
        if interpreter is not None:
            self._program(interpreter, depth + 1)
            self._open_beside(real, beside_program(real, interpreter))

    def _interpreter(self, script: str) -> str | None:
        """The program that runs a script; None if it is none, or that is not there."""
        name, _ = interpreter_of(script)
        if name is None:
            return None
        try:
            found = self._resolve(name)
        except SpawnFailed:  # exec will say so
            return None
        is_its_own_wish = "/" in name and _is_within(script, self._write)
        return None if is_its_own_wish and not _is_within(found, (*self._read, *self._write)) else found

    def _prefix(self, program: str, depth: int) -> None:
        """Opens what an interpreter or a virtual environment has beside its `bin`."""
        folder = self._follow(os.path.dirname(program))
        if _is_within(folder, self._write):
            return  # it is in view, and what its files name could be the process's own wish
        prefix = os.path.dirname(folder)
        for root in (folder, prefix):
            if os.path.isfile(f"{root}/pyvenv.cfg"):
                self._virtual_environment(root, depth)
        if os.path.basename(folder) == "shims":  # of pyenv, rbenv and the like: scripts that look for the version
            self._infer(prefix)
        elif os.path.basename(folder) in ("bin", "sbin") and os.path.isdir(f"{prefix}/lib"):
            is_shared = os.path.basename(prefix).startswith(".") and is_broad(os.path.dirname(prefix))  # ~/.local
            if (is_shared or not self._infer(prefix)) and _is_python(os.path.basename(program)):
                self._python_libraries(prefix)

    def _python_libraries(self, prefix: str) -> None:
        for name in os.listdir(f"{prefix}/lib"):
            if _is_python(name):
                self._infer(self._follow(f"{prefix}/lib/{name}"))

    def _virtual_environment(self, root: str, depth: int) -> None:
        settings = f"{root}/pyvenv.cfg"
        if not self._infer(root):
            self._read.add(settings)
            self._python_libraries(root)
        with open(settings, encoding="utf-8", errors="replace") as file:
            for line in file:
                name, _, value = line.partition("=")
                home = value.strip()
                if name.strip() == "home" and os.path.isabs(home):
                    for each in ("python3", "python"):
                        if os.path.exists(f"{home}/{each}"):
                            self._program(f"{home}/{each}", depth + 1)
        # A path file of a package that was installed names what its author wishes.
        for place in () if _is_within(root, self._installed) else _editable(root):
            self._infer(self._permitted(place, "a path file names"))

    def _modules(self, script: str) -> None:
        """Opens the outermost `node_modules` around a script: packages find each other there."""
        before, modules, _ = script.partition(f"/{MODULES}/")
        if modules:
            self._infer(f"{before}/{MODULES}")

    # --- arguments

    def _argument(self, argument: str) -> None:
        for text in (argument, argument.partition("=")[2]):
            path = text if os.path.isabs(text) else os.path.join(self._wanted.cwd, text) if self._wanted.cwd else ""
            if path and text and "\0" not in path and os.path.exists(path):
                self._given(os.path.normpath(path) if ".." not in path else path, argument)

    def _given(self, path: str, argument: str) -> None:
        if path in (*OWN_IN_EVERY_SANDBOX, *DEVICES):
            return
        real = self._permitted(path, "the argument")
        if _is_within(real, (*self._read, *self._write)):
            return
        if os.path.isdir(real):
            if not self._infer(real):
                secret = next((each for each in self._forbidden if _is_within(each, (real,))), None)
                why = "is too much to open" if secret is None else f"contains {secret!r}, which no sandbox opens"
                raise _refused(f"the argument {argument!r} {why}: name directories in it, or list them in sandbox.read")
            return
        self._read.add(real)
        self._modules(real)
        self._open_beside(real, beside(real))
        if is_script_of(self._wanted.argv, argument):
            self._open_beside(real, [os.path.dirname(real)])

    def _open_beside(self, script: str, directories: Iterable[str]) -> None:
        """What a script loads, unless the process itself may write it."""
        for each in directories:
            if not _is_within(script, self._write):
                self._infer(each)


def _followed(path: str) -> tuple[str, dict[str, str]]:
    """The path without symbolic links; every link on the way, and its target. Raises OSError if there are too many."""
    links: dict[str, str] = {}
    real, found = "/", 0
    waiting = path.split("/")[::-1]
    while waiting:
        part = waiting.pop()
        if part in ("", "."):
            continue
        if part == "..":
            real = os.path.dirname(real)
            continue
        step = os.path.join(real, part)
        try:
            target = os.readlink(step)
        except OSError:  # no link
            real = step
            continue
        found += 1
        if found > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        links[step] = target
        real = "/" if target.startswith("/") else real
        waiting += target.split("/")[::-1]
    return real, links


def _leads_nowhere_else(needs: Needs) -> bool:
    """Whether no path has become a symbolic link since it was found: another backend may write where this one reads."""
    return all(os.path.realpath(each) == each for each in (*needs.read, *needs.write))


def is_broad(directory: str) -> bool:
    """Whether it is a directory of the system or somebody's home, of which nobody means all."""
    return directory in _BROAD or any(os.path.lexists(f"{directory}/{sign}") for sign in _SIGNS_OF_A_HOME)


def _refused(message: str, number: int = errno.EACCES) -> SpawnFailed:
    return SpawnFailed(number, "sandbox", message)


def _is_within(path: str, roots: Iterable[str]) -> bool:
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)


def _outermost(paths: Iterable[str]) -> tuple[str, ...]:
    kept: list[str] = []
    for path in sorted(paths):
        if not _is_within(path, kept):
            kept.append(path)
    return tuple(kept)


def _editable(root: str) -> Iterator[str]:
    """Directories outside a virtual environment from which it imports: of packages installed for development."""
    library = f"{root}/lib"
    for version in sorted(os.listdir(library)) if os.path.isdir(library) else ():
        packages = f"{library}/{version}/site-packages"
        names = (
            sorted(name for name in os.listdir(packages) if name.endswith(".pth")) if os.path.isdir(packages) else []
        )
        for name in names[:_PATH_FILES]:
            with open(f"{packages}/{name}", encoding="utf-8", errors="replace") as file:
                yield from (
                    line.strip() for line in file if os.path.isdir(line.strip()) and os.path.isabs(line.strip())
                )
