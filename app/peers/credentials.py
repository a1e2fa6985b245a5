"""NodeCredentials: how a node vouches for what it sends to another, and proves which one it is. No I/O; the clock is
handed in.

All nodes have the same secret key, and nobody else has it. The header of a request names the digest of its body, so
that a stranger is refused before anything of his is read or hashed. It begins with what is the same for all requests of
a client: both nodes remember that part.
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
from app.memo import memo

HOP_VERSION = "3"  # of what nodes say to each other, the greeting left out: that stays as it is for ever
MAX_SKEW_S = 15.0  # clocks of nodes may differ by so much, and a request may take so long to arrive
GENERATION_S = 2 * MAX_SKEW_S  # a stamp from the future is good for that long: so long its nonce is remembered
MAX_NONCES = 200_000  # per generation: 6,600 forwarded requests a second, more than a node serves
MAX_VALUE_BYTES = 16 << 10
NONCE_BYTES = 12
MAX_WORDS = 4096  # remembered in either direction; one more, and all are forgotten
MAX_WORD_BYTES = 1024  # a longer one is not remembered
_FORWARD, _CHALLENGE, _PROOF = b"trunkline forward 3", b"trunkline challenge", b"trunkline node"


class ForwardRefused(Exception):
    """No node vouches for this request, or not for this one now. `ahead_s`: its clock is so far ahead of ours."""

    def __init__(self, *, ahead_s: float = 0.0) -> None:
        super().__init__()
        self.ahead_s = ahead_s


class Word(NamedTuple):
    """What a node says of a client: who it is, and under which URL it reaches us."""

    principal: Principal
    base_url: str


class Sent(NamedTuple):
    """The parts of a request that cannot be changed on the way. `session` is its Mcp-Session-Id, or empty."""

    method: str
    target: bytes
    session: bytes


class Forwarded:
    """A request that another node has vouched for, less its body."""

    __slots__ = ("_body_digest", "word")

    def __init__(self, word: Word, body_digest: bytes) -> None:
        self.word, self._body_digest = word, body_digest

    def require_body(self, body: bytes) -> None:
        """Raises ForwardRefused unless this is the body that was sent."""
        if not hmac.compare_digest(_digest(body), self._body_digest):
            raise ForwardRefused


class CachedHandshake(NamedTuple):
    """What a node has said of itself."""

    node: str
    version: str


class NodeCredentials:
    """Signs what this node sends, and checks what it is sent: one key for all nodes, made from the secret key."""

    def __init__(self, secret_key: bytes, node_id: str, wall_clock: Callable[[], float]) -> None:
        self.node_id = node_id
        self._node, self._wall_clock = _hexed(node_id), wall_clock
        forward, self._challenge, self._proof = (
            hmac.digest(secret_key, label, "sha256") for label in (_FORWARD, _CHALLENGE, _PROOF)
        )
        self._forward = blake2b(key=forward, digest_size=32)
        self._run, self._sent = secrets.token_hex(NONCE_BYTES).encode(), count()  # a nonce: both together
        self._given: dict[Word, bytes] = {}
        self._taken: dict[bytes, Word] = {}
        self._nonces = _Nonces()

    def sign(self, sent: Sent, body: bytes, word: Word, to_node: str) -> bytes:
        """The header's value for this one request to this one node."""
        claims = b"%b.%d.%b%x.%b" % (
            self._given.get(word) or self._give(word),
            self._wall_clock() * 1000,
            self._run,
            next(self._sent),
            _digest(body),
        )
        return b"%b.%b" % (claims, self._mac(claims, _hexed(to_node), sent))

    def open(self, value: bytes, sent: Sent) -> Forwarded:
        """What a node has sent to this one, once; before its body is read, of which the digest is returned.

        Raises:
            ForwardRefused: it comes from no node, or is not this request, or too old, or it was here before.
        """
        claims, _, mac = value.rpartition(b".")
        if len(value) > MAX_VALUE_BYTES or not hmac.compare_digest(mac, self._mac(claims, self._node, sent)):
            raise ForwardRefused
        # From here on it is a node's own word: only its age and its being new are in question.
        word, stamp, nonce, body_digest = claims.rsplit(b".", 3)
        now = self._wall_clock()
        ahead_s = int(stamp) / 1000 - now
        if abs(ahead_s) > MAX_SKEW_S:
            raise ForwardRefused(ahead_s=ahead_s)
        if not self._nonces.is_new(nonce, now):
            raise ForwardRefused
        return Forwarded(self._taken.get(word) or self._take(word), body_digest)

    def _give(self, word: Word) -> bytes:
        """What is the same in every request of this client; what is said once, and signed, is in the rest."""
        given = b"%b.%b" % (self._node, urlsafe_b64encode(msgspec.json.encode(word)))
        if len(given) <= MAX_WORD_BYTES:
            if len(self._given) >= MAX_WORDS:
                self._given.clear()
            self._given[word] = given
        return given

    def _take(self, given: bytes) -> Word:
        """Of whom a node has spoken: its word has been checked."""
        word = msgspec.json.decode(urlsafe_b64decode(given.partition(b".")[2]), type=Word)
        if len(given) <= MAX_WORD_BYTES:
            if len(self._taken) >= MAX_WORDS:
                self._taken.clear()
            self._taken[given] = word
        return word

    def _mac(self, claims: bytes, to_node: bytes, sent: Sent) -> bytes:
        """Over lines: what came in through a parser has no line breaks."""
        method, target, session = sent
        lines = b"\n".join((claims, to_node, method.encode("latin-1"), session, target))
        # With a key it is a MAC (RFC 7693), and for what is so short a third of the price of HMAC-SHA-256.
        mac = self._forward.copy()
        mac.update(lines)
        return mac.hexdigest().encode()

    # --- is a node there, and which

    def challenge(self) -> bytes:
        """A question that only a node answers, and only to a node."""
        nonce = secrets.token_hex(NONCE_BYTES).encode()
        return b"%b.%b" % (nonce, _hex_mac(self._challenge, nonce))

    def prove(self, challenge: bytes) -> bytes | None:
        """This node's answer; None where no node asks, or one with another key."""
        nonce, _, mac = challenge.partition(b".")
        if not hmac.compare_digest(mac, _hex_mac(self._challenge, nonce)):
            return None
        said = b"%b.%b" % (HOP_VERSION.encode(), self._node)
        return b"%b.%b" % (said, _hex_mac(self._proof, said + b"\n" + challenge))

    def check(self, challenge: bytes, proof: bytes) -> CachedHandshake | None:
        """Which node gave this answer; None where none did."""
        said, _, mac = proof.rpartition(b".")
        if not hmac.compare_digest(mac, _hex_mac(self._proof, said + b"\n" + challenge)):
            return None
        version, _, node = said.partition(b".")
        return CachedHandshake(bytes.fromhex(node.decode("ascii")).decode("ascii"), version.decode("ascii"))


class _Nonces:
    """What was seen in this generation and the last one. Full means refuse: forgetting would let a replay in."""

    def __init__(self) -> None:
        self._new: set[bytes] = set()
        self._old: set[bytes] = set()
        self._began_at = 0.0

    def is_new(self, nonce: bytes, now: float) -> bool:
        """Whether it was not seen before; from now on it was."""
        if abs(now - self._began_at) >= GENERATION_S:  # also where the clock was set back
            self._old, self._new = self._new, set()
            self._began_at = now
        if nonce in self._new or nonce in self._old or len(self._new) >= MAX_NONCES:
            return False
        self._new.add(nonce)
        return True


@memo(1024)
def _hexed(node_id: str) -> bytes:
    """The id as it stands in what is signed: without dots and line breaks, whatever is in it."""
    return node_id.encode("ascii").hex().encode()


def _digest(body: bytes) -> bytes:
    return sha256(body).hexdigest().encode()


def _hex_mac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256").hex().encode()
