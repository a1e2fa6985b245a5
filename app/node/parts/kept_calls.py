"""Calls that are kept in the database besides memory."""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NamedTuple

from app.node.parts.opening import Opening
from app.node.parts.records import Records
from app.storage.calls import CallRepository
from app.telemetry.call_history.history import CallHistory
from app.telemetry.call_history.keeper import CallKeeper, remove_all
from app.telemetry.call_history.kept import CallArchive

DAY_S = 86_400


class KeptCalls(NamedTuple):
    """`archive` is None where none are kept. `run` is a task of the node; without any to keep it ends soon."""

    archive: CallArchive | None
    run: Callable[[], Coroutine[Any, Any, None]]


def keep_calls(opening: Opening, records: Records, history: CallHistory) -> KeptCalls:
    """Those of this history, if the settings say so."""
    settings, shelf = opening.settings, CallRepository(records.database)
    if not settings.calls_kept_days:
        return KeptCalls(None, partial(remove_all, shelf))
    results = {result: opening.metrics.kept_calls.labels(result) for result in ("written", "dropped")}
    keeper = CallKeeper(
        history,
        shelf,
        opening.node_id,
        kept_s=settings.calls_kept_days * DAY_S,
        per_tenant=settings.calls_kept_per_tenant,
        count=lambda result, calls: results[result].inc(calls),
    )
    return KeptCalls(shelf, keeper.run)
