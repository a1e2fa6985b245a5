"""ForwardCredentials: how a node proves to another who asks, and that it is a node. No I/O; the clock is handed in.

The header names the digest of the body, so that a stranger is refused before anything of his is read or hashed.
"""

import hmac
import json
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from hashlib import sha256

from app.domain import Principal
from app.errors import ForwardRefused

MAX_SKEW_S = 15.0  # clocks of nodes may differ by so much, and a request may take so long to arrive
GENERATION_S = 2 * MAX_SKEW_S  # a stamp from the future is good for that long: so long its nonce is remembered
MAX_NONCES = 200_000  # per generation: 6,600 forwarded requests a second, more than a node serves
MAX_VALUE_BYTES = 64 << 10
NONCE_BYTES = 12
_VERSION = b"1"
_FORWARD, _CHALLENGE, _PROOF = b"trunkline forward 1", b"trunkline challenge 1", b"trunkline node 1"


class Forwarded:
    """A request that another node has vouched for, less its body."""

    __slots__ = ("_body_digest", "principal")

    def __init__(self, principal: Principal, body_digest: bytes) -> None:
        self.principal, self._body_digest = principal, body_digest

    def require_body(self, body: bytes) -> None:
        """Raises ForwardRefused unless this is the body that was sent."""
        if not hmac.compare_digest(_digest(body), self._body_digest):
            raise ForwardRefused


class ForwardCredentials:
    """Signs what this node forwards, and checks what it is sent: one key for all nodes, made from the secret key."""

    def __init__(self, secret_key: bytes, node_id: str, wall_clock: Callable[[], float]) -> None:
        self.node_id = node_id
        self._node, self._wall_clock = node_id.encode("ascii"), wall_clock
        self._forward, self._challenge, self._proof = (
            hmac.digest(secret_key, label, "sha256") for label in (_FORWARD, _CHALLENGE, _PROOF)
        )
        self._nonces = _Nonces()

    def sign(self, method: str, target: bytes, body: bytes, principal: Principal, to_node: str) -> bytes:
        """The header's value for this one request to this one node."""
        claims = b".".join(
            (
                _VERSION,
                b"%d" % (self._wall_clock() * 1000),
                secrets.token_hex(NONCE_BYTES).encode(),
                self._node.hex().encode(),
                _digest(body),
                urlsafe_b64encode(_encode(principal)),
            )
        )
        return b"%b.%b" % (claims, self._mac(claims, to_node.encode("ascii"), method, target))

    def verify(self, value: bytes, method: str, target: bytes, body: bytes) -> Principal:
        """The principal of a request that a node sent to this one, once.

        Raises:
            ForwardRefused: it is none, or not this request, or too old, or it was here before.
        """
        forwarded = self.open(value, method, target)
        forwarded.require_body(body)
        return forwarded.principal

    def open(self, value: bytes, method: str, target: bytes) -> Forwarded:
        """The same before the body is read; what is returned has its digest.

        Raises:
            ForwardRefused: see `verify`.
        """
        claims, _, mac = value.rpartition(b".")
        if len(value) > MAX_VALUE_BYTES or not hmac.compare_digest(mac, self._mac(claims, self._node, method, target)):
            raise ForwardRefused
        # From here on it is a node's own word: only its age and its being new are in question.
        _, stamp, nonce, _, body_digest, principal = claims.split(b".")
        now = self._wall_clock()
        if abs(now - int(stamp) / 1000) > MAX_SKEW_S or not self._nonces.is_new(nonce, now):
            raise ForwardRefused
        return Forwarded(_decode(urlsafe_b64decode(principal)), body_digest)

    def _mac(self, claims: bytes, to_node: bytes, method: str, target: bytes) -> bytes:
        """Over lines of which only the last, the target, is not of our making; it has no line breaks either."""
        text = b"\n".join((claims, to_node.hex().encode(), method.encode("latin-1"), target))
        return hmac.digest(self._forward, text, "sha256").hex().encode()

    # --- is a node there, and which (fulfils `routing.peers.Prover`)

    def challenge(self) -> bytes:
        """A question that only a node answers, and only to a node."""
        nonce = secrets.token_hex(NONCE_BYTES).encode()
        return b"%b.%b" % (nonce, hmac.digest(self._challenge, nonce, "sha256").hex().encode())

    def prove(self, challenge: bytes) -> bytes | None:
        """This node's answer; None where no node asks."""
        nonce, _, mac = challenge.partition(b".")
        if not hmac.compare_digest(mac, hmac.digest(self._challenge, nonce, "sha256").hex().encode()):
            return None
        return b"%b.%b" % (self._node.hex().encode(), self._proof_of(self._node, challenge))

    def node_of(self, challenge: bytes, proof: bytes) -> str | None:
        """The id of the node that gave this answer; None where none did."""
        encoded, _, mac = proof.partition(b".")
        try:
            node = bytes.fromhex(encoded.decode("ascii"))
        except ValueError:
            return None
        return node.decode("latin-1") if hmac.compare_digest(mac, self._proof_of(node, challenge)) else None

    def _proof_of(self, node: bytes, challenge: bytes) -> bytes:
        return hmac.digest(self._proof, b"\n".join((node.hex().encode(), challenge)), "sha256").hex().encode()


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


def _digest(body: bytes) -> bytes:
    return sha256(body).hexdigest().encode()


def _encode(principal: Principal) -> bytes:
    return json.dumps([*principal.identity, *principal.scopes]).encode()


def _decode(encoded: bytes) -> Principal:
    tenant, issuer, subject, *scopes = json.loads(encoded)
    return Principal(tenant, issuer, subject, frozenset(scopes))
