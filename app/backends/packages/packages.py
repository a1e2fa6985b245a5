"""Packages: from a command that names one to a lock, and from a lock to a program on this node."""

import logging
import os
import shutil
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

import anyio
import anyio.to_thread

from app.backends.packages._lock import Lock, LockRefused, read_lock, scripts_in
from app.backends.packages._programs import Program, chosen
from app.backends.packages.recognition import (
    NotInstallable,
    PackageRequest,
    at_version,
    image_runner_of,
    line_of,
    newest_of,
    recognised,
)
from app.backends.packages.registries import Source, ToolMissing, of_npm, of_pypi
from app.backends.packages.store import Building, Store
from app.backends.packages.workshop import InstallFailed, Workshop
from app.domain import BackendSpec, Package
from app.errors import BackendExited, InvalidRequest, NotFound
from app.storage.packages import StoredLock

if TYPE_CHECKING:
    from app.backends.images.images import Images

RESOLVE_S, INSTALL_S = 120.0, 180.0  # of the largest ones on a slow machine
ACT_S = 280.0  # for what a person waits for: both, mostly
MAX_SCRIPTS = 10  # that are named
AT_ONCE = 3  # of a node; others wait
OF_ONE_TENANT = 2  # of them: what takes long for one holds up no other
ASK_S, ASK_ALL_S = 20.0, 60.0  # for the newest version of one package, and of all of a tenant
ASKS_AT_ONCE = 4  # of a node
_COLLECT_S = 600.0
# What npm and uv say of a name or a version that is not there.
_UNKNOWN = ("E404", "ETARGET", "was not found in the package registry", "there is no version of")
_HINT = "The node's log says more; `trunkline doctor`, run as the gateway's user, says what is there for packages."
logger = logging.getLogger(__name__)


class Locks(Protocol):
    """The stored locks (`storage.packages.PackageRepository`)."""

    async def keep(self, tenant: str, lock: StoredLock) -> None:
        """Raises QuotaExceeded: the tenant has as many as it may have."""

    async def content(self, tenant: str, lock: str) -> str:
        """Raises NotFound."""

    async def wanted(self) -> Collection[str]:
        """The hashes that a backend of any tenant names."""


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """Addresses from the node's settings; None: npm's and uv's own configuration on this node. `engine`: what starts
    images; None: nothing does."""

    npm: str | None = None
    pypi: str | None = None
    engine: str | None = None


@dataclass(frozen=True, slots=True)
class Outdated:
    """A backend whose package has a newer version; or a `problem`: why nobody knows."""

    backend: str
    package: Package
    newest: str | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class _Problem:
    """Why nobody knows which version is the newest."""

    words: str


def _tool(registry: str) -> ModuleType:
    """What differs between npm and PyPI. Loaded where something is installed: a node may never need it."""
    return import_module(f"app.backends.packages._{registry}")


