"""UnreadAnswers: large answers that clients have not read yet: counted for their tenant and for the node, and equal
ones of a tenant kept once."""

import weakref
from collections import Counter

from app.protocol.commands import LargeResult

MIB = 1 << 20
MAX_OF_TENANT = 128 * MIB
MAX_OF_NODE = 512 * MIB
LARGE_BYTES = 64 << 10  # from here on an answer counts


class UnreadAnswers:
    """Of one node. A result counts for as long as anything refers to it: a response that is being written, or the queue
    of a stream. So it cannot be counted twice, or be forgotten by one of the many ways in which these end."""

    def __init__(self, of_tenant: int = MAX_OF_TENANT, of_node: int = MAX_OF_NODE) -> None:
        self.allowed, self._allowed_of_node = of_tenant, of_node
        self.bytes = 0
        self._of_tenant = Counter[str]()
        # The tenant, the bytes that count for it, and the result's length.
        self._kept: dict[weakref.ref[LargeResult], tuple[str, int, int]] = {}
        self._originals: dict[tuple[str, int], list[weakref.ref[LargeResult]]] = {}  # by tenant and length

    def of(self, tenant: str) -> int:
        """Bytes of the tenant's answers."""
        return self._of_tenant[tenant]

    def keep(self, tenant: str, json: bytes, request_bytes: int = 0) -> LargeResult | None:
        """The result, to be referred to until it is read; None if there is no room for it. Its request, which stays in
        memory meanwhile, counts too. A tenant that has nothing unread may always keep one."""
        original = self._equal(tenant, json)
        size, used = request_bytes + (len(json) if original is None else 0), self._of_tenant[tenant]
        if used and (used + size > self.allowed or self.bytes + size > self._allowed_of_node):
            return None
        kept = LargeResult(json if original is None else original.json, original)
        ref = weakref.ref(kept, self._forget)
        self._kept[ref] = tenant, size, len(json)
        if original is None:
            self._originals.setdefault((tenant, len(json)), []).append(ref)
        self._count(tenant, size)
        return kept

    def _equal(self, tenant: str, json: bytes) -> LargeResult | None:
        for ref in self._originals.get((tenant, len(json)), ()):
            known = ref()
            if known is not None and known.json == json:
                return known
        return None

    def _forget(self, ref: weakref.ref[LargeResult]) -> None:
        tenant, size, length = self._kept.pop(ref)
        self._count(tenant, -size)
        originals = self._originals.get((tenant, length), [])
        if ref in originals:
            originals.remove(ref)
            if not originals:
                del self._originals[tenant, length]

    def _count(self, tenant: str, size: int) -> None:
        self.bytes += size
        self._of_tenant[tenant] += size
        if not self._of_tenant[tenant]:
            del self._of_tenant[tenant]
