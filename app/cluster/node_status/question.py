"""Question: what each node is asked of what it runs, and how the answers of all nodes become one.

`questions.py` has all of them. A question is a function of one node: its parameters are what is asked for and travel to
other nodes as they are, and what it returns travels back.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from inspect import signature
from typing import Any, Generic, Protocol, TypeVar, TypeVarTuple, get_type_hints

import msgspec

from app.cluster.node_status.listing import Gathered
from app.cluster.node_status.overview import NodeOverview
from app.errors import nodes_unavailable

T = TypeVar("T")
Ts = TypeVarTuple("Ts")  # what is asked for
R = TypeVar("R")  # the answer of one node
M = TypeVar("M")  # that of all


class Question(Generic[*Ts, R, M]):
    """`merge` gets what the nodes have answered, this node first, and what was asked for.

    `of_one`: at most one node has it, the others answer None or False; it is looked for on this node first. `of_lost`:
    nodes that have lost Redis and still answer are asked too, as what they have goes on; nothing is expected of them.
    `read` is a function of the node, or of this `part` of it. Without a name, the question has that of the function.
    """

    def __init__(
        self,
        read: Callable[[Any, *Ts], R],
        merge: Callable[[Gathered[R], *Ts], M],
        name: str = "",
        *,
        part: str = "",
        of_one: bool = False,
        of_lost: bool = False,
    ) -> None:
        self.name, self.merge = name or read.__name__, merge
        self.of_one, self.of_lost = of_one, of_lost
        self._read, self._part = read, part

    def read(self, node: NodeOverview, *asked: *Ts) -> R:
        """The answer of this node."""
        return self._read(getattr(node, self._part) if self._part else node, *asked)

    def encode(self, *asked: *Ts) -> bytes:
        """What is asked for, for another node."""
        return msgspec.msgpack.encode(asked)

    def answer(self, node: NodeOverview, asked: bytes) -> bytes:
        """The answer of this node, for another one. Raises msgspec.DecodeError."""
        read: Callable[..., R] = self.read
        return msgspec.msgpack.encode(read(node, *msgspec.msgpack.decode(asked, type=self._types[0])))

    def decode(self, answer: bytes) -> R:
        """The inverse of `answer`. Raises msgspec.DecodeError."""
        told: R = msgspec.msgpack.decode(answer, type=self._types[1])
        return told

    @cached_property
    def _types(self) -> tuple[Any, Any]:
        """Of what is asked for, and of what is answered."""
        hints = get_type_hints(self._read)
        _, *asked = signature(self._read).parameters
        return tuple[tuple(hints[each] for each in asked)], hints["return"]  # type: ignore[misc]


class Nodes(Protocol):
    """All nodes, as `cluster.all_nodes.AllNodes`."""

    async def ask(self, question: Question[*Ts, R, M], *asked: *Ts) -> M:
        """Asks all nodes, and merges what they answer."""


def is_found(told: object) -> bool:
    """Whether a node has it."""
    return told is not None and told is not False


def each_one(told: Gathered[T], *_: object) -> Gathered[T]:
    """Merges nothing: one row of each node."""
    return told


def one_list(told: Gathered[Sequence[T]], *_: object) -> Gathered[T]:
    """The rows of all nodes."""
    return Gathered([row for rows in told.rows for row in rows], told.silent, told.asked)


def only_one(told: Gathered[T], *_: object) -> T | None:
    """What one node has; None or False if none has it.

    Raises:
        NodeUnavailable: a node that may have it did not answer.
    """
    found = next(filter(is_found, told.rows), None)
    if found is None and told.silent:
        raise nodes_unavailable(told.silent)
    return found
