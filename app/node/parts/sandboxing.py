"""The sandbox of this node's backends: control groups, the egress proxy, and the probes that say what it is worth."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from app.auth.outbound_proxy import NodeProxy
from app.domain import BackendSpec
from app.jail.egress.egress import Egress, EgressOptions
from app.jail.sandbox.cgroup_roots import CgroupRoots, open_roots
from app.jail.sandbox.composer import Composer
from app.jail.sandbox.environment import write_authorities
from app.jail.sandbox.machine import examine
from app.jail.sandbox.needs import NeedsFinder
from app.jail.sandbox.probes.probing import Probing
from app.jail.sandbox.probes.targets import targets_of
from app.jail.sandbox.sandboxes import GUARANTEES, Sandboxes, no_containers
from app.jail.sandbox.uids import uid_of
from app.jail.spawner.client import SpawnerClient
from app.node.parts.opening import Opening
from app.node.parts.own_parts import own_parts
from app.settings.settings import Settings

if TYPE_CHECKING:
    from app.backends.images.containers import Containers

log = logging.getLogger(__name__)


async def open_sandboxes(
    opening: Opening,
    memory_mb_of: Callable[[str], int | None],
    proxy: NodeProxy | None = None,
    containers: "Containers | None" = None,
) -> Sandboxes:
    """Finds out what holds on this machine. `memory_mb_of`: what all processes of a tenant may use together; `proxy`:
    what their connections go through; `containers`: what starts images.

    Raises:
        SpawnFailed: no process can be started at all.
    """
    settings, stack = opening.settings, opening.stack
    cgroups = await _open_cgroups(stack)
    machine = await anyio.to_thread.run_sync(examine, cgroups, partial(uid_of, settings.homes))
    options = EgressOptions(own_hosts=_own_hosts(settings), parts=own_parts(settings))
    authorities: str | None = None
    if settings.outbound_ca is not None:
        authorities = await anyio.to_thread.run_sync(write_authorities, settings.data_dir, settings.outbound_ca)
    egress = await stack.enter_async_context(Egress(opening.metrics, replace(options, proxy=proxy)))
    finder = NeedsFinder([str(settings.data_dir), str(settings.homes)])
    urls = {"the database": settings.database_url, "Redis": settings.redis_url}
    targets = targets_of((settings.host, settings.port), settings.data_dir, urls)
    spawner = SpawnerClient()
    try:
        await spawner.start()
        async with Egress(opening.metrics, replace(options, is_counted=False)) as tried:
            probing = Probing(spawner, Composer(machine.for_probes(), finder, tried), targets)
            reports = await probing.until_one_holds(machine.tiers)
    finally:
        await spawner.aclose()
    composer = Composer(machine, finder, egress, authorities)
    contain = no_containers if containers is None else containers.contain
    sandboxes = Sandboxes(machine, composer, settings.sandbox, reports, memory_mb_of, contain)
    opening.metrics.sandbox_tier.set(sandboxes.tier)
    enforced = sandboxes.profile(BackendSpec("", "", "")).enforced
    for guarantee in GUARANTEES:
        opening.metrics.sandbox_enforced.labels(guarantee).set(guarantee in enforced)
    log.info("backends run in sandboxes of tier %d (%s)", sandboxes.tier, sandboxes.tier.name.lower())
    for tier, why in sandboxes.failed().items():
        log.warning("a tier of the sandbox is not used: %s", why, extra={"tier": tier})
    return sandboxes


async def _open_cgroups(stack: AsyncExitStack) -> CgroupRoots:
    """They are the stack's before they are made, as a thread that makes them goes on when nobody waits for it any more.
    They are closed after the processes."""
    opened = asyncio.get_running_loop().run_in_executor(None, open_roots)
    stack.push_async_callback(_close_cgroups, opened)
    return await asyncio.shield(opened)


async def _close_cgroups(opened: "asyncio.Future[CgroupRoots]") -> None:
    with anyio.CancelScope(shield=True):
        await asyncio.wait([opened])
    if opened.exception() is None:
        opened.result().close()


def proxy_of_processes(settings: Settings) -> NodeProxy | None:
    """What their connections go through, if the node has one that they can use."""
    found = NodeProxy.of(settings.outbound_proxy, settings.outbound_no_proxy)
    if found is not None and found.url.startswith("https:"):
        log.warning(
            "OUTBOUND_PROXY begins with https: processes of backends connect without it, as theirs has to be http://"
        )
        return None
    return found


def _own_hosts(settings: Settings) -> tuple[str, ...]:
    own = urlsplit(settings.node_url).hostname if settings.node_url else None
    return (own,) if own else ()
