"""Packages of npm and PyPI: where they are installed on this node, and from what. And images: what starts them."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio.to_thread

from app.auth.outbound_proxy import NodeProxy
from app.backends.packages.packages import Packages, RegistrySettings
from app.backends.packages.store import Store
from app.backends.packages.workshop import WayOut, Workshop
from app.jail.sandbox.needs import NeedsFinder
from app.jail.sandbox.sandboxes import Sandboxes
from app.node.parts.opening import Opening
from app.node.parts.records import Records
from app.storage.packages import PackageRepository

if TYPE_CHECKING:
    from app.backends.images.containers import Containers

log = logging.getLogger(__name__)


async def open_packages(
    opening: Opening,
    records: Records,
    sandboxes: Sandboxes,
    in_use: Callable[[], set[str]],
    proxy: NodeProxy | None,
) -> Packages:
    """Removes what a node that died has left half installed. `proxy`: between the node and the registries."""
    settings = opening.settings
    store = Store(settings.packages)
    opening.stack.callback(store.close)
    if left := await anyio.to_thread.run_sync(store.clean):
        log.info("removed %d packages that were half installed", left)
    finder = NeedsFinder([str(settings.data_dir), str(settings.homes)])
    workshop = Workshop(sandboxes, finder, opening.metrics, WayOut(proxy, settings.outbound_ca))
    registries = RegistrySettings(settings.npm_registry, settings.pypi_index, settings.container_engine)
    return Packages(store, workshop, PackageRepository(records.database), registries, in_use)


async def open_containers(opening: Opening) -> "Containers | None":
    """Removes those that a node has left which was killed. None: this one has no engine."""
    settings = opening.settings
    if settings.container_engine is None:
        return None
    from app.backends.images.containers import Containers  # noqa: PLC0415 - few nodes have an engine
    from app.backends.images.engine import Engine  # noqa: PLC0415

    finder = NeedsFinder([str(settings.data_dir), str(settings.homes)])
    containers = Containers(Engine(settings.container_engine), finder, settings.data_dir / "containers")
    opening.stack.push_async_callback(containers.aclose)
    if left := await anyio.to_thread.run_sync(containers.clean):
        log.info("removed the containers of %d nodes that had died", left)
    return containers
