"""What nodes are asked: each question is a function of one node, and how the answers of all become one."""

from collections.abc import Sequence

from app.cluster.node_status._limits_use import LimitsUse, added
from app.cluster.node_status.activity import NodeActivity, Shown, together
from app.cluster.node_status.inspecting import Inspecting
from app.cluster.node_status.inspection_views import (
    InspectionAsked,
    InspectionView,
    Opened,
    Seen,
    seen_together,
    views_together,
)
from app.cluster.node_status.listing import CallWindow, Gathered, Listing, Window, merged
from app.cluster.node_status.overview import NodeOverview
from app.cluster.node_status.question import Question, each_one, one_list, only_one
from app.cluster.node_status.views import TenantUse
from app.errors import AGAIN, NodeUnavailable, nodes_unavailable
from app.telemetry.call_history.query import CallGroup
from app.telemetry.call_history.query import added as added_groups


def _summed(told: Gathered[Listing[TenantUse]], window: Window) -> Listing[TenantUse]:
    sums: dict[str, TenantUse] = {}
    for listing in told.rows:
        for each in listing.rows:
            sums[each.tenant] = sums[each.tenant] + each if each.tenant in sums else each
    rows = window.first(sums.values(), lambda each: each.position(window.sort))
    return Listing(rows, len(sums), told.silent)


def _added(told: Gathered[LimitsUse], _tenant: str) -> tuple[LimitsUse, Sequence[str]]:
    return added(told.rows), told.silent


def _groups(
    told: Gathered[Sequence[CallGroup]], _tenant: str | None, _window: CallWindow, _by: str
) -> Gathered[CallGroup]:
    every = one_list(told)
    return Gathered(added_groups(every.rows), told.silent, told.asked)


def _series(told: Gathered[NodeActivity | None], _tenant: str | None, node: str, steps: int) -> Shown | None:
    """Of one node or of all (""); None if there is no such node."""
    silent = [each for each in told.silent if node in ("", each)]
    rows = [each for each in told.rows if each is not None]
    return together(rows, silent, steps) if rows or silent or not node else None


SESSIONS = Question(NodeOverview.sessions, merged, of_lost=True)
PROCESSES = Question(NodeOverview.processes, merged, of_lost=True)
FAILURES = Question(NodeOverview.failures, merged, of_lost=True)
CALLS = Question(NodeOverview.calls, merged, of_lost=True)
CALL_GROUPS = Question(NodeOverview.call_groups, _groups)
USE = Question(NodeOverview.use, _summed)
LIMITS_USE = Question(NodeOverview.limits_use, _added)
LOAD = Question(NodeOverview.load, each_one)
SANDBOX = Question(NodeOverview.sandbox, each_one)
BACKENDS = Question(NodeOverview.backends, one_list)
CREDENTIAL_USES = Question(NodeOverview.credential_uses, one_list)
ACTIVITY = Question(NodeOverview.activity, _series)
PROBLEMS = Question(NodeOverview.problems, one_list)
STDERR = Question(NodeOverview.stderr, only_one, of_one=True, of_lost=True)
END_SESSION = Question(NodeOverview.end_session, only_one, of_one=True, of_lost=True)
RESTART_PROCESS = Question(NodeOverview.restart_process, only_one, of_one=True, of_lost=True)

# --- inspections


def _inspecting(node: NodeOverview) -> Inspecting:
    assert node.inspecting is not None
    return node.inspecting


def inspections(node: NodeOverview, tenant: str) -> Sequence[InspectionView]:
    return _inspecting(node).of(tenant)


def inspected(node: NodeOverview, tenant: str, inspection: str, after: int, limit: int) -> Seen | None:
    return _inspecting(node).seen(tenant, inspection, after, limit)


def inspect_session(node: NodeOverview, tenant: str, asked: InspectionAsked) -> Opened | None:
    return _inspecting(node).open(tenant, asked)


def inspect_backend(node: NodeOverview, tenant: str, asked: InspectionAsked) -> Opened | None:
    return _inspecting(node).open(tenant, asked)


def confirm_inspection(node: NodeOverview, tenant: str, inspection: str) -> InspectionView | None:
    return _inspecting(node).confirm(tenant, inspection)


def close_inspection(node: NodeOverview, tenant: str, inspection: str, has_parts: bool) -> bool:
    """`has_parts`: every node may have one."""
    return _inspecting(node).close(tenant, inspection)


def _views(told: Gathered[Sequence[InspectionView]], _tenant: str) -> Gathered[InspectionView]:
    return Gathered(views_together(one_list(told).rows), told.silent)


def _parts(told: Gathered[Seen | None], _tenant: str, _inspection: str, _after: int, limit: int) -> Seen | None:
    only_one(told)  # or nobody knows whether there is one
    return seen_together([each for each in told.rows if each is not None], limit, told.silent)


def _opened(told: Gathered[Opened | None], _tenant: str, _asked: InspectionAsked) -> Opened | None:
    """Of all nodes, or a refusal. If this raises, or it is one, parts may be open, which end soon."""
    if told.silent:
        raise NodeUnavailable(f"no answer from {', '.join(told.silent)}, whose sessions it would not see", hint=AGAIN)
    rows = [each for each in told.rows if each is not None]
    refusal = next((each for each in rows if each.view is None), None)
    return refusal or Opened(views_together(each.view for each in rows if each.view is not None)[0])


def _confirmed(told: Gathered[InspectionView | None], _tenant: str, _inspection: str) -> InspectionView | None:
    """None, or without some of its nodes: it has ended."""
    only_one(told)
    views = views_together(each for each in told.rows if each is not None)
    return views[0] if views else None


def _closed(told: Gathered[bool], _tenant: str, _inspection: str, has_parts: bool) -> bool:
    """Whether one was open. Raises NodeUnavailable: what a node has that did not answer is open still."""
    if told.silent and (has_parts or not any(told.rows)):
        raise nodes_unavailable(told.silent)
    return any(told.rows)


INSPECTIONS = Question(inspections, _views, of_lost=True)
INSPECTED = Question(inspected, _parts, of_lost=True)
INSPECT_SESSION = Question(inspect_session, only_one, of_one=True)
INSPECT_BACKEND = Question(inspect_backend, _opened)
CONFIRM_INSPECTION = Question(confirm_inspection, _confirmed, of_lost=True)
CLOSE_INSPECTION = Question(close_inspection, _closed, of_lost=True)

QUESTIONS = (
    SESSIONS, PROCESSES, FAILURES, CALLS, CALL_GROUPS, USE, LIMITS_USE, LOAD, SANDBOX, BACKENDS, CREDENTIAL_USES,
    ACTIVITY, PROBLEMS, STDERR, END_SESSION, RESTART_PROCESS, INSPECTIONS, INSPECTED, INSPECT_SESSION, INSPECT_BACKEND,
    CONFIRM_INSPECTION, CLOSE_INSPECTION,
)  # fmt: skip
