"""AllNodes: asks every node for what it runs, for administrators."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar, TypeVarTuple

import anyio
import msgspec

from app.cluster.node_status.listing import Gathered
from app.cluster.node_status.overview import NodeOverview
from app.cluster.node_status.problems.nodes import Lost, of_others
from app.cluster.node_status.problems.problem import Problem
from app.cluster.node_status.question import Question, is_found
from app.cluster.node_status.questions import LOAD, PROBLEMS, QUESTIONS, SANDBOX
from app.cluster.node_status.views import NodeStatus
from app.cluster.peers.client import PeerClient, PeerRequest
from app.cluster.peers.credentials import Word
from app.concurrency.at_once import at_once
from app.domain import Principal
from app.errors import GatewayError
from app.sessions.routes import NodeRecord
from app.telemetry.logs import current

ANSWER_S = 1.0  # slower nodes are left out
MAX_ANSWER_BYTES = 16 << 20
OVERVIEW = "/internal/overview/"
_NOBODY = Principal("", "node", "", frozenset())  # for requests of the node itself

Ts = TypeVarTuple("Ts")
R = TypeVar("R")
M = TypeVar("M")

log = logging.getLogger(__name__)


class AllNodes:
    """Fulfils `admin.context.NodeView`. Nodes that do not answer in time are named as `silent`, and logged."""

    def __init__(
        self,
        own: NodeOverview,
        peers: Callable[[], Iterable[NodeRecord]],
        client: PeerClient,
        url: str = "",
        departed: Callable[[], Iterable[NodeRecord]] = tuple,
        questions: Sequence[Question[*tuple[Any, ...], Any, Any]] = QUESTIONS,
    ) -> None:
        """`departed`: nodes of which nothing is heard any more."""
        self._own, self._peers, self._client, self._url = own, peers, client, url
        self._lost = Lost(departed, time.monotonic)
        self._questions = {each.name: each for each in questions}

    @property
    def ids(self) -> Sequence[str]:
        """This node, and those that it asks."""
        return [self._own.status().id, *(each.id for each in self._peers())]

    def answer(self, name: str, asked: bytes) -> bytes | None:
        """What this node answers another one; None for an unknown question."""
        question = self._questions.get(name)
        return None if question is None else question.answer(self._own, asked)

    async def ask(self, question: Question[*Ts, R, M], *asked: *Ts) -> M:
        """Asks all nodes, and merges what they answer."""
        own = question.read(self._own, *asked)
        if question.of_one and is_found(own):
            return question.merge(Gathered([own]), *asked)
        ids = self.ids  # there may be others at the end
        told = await self._ask(question, list(self._peers()), asked)
        return question.merge(Gathered([own, *told.rows], told.silent, ids), *asked)

    async def statuses(self) -> Sequence[NodeStatus]:
        """All nodes by id: as of their last heartbeats, with the present load of those that answer."""
        told, confined = await at_once(self.ask(LOAD), self.ask(SANDBOX))
        loads = {load.node: load for load in told.rows}
        sandboxes = {each.node: each for each in confined.rows}
        problems, own = self._client.problems, self._own.status()
        others = (
            NodeStatus(
                **asdict(each),
                problem=problems.get(each.url),
                load=loads.get(each.id),
                sandbox=sandboxes.get(each.id),
            )
            for each in self._peers()
        )
        mine = replace(own, url=self._url or None, load=loads[own.id], sandbox=sandboxes[own.id])
        return sorted([mine, *others], key=lambda status: status.id)

    async def problems(self, tenant: str | None) -> Gathered[Problem]:
        """What is wrong now, some of it several times."""
        if tenant is not None:
            return await self.ask(PROBLEMS, tenant)
        # One that has lost Redis still answers, and knows why nobody hears of it.
        told, lost = await at_once(self.ask(PROBLEMS, None), self._ask_those(PROBLEMS, self._lost_nodes(), (None,)))
        others = of_others(self._own.status(), list(self._peers()), told.silent)
        theirs = [each for problems in lost.rows for each in problems]
        return Gathered([*told.rows, *others, *theirs, *self._lost.problems(lost.silent)], told.silent)

    def _lost_nodes(self) -> list[NodeRecord]:
        return [each.node for each in self._lost.lately()]

    async def _ask(self, question: Question[*Ts, R, M], nodes: Sequence[NodeRecord], asked: tuple[*Ts]) -> Gathered[R]:
        if not question.of_lost:
            return await self._ask_those(question, nodes, asked)
        found, theirs = await at_once(
            self._ask_those(question, nodes, asked), self._ask_those(question, self._lost_nodes(), asked)
        )
        return Gathered([*found.rows, *theirs.rows], found.silent)

    async def _ask_those(
        self, question: Question[*Ts, R, M], nodes: Sequence[NodeRecord], asked: tuple[*Ts]
    ) -> Gathered[R]:
        heard = {each.id for each in self._peers()}  # of others the problem `node_lost` tells
        body = question.encode(*asked)
        found: list[R] = []
        silent: list[str] = []

        async def ask(node: NodeRecord) -> None:
            try:
                with anyio.fail_after(ANSWER_S):
                    found.append(question.decode(await self._send(node, question.name, body)))
            except (GatewayError, TimeoutError, msgspec.DecodeError) as problem:
                silent.append(node.id)
                if node.id in heard:
                    why = str(problem) or "it does not answer"
                    log.warning("Node %s is missing from a list of all nodes: %s", node.id, why)

        async with anyio.create_task_group() as tasks:
            for node in nodes:
                tasks.start_soon(ask, node)
        return Gathered(found, sorted(silent))

    async def _send(self, node: NodeRecord, name: str, body: bytes) -> bytes:
        served = current.get()
        named = None if served is None else served.fields().get("request")
        headers = [(b"x-request-id", named.encode("ascii"))] if isinstance(named, str) else []
        request = PeerRequest("POST", f"{OVERVIEW}{name}".encode(), headers, Word(_NOBODY, ""))
        response = await self._client.send(node, request, body)
        try:
            if response.status != 200:
                raise GatewayError(f"status {response.status}")
            return await response.body(MAX_ANSWER_BYTES)
        finally:
            response.close()
