"""One run from beginning to end: clients, faults, and what has to be well again when they are over."""

import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import httpx2
import psutil

from tests.chaos.faults import Faults, plan
from tests.chaos.history import Beat, Ended, Finding, Healed, Writer
from tests.chaos.rig import Place, Rig
from tests.chaos.wires import Wire, initialize, now
from tests.chaos.workload import Actor, Reader, crowd
from tests.chaos.world import TENANTS, Principal, World
from tests.integration.gateway import Gateway

WELL_WITHIN_S = 20.0  # of the end of all faults: leases, breakers, readiness
WORKS_WITHIN_S = 25.0  # each client has been answered again: the longest patience, and a take-over
QUIET_S = 1.5  # without news for any reader, longer than two messages are apart
QUIET_WITHIN_S = 20.0
COUNTS_WITHIN_S = 20.0
GONE_WITHIN_S = 20.0  # the processes of all that was closed
EVERY_S = 2.0  # a key is revoked
A_MINUTE = 60.0  # a shorter run is one of the suite, on a machine that has other work
BEAT_S, BEAT_WAIT_S, TICK_S = 0.25, 10.0, 0.02
MOST_MIB, MOST_FILES = 400, 200  # of a node that has nothing to do any more


class Pulse:
    """Asks /livez of each node, not by its line, and knows how late it was itself."""

    def __init__(self, rig: Rig, history: Writer) -> None:
        self._rig, self._history, self._late = rig, history, 0.0

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._tick)
            for place in self._rig.places:
                tasks.start_soon(self._ask, place)

    async def _tick(self) -> None:
        while True:
            began = now()
            await anyio.sleep(TICK_S)
            self._late += now() - began - TICK_S

    async def _ask(self, place: Place) -> None:
        while True:
            await anyio.sleep(BEAT_S)
            node = place.node
            if node is None:
                continue
            began, late, status = now(), self._late, 0
            with suppress(httpx2.TransportError, TimeoutError), anyio.fail_after(BEAT_WAIT_S):
                status = (await self._rig.http.get(node.url + "/livez")).status_code
            if place.node is node:
                self._history.add(Beat(place.number, began, now() - began, status, self._late - late))


