"""Calls of all nodes, and from the database, where they are kept."""

import time
from dataclasses import replace

from app.cluster.node_status.listing import CallWindow, Gathered, Listing, place_of_event
from app.cluster.node_status.question import Nodes
from app.cluster.node_status.questions import CALL_GROUPS, CALLS
from app.cluster.node_status.views import CallView
from app.telemetry.call_history.kept import CallArchive
from app.telemetry.call_history.query import CallGroup, added

MAX_COUNTED = 10_000  # calls in the database that match a filter; what is beyond is not counted
WRITTEN_AFTER_S = 5.0  # by then calls are in the database, if they are kept there


async def find_calls(
    nodes: Nodes, archive: CallArchive | None, tenant: str | None, window: CallWindow
) -> Listing[CallView]:
    """The last calls of a tenant, or of all, newest first."""
    found = await nodes.ask(CALLS, tenant, window)
    if archive is None:
        return found
    kept = await archive.find(tenant, window, place_of_event(window.after), window.limit)
    total = await archive.count(tenant, window, MAX_COUNTED)
    rows = {each.id: each for each in (*map(CallView.kept, kept), *found.rows)}  # the newest are in both
    shown = window.first(rows.values(), lambda each: each.position(window.sort))
    return Listing(shown, max(total, found.total), found.silent)


async def group_calls(
    nodes: Nodes, archive: CallArchive | None, tenant: str | None, window: CallWindow, by: str
) -> Gathered[CallGroup]:
    """Their sums, the groups with the most calls first. Where calls are kept in the database, those of the last
    seconds are counted at the nodes that have them, as they may not be written yet."""
    kept: list[CallGroup] = []
    if archive is not None:
        recent = time.time() - WRITTEN_AFTER_S
        until = min(window.until, recent)
        if window.since < until:
            kept += await archive.groups(tenant, replace(window, until=until), by)
        window = replace(window, since=max(window.since, recent))
    found = await nodes.ask(CALL_GROUPS, tenant, window, by)
    if archive is not None:  # those of nodes that are gone, or did not answer
        kept += await archive.groups(tenant, window, by, set(found.asked) - set(found.silent))
    return Gathered(added([*kept, *found.rows]), found.silent)
