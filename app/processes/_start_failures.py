"""Why a process could not be started: what the log has to know, and the error for whoever waits for it."""

import errno
import logging
import os

from app.domain import BackendSpec
from app.errors import BackendExited
from app.jail.sandbox.sandboxes import CONTAINER_STAGE, SandboxUnavailable
from app.jail.spawner.client import SpawnFailed
from app.jail.spawner.wire import WRAPPER_STAGE
from app.processes.endings import CHECK_HINT, raising
from app.processes.own_homes import HomeFull

logger = logging.getLogger(__name__)

_NO_MORE = "Resource temporarily unavailable"
_WRAPPED = 3  # a program with its wrapper, twice
_HINTS = {
    "No such file or directory": "Is the command installed, and on the gateway's PATH?",
    "Permission denied": (
        "Is the command executable by the gateway's user? Where that is root, processes have no capability: what only "
        "another owner may open, such as a home of mode 700, they cannot."
    ),
    _NO_MORE: (
        "The limit on processes and threads is reached: `pids.max` of the container, TasksMax of the service, or "
        "`ulimit -u`."
    ),
    "Exec format error": "Is it a program, or a script with a `#!` line?",
}
_OF_THE_SANDBOX = ("sandbox", "bubblewrap", "landlock", "seccomp", "cgroup")  # stages
_NO_SANDBOX = "the sandbox of the backend could not be made"
_NO_CONTAINER = "the container engine of the node could not start its image"
_CONTAINER_HINT = "`trunkline doctor`, run as the gateway's user on this node, says which engine there is."
_CWD_HINT = (
    "Is the directory there, on this node, and may the gateway's user enter it? A relative one is below the home of "
    "the process; without a sandbox that is the tenant's, which `trunkline homes` shows."
)
_CLOSED = "Permission denied: the user as whom it runs in its sandbox may not execute its program"
_CLOSED_HINT = (
    "That user must be able to read and execute the program and its interpreter: after `umask 077` only their owner "
    "can. On the node, `chmod -R go+rX` their directory, or install them below /opt; `trunkline backends check` names "
    "the file."
)
_SANDBOX_HINT = (
    "`trunkline doctor`, run as the gateway's user on this node, says what is missing and what would enforce it. Or "
    "the backend requires less: `sandbox.require`."
)


def not_started(spec: BackendSpec, error: SpawnFailed) -> BackendExited:
    logger.warning(
        "Could not start a backend process: %s",
        error.message,
        extra={"backend": spec.name, "backend_tenant": spec.tenant, "stage": error.stage},
    )
    if error.stage == "chdir":  # the answer names the registered cwd: clients must not learn paths of this node
        message = f"{os.strerror(error.errno)}: cwd {spec.cwd!r}" if spec.cwd else "the home of the tenant is gone"
        return BackendExited(message, started=False, hint=_CWD_HINT)
    pids = spec.limits.pids
    if error.stage == WRAPPER_STAGE and _NO_MORE in error.message and pids is not None and pids < _WRAPPED:
        message = f"its {pids} processes and threads (limits.pids) are too few for its sandbox, which takes {_WRAPPED}"
        return BackendExited(message, started=False, hint=raising("pids", spec), limit="pids")
    if error.stage == WRAPPER_STAGE and error.errno == errno.EACCES:
        return BackendExited(_CLOSED, started=False, hint=_CLOSED_HINT)
    if error.stage == CONTAINER_STAGE:  # as above
        return BackendExited(_NO_CONTAINER, started=False, stderr=[error.message], hint=_CONTAINER_HINT)
    if error.stage in _OF_THE_SANDBOX:
        return BackendExited(_NO_SANDBOX, started=False, stderr=[error.message], hint=CHECK_HINT)
    hint = next((hint for beginning, hint in _HINTS.items() if error.message.startswith(beginning)), None)
    return BackendExited(error.message, started=False, hint=hint)


def without_secrets(spec: BackendSpec) -> BackendExited:
    """Of a backend whose secrets do not open."""
    logger.warning(
        "Could not start a backend process: its secrets do not open with this SECRET_KEY",
        extra={"backend": spec.name, "backend_tenant": spec.tenant},
    )
    return BackendExited(
        "its secrets do not open with the gateway's SECRET_KEY", started=False, hint="Set them again: its env and args."
    )


def unprotected(spec: BackendSpec, error: SandboxUnavailable) -> BackendExited:
    logger.warning(
        "Refused to start a backend process without the sandbox that it requires: %s",
        error,
        extra={"backend": spec.name, "backend_tenant": spec.tenant},
    )
    return BackendExited(f"the sandbox cannot be had: {error}", started=False, hint=_SANDBOX_HINT)


def full(spec: BackendSpec, error: HomeFull) -> BackendExited:
    logger.warning(
        "Refused to start a backend process whose home that lasts is over its quota: it %s",
        error.strerror,
        extra={
            "backend": spec.name,
            "backend_tenant": spec.tenant,
            "home": f"{spec.home or spec.tenant}/{error.filename}",
        },
    )
    message = f"the home that lasts of this principal is full: it {error.strerror}"
    return BackendExited(message, started=False, hint=raising("disk", spec), limit="disk")


def homeless(spec: BackendSpec, error: OSError) -> BackendExited:
    # Only the log says where the home is: clients must not learn paths of this node.
    logger.warning(
        "Could not open the home directory of a tenant: %s",
        error,
        extra={"backend": spec.name, "backend_tenant": spec.tenant, "home": spec.home},
    )
    problem = error.strerror or "it cannot be made"
    hint = "The node's log names the directory; `trunkline doctor`, run as the gateway's user, checks HOMES_DIR."
    return BackendExited(f"the home of the tenant cannot be used: {problem}", started=False, hint=hint)
