"""repeat: does the same work at intervals, as a task of a node."""

import logging
from collections.abc import Awaitable, Callable

import anyio

from app.errors import StorageUnavailable

log = logging.getLogger(__name__)


async def repeat(work: Callable[[], Awaitable[object]], every_s: float, failure: str) -> None:
    """Runs until cancelled. Logs errors under the text `failure`, and goes on."""
    while True:
        await anyio.sleep(every_s)
        try:
            await work()
        except StorageUnavailable as error:  # who watches the database says so
            log.debug("%s: %s", failure, error)
        except Exception:
            log.exception(failure)
