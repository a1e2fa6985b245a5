"""An application on a real port, behind the protocol that a node serves with."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import uvicorn

from app.http.edge.handshake import Handshake
from app.http.edge.http_protocol import HttpProtocol

STOPPED_S = 30


class _Server(uvicorn.Server):
    """uvicorn looks ten times a second whether it should stop; a test does not wait for that."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stopping = asyncio.Event()

    async def main_loop(self) -> None:
        await self.stopping.wait()

    def install_signal_handlers(self) -> None: ...


@asynccontextmanager
async def serving(app: Any, *, tls: Callable[[], ssl.SSLContext] | None = None, **options: Any) -> AsyncIterator[str]:
    """HOST:PORT of the application; `options` are those of `HttpProtocol`, `tls` has the certificate."""
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        http: Any = partial(HttpProtocol, **options)
        if tls is not None:
            http = partial(Handshake, http=HttpProtocol, context=tls, **options)
        server = _Server(
            uvicorn.Config(
                app,
                http=http,
                ws="none",
                lifespan="off",
                log_config=None,
                proxy_headers=False,
                timeout_graceful_shutdown=1,
            )
        )
        running = asyncio.ensure_future(server.serve([listener]))
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.stopping.set()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([running], timeout=STOPPED_S)
