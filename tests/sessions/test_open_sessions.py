"""What is noted of a call without an answer in time, and what its caller is told."""

from types import SimpleNamespace
from typing import Any

import pytest

from app.backends.failures import FailureLog
from app.domain import BackendSpec, Principal
from app.errors import BackendTimeout
from app.processes.endings import RAISING
from app.sessions.open_sessions import note_timeout

SPEC = BackendSpec("acme", "echo", "server")


@pytest.mark.parametrize("limit", ["", "cpu", "pids"])
def test_the_limit_at_which_the_process_is_goes_to_the_caller_and_into_the_failure(limit: str) -> None:
    process: Any = SimpleNamespace(
        limit_reached=lambda *, is_late: limit if is_late else "memory", started_at=0.0, id="p", pid=1,
        stderr=SimpleNamespace(last_lines=list), denied=lambda said, now: (), denials=SimpleNamespace(last=()),
    )  # fmt: skip
    session: Any = SimpleNamespace(
        connection=SimpleNamespace(process="p"), spec=SPEC, id="s", principal=Principal("acme", "key", "k", frozenset())
    )
    error = BackendTimeout("the backend did not answer within 60 s")
    failed: Any = SimpleNamespace(call=SimpleNamespace(method="tools/list", target=None), error=error)
    log = FailureLog("n1")
    note_timeout(log, lambda process_id: process, session, failed)
    (failure,) = log.of(SPEC.key)
    assert failure.detail.startswith("the backend did not answer within 60 s")
    assert (f"limits.{limit}" in failure.detail, error.hint is not None) == ((True, True) if limit else (False, False))
    assert not limit or RAISING[limit] in str(error.hint)
