"""Which image a command line such as `docker run -i --rm IMAGE` stands for, and what it says of the container. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from app.backends.packages.recognition import image_runner_of, line_of
from app.jail.sandbox.paths import why_not

_IDLE = frozenset({"-i", "--interactive", "--rm"})  # every container of the gateway is so
_OF_RIGHTS = "gives a container rights over the node, which none has: leave it out"
_OF_LIMITS = "is a limit of the backend: leave it out, and give its `limits`"
_OF_NETWORK = "is about the network, which a container has as its backend's `sandbox.network` says: leave it out"
_OF_PORTS = "opens a port, which no server needs that is asked by its input: leave it out"
_OF_FILES = "gives it files in a way that is not understood: leave it out, and write `-v DIRECTORY:TARGET[:ro]`"
_WHY_NOT = {
    **dict.fromkeys((
        "--privileged", "--cap-add", "--security-opt", "--pid", "--ipc", "--uts", "--userns", "--cgroupns", "--sysctl",
        "--cgroup-parent", "--runtime", "--group-add",
    ), _OF_RIGHTS),
    **dict.fromkeys(("--device", "--gpus", "--device-cgroup-rule", "--device-read-bps"), "gives a container a device, "
        "which none has: leave it out"),
    **dict.fromkeys((
        "--network", "--net", "--network-alias", "--ip", "--dns", "--add-host", "--link", "--hostname", "-h",
    ), _OF_NETWORK),
    **dict.fromkeys(("-p", "--publish", "-P", "--publish-all", "--expose"), _OF_PORTS),
    **dict.fromkeys(("--volumes-from", "--tmpfs", "--volume-driver"), _OF_FILES),
    **dict.fromkeys((
        "-m", "--memory", "--memory-swap", "--cpus", "-c", "--cpu-shares", "--pids-limit", "--ulimit", "--shm-size",
    ), _OF_LIMITS),
    **dict.fromkeys(("-d", "--detach"), "starts it in the background, where nobody can ask it: leave it out"),
    **dict.fromkeys(("-t", "--tty"), "gives it a terminal, which changes what it says: leave it out"),
    "--env-file": "names a file of variables: leave it out, and give them as `env`",
    "--pull": "is about a newer image, and that changes only when the backend is changed: leave it out",
}  # fmt: skip
_OTHERWISE = "is an option that no container of the gateway has: leave it out"
# As the engines write names; what is before a tag of one word may not be a place of another kind for podman.
_reference = re.compile(
    r"((?:[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]{1,5})?/)?[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*)"
    r"(?::([A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(sha256:[0-9a-f]{64}))?"
)
_OTHER_PLACES = frozenset({
    "containers-storage", "dir", "docker", "docker-archive", "docker-daemon", "oci", "oci-archive", "ostree", "sif",
    "tarball",
})  # fmt: skip
_is_variable = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII).fullmatch
_is_user = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,63})?").fullmatch
is_quoted = re.compile(r"[\x00-\x1f\x7f\",:]").search  # with these a path would be read as something else
_OF_A_MAC = frozenset({"cached", "delegated", "consistent"})  # which change nothing
MAX_REFERENCE, MAX_MOUNTS = 512, 32


class NotRunnable(ValueError):
    """The command names an image, but says something of its container that none can have. The message says what to
    do."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or directory of the node, and where the container has it."""

    source: str
    target: str
    is_writable: bool


@dataclass(frozen=True, slots=True)
class ImageRequest:
    """What a command line asks for. `env`: the variables that it gives a value."""

    name: str
    tag: str = ""
    digest: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    workdir: str = ""
    user: str = ""

    @property
    def reference(self) -> str:
        """The image as an engine reads it."""
        return f"{self.name}{f':{self.tag}' if self.tag else ''}{f'@{self.digest}' if self.digest else ''}"


def recognised_image(command: str, args: Sequence[str]) -> ImageRequest | None:
    """None: the command starts no container.

    Raises:
        NotRunnable: it asks for something that no container of the gateway has.
    """
    line = line_of(command, args)
    words = image_runner_of(line)
    return None if words is None else _read(" ".join(words), list(line[len(words) :]))


def _read(runner: str, waiting: list[str]) -> ImageRequest:
    reading = _Reading()
    while waiting and waiting[0].startswith("-"):
        word = waiting.pop(0)
        if word == "--":
            break
        for name, value in _options(word):
            _take(reading, runner, name, value, waiting)
    if not waiting:
        raise NotRunnable(f"`{runner}` names no image: write its name behind the options")
    found = _reference.fullmatch(waiting[0]) if len(waiting[0]) <= MAX_REFERENCE else None
    if found is None or found[1] in _OTHER_PLACES:
        raise NotRunnable(f"`{runner}`: `{_shown(waiting[0])}` is not the name of an image, as `NAME:TAG`")
    return ImageRequest(
        found[1], found[2] or "", found[3] or "", tuple(waiting[1:]), reading.env, tuple(reading.mounts),
        reading.workdir, reading.user,
    )  # fmt: skip


def _options(word: str) -> list[tuple[str, str | None]]:
    """The options of one word: `-ie` is two. None: without a value in the same word."""
    if word.startswith("--"):
        name, has_value, value = word.partition("=")
        return [(name, value if has_value else None)]
    found = list[tuple[str, str | None]]()
    for at, letter in enumerate(word[1:], 2):
        name = f"-{letter}"
        if name not in _IDLE:
            found.append((name, word[at:].removeprefix("=") or None))
            break
        found.append((name, None))
    return found


