"""Ids of sessions: nobody can guess one, and it names the node that made it. Redis and other nodes see only its key."""

import hashlib
import secrets

RANDOM_BYTES = 24
NODE_TAG_CHARACTERS = 8  # of a node's id, in hex, at the start of the session ids that the node makes


def new_session_id(node: str) -> str:
    """The session is found by it even if its route is lost."""
    return f"{tag_of(node)}.{secrets.token_urlsafe(RANDOM_BYTES)}"


def session_key(session_id: str) -> str:
    return hashlib.sha256(b"session\0" + session_id.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def tag_of(node: str) -> str:
    """The first part of the session ids that this node makes: `name.run`, or `run` for a node without a name. A load
    balancer can route by the name, which ends at the first dot."""
    name, dash, run = node.rpartition("-")
    return f"{name}.{run[:NODE_TAG_CHARACTERS]}" if dash else run[:NODE_TAG_CHARACTERS]


def maker_of(session_id: str) -> str | None:
    """The tag of the node that made this session id, if it has one."""
    tag, dot, _ = session_id.rpartition(".")
    return tag if dot and len(tag.rpartition(".")[2]) == NODE_TAG_CHARACTERS else None
