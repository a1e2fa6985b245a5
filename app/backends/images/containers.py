"""Containers of this node: one for each process of a backend that is an image, removed with it.

Whatever ends the engine's client (its session, a limit, a crash, the node's own end), the container is removed here by
its name. Those of a node that was killed are removed by the next one that starts on the same data directory: a locked
file there says that a node lives, and its name is the label of its containers.
"""

import errno
import fcntl
import logging
import os
import re
import resource
import secrets
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from pathlib import Path

import anyio
import anyio.to_thread

from app.backends.images._container import Container, text_of, variables_of, words_of
from app.backends.images.engine import Engine, EngineFailed, Image
from app.backends.images.recognition import ImageRequest, Mount, NotRunnable, is_quoted, recognised_image
from app.domain import BackendSpec
from app.jail.sandbox.composer import Confined
from app.jail.sandbox.needs import NeedsFinder
from app.jail.sandbox.sandboxes import CONTAINER_STAGE
from app.jail.sandbox.tiers import Profile
from app.jail.spawner.client import Command, SpawnFailed
from app.jail.spawner.wire import INNER_VARIABLES_FD, Confinement

_LOOK_S = 600.0  # how soon a container is found that was made when its client had been killed already
_KNOWN = 256  # images whose volumes are remembered
_LIMITS = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
_ENOUGH = 16384  # of each; engines have less of their own than this node has
_is_node = re.compile(r"[0-9a-f]{16}").fullmatch
logger = logging.getLogger(__name__)


