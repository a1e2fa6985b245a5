"""NodeCredentials: signs requests to other nodes, checks theirs, and proves a node's identity. No I/O; the clock is
passed in.

All nodes have the same secret key, and nobody else has it. The signed header of a request has the digest of its body,
so that a stranger is refused before his body is read or hashed. Its first part is the same for all requests of a
client, and cached by both nodes.
"""

import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from hashlib import blake2b, sha256
from itertools import count
from typing import NamedTuple

import msgspec

from app.domain import Principal
from app.text.memo import memo

HOP_VERSION = "3"  # of the protocol between nodes; the greeting itself never changes
MAX_SKEW_S = 15.0  # between the clocks of two nodes, including the time that a request takes to arrive
GENERATION_S = 2 * MAX_SKEW_S  # a stamp from the future is valid for so long, and its nonce is remembered for so long
MAX_NONCES = 200_000  # per generation: 6,600 forwarded requests a second, more than a node serves
MAX_VALUE_BYTES = 16 << 10
NONCE_BYTES = 12
MAX_WORDS = 4096  # cached in either direction; above it the cache is cleared
MAX_WORD_BYTES = 1024  # longer ones are not cached
_FORWARD, _CHALLENGE, _PROOF = b"trunkline forward 3", b"trunkline challenge", b"trunkline node"


class ForwardRefused(Exception):
    """No node has signed this request, or it is old or repeated. `ahead_s`: the sender's clock is so far ahead."""

    def __init__(self, *, ahead_s: float = 0.0) -> None:
        super().__init__()
        self.ahead_s = ahead_s


class Word(NamedTuple):
    """What a node says of a client: who it is, and by which URL it reaches the gateway."""

    principal: Principal
    base_url: str


class Sent(NamedTuple):
    """The signed parts of a request besides its body. `session` is its Mcp-Session-Id, or empty."""

    method: str
    target: bytes
    session: bytes


class Forwarded(NamedTuple):
    """A request that another node has signed; its body is still to be checked."""

    word: Word
    body_digest: bytes

    def require_body(self, body: bytes) -> None:
        """Raises ForwardRefused unless this is the body that was signed."""
        if not hmac.compare_digest(_digest(body), self.body_digest):
            raise ForwardRefused


class Greeting(NamedTuple):
    """What a node says of itself: its id, and its HOP_VERSION."""

    node: str
    version: str