class Packages:
    """`in_use`: the folders from which processes of this node run."""

    def __init__(
        self, store: Store, workshop: Workshop, locks: Locks, settings: RegistrySettings, in_use: Callable[[], set[str]]
    ) -> None:
        self._store, self._workshop, self._locks, self._settings = store, workshop, locks, settings
        self._in_use = in_use
        self._sources: dict[str, Source] = {}
        self._places = anyio.CapacityLimiter(AT_ONCE)
        self._places_of = dict[str, anyio.CapacityLimiter]()  # by tenant
        self._asking = anyio.CapacityLimiter(ASKS_AT_ONCE)
        self._making: dict[str, anyio.Lock] = {}
        self._programs: dict[str, Mapping[str, Program]] = {}

    # --- for acts of administrators

    async def resolved(self, spec: BackendSpec, known: BackendSpec | None = None) -> BackendSpec:
        """The backend with the package that its command names, if it names one: that of the `known` backend as long as
        it names the same, else a new lock, which is stored, and installed here.

        Raises:
            InvalidRequest: there is no such package, or it could not be installed; likewise an image.
            QuotaExceeded: the tenant has as many packages as it may have.
        """
        if _names_image(spec):
            return await self._images.resolved(spec, known)
        if known is not None and (spec.command, spec.args) == (known.command, known.args):
            return replace(spec, package=known.package)  # also where it was registered before there were packages
        request = _request_of(spec)
        if request is None:
            return replace(spec, package=None)
        if known is not None and known.package is not None and request.is_same_package(_known_request(known)):
            return replace(spec, package=known.package)
        return replace(spec, package=await self._packaged(spec.tenant, request))

    async def updated(self, spec: BackendSpec, version: str | None) -> BackendSpec:
        """The backend with the newest version of its package that its command allows, or with this one: a new lock,
        which is stored, and installed here. Its `args` name the version then, if they have named one. Of an image: with
        what its name means now.

        Raises:
            InvalidRequest: its command names no package, there is no such version, or it could not be installed.
            QuotaExceeded: the tenant has as many packages as it may have.
        """
        if _names_image(spec):
            if version is not None:
                raise InvalidRequest("an image has its version in its name: change that in `args`", field="to")
            return await self._images.updated(spec)
        request, args = _request_of(spec), spec.args
        if request is None:
            raise InvalidRequest("its command names no package that is installed from a registry")
        if version is not None:
            try:
                request, args = at_version(spec.command, spec.args, version)
            except NotInstallable as error:
                raise InvalidRequest(str(error), field="to") from None
        return replace(spec, args=args, package=await self._packaged(spec.tenant, request))

    async def outdated(self, specs: Iterable[BackendSpec]) -> list[Outdated]:
        """Of these backends those whose package has a newer version in its registry, whatever their command allows, and
        those of which nobody knows. Each package is asked for once."""
        from app.backends.packages._versions import is_newer  # noqa: PLC0415 - a node may never need it

        named = [(spec, spec.package, request) for spec in specs if spec.package and (request := _known_request(spec))]
        answers = await self._newest(dict.fromkeys(newest_of(request) for _, _, request in named))
        found = list[Outdated]()
        for spec, package, request in named:
            answer = answers[newest_of(request)]
            if isinstance(answer, _Problem):
                found.append(Outdated(spec.name, package, problem=answer.words))
            elif is_newer(package.registry, answer, package.version):
                found.append(Outdated(spec.name, package, newest=answer))
        return found

    async def _packaged(self, tenant: str, request: PackageRequest) -> Package:
        """From a new lock, which is stored. Raises as `resolved`."""
        try:
            with anyio.fail_after(ACT_S):
                lock = await self._locked(tenant, request)
            programs = await anyio.to_thread.run_sync(self._programs_of, lock.hash)
            program = chosen(programs, request.name, request.program)
            scripts = tuple(scripts_in(lock)[:MAX_SCRIPTS])
            package = Package(request.registry, request.name, lock.version, program, lock.hash, scripts)
        except KeyError as error:
            raise InvalidRequest(str(error.args[0]), field="args") from None
        except TimeoutError:
            words = f"the package {request.wanted[0]} could not be installed within {ACT_S:g} s; try again"
            raise InvalidRequest(words, field="command") from None
        except (InstallFailed, ToolMissing, LockRefused, OSError) as error:
            words = f"the package {request.wanted[0]} cannot be installed: {error}"
            if any(each in words for each in _UNKNOWN):
                words = f"the registry has no {request.wanted[0]}: check how it is spelled, and its version. {error}"
            raise InvalidRequest(words, field="command") from None
        stored = StoredLock(lock.hash, package.registry, package.name, package.version, lock.text)
        await self._locks.keep(tenant, stored)
        return package

    @cached_property
    def _images(self) -> "Images":
        from app.backends.images.engine import Engine  # noqa: PLC0415 - few nodes have images
        from app.backends.images.images import Images  # noqa: PLC0415

        return Images(None if self._settings.engine is None else Engine(self._settings.engine))

    async def _locked(self, tenant: str, request: PackageRequest) -> Lock:
        """A new lock, from which the package is installed on this node now."""
        tool = _tool(request.registry)
        source = await self._source(request.registry)
        async with self._room(tenant), self._building() as building:
            await self._workshop.run(
                await anyio.to_thread.run_sync(tool.resolving, request, building, source, RESOLVE_S)
            )
            lock: Lock = await anyio.to_thread.run_sync(tool.resolved, request, building.place)
            lock.check()
            async with self._one_at_a_time(lock.hash):
                if await anyio.to_thread.run_sync(self._store.find, lock.hash) is None:
                    await self._install(lock, building, source)
        return lock

    async def _newest(self, requests: Iterable[PackageRequest]) -> Mapping[PackageRequest, "str | _Problem"]:
        late = _Problem(f"nobody knows after {ASK_ALL_S:g} s, which is all that a list may take; ask again")
        found: dict[PackageRequest, str | _Problem] = dict.fromkeys(requests, late)
        turns = anyio.CapacityLimiter(OF_ONE_TENANT)

        async def ask(request: PackageRequest) -> None:
            async with turns, self._asking:
                found[request] = await self._newest_of(request)

        with anyio.move_on_after(ASK_ALL_S):
            async with anyio.create_task_group() as tasks:
                for request in found:
                    tasks.start_soon(ask, request)
        return found

    async def _newest_of(self, request: PackageRequest) -> "str | _Problem":
        try:
            tool = _tool(request.registry)
            source = await self._source(request.registry)
            async with self._building() as building:
                run = await anyio.to_thread.run_sync(tool.asking, request, building, source, ASK_S)
                said = await self._workshop.run(run)
                version: str = await anyio.to_thread.run_sync(tool.answered, request, building.place, said)
        except (InstallFailed, ToolMissing, LockRefused, OSError) as error:
            logger.info("Could not ask for the newest version of a package: %s", error, extra={"package": request.name})
            return _Problem(str(error))
        return version

    # --- for the start of processes

    async def ready(self, spec: BackendSpec) -> BackendSpec:
        """The backend with the program of its package, installed on this node: whoever comes meanwhile waits.

        Raises:
            BackendExited: it could not be installed (`started` is False).
        """
        package = spec.package
        assert package is not None
        try:
            place = await self._place(spec.tenant, package.lock)
            programs = await anyio.to_thread.run_sync(self._programs_of, package.lock)
            request = recognised(spec.command, spec.args)
            args = () if request is None else request.args
            argv = _argv(place, programs[package.program])
        except (InstallFailed, ToolMissing, LockRefused, NotInstallable, NotFound, OSError, KeyError) as error:
            logger.warning(
                "Could not install the package of a backend: %s",
                error,
                extra={"backend": spec.name, "backend_tenant": spec.tenant, "package": package.name},
            )
            words = f"its package {package.name} {package.version} cannot be installed on this node: {error}"
            raise BackendExited(words, started=False, hint=_HINT) from error
        return replace(spec, command=argv[0], args=(*argv[1:], *args), installed=str(place))

    async def _place(self, tenant: str, lock: str) -> Path:
        if (found := await anyio.to_thread.run_sync(self._store.find, lock)) is not None:
            return found
        # In this order everywhere: the tenant's share, a place, the turn of a lock.
        async with self._room(tenant), self._one_at_a_time(lock):
            if (found := await anyio.to_thread.run_sync(self._store.find, lock)) is not None:
                return found
            read = read_lock(await self._locks.content(tenant, lock), lock)
            source = await self._source(read.registry)
            async with self._building() as building:
                return await self._install(read, building, source)

    # --- both

    async def _install(self, lock: Lock, building: Building, source: Source) -> Path:
        tool = _tool(lock.registry)
        await self._workshop.run(await anyio.to_thread.run_sync(tool.installing, lock, building, source, INSTALL_S))
        links = await anyio.to_thread.run_sync(tool.furnish, lock, building)
        for each in tool.finishing(lock, building):
            await self._workshop.run(each)
        programs = partial(tool.programs, lock)
        await anyio.to_thread.run_sync(self._store.keep, building, lock.hash, programs, links)
        found = await anyio.to_thread.run_sync(self._store.find, lock.hash)
        assert found is not None
        logger.info("installed a package: %s %s", lock.name, lock.version, extra={"lock": lock.hash})
        return found

    async def _source(self, registry: str) -> Source:
        """Raises ToolMissing."""
        if registry not in self._sources:
            self._sources[registry] = await (self._of_npm() if registry == "npm" else self._of_pypi())
        return self._sources[registry]

    async def _of_npm(self) -> Source:
        return await anyio.to_thread.run_sync(of_npm, self._settings.npm, os.environ)

    async def _of_pypi(self) -> Source:
        """Where nothing is configured, only uv knows its own registry: it is asked by what it asks for."""
        source = await anyio.to_thread.run_sync(of_pypi, self._settings.pypi, os.environ, Path.home())
        if source.has_default:
            async with self._building() as building:
                request = PackageRequest("pypi", "pip", ("pip",))
                asked = await anyio.to_thread.run_sync(_tool("pypi").resolving, request, building, source, RESOLVE_S)
                found = await self._workshop.asks_for(asked)
            source = source.also(found)
        return source

    @asynccontextmanager
    async def _building(self) -> AsyncIterator[Building]:
        building = await anyio.to_thread.run_sync(self._store.begin)
        try:
            yield building
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(building.close)

    @asynccontextmanager
    async def _room(self, tenant: str) -> AsyncIterator[None]:
        """One of the node's places, within what the tenant may have of them."""
        own = self._places_of.setdefault(tenant, anyio.CapacityLimiter(OF_ONE_TENANT))
        try:
            async with own, self._places:
                yield
        finally:
            if not own.borrowed_tokens and not own.statistics().tasks_waiting:
                self._places_of.pop(tenant, None)

    @asynccontextmanager
    async def _one_at_a_time(self, lock: str) -> AsyncIterator[None]:
        turn = self._making.setdefault(lock, anyio.Lock())
        try:
            async with turn:
                yield
        finally:
            if not turn.statistics().locked and not turn.statistics().tasks_waiting:
                self._making.pop(lock, None)

    def _programs_of(self, lock: str) -> Mapping[str, Program]:
        if lock not in self._programs:
            self._programs[lock] = self._store.programs(lock)
        return self._programs[lock]

    async def run(self) -> None:
        """Removes what no backend needs any more, every now and then."""
        while True:
            await anyio.sleep(_COLLECT_S)
            wanted, used = await self._locks.wanted(), self._in_use()
            in_use = {os.path.basename(each) for each in used}
            for lock in await anyio.to_thread.run_sync(self._store.forget_unused, wanted, in_use):
                self._programs.pop(lock, None)
                logger.info("removed a package that no backend needs any more", extra={"lock": lock})


def _names_image(spec: BackendSpec) -> bool:
    return spec.url is None and image_runner_of(line_of(spec.command, spec.args)) is not None


def _request_of(spec: BackendSpec) -> PackageRequest | None:
    """Raises InvalidRequest."""
    try:
        return recognised(spec.command, spec.args) if spec.url is None else None
    except NotInstallable as error:
        raise InvalidRequest(str(error), field="command") from None


def _known_request(known: BackendSpec) -> PackageRequest | None:
    try:
        return recognised(known.command, known.args)
    except NotInstallable:
        return None


def _argv(place: Path, program: Program) -> tuple[str, ...]:
    """Raises ToolMissing."""
    entry = str(place / program.entry)
    if program.kind == "python":
        return str(place / "bin/python"), entry
    if program.kind == "file":
        return (entry,)
    if (node := shutil.which("node")) is None:
        raise ToolMissing("this node has no `node` on its PATH: install Node.js there")
    return node, entry
