"""…/failures, of one tenant or of all: what went wrong lately, whichever backend it was."""

from functools import partial
from typing import Self

from fastapi import APIRouter

from app.admin.backend_state import KeptFailure, shown_failure
from app.admin.context import MayReadOfAll
from app.admin.paging import AskedPage
from app.admin.route import AdminRoute
from app.admin.windows import OfBackend, RunningPage, WindowQuery
from app.auth.policy import has_scope, is_platform_admin
from app.domain import Scope
from app.this_node.views import FailureView

router = APIRouter(route_class=AdminRoute, tags=["backends"])


class ListedFailure(KeptFailure):
    """One failure, and whose it is."""

    tenant: str
    backend: str

    @classmethod
    def of(cls, view: FailureView, *, in_full: bool) -> Self:
        """Shows the value."""
        members = shown_failure(view.failure, in_full=in_full)
        return cls.model_validate({**members, "tenant": view.tenant, "backend": view.backend})


@router.get("")
async def list_failures(access: MayReadOfAll, asked: AskedPage, backend: OfBackend = "") -> RunningPage[ListedFailure]:
    """The last failures of the tenant's backends on all nodes, the newest first, or those of all tenants:
    `/tenants/-/failures`, for platform administrators. Of a backend ten for each node; see there."""
    query, who = WindowQuery(asked, "id", backend), access.principal
    in_full = is_platform_admin(who) or has_scope(who, access.tenant, Scope.TENANT_ADMIN)
    found = await access.admin.node.failures(access.reach, query.window)
    return query.page(found, partial(ListedFailure.of, in_full=in_full))