class NodeCredentials:
    """Signs and checks with keys that are derived from the nodes' secret key."""

    def __init__(self, secret_key: bytes, node_id: str, wall_clock: Callable[[], float]) -> None:
        self.node_id = node_id
        self._node, self._wall_clock = _hexed(node_id), wall_clock
        forward, self._challenge, self._proof = (
            hmac.digest(secret_key, label, "sha256") for label in (_FORWARD, _CHALLENGE, _PROOF)
        )
        self._forward = blake2b(key=forward, digest_size=32)
        self._run, self._sent = secrets.token_hex(NONCE_BYTES).encode(), count()  # together a nonce
        self._given: dict[Word, bytes] = {}
        self._taken: dict[bytes, Word] = {}
        self._nonces = _Nonces()

    def sign(self, sent: Sent, body: bytes, word: Word, to_node: str) -> bytes:
        """The header's value, valid for this request to this node once."""
        claims = b"%b.%d.%b%x.%b" % (
            self._given.get(word) or self._give(word),
            self._wall_clock() * 1000,
            self._run,
            next(self._sent),
            _digest(body),
        )
        return b"%b.%b" % (claims, self._mac(claims, _hexed(to_node), sent))

    def open(self, value: bytes, sent: Sent) -> Forwarded:
        """Checks a request by its header's value, before its body is read. Raises ForwardRefused."""
        claims, _, mac = value.rpartition(b".")
        if len(value) > MAX_VALUE_BYTES or not hmac.compare_digest(mac, self._mac(claims, self._node, sent)):
            raise ForwardRefused
        # From here on it is known to be from a node: only its age, and whether it is a repetition, are left to check.
        word, stamp, nonce, body_digest = claims.rsplit(b".", 3)
        now = self._wall_clock()
        ahead_s = int(stamp) / 1000 - now
        if abs(ahead_s) > MAX_SKEW_S:
            raise ForwardRefused(ahead_s=ahead_s)
        if not self._nonces.is_new(nonce, now):
            raise ForwardRefused
        return Forwarded(self._taken.get(word) or self._take(word), body_digest)

    def _give(self, word: Word) -> bytes:
        """The part of the value that is the same for all requests of this client."""
        given = b"%b.%b" % (self._node, urlsafe_b64encode(msgspec.json.encode(word)))
        if len(given) <= MAX_WORD_BYTES:
            if len(self._given) >= MAX_WORDS:
                self._given.clear()
            self._given[word] = given
        return given

    def _take(self, given: bytes) -> Word:
        """Reads that part, after its signature was checked."""
        word = msgspec.json.decode(urlsafe_b64decode(given.partition(b".")[2]), type=Word)
        if len(given) <= MAX_WORD_BYTES:
            if len(self._taken) >= MAX_WORDS:
                self._taken.clear()
            self._taken[given] = word
        return word

    def _mac(self, claims: bytes, to_node: bytes, sent: Sent) -> bytes:
        """Of lines, because what a parser has read has no line breaks."""
        method, target, session = sent
        lines = b"\n".join((claims, to_node, method.encode("latin-1"), session, target))
        # With a key BLAKE2b is a MAC (RFC 7693); for short texts it takes a third of the time of HMAC-SHA-256.
        mac = self._forward.copy()
        mac.update(lines)
        return mac.hexdigest().encode()

    # --- greetings

    def challenge(self) -> bytes:
        """A challenge that only a node can make, and only a node can answer."""
        nonce = secrets.token_hex(NONCE_BYTES).encode()
        return b"%b.%b" % (nonce, _hex_mac(self._challenge, nonce))

    def prove(self, challenge: bytes) -> bytes | None:
        """This node's answer; None if the challenge is not from a node with this key."""
        nonce, _, mac = challenge.partition(b".")
        if not hmac.compare_digest(mac, _hex_mac(self._challenge, nonce)):
            return None
        said = b"%b.%b" % (HOP_VERSION.encode(), self._node)
        return b"%b.%b" % (said, _hex_mac(self._proof, said + b"\n" + challenge))

    def check(self, challenge: bytes, proof: bytes) -> Greeting | None:
        """The node that gave this answer; None if it is not from a node with this key."""
        said, _, mac = proof.rpartition(b".")
        if not hmac.compare_digest(mac, _hex_mac(self._proof, said + b"\n" + challenge)):
            return None
        version, _, node = said.partition(b".")
        return Greeting(bytes.fromhex(node.decode("ascii")).decode("ascii"), version.decode("ascii"))


class _Nonces:
    """Those seen in this generation and the last one. New ones are refused when it is full: no replay gets in."""

    def __init__(self) -> None:
        self._new: set[bytes] = set()
        self._old: set[bytes] = set()
        self._began_at = 0.0

    def is_new(self, nonce: bytes, now: float) -> bool:
        """Whether it was not seen before. Remembers it."""
        if abs(now - self._began_at) >= GENERATION_S:  # also if the clock was set back
            self._old, self._new = self._new, set()
            self._began_at = now
        if nonce in self._new or nonce in self._old or len(self._new) >= MAX_NONCES:
            return False
        self._new.add(nonce)
        return True


@memo(1024)
def _hexed(node_id: str) -> bytes:
    """The id without dots and line breaks, whatever is in it."""
    return node_id.encode("ascii").hex().encode()


def _digest(body: bytes) -> bytes:
    return sha256(body).hexdigest().encode()


def _hex_mac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256").hex().encode()
