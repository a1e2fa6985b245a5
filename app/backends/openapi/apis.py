"""Apis: what was made of documents, for sessions; read from the database when the first one needs it."""

from collections.abc import Awaitable, Callable

import anyio.to_thread

from app.domain import BackendSpec
from app.errors import BackendUnavailable
from app.protocol.openapi.api import unpacked
from app.protocol.openapi.serving import ApiServer

MAX_KEPT, MAX_KEPT_BYTES = 256, 64 << 20  # the least recently used go first

Stored = Callable[[str, str], Awaitable[tuple[str, bytes] | None]]  # as BackendRepository.api
Key = tuple[str, str, str]  # tenant, backend, and the digest of what was made


class Apis:
    """Of one node."""

    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self._kept = dict[Key, tuple[ApiServer, int]]()
        self._bytes = 0

    async def of(self, spec: BackendSpec) -> ApiServer:
        """What this backend's API is as a server; where the backend has just been changed, perhaps the later one.

        Raises:
            BackendUnavailable: nothing is stored of it.
            StorageUnavailable: the database does not answer.
        """
        tenant, name = spec.tenant, spec.name.partition(":")[0]  # that of a check has a suffix
        kept = self._kept.pop((tenant, name, spec.openapi_made), None)
        if kept is not None:
            self._kept[tenant, name, spec.openapi_made] = kept
            return kept[0]
        found = await self._stored(tenant, name)
        if found is None:
            raise BackendUnavailable("what was made of its document is gone: give the document again")
        digest, data = found
        try:
            api = await anyio.to_thread.run_sync(unpacked, data)
        except ValueError:
            raise BackendUnavailable("what was made of its document cannot be read: give it again") from None
        self._keep((tenant, name, digest), ApiServer(api), sum(len(bytes(each.tool)) for each in api.operations))
        return self._kept[tenant, name, digest][0]

    def _keep(self, key: Key, server: ApiServer, size: int) -> None:
        for old in [each for each in self._kept if each[:2] == key[:2]]:
            self._bytes -= self._kept.pop(old)[1]
        while self._kept and (len(self._kept) >= MAX_KEPT or self._bytes + size > MAX_KEPT_BYTES):
            self._bytes -= self._kept.pop(next(iter(self._kept)))[1]
        self._kept[key] = (server, size)
        self._bytes += size
