"""Containers of this node's backends, if it has an engine that starts them."""

import logging
from typing import TYPE_CHECKING

import anyio.to_thread

from app.jail.sandbox.needs import NeedsFinder
from app.node.parts.opening import Opening

if TYPE_CHECKING:
    from app.backends.images.containers import Containers

log = logging.getLogger(__name__)


async def open_containers(opening: Opening) -> "Containers | None":
    """Removes those that a node has left which was killed. None: there is no engine."""
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
