"""Records: routes and nodes as they stand in a store that others may read and write: sealed, each for its place."""

import hashlib
import json
from typing import Protocol

import msgspec

from app.routing.routes import Identity, NodeRecord, Route


class Seal(Protocol):
    """Makes unreadable, and refuses what it did not make for this place (`auth.sealing.Sealer`)."""

    def seal(self, secret: bytes, place: str) -> bytes:
        """For this place only."""

    def open(self, sealed: bytes, place: str) -> bytes:
        """Raises ValueError for what was not sealed for this place."""


class Poisoned(Exception):
    """No node of ours has written this record, or not here."""


class Records:
    """Seals and opens. Members that are unknown are ignored, so that the next version may have more."""

    def __init__(self, seal: Seal) -> None:
        self._seal = seal
        self._encode = msgspec.json.Encoder().encode
        self._route = msgspec.json.Decoder(Route).decode
        self._node = msgspec.json.Decoder(NodeRecord).decode

    def seal_route(self, route: Route) -> bytes:
        """For the route's own name."""
        return self._seal.seal(self._encode(route), route_name(route.key))

    def open_route(self, key: str, node: bytes, token: bytes, sealed: bytes) -> Route:
        """The route, if what stands beside it in clear says the same.

        Raises:
            Poisoned: it does not, or it does not open.
        """
        try:
            route = self._route(self._seal.open(sealed, route_name(key)))
        except (ValueError, msgspec.DecodeError) as problem:
            raise Poisoned from problem
        if (route.key, route.node.encode(), str(route.token).encode()) != (key, node, token):
            raise Poisoned
        return route

    def seal_node(self, node: NodeRecord) -> bytes:
        """For the node's lease."""
        return self._seal.seal(self._encode(node), node_name(node.id))

    def open_node(self, node_id: str, sealed: bytes) -> NodeRecord:
        """The node.

        Raises:
            Poisoned: it does not open.
        """
        try:
            node = self._node(self._seal.open(sealed, node_name(node_id)))
        except (ValueError, msgspec.DecodeError) as problem:
            raise Poisoned from problem
        if node.id != node_id:
            raise Poisoned
        return node


def route_name(key: str) -> str:
    """Where a route is."""
    return f"trunkline:route:{key}"


def node_name(node_id: str) -> str:
    """Where a node's lease is."""
    return f"trunkline:node:{node_id}"


def tenant_count_name(tenant: str) -> str:
    """Where the sessions of a tenant are counted, by node."""
    return f"trunkline:used:{tenant}"


def principal_count_name(tenant: str, identity: Identity) -> str:
    """Where those of one principal are; who reads the store does not learn who it is."""
    text = json.dumps(identity)  # whatever characters it has, no two are alike
    return f"trunkline:used:{tenant}:{hashlib.sha256(text.encode()).hexdigest()[:32]}"
