"""Documents: what a backend's `openapi` says becomes what is stored of it."""

import hashlib
import logging
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import parse_qsl, urljoin

import anyio
import anyio.to_thread

from app.backends.openapi._reading import CPU_S, MAX_WRITTEN_BYTES, UNFIT
from app.backends.openapi.apis import Apis
from app.domain import BackendSpec
from app.errors import BackendUnavailable
from app.protocol.openapi.api import packed, unpacked
from app.protocol.openapi.document import UnfitDocument, is_url, mark_of, text_of

READ_S = 60.0  # for reading one, with the wait for others
AT_ONCE = 2  # that are read, of all tenants

_PROGRAM = "import sys; sys.path[:] = sys.argv[1:]; from app.backends.openapi._reading import main; main()"
_ROOT = str(Path(__file__).parents[3])

log = logging.getLogger(__name__)

Key = tuple[str, str]
Fetch = Callable[[Key, str], Awaitable[bytes]]  # for a backend; as `Upstreams.fetch`


@dataclass(frozen=True, slots=True)
class Made:
    """What was made of a document. `source`: the URL, or what its text is known by; `digest` of what is kept, `stored`;
    `server`: where it says that the API is."""

    source: str
    digest: str
    stored: bytes
    server: str


class Documents:
    """Reads documents, and knows what was made of them."""

    def __init__(self, fetch: Fetch, apis: Apis) -> None:
        self._fetch, self._apis, self._at_once = fetch, apis, anyio.CapacityLimiter(AT_ONCE)

    async def left_out(self, spec: BackendSpec) -> list[str]:
        """What of a backend's document could not be made a tool, and the credential that it asks for and is not sent,
        in sentences. Raises StorageUnavailable."""
        if spec.openapi is None:
            return []
        query = (spec.url or "").partition("?")[2]
        sent = [*spec.headers, *(name for name, _ in parse_qsl(query, keep_blank_values=True))]
        try:
            api = (await self._apis.of(spec)).api
            return [*api.lacking(sent), *api.notes]
        except BackendUnavailable as error:
            return [str(error)]

    async def made(self, key: Key, given: str) -> Made:
        """`given`: a URL, or a text as `text_of` takes it.

        Raises:
            UnfitDocument: it cannot be used.
            GatewayError: it could not be fetched.
        """
        if is_url(given) is not None:
            source, text = given, await self._fetch(key, given)
        else:
            text = await anyio.to_thread.run_sync(text_of, given)
            source = await anyio.to_thread.run_sync(mark_of, text)
        try:
            with anyio.fail_after(READ_S):
                async with self._at_once:
                    made = await _read(text)
        except TimeoutError:
            raise UnfitDocument("the document could not be read in time: try again, or give a smaller one") from None
        return await anyio.to_thread.run_sync(_kept, source, made)


def _kept(source: str, made: bytes) -> Made:
    stored = packed(made)
    server = unpacked(stored).server
    if server.startswith("/"):
        server = urljoin(source, server).rstrip("/") if is_url(source) else ""
    return Made(source, hashlib.sha256(made).hexdigest(), stored, server)


async def _read(text: bytes) -> bytes:
    """By a process of its own, which is killed if this is cancelled. Raises UnfitDocument."""
    with ExitStack() as stack:
        given, made, said = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        await anyio.to_thread.run_sync(_fill, given, text)
        status = await _run(given, made, said)
        if status == 0:
            return await anyio.to_thread.run_sync(_content, made)
        if status == UNFIT:
            raise UnfitDocument(_content(made).decode("utf-8", "replace"))
        last = _content(said)[-2000:].decode("utf-8", "replace")
    log.warning("A document could not be read: status %d", status, extra={"stderr": last})
    raise UnfitDocument(f"the document is too large or intricate to be read within {CPU_S} s: give a smaller one")


async def _run(given: IO[bytes], made: IO[bytes], said: IO[bytes]) -> int:
    """The exit status of the process."""
    path = [_ROOT, *(each for each in sys.path if each and each != _ROOT)]
    command, environ = [sys.executable, "-I", "-c", _PROGRAM, *path], {"PATH": os.defpath, "LANG": "C.UTF-8"}
    with anyio.CancelScope(shield=True):  # one that is cancelled while it is started would be nobody's
        process = await anyio.open_process(command, cwd="/", env=environ, stdin=given, stdout=made, stderr=said)
    async with process:
        return await process.wait()


def _fill(file: IO[bytes], text: bytes) -> None:
    file.write(text)
    file.seek(0)


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read(MAX_WRITTEN_BYTES)
