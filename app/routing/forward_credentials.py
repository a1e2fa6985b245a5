"""ForwardCredentials: how a node proves to another who asks, and that it is a node. No I/O; the clock is handed in.

The header names the digest of the body, so that a stranger is refused before anything of his is read or hashed. It
begins with what is the same for all requests of a principal: both nodes remember that part.
"""

import hmac
import json
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from itertools import count

from app.domain import Principal
from app.errors import ForwardRefused

MAX_SKEW_S = 15.0  # clocks of nodes may differ by so much, and a request may take so long to arrive
GENERATION_S = 2 * MAX_SKEW_S  # a stamp from the future is good for that long: so long its nonce is remembered
MAX_NONCES = 200_000  # per generation: 6,600 forwarded requests a second, more than a node serves
MAX_VALUE_BYTES = 64 << 10
NONCE_BYTES = 12
MAX_PRINCIPALS = 4096  # remembered in either direction; one more, and all are forgotten
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
        self._node, self._wall_clock = _hexed(node_id), wall_clock
        forward, self._challenge, self._proof = (
            hmac.digest(secret_key, label, "sha256") for label in (_FORWARD, _CHALLENGE, _PROOF)
        )
        self._forward = hmac.new(forward, digestmod="sha256")  # copied for each request: the key is hashed once
        self._run, self._sent = secrets.token_hex(NONCE_BYTES).encode(), count()  # a nonce: both together
        self._vouched: dict[Principal, bytes] = {}
        self._principals: dict[bytes, Principal] = {}
        self._nonces = _Nonces()

    def sign(self, method: str, target: bytes, body: bytes, principal: Principal, to_node: str) -> bytes:
        """The header's value for this one request to this one node."""
        claims = b"%b.%d.%b%x.%b" % (
            self._vouched.get(principal) or self._vouch(principal),
            self._wall_clock() * 1000,
            self._run,
            next(self._sent),
            _digest(body),
        )
        return b"%b.%b" % (claims, self._mac(claims, _hexed(to_node), method, target))

    def _vouch(self, principal: Principal) -> bytes:
        """What this node says of the principal in every request; what is said once, and signed, is in the rest."""
        if len(self._vouched) >= MAX_PRINCIPALS:
            self._vouched.clear()
        vouched = self._vouched[principal] = b".".join((_VERSION, self._node, urlsafe_b64encode(_encode(principal))))
        return vouched

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
        vouched, stamp, nonce, body_digest = claims.rsplit(b".", 3)
        now = self._wall_clock()
        if abs(now - int(stamp) / 1000) > MAX_SKEW_S or not self._nonces.is_new(nonce, now):
            raise ForwardRefused
        return Forwarded(self._principals.get(vouched) or self._principal(vouched), body_digest)

    def _principal(self, vouched: bytes) -> Principal:
        """Whom a node has vouched for: its word has been checked."""
        if len(self._principals) >= MAX_PRINCIPALS:
            self._principals.clear()
        _, _, encoded = vouched.split(b".")
        principal = self._principals[vouched] = _decode(urlsafe_b64decode(encoded))
        return principal

    def _mac(self, claims: bytes, to_node: bytes, method: str, target: bytes) -> bytes:
        """Over lines of which only the last, the target, is not of our making; it has no line breaks either."""
        mac = self._forward.copy()
        mac.update(b"%b\n%b\n%b\n%b" % (claims, to_node, method.encode("latin-1"), target))
        return mac.hexdigest().encode()

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
        return b"%b.%b" % (self._node, self._proof_of(self._node, challenge))

    def node_of(self, challenge: bytes, proof: bytes) -> str | None:
        """The id of the node that gave this answer; None where none did."""
        node, _, mac = proof.partition(b".")
        if not hmac.compare_digest(mac, self._proof_of(node, challenge)):
            return None
        return bytes.fromhex(node.decode("ascii")).decode("ascii")

    def _proof_of(self, node: bytes, challenge: bytes) -> bytes:
        return hmac.digest(self._proof, b"\n".join((node, challenge)), "sha256").hex().encode()


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


@lru_cache(maxsize=1024)
def _hexed(node_id: str) -> bytes:
    """The id as it stands in what is signed: without dots and line breaks, whatever is in it."""
    return node_id.encode("ascii").hex().encode()


def _digest(body: bytes) -> bytes:
    return sha256(body).hexdigest().encode()


def _encode(principal: Principal) -> bytes:
    return json.dumps([*principal.identity, *principal.scopes]).encode()


def _decode(encoded: bytes) -> Principal:
    tenant, issuer, subject, *scopes = json.loads(encoded)
    return Principal(tenant, issuer, subject, frozenset(scopes))
