"""RedisStore: routes and nodes in Redis, for many nodes. One object per node: it tracks what the node holds."""

import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import anyio
from prometheus_client import Counter

from app.cluster.redis import key_check
from app.cluster.redis.connection import RedisConnection, Value
from app.cluster.routing import _scripts as scripts
from app.cluster.routing._node_list import NodeList
from app.cluster.routing._session_counts import SessionCounts
from app.cluster.routing.records import Records, Seal, principal_count_name, route_name, tenant_count_name
from app.errors import RoutesUnavailable, SessionLimit, session_quota
from app.sessions.routes import BEAT_S, CALLER, ENDED, LEASE_S, Found, NodeRecord, Quota, Route

ROUTE_TTL_MS = 600_000  # far longer than a node takes to refresh all its routes
LEASE_MS = int(LEASE_S * 1000)
SETTLING_MS = LEASE_MS + 1000  # by then every living node has written its routes again
LOT = 500  # routes in one script: it blocks Redis for 2 ms
MAX_LOTS = 100  # in one beat; the rest follows with the next one
CLAIM_TRIES = 4  # each but the first because another node has changed the route

_LIMITS: tuple[SessionLimit, SessionLimit] = ("sessions", "sessions_per_principal")

log = logging.getLogger(__name__)


class RedisStore:
    """Fulfils RouteStore and NodeStore. Records that no node of ours wrote are ignored, counted, and removed."""

    def __init__(self, redis: RedisConnection, seal: Seal, errors: Counter, *, patience_s: float | None = None) -> None:
        """`patience_s` is how long a claim may take while Redis answers other commands; None: no longer than those."""
        self._redis, self._records, self._errors, self._patience_s = redis, Records(seal), errors, patience_s
        self._counts = SessionCounts()
        self._generation = 0
        self._was_forgotten = True
        self._list, self._version = NodeList(phase=secrets.randbelow(2**32)), b""
        self._overdue = Overdue()
        self._last_beat: tuple[NodeRecord, bytes] | None = None
        self._beating = anyio.Lock()

    async def find(self, key: str) -> Found:
        match await self._redis.run(scripts.FIND, [route_name(key)]):
            case [bytes(node), bytes(token), bytes(sealed), int(lives), int(settling)]:
                route = await self._opened(key, node, token, sealed) if sealed else None
                if route is not None and route.transport == ENDED:
                    route = None
                return Found(route, owner_lives=route is not None and bool(lives), is_settling=bool(settling))
            case _:
                raise self._garbled()

    async def claim(self, route: Route, quota: Quota | None) -> Route:
        names = () if quota is None else _count_names(route)
        limits = [] if quota is None else [_limit(quota.sessions), _limit(quota.sessions_per_principal)]
        with self._counts.changing(names):
            owned = await self._claim(route, names, limits)
            if owned.node == route.node:
                self._counts.add(route.key, names)
        return owned

    async def _claim(self, route: Route, names: tuple[str, ...], limits: list[int]) -> Route:
        asked = route
        for _ in range(CLAIM_TRIES):
            sealed = self._records.seal_route(asked)
            arguments: list[Value] = [asked.node, asked.token, sealed, ROUTE_TTL_MS, *limits]
            keys = [route_name(route.key), *names]
            match await self._redis.run(scripts.CLAIM, keys, arguments, patience_s=self._patience_s):
                case [b"won"]:
                    return asked
                case [b"full", (2 | 3) as which, int(used)]:
                    raise session_quota(_LIMITS[which - 2], route.tenant, limits[which - 2], used)
                case [b"owned" | b"stale" as outcome, bytes(node), bytes(token), bytes(value)]:
                    found = await self._opened(route.key, node, token, value)
                case _:
                    raise self._garbled()
            if outcome == b"owned" and found is not None:
                return found
            # Tokens only grow, as long as the last one is known.
            asked = route if found is None else replace(route, token=found.token + 1)
        raise RoutesUnavailable

    async def take_over(self, route: Route, node: str, url: str) -> Route | None:
        taken = route.owned_by(node, url)
        names = _count_names(route)
        arguments: list[Value] = [route.node, route.token, node, self._records.seal_route(taken), ROUTE_TTL_MS]
        with self._counts.changing(names):
            if await self._redis.run(scripts.TAKE_OVER, [route_name(route.key), *names], arguments) != 1:
                return None
            self._counts.add(route.key, names)
        return taken

    async def refresh(self, routes: Sequence[Route]) -> list[Route]:
        """As RouteStore. All routes must belong to one node."""
        for route in routes:
            self._counts.add(route.key, _count_names(route))
        lost: list[Route] = []
        for start in range(0, len(routes), LOT):
            lost += await self._refresh(routes[start : start + LOT])
        for route in lost:
            self._counts.remove(route.key)
        return lost

    async def _refresh(self, routes: Sequence[Route]) -> list[Route]:
        lost, missing = await self._say(routes, with_values=False)
        # Routes released in the meantime must not be written again.
        missing = [route for route in missing if route.key in self._counts]
        if missing:
            more, _ = await self._say(missing, with_values=True)
            lost += more
        return lost

    async def _say(self, routes: Sequence[Route], *, with_values: bool) -> tuple[list[Route], list[Route]]:
        """Returns the routes that other nodes own now, and those that must be sent again with their values."""
        routes = [route for route in routes if route.key in self._counts]
        if not routes:
            return [], []
        arguments: list[Value] = [routes[0].node, ROUTE_TTL_MS]
        for route in routes:
            arguments += [route.token, self._records.seal_route(route) if with_values else b""]
        answers = await self._redis.run(scripts.REFRESH, [route_name(route.key) for route in routes], arguments)
        if not isinstance(answers, list) or len(answers) != len(routes):
            raise self._garbled()
        lost: list[Route] = []
        missing: list[Route] = []
        for route, answer in zip(routes, answers, strict=True):
            match answer:
                case 0:
                    continue
                case 1:
                    missing.append(route)
                case [bytes(node), bytes(token), bytes(value)]:
                    theirs = await self._opened(route.key, node, token, value)
                    (missing if theirs is None else lost).append(route)
                case _:
                    raise self._garbled()
        return lost, missing

    async def release(self, route: Route, *, hand_over: bool = False) -> None:
        names = _count_names(route)
        arguments: list[Value] = [route.node, route.token, ROUTE_TTL_MS]
        if (left := route.left_behind(hand_over=hand_over)) is not None:
            arguments.append(self._records.seal_route(left))
        self._counts.remove(route.key)
        with self._counts.changing(names):
            await self._redis.run(scripts.RELEASE, [route_name(route.key), *names], arguments)

    def holds(self, routes: Sequence[Route]) -> None:
        for route in routes:
            if route.key not in self._counts:
                self._counts.add(route.key, _count_names(route))
        gone = self._counts.compare({route.key for route in routes})
        if gone:
            log.warning("Corrected the session counts in Redis: they had %d routes too many", len(gone))

    async def beat(self, node: NodeRecord) -> bool:
        """As NodeStore; False if Redis does not hold exactly what the last beat wrote (it was emptied or restored), and
        after a reconnection, because what was written on the last connection may be lost."""
        async with self._beating:  # each compares with what the last one wrote
            known = await self._beat(node)
        if not known or self._generation != self._redis.generation:
            self._was_forgotten = True
            self._counts.doubt_all()
            self._list.doubt()
        self._generation = self._redis.generation
        await self._recount(node.id)
        forgotten, self._was_forgotten = self._was_forgotten, False
        return not forgotten

    async def _beat(self, node: NodeRecord) -> bool:
        last, said = self._last_beat or (None, b"")
        sealed, is_news = self._records.seal_node(node), last is None or _is_news(node, last)
        arguments: list[Value] = [node.id, sealed, LEASE_MS, secrets.token_hex(8), SETTLING_MS, said, int(is_news)]
        arguments += [self._redis.check or b"", key_check.KEPT_MS]
        match await self._redis.run(scripts.BEAT, [], arguments):
            case [0 | 1 as known, bytes(version)]:
                self._last_beat, self._version = (node, sealed), version
                self._redis.takes_commands()
                return bool(known)
            case [-1]:  # emptied, and then taken by nodes with another key: the next connection reports it
                self._redis.give_up()
                raise RoutesUnavailable
            case _:
                raise self._garbled()

    async def _recount(self, node: str) -> None:
        """Writes how many sessions are here: all doubtful counts, and a lot of the others."""
        for _ in range(MAX_LOTS):
            said = self._counts.to_say(LOT)
            if said:
                with self._counts.saying(said):
                    await self._redis.run(scripts.RECOUNT, list(said), [node, ROUTE_TTL_MS, *said.values()])
            if not self._counts.has_doubts:
                return

    async def leave(self, node: str) -> None:
        await self._redis.run(scripts.LEAVE, [], [node])

    async def nodes(self) -> list[NodeRecord]:
        """As NodeStore; to be called once after each beat. In a large cluster the nodes' loads are some beats old."""
        if self._list.is_due(self._version):
            match await self._redis.run(scripts.NODES, []):
                case [bytes(version), *found] if len(found) % 2 == 0:
                    self._overdue.read(dict(zip(found[::2], found[1::2], strict=True)), time.monotonic())
                    self._list.read(self._opened_nodes(found), version)
                case _:
                    raise self._garbled()
        return list(self._list.nodes)

    def _opened_nodes(self, found: Sequence[bytes]) -> list[NodeRecord]:
        nodes = []
        for node_id, sealed in zip(found[::2], found[1::2], strict=True):
            try:
                nodes.append(self._records.open_node(node_id.decode("utf-8", "replace"), sealed))
            except ValueError:
                self._alarm("of a node")
        return sorted(nodes, key=lambda node: node.id)

    async def reconnect(self, within_s: float) -> None:
        await self._redis.reconnect(within_s)

    def expects_an_end(self) -> bool:
        return self._overdue.is_any(time.monotonic())

    async def _opened(self, key: str, node: bytes, token: bytes, value: bytes) -> Route | None:
        """The route; None if no node of ours wrote it: then it is removed."""
        try:
            return self._records.open_route(key, node, token, value)
        except ValueError:
            self._alarm("of a route")
            await self._redis.run(scripts.DROP, [route_name(key)], (node, token, value, self._redis.check or b""))
            return None

    def _garbled(self) -> RoutesUnavailable:
        """For a reply that no script gives: it was damaged on the way."""
        self._errors.labels("garbled").inc()
        return RoutesUnavailable()

    def _alarm(self, what: str) -> None:
        self._errors.labels("poisoned").inc()
        log.error("Ignored a record %s in Redis: no node with this SECRET_KEY wrote it", what)