class Storm:
    """Holds the pieces of one run together."""

    def __init__(self, rig: Rig, history: Writer, seed: int, seconds: float) -> None:
        self.rig, self.history, self.seed, self.seconds = rig, history, seed, seconds
        self.world = World(rig, history, random.Random(seed))

    async def run(self) -> None:
        """Everything but the nodes' own start and end."""
        await self.world.prepare()
        actors = crowd(self.world, few=self.seconds < A_MINUTE)
        async with anyio.create_task_group() as always:
            always.start_soon(Pulse(self.rig, self.history).run)
            async with anyio.create_task_group() as clients:
                for actor in actors:
                    clients.start_soon(actor.live)
                async with anyio.create_task_group() as storm:
                    storm.start_soon(self.world.revoke_some, EVERY_S)
                    await Faults(self.rig, self.history, self.seed).strike_all(plan(self.seed, self.seconds))
                    storm.cancel_scope.cancel()
                await self._settle(actors)
                self.world.stopping = True
                self.history.add(Ended(now()))
            await self._look_at_the_rest()
            always.cancel_scope.cancel()
        began = now()
        self._found("nodes stop", await self.rig.stop(), began)
        self._found("no node logs an exception", "\n".join(self.rig.tracebacks()), now())

    async def _settle(self, actors: list[Actor]) -> None:
        healed = now()
        self.history.add(Healed(healed))
        await self._becomes("every node is ready", WELL_WITHIN_S, self._not_ready)
        await self._all_work(actors, healed, "every client can work again")
        self.world.resting = True
        readers = [actor for actor in actors if isinstance(actor, Reader)]

        async def noisy() -> list[str]:
            return [
                each.name
                for each in readers
                if not each.is_full and (not each.is_reading or now() - max(each.last_heard, resting) < QUIET_S)
            ]

        resting = now()
        await self._becomes("readers are up to date", QUIET_WITHIN_S, noisy)

    async def _all_work(self, actors: list[Actor], since: float, what: str) -> None:
        """The tenant with more clients than sessions aside: somebody always has to wait there."""

        async def idle() -> list[str]:
            return [each.name for each in actors if each.last_success < since and each.tenant != "narrow"]

        await self._becomes(what, WORKS_WITHIN_S, idle)

    async def _not_ready(self) -> list[str]:
        found = []
        for place in self.rig.places:
            node = place.node
            if node is None:
                found.append(f"{place.number}: there is none")
                continue
            ready = await self.rig.http.get(node.url + "/readyz", timeout=5)
            others = await self._api(node, "GET", "/nodes")
            if ready.status_code != 200 or ready.json().get("degraded") or len(others.get("items", ())) != 3:
                found.append(f"{place.number}: {ready.text} {len(others.get('items', ()))} nodes")
        return found

    # --- what is left when all clients have gone

    async def _look_at_the_rest(self) -> None:
        chance, node = random.Random(self.seed), self.rig.running[0]
        for tenant in TENANTS:
            for session in (await self._api(node, "GET", f"/tenants/{tenant}/sessions?limit=200"))["items"]:
                await self.rig.admin("DELETE", f"/tenants/{tenant}/sessions/{session['id']}", chance=chance)
        for tenant, number in TENANTS.items():
            await self._look_at_counts(tenant, number)
            for backend in ("respawn", "end"):  # ends the lines of 2026-07-28, which nobody can close
                await self.rig.admin("POST", f"/tenants/{tenant}/backends/{backend}:restart", chance=chance)

        async def left() -> list[int]:
            return [each.pid for each in await anyio.to_thread.run_sync(self.rig.backends)]

        await self._becomes("no process of a backend is left", GONE_WITHIN_S, left)
        self._look_at_resources()

    async def _look_at_counts(self, tenant: str, number: int) -> None:
        """A tenant that has no session may open as many as it may have, and not one more."""
        principal, held = await self.world.new_principal(tenant), list[Wire]()

        async def refused() -> str:
            while len(held) < number:
                status, wire = await self._open(tenant, principal, self.rig.places[len(held) % 3].url)
                if status != 200:
                    return f"{len(held)} opened, then status {status}"
                held.append(wire)
            return ""

        await self._becomes(f"{tenant} can open its {number} sessions", COUNTS_WITHIN_S, refused)
        status, _ = await self._open(tenant, principal, self.rig.places[0].url)
        self._found(f"{tenant} can open no more", "" if status == 429 else f"status {status}", now())
        for wire in held:
            await wire.delete(f"{self.rig.places[0].url}/t/{tenant}/end/mcp")

    async def _open(self, tenant: str, principal: Principal, host: str) -> tuple[int, Wire]:
        headers = {"Authorization": f"Bearer {principal.key}"}
        wire = Wire(self.rig.http, headers, lambda event, stream: None, 10.0)
        answer = await wire.post(f"{host}/t/{tenant}/end/mcp", initialize("last"))
        wire.headers["Mcp-Session-Id"] = answer.session_id
        return answer.status, wire

    def _look_at_resources(self) -> None:
        for place in self.rig.places:
            assert place.node is not None
            process = psutil.Process(place.node.pid)
            mib, files = process.memory_info().rss / 2**20, process.num_fds()
            trouble = f"{mib:.0f} MiB, {files} descriptors, {sum(process.cpu_times()[:2]):.1f} s of CPU"
            print(f"node {place.number}: {trouble}")
            self._found(
                f"node {place.number} has let go", trouble if mib > MOST_MIB or files > MOST_FILES else "", now()
            )

    # --- findings

    async def _api(self, node: Gateway, method: str, path: str) -> Any:
        headers = {"Authorization": f"Bearer {self.rig.admin_key}"}
        response = await self.rig.http.request(method, f"{node.url}/api/v1{path}", headers=headers, timeout=10)
        return response.json() if response.is_success else {}

    async def _becomes(self, what: str, within_s: float, trouble: Callable[[], Any]) -> None:
        """Waits until there is no trouble, and notes what is left of it."""
        began, found = now(), ""
        while True:
            try:
                found = await trouble()
            except (httpx2.TransportError, TimeoutError) as error:
                found = repr(error)
            if not found or now() - began > within_s:
                break
            await anyio.sleep(0.1)
        self._found(what, f"after {now() - began:.1f} s: {found}" if found else "", began)

    def _found(self, what: str, trouble: str, began: float) -> None:
        print(f"{now() - began:5.1f} s  {what}: {trouble or 'yes'}", flush=True)
        self.history.add(Finding(what, trouble))


def default_seed() -> int:
    """Another one each time."""
    return time.time_ns() // 10**6 % 10**6
