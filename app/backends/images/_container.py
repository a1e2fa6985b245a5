"""What an engine is told of one container. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.backends.images.engine import BACKEND_LABEL, NODE_LABEL, Kind
from app.backends.images.recognition import ImageRequest, Mount
from app.domain import HOME_WORD, BackendSpec

TEMPORARY = "/tmp"  # noqa: S108 - of the container
# Else it would make places to write to that have no limit, and look for a key in messages that ends a session.
_OF_PODMAN = ("--read-only-tmpfs=false", "--detach-keys=")


@dataclass(frozen=True, slots=True)
class Container:
    """`image`: its id; `mounts`: with sources that have no links. `most`: what an engine without rights
    may surely set of the node's own limits, by kind."""

    name: str
    node: str
    image: str
    volumes: Sequence[str]
    mounts: Sequence[Mount]
    most: Mapping[str, int]


def words_of(kind: Kind, spec: BackendSpec, request: ImageRequest, container: Container, variables: str) -> list[str]:
    """The command line behind the engine. `variables`: the file from which it reads the environment."""
    return [
        "run", "--rm", "--interactive", "--pull=never", f"--name={container.name}",
        f"--label={NODE_LABEL}={container.node}", f"--label={BACKEND_LABEL}={spec.tenant}/{spec.name}",
        "--log-driver=none", "--no-healthcheck", "--network=none", "--cap-drop=ALL",
        "--security-opt=no-new-privileges", "--read-only", f"--env-file={variables}",
        *(_OF_PODMAN if kind == "podman" else ()),
        *_limits(kind, spec, container.most),
        *_files(kind, spec, container),
        *([f"--workdir={request.workdir}"] if request.workdir else []),
        *([f"--user={request.user}"] if request.user else []),
        f"sha256:{container.image}", *request.args,
    ]  # fmt: skip


def _limits(kind: Kind, spec: BackendSpec, most: Mapping[str, int]) -> list[str]:
    limits, words = spec.limits, list[str]()
    if limits.memory_mb is not None:
        words += [f"--memory={limits.memory_mb}m", f"--memory-swap={limits.memory_mb}m"]
    if limits.pids is not None:
        words.append(f"--pids-limit={limits.pids}")
    if limits.cpu is not None:
        words.append(f"--cpus={limits.cpu:g}")
    own = dict(most) if kind == "podman" else {}  # it would ask for more than its user may have
    if limits.files is not None:
        own["nofile"] = min(limits.files, own.get("nofile", limits.files))
    return [*words, *(f"--ulimit={name}={value}:{value}" for name, value in sorted(own.items()))]


def _files(kind: Kind, spec: BackendSpec, container: Container) -> list[str]:
    """What it may write to is in memory, but for what is mounted so."""
    size = "" if spec.limits.disk_mb is None else f",tmpfs-size={spec.limits.disk_mb << 20}"
    taken = {each.target.rstrip("/") for each in container.mounts}
    own = [each for each in (TEMPORARY, *container.volumes) if each not in taken]
    words = [f"--mount=type=tmpfs,destination={each}{size}" for each in dict.fromkeys(own)]
    # What is mounted below the source would not be read-only.
    only_read = ",readonly,bind-nonrecursive" if kind == "podman" else ",readonly"
    for each in container.mounts:
        how = "" if each.is_writable else only_read
        words.append(f"--mount=type=bind,source={each.source},destination={each.target}{how}")
    return words


def variables_of(spec: BackendSpec, request: ImageRequest) -> dict[str, str]:
    """Its environment, besides that of the image: what the line says counts before the backend's `env`."""
    return {name: each.replace(HOME_WORD, TEMPORARY) for name, each in {**spec.env, **request.env}.items()}


def text_of(variables: Mapping[str, str]) -> str:
    """As both engines read a file of variables. Raises ValueError: one has a line break."""
    for name, value in variables.items():
        if "\n" in value or "\r" in value:
            words = "has a line break, which no container can be given: put it into a file, and give that by `-v`"
            raise ValueError(f"the variable {name} {words}")
    return "".join(f"{name}={value}\n" for name, value in variables.items())