def _count_names(route: Route) -> tuple[str, ...]:
    """The counts that the route is part of; a 2026-07-28 caller's route is no session."""
    if route.transport == CALLER:
        return ()
    return tenant_count_name(route.tenant), principal_count_name(route.tenant, route.identity)


def _is_news(node: NodeRecord, last: NodeRecord) -> bool:
    """Whether anything but its load has changed."""
    return replace(node, sessions=0, processes=0) != replace(last, sessions=0, processes=0)


def _limit(limit: int | None) -> int:
    return -1 if limit is None else limit


MAX_GAP_S = 1.5 * BEAT_S  # between two reads; after a longer gap missed beats cannot be told


class Overdue:
    """Finds late nodes: each beat seals the record anew, so one that reads the same as before was not renewed."""

    def __init__(self) -> None:
        self._read_at: float | None = None
        self._heard: dict[bytes, tuple[bytes, float]] = {}  # each node's record, and the earliest time of its beat

    def read(self, sealed: Mapping[bytes, bytes], now: float) -> None:
        """Takes the records of all nodes with a lease."""
        is_close = self._read_at is not None and now - self._read_at <= MAX_GAP_S
        earliest = self._read_at if is_close and self._read_at is not None else now
        last, self._heard, self._read_at = self._heard, {}, now
        for node, said in sealed.items():
            is_old = is_close and node in last and last[node][0] == said
            self._heard[node] = last[node] if is_old else (said, earliest)

    def is_any(self, now: float) -> bool:
        """Whether a lease may end within the next beat. False while nodes are read too seldom to know."""
        if self._read_at is None or now - self._read_at > MAX_GAP_S:
            return False
        return any(heard_at + LEASE_S <= now + BEAT_S for _, heard_at in self._heard.values())
