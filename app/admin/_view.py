"""add_list: the route of a view, made of its declaration, the question to the nodes, and the model of a row."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel

from app.admin._paging import AskedWindow, RunningPage, WindowQuery
from app.admin._route import ResourceRouter
from app.admin.context import Access, MayRead, MayReadOfAll, Platform
from app.cluster.node_status.listing import Listing, Ranked, Window
from app.cluster.node_status.question import Question
from app.domain.views import View

W = TypeVar("W", bound=Window)
R = TypeVar("R", bound=Ranked)

_MAY = {"tenant": MayRead, "tenants": MayReadOfAll, "platform": Platform}


def add_list(
    router: ResourceRouter,
    view: View,
    question: Question[str | None, W, Any, Listing[R]],
    row: type[BaseModel],
    *,
    asked: Any = AskedWindow,
    show: Callable[[Access, R], BaseModel] | None = None,
) -> None:
    """`GET` of a view. `asked`: the query, a WindowQuery. `show` makes a row where that depends on who asks."""
    model: Any = row

    async def listed(access: Access, asked: WindowQuery[W]) -> RunningPage[Any]:
        tenant = None if view.whose == "platform" else access.reach
        found = await access.admin.node.ask(question, tenant, asked.window)
        return asked.page(found, model.of if show is None else partial(show, access))

    listed.__name__, listed.__doc__ = f"list_{view.name}", view.about
    listed.__annotations__ |= {"access": _MAY[view.whose], "asked": asked}
    router.add_api_route(f"/{view.name}", listed, response_model=RunningPage[model])
