"""What nodes are asked: each question is a function of one node, and how the answers of all become one."""

from collections.abc import Sequence

from app.cluster.node_status.activity import NodeActivity, Shown, together
from app.cluster.node_status.inspecting import Inspecting
from app.cluster.node_status.inspection_views import (
    InspectionView,
    Opened,
    Seen,
    seen_together,
    views_together,
)
from app.cluster.node_status.listing import Gathered, Listing, Window, merged
from app.cluster.node_status.overview import NodeOverview
from app.cluster.node_status.question import Question, each_one, one_list, only_one
from app.cluster.node_status.views import CallerUse, TenantUse
from app.errors import AGAIN, NodeUnavailable


def _summed(told: Gathered[Listing[TenantUse]], _tenant: str | None, window: Window) -> Listing[TenantUse]:
    sums: dict[str, TenantUse] = {}
    for listing in told.rows:
        for each in listing.rows:
            sums[each.tenant] = sums[each.tenant] + each if each.tenant in sums else each
    rows = window.first(sums.values(), lambda each: each.position(window.sort))
    return Listing(rows, len(sums), told.silent)


def _callers(told: Gathered[Listing[CallerUse]], _tenant: str | None, window: Window) -> Listing[CallerUse]:
    found: dict[str, CallerUse] = {}
    for listing in told.rows:
        for each in listing.rows:
            found[each.id] = found[each.id] | each if each.id in found else each
    rows = window.first(found.values(), lambda each: each.position(window.sort))
    return Listing(rows, max([len(found), *(listing.total for listing in told.rows)]), told.silent)


def _series(told: Gathered[NodeActivity | None], _tenant: str | None, node: str, steps: int) -> Shown | None:
    """Of one node or of all (""); None if there is no such node."""
    silent = [each for each in told.silent if node in ("", each)]
    rows = [each for each in told.rows if each is not None]
    return together(rows, silent, steps) if rows or silent or not node else None


SESSIONS = Question(NodeOverview.sessions, merged, of_lost=True)
PROCESSES = Question(NodeOverview.processes, merged, of_lost=True)
FAILURES = Question(NodeOverview.failures, merged, of_lost=True)
CALLS = Question(NodeOverview.calls, merged, of_lost=True)
CALL_GROUPS = Question(NodeOverview.call_groups, one_list)
USE = Question(NodeOverview.use, _summed)
CALLERS = Question(NodeOverview.callers, _callers)
LIMITS_USE = Question(NodeOverview.limits_use, each_one)
LOAD = Question(NodeOverview.load, each_one)
SANDBOX = Question(NodeOverview.sandbox, each_one)
BACKENDS = Question(NodeOverview.backends, one_list)
CREDENTIAL_USES = Question(NodeOverview.credential_uses, one_list)
ACTIVITY = Question(NodeOverview.activity, _series)
PROBLEMS = Question(NodeOverview.problems, one_list)
STDERR = Question(NodeOverview.stderr, only_one, of_one=True, of_lost=True)
DENIALS = Question(NodeOverview.denials, only_one, of_one=True, of_lost=True)
END_SESSION = Question(NodeOverview.end_session, only_one, of_one=True, of_lost=True)
RESTART_PROCESS = Question(NodeOverview.restart_process, only_one, of_one=True, of_lost=True)

# --- inspections


def inspections(inspecting: Inspecting, tenant: str | None, _window: Window) -> Sequence[InspectionView]:
    """All: of one that has parts on several nodes, each tells its own."""
    return inspecting.of(tenant or "")


def _views(told: Gathered[Sequence[InspectionView]], _tenant: str | None, window: Window) -> Listing[InspectionView]:
    every = views_together(one_list(told).rows)
    return Listing(window.first(every, lambda view: view.position(window.sort)), len(every), told.silent)


def _parts(told: Gathered[Seen | None], _tenant: str, _inspection: str, _after: int, limit: int) -> Seen | None:
    only_one(told)  # or nobody knows whether there is one
    return seen_together([each for each in told.rows if each is not None], limit, told.silent)


def _opened(told: Gathered[Opened | None], *_: object) -> Opened | None:
    """Of all nodes, or a refusal. If this raises, or it is one, parts may be open, which end soon."""
    if told.silent:
        raise NodeUnavailable(f"no answer from {', '.join(told.silent)}, whose sessions it would not see", hint=AGAIN)
    rows = [each for each in told.rows if each is not None]
    refusal = next((each for each in rows if each.view is None), None)
    return refusal or Opened(views_together(each.view for each in rows if each.view is not None)[0])


def _confirmed(told: Gathered[InspectionView | None], *_: object) -> InspectionView | None:
    """None, or without some of its nodes: it has ended."""
    only_one(told)
    views = views_together(each for each in told.rows if each is not None)
    return views[0] if views else None


INSPECTIONS = Question(inspections, _views, part="inspecting", of_lost=True)
INSPECTED = Question(Inspecting.seen, _parts, "inspected", part="inspecting", of_lost=True)
INSPECT_SESSION = Question(Inspecting.open, only_one, "inspect_session", part="inspecting", of_one=True)
INSPECT_BACKEND = Question(Inspecting.open, _opened, "inspect_backend", part="inspecting")
CONFIRM_INSPECTION = Question(Inspecting.confirm, _confirmed, "confirm_inspection", part="inspecting", of_lost=True)
CLOSE_INSPECTION = Question(Inspecting.close, each_one, "close_inspection", part="inspecting", of_lost=True)

# All of them: nodes answer no other.
QUESTIONS = tuple(each for each in globals().values() if isinstance(each, Question))
