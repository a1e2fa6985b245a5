"""Records: routes and nodes as sealed bytes, each for one key, because others may read and write the store."""

import hashlib
import json
from typing import Protocol

import msgspec

from app.sessions.routes import Identity, NodeRecord, Route


class Seal(Protocol):
    """Encrypts and authenticates (`auth.sealing.Sealer`). What is sealed opens only for the same `place`."""

    def seal(self, secret: bytes, place: str) -> bytes: ...

    def open(self, sealed: bytes, place: str) -> bytes:
        """Raises ValueError for anything that was not sealed for this place."""


class Records:
    """Seals and opens. Unknown members are ignored, so that the next version may have more.

    The `open` methods raise ValueError for a record that no node of ours wrote, or not under this key.
    """

    def __init__(self, seal: Seal) -> None:
        self._seal = seal
        self._encode = msgspec.json.Encoder().encode
        self._route = msgspec.json.Decoder(Route).decode
        self._node = msgspec.json.Decoder(NodeRecord).decode

    def seal_route(self, route: Route) -> bytes:
        return self._seal.seal(self._encode(route), route_name(route.key))

    def open_route(self, key: str, node: bytes, token: bytes, sealed: bytes) -> Route:
        """`node` and `token` are those that stand beside the record in clear: they have to be the same."""
        route = self._route(self._seal.open(sealed, route_name(key)))
        if (route.key, route.node.encode(), str(route.token).encode()) != (key, node, token):
            raise ValueError("a route whose node or token was changed")
        return route

    def seal_node(self, node: NodeRecord) -> bytes:
        return self._seal.seal(self._encode(node), node_name(node.id))

    def open_node(self, node_id: str, sealed: bytes) -> NodeRecord:
        node = self._node(self._seal.open(sealed, node_name(node_id)))
        if node.id != node_id:
            raise ValueError("the record of another node")
        return node


def route_name(key: str) -> str:
    return f"trunkline:route:{key}"


def node_name(node_id: str) -> str:
    return f"trunkline:node:{node_id}"


def tenant_count_name(tenant: str) -> str:
    """The key that counts a tenant's sessions, by node."""
    return f"trunkline:used:{tenant}"


def principal_count_name(tenant: str, identity: Identity) -> str:
    """The key that counts the sessions of one principal, hashed so that readers of the store do not learn who it is."""
    text = json.dumps(identity)  # whatever characters it has, no two are alike
    return f"trunkline:used:{tenant}:{hashlib.sha256(text.encode()).hexdigest()[:32]}"
