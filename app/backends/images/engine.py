"""The container engine that the platform names: its command-line client, asked as a program of the gateway.

It runs outside of every sandbox, with the gateway's rights, so no word of its command line is a tenant's but those
behind the image. Blocks: to be called in a thread.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from app.backends.images.recognition import why_not_inside
from app.text.redaction import without_credentials
from app.text.terminal.text import printable

Kind = Literal["podman", "docker"]
ASK_S, REMOVE_S = 20.0, 2.0  # and so much more for each container
MAX_TOLD = 600  # characters of what it has said that are passed on
MAX_VOLUMES = 16
_OUTPUT = 1 << 20
# What a client reads to find its daemon, its storage and its registries; of the gateway's settings nothing.
_OWN = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME",
    "DBUS_SESSION_BUS_ADDRESS", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_TLS_VERIFY",
    "DOCKER_CERT_PATH", "CONTAINER_HOST", "CONTAINER_CONNECTION", "CONTAINER_SSHKEY", "CONTAINERS_CONF",
    "CONTAINERS_CONF_OVERRIDE", "CONTAINERS_STORAGE_CONF", "CONTAINERS_REGISTRIES_CONF", "REGISTRY_AUTH_FILE",
    "STORAGE_DRIVER", "STORAGE_OPTS",
)  # fmt: skip
# For a download only: podman would hand the proxies on to containers.
_OF_DOWNLOADS = (
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip
NODE_LABEL, BACKEND_LABEL = "trunkline.node", "trunkline.backend"
_is_id = re.compile(r"(?:sha256:)?([0-9a-f]{64})").fullmatch
is_container = re.compile(r"trunkline-[0-9a-f]{32}").fullmatch  # whatever else the engine has is not the gateway's


class EngineFailed(Exception):
    """The engine is not there, or could not do it. The message is for people."""


class ImageUnfit(EngineFailed):
    """The image is there, but no container of the gateway can be made of it."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image that the engine has. `volumes`: directories for which it wants a place to write to."""

    id: str
    volumes: tuple[str, ...]


class Engine:
    """`name`: the setting CONTAINER_ENGINE, a name or a path."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def program(self) -> str:
        """Its path. Raises EngineFailed."""
        found = shutil.which(self.name)
        if found is None:
            raise EngineFailed(f"CONTAINER_ENGINE is {self.name!r}, and this node has no such program on its PATH")
        return os.path.abspath(found)

    @cached_property
    def version(self) -> str:
        """As it says it, in one line. Raises EngineFailed."""
        return _told(self._ask(["--version"]))

    @cached_property
    def kind(self) -> Kind:
        """What it is, whatever it is called. Raises EngineFailed."""
        if (found := re.search(r"(?i)\b(podman|docker)\b", self.version)) is None:
            raise EngineFailed(f"CONTAINER_ENGINE is {self.name!r}, which is neither podman nor docker: {self.version}")
        return "podman" if found[1].lower() == "podman" else "docker"

    def environment(self, names: Iterable[str] = _OWN) -> dict[str, str]:
        """That of its client: of the gateway's own what it needs itself, and no backend's."""
        return {"PATH": os.defpath} | {name: os.environ[name] for name in names if os.environ.get(name)}

    def image(self, reference: str) -> Image:
        """Raises EngineFailed: it is not here, or cannot be started."""
        words = ["image", "inspect", "--format", "{{.Id}} {{json .Config.Volumes}}", "--", reference]
        identity, _, volumes = self._ask(words).strip().partition(" ")
        if (found := _is_id(identity)) is None:
            raise EngineFailed(f"the engine does not say which image that is, but {_told(identity)}")
        return Image(found[1], _volumes(volumes))

    def pull(self, reference: str, seconds: float) -> None:
        """From where its own configuration says. Raises EngineFailed."""
        self._ask(["pull", "--quiet", "--", reference], seconds, (*_OWN, *_OF_DOWNLOADS))

    def containers(self, node: str) -> list[str]:
        """The names of those with this node's label, running or not. Raises EngineFailed."""
        words = ["ps", "--all", "--filter", f"label={NODE_LABEL}={node}", "--format", "{{.Names}}"]
        return [each for each in self._ask(words).split() if is_container(each)]

    def remove(self, names: Sequence[str]) -> None:
        """Ends and removes containers at once; those that are gone already are no error. Raises EngineFailed."""
        if names:
            own = ["--ignore", "--time=0"] if self.kind == "podman" else []
            try:
                self._ask(["rm", "--force", "--volumes", *own, "--", *names], ASK_S + REMOVE_S * len(names))
            except EngineFailed as error:
                if "no such container" not in str(error).lower():
                    raise

    def _ask(self, words: Sequence[str], seconds: float | None = None, names: Iterable[str] = _OWN) -> str:
        what, seconds = f"`{os.path.basename(self.name)} {words[0]}`", seconds or ASK_S
        try:
            done = subprocess.run(
                [self.program, *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False,
                env=self.environment(names), cwd="/", start_new_session=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise EngineFailed(f"{what} has not ended after {seconds:g} s") from None
        except OSError as error:
            raise EngineFailed(f"{what} could not be started: {error.strerror}") from None
        if done.returncode:
            said = _told(done.stderr[-_OUTPUT:].decode(errors="replace"))
            raise EngineFailed(f"{what} failed (exit status {done.returncode}): {said}")
        return done.stdout[:_OUTPUT].decode(errors="replace")


def _volumes(text: str) -> tuple[str, ...]:
    """Raises EngineFailed."""
    try:
        found = json.loads(text)
    except ValueError:
        raise EngineFailed(f"the engine does not say which volumes the image has, but {_told(text)}") from None
    paths = tuple(sorted(path.rstrip("/") for path in found)) if isinstance(found, dict) else ()
    if len(paths) > MAX_VOLUMES or any(why_not_inside(path) for path in paths):
        raise ImageUnfit(f"the image declares volumes that no container can have: {_told(', '.join(paths))}")
    return paths


def _told(said: str) -> str:
    lines = [printable(line.strip()) for line in without_credentials(said).splitlines() if line.strip()]
    return " | ".join(lines)[-MAX_TOLD:]
