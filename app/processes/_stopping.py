"""How a process is stopped: EOF, then SIGTERM, then SIGKILL of its tree."""

import logging

import anyio

from app.processes.process import BackendProcess

logger = logging.getLogger(__name__)


async def stop(process: BackendProcess, eof_grace_s: float, term_grace_s: float, kill_wait_s: float) -> None:
    """Goes on from the EOF of `BackendProcess.begin_stop`. Each wait is bounded; cancelling would leave it running."""
    with anyio.CancelScope(shield=True):
        if await _gone_within(process, eof_grace_s):
            return
        process.terminate()
        if await _gone_within(process, term_grace_s):
            return
        process.kill()
        if not await _gone_within(process, kill_wait_s):
            logger.error(
                "A backend process was killed, and its end is not known: it hangs in the kernel (disk, NFS), or "
                "the spawner stands still",
                extra=names_of(process),
            )


async def _gone_within(process: BackendProcess, seconds: float) -> bool:
    with anyio.move_on_after(seconds):
        await process.wait_gone()
        return True
    return False


def names_of(process: BackendProcess) -> dict[str, object]:
    """What a log line says of it."""
    spec = process.spec
    return {"backend": spec.name, "backend_tenant": spec.tenant, "backend_process": process.id, "pid": process.pid}