class Containers:
    """`folder`: where the files are that say which nodes live. `finder`: which paths of the node may be mounted."""

    def __init__(self, engine: Engine, finder: NeedsFinder, folder: Path) -> None:
        self._engine, self._finder, self._folder = engine, finder, folder
        self._node = secrets.token_hex(8)
        self._mark: int | None = None  # a locked file, from the first container on
        self._lock = threading.Lock()  # of the file and of the images: containers are made ready by threads
        self._images: dict[str, Image] = {}
        self._live, self._ended = set[str](), set[str]()
        self._has_ended = anyio.Event()

    # --- starting

    async def contain(self, spec: BackendSpec, profile: Profile) -> Confined:
        """The engine's client, whose input and output are those of the container.

        Raises:
            SpawnFailed: the engine or the image is not here, or a path must not be opened.
        """
        assert spec.package is not None
        try:
            request = recognised_image(spec.command, spec.args)
            if request is None:
                raise NotRunnable("its command line starts no container any more")
            text = text_of(variables_of(spec, request))
            name = f"trunkline-{secrets.token_hex(16)}"
            command = await anyio.to_thread.run_sync(self._command, spec, request, spec.package.lock, name)
        except (EngineFailed, NotRunnable, ValueError, OSError) as error:
            raise SpawnFailed(getattr(error, "errno", None) or errno.ENOENT, CONTAINER_STAGE, str(error)) from error
        command.confinement["inner_texts"] = {str(INNER_VARIABLES_FD): text}
        self._live.add(name)
        return Confined(command, profile, forbidden=self._finder.forbidden, on_close=partial(self._over, name))

    def _command(self, spec: BackendSpec, request: ImageRequest, identity: str, name: str) -> Command:
        """Raises EngineFailed, NotRunnable, OSError, SpawnFailed."""
        self._say_it_lives()
        image, mounts, most = self._image(request, identity), self._mounts(spec, request), dict(_most())
        container = Container(name, self._node, identity, image.volumes, mounts, most)
        words = words_of(self._engine.kind, spec, request, container, f"/dev/fd/{INNER_VARIABLES_FD}")
        return Command([self._engine.program, *words], self._engine.environment(), confinement=Confinement())

    def _mounts(self, spec: BackendSpec, request: ImageRequest) -> list[Mount]:
        """What the backend's sandbox declares, at its own place, and what the line does. Raises as `_command`."""
        sandbox, declared = spec.sandbox, request.mounts
        wanted = [
            *(Mount(each, each, is_writable=False) for each in sandbox.read),
            *(Mount(each, each, is_writable=True) for each in sandbox.write),
            *declared,
        ]
        read = tuple(each.source for each in wanted if not each.is_writable)
        write = tuple(each.source for each in wanted if each.is_writable)
        real = self._finder.opened(read, write)
        return [_plain(Mount(real[each.source], each.target, each.is_writable)) for each in wanted]

    def _image(self, request: ImageRequest, identity: str) -> Image:
        """Raises EngineFailed."""
        if (known := self._images.get(identity)) is not None:
            return known
        try:
            found = self._engine.image(f"sha256:{identity}")
        except EngineFailed as error:
            words = f"its image {request.reference} is not on this node as it was registered: have its engine pull it"
            raise EngineFailed(f"{words}, or change the backend ({error})") from error
        with self._lock:
            while len(self._images) >= _KNOWN:
                self._images.pop(next(iter(self._images)))
            self._images[identity] = found
        return found

    def _say_it_lives(self) -> None:
        """Raises OSError."""
        with self._lock:
            if self._mark is not None:
                return
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = self._folder / self._node
            mark = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.stat(path)  # it is gone if another node took it for a dead one's, before it was locked
            except BaseException:
                os.close(mark)
                raise
            self._mark = mark

    # --- removing

    def _over(self, name: str) -> None:
        if name in self._live:
            self._live.discard(name)
            self._ended.add(name)
            self._has_ended.set()

    async def run(self) -> None:
        """Removes the containers of processes that have ended; now and then also those that nobody knows."""
        while True:
            with anyio.move_on_after(_LOOK_S) as waiting:
                await self._has_ended.wait()
            self._has_ended = anyio.Event()
            names, self._ended = list(self._ended), set[str]()
            with anyio.CancelScope(shield=True):  # bounded by the engine's own time-out
                await anyio.to_thread.run_sync(self._remove, names, waiting.cancelled_caught)

    def _remove(self, names: Sequence[str], is_searching: bool) -> None:
        """What cannot be removed now is found by a later search."""
        try:
            if is_searching and self._mark is not None:
                names = [each for each in self._engine.containers(self._node) if each not in self._live]
            self._engine.remove(names)
        except EngineFailed as error:
            logger.warning("Could not remove containers of ended processes; will retry: %s", error)

    async def aclose(self) -> None:
        """Removes all that this node has started. When no process runs any more; idempotent."""
        if self._mark is not None:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._remove_own)

    def _remove_own(self) -> None:
        mark, self._mark = self._mark, None
        if mark is not None:
            try:
                self._removed(self._node)
            finally:
                os.close(mark)

    def clean(self) -> int:
        """Removes what nodes have left that were killed; returns of how many. Blocks."""
        return sum(1 for _ in takewhile(self._removed, self._left()))

    def _left(self) -> Iterator[str]:
        with suppress(FileNotFoundError):
            for name in sorted(os.listdir(self._folder)):
                if _is_node(name) and _is_free(self._folder / name):
                    yield name

    def _removed(self, node: str) -> bool:
        """Whether nothing of this node is left."""
        try:
            self._engine.remove(self._engine.containers(node))
        except EngineFailed as error:
            logger.warning("Could not remove the containers that a node has left; the next start will retry: %s", error)
            return False
        (self._folder / node).unlink(missing_ok=True)
        return True


def _is_free(mark: Path) -> bool:
    """Whether the node that has made it is gone: the kernel releases the lock, however it died."""
    with suppress(OSError), mark.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _plain(mount: Mount) -> Mount:
    """Raises OSError, NotRunnable: it cannot be mounted as it is written."""
    mode = os.stat(mount.source).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise NotRunnable(f"{mount.source!r} is neither a file nor a directory: no container is given one")
    if is_quoted(mount.source) or is_quoted(mount.target):
        raise NotRunnable(f'{mount.source!r} has `,`, `:` or `"` in it: no container can be given that')
    return mount


def _most() -> Iterator[tuple[str, int]]:
    for name, kind in _LIMITS.items():
        if (hard := resource.getrlimit(kind)[1]) != resource.RLIM_INFINITY:
            yield name, min(hard // 2, _ENOUGH)
