"""NodeProof: how two nodes know each other when one opens a link to the other, and the keys of that link. No I/O.

All nodes have the same secret key, and nobody else has it. Both sides give a nonce, so no two links have the same keys,
and what is recorded from one is worth nothing on another.
"""

import hmac
import secrets
from typing import NamedTuple

NONCE_BYTES = 16
MAX_BYTES = 1024  # of a challenge or a proof
_CHALLENGE, _PROOF, _KEYS = b"trunkline challenge 2", b"trunkline node 2", b"trunkline link 2"
_REQUESTS, _ANSWERS = b"requests", b"answers"


class LinkKeys(NamedTuple):
    """A key for each direction: what was said cannot be sent back to who has said it."""

    requests: bytes
    answers: bytes


class NodeProof:
    """Asks another node which one it is, and answers when it is asked."""

    def __init__(self, secret_key: bytes, node_id: str) -> None:
        self.node_id = node_id
        self._node = node_id.encode("ascii").hex().encode()  # without dots, whatever is in it
        self._challenge, self._proof, self._keys = (
            hmac.digest(secret_key, label, "sha256") for label in (_CHALLENGE, _PROOF, _KEYS)
        )

    def challenge(self) -> bytes:
        """A question that only a node can ask, and only a node can answer."""
        nonce = secrets.token_hex(NONCE_BYTES).encode()
        return b"%b.%b" % (nonce, _mac(self._challenge, nonce))

    def prove(self, challenge: bytes) -> tuple[bytes, LinkKeys] | None:
        """This node's answer, and the keys it makes; None where no node asks."""
        nonce, _, mac = challenge.partition(b".")
        if len(challenge) > MAX_BYTES or not hmac.compare_digest(mac, _mac(self._challenge, nonce)):
            return None
        said = b"%b.%b" % (self._node, secrets.token_hex(NONCE_BYTES).encode())
        proof = b"%b.%b" % (said, _mac(self._proof, said + b"\n" + challenge))
        return proof, self._keys_of(challenge, said)

    def check(self, challenge: bytes, proof: bytes) -> tuple[str, LinkKeys] | None:
        """The id of the node that gave this answer, and the keys it makes; None where no node did."""
        said, _, mac = proof.rpartition(b".")
        if len(proof) > MAX_BYTES or not hmac.compare_digest(mac, _mac(self._proof, said + b"\n" + challenge)):
            return None
        node = bytes.fromhex(said.partition(b".")[0].decode("ascii")).decode("ascii")
        return node, self._keys_of(challenge, said)

    def _keys_of(self, challenge: bytes, said: bytes) -> LinkKeys:
        agreed = b"\n".join((challenge, said))
        return LinkKeys(*(hmac.digest(self._keys, each + b"\n" + agreed, "sha256") for each in (_REQUESTS, _ANSWERS)))


def _mac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256").hex().encode()