@dataclass(slots=True)
class _Reading:
    """What the options have said so far. Each method takes one: as it is written, and its value. Raises NotRunnable."""

    env: dict[str, str] = field(default_factory=dict)
    mounts: list[Mount] = field(default_factory=list)
    workdir: str = ""
    user: str = ""

    def take_nothing(self, option: str, text: str) -> None:
        """Each container has a name of the gateway's own."""

    def take_variable(self, option: str, text: str) -> None:
        name, has_value, value = text.partition("=")
        if _is_variable(name) is None:
            raise NotRunnable(f"`{option}`: a variable is NAME or NAME=VALUE, with letters, digits and `_` in its name")
        if has_value:  # without one it is that of the backend's `env`
            self.env[name] = value

    def take_directory(self, option: str, text: str) -> None:
        if text != "/" and why_not_inside(text):
            raise NotRunnable(f"`{option}`: `{_shown(text)}` is no absolute path in the container")
        self.workdir = text

    def take_user(self, option: str, text: str) -> None:
        if _is_user(text) is None:
            raise NotRunnable(f"`{option}`: `{_shown(text)}` is no user of the container, as `USER` or `USER:GROUP`")
        self.user = text

    def take_volume(self, option: str, text: str) -> None:
        """SOURCE:TARGET:OPTIONS."""
        source, _, rest = text.partition(":")
        target, _, options = rest.partition(":")
        given = {each for each in options.split(",") if each}
        self._add(f"`{option} {_shown(text)}`", Mount(source, target, "ro" not in given), given - {"ro", "rw"})

    def take_mount(self, option: str, text: str) -> None:
        """As `server.json` describes images: type=bind,src=SOURCE,dst=TARGET,readonly."""
        words = f"`{option} {_shown(text)}`"
        fields = dict(each.partition("=")[::2] for each in text.split(","))
        source, target = fields.pop("source", fields.pop("src", "")), fields.pop("target", "")
        target = target or fields.pop("destination", fields.pop("dst", ""))
        if fields.pop("type", "volume") != "bind" or not {*fields.values()} <= {"", "true"}:
            raise NotRunnable(f"{words} {_OF_FILES}")
        self._add(words, Mount(source, target, not fields), fields.keys() - {"readonly", "ro"})

    def _add(self, words: str, mount: Mount, others: set[str]) -> None:
        source = mount.source.rstrip("/") or mount.source[:1]
        if not source.startswith("/"):
            raise NotRunnable(f"{words}: no container has a volume of its engine: name a file or directory of the node")
        if source.endswith((".sock", ".socket")) or source == "/var/run" or source.startswith("/var/run/"):
            raise NotRunnable(f"{words}: no container is given a socket of the node: leave it out")
        if (why := why_not(source)) is not None:
            raise NotRunnable(f"{words}: the path of the node {why}")
        if (why := why_not_inside(mount.target)) is not None:
            raise NotRunnable(f"{words}: the path in the container {why}")
        if is_quoted(source) or others - _OF_A_MAC:
            raise NotRunnable(f'{words}: write `DIRECTORY:TARGET` or `DIRECTORY:TARGET:ro`, without `,` and `"`')
        if len(self.mounts) == MAX_MOUNTS:
            raise NotRunnable(f"{words}: a container has at most {MAX_MOUNTS} volumes")
        self.mounts.append(replace(mount, source=source))


_TAKE: Mapping[str, Callable[[_Reading, str, str], None]] = {
    **dict.fromkeys(("-e", "--env"), _Reading.take_variable), **dict.fromkeys(("-v", "--volume"), _Reading.take_volume),
    "--mount": _Reading.take_mount, **dict.fromkeys(("-w", "--workdir"), _Reading.take_directory),
    **dict.fromkeys(("-u", "--user"), _Reading.take_user), "--name": _Reading.take_nothing,
}  # fmt: skip


def _take(reading: _Reading, runner: str, name: str, value: str | None, waiting: list[str]) -> None:
    """Raises NotRunnable."""
    if name in _IDLE and value in (None, "true"):
        return
    if (take := _TAKE.get(name)) is None:
        words = f"{name} {value or (waiting[0] if waiting else '')}" if name in ("--network", "--net") else name
        raise NotRunnable(f"`{runner} {_shown(words).strip()}` {_WHY_NOT.get(name, _OTHERWISE)}")
    if value is None:
        if not waiting:
            raise NotRunnable(f"`{runner} {name}` needs a value")
        value = waiting.pop(0)
    take(reading, f"{runner} {name}", value)


def why_not_inside(path: str) -> str | None:
    """Why nothing can be put at this path of a container; None: it can be."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not path.startswith("/") or ".." in parts or not parts:
        return "must be absolute, without `..`, and more than `/`"
    if parts[0] in ("proc", "sys", "dev"):
        return f"must not be in `/{parts[0]}`, which is the kernel's"
    return 'must have no `,`, `:` or `"` in it' if is_quoted(path) else None


def _shown(text: str) -> str:
    return ascii(text[:200])[1:-1]
