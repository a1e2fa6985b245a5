"""A made-up view, with all that it needs: what it is, a row, a function of one node, and the line in each list."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import pytest
from fastapi import FastAPI

from app.admin._route import ResourceRouter
from app.admin._view import add_list
from app.admin.schemas.rows import answer_of
from app.cli.usage import nouns
from app.cluster.node_status.listing import NO_USE, Listing, Use, Window, merged, position
from app.cluster.node_status.overview import NodeOverview
from app.cluster.node_status.question import Question
from app.domain.views import View
from app.node.application import build_api

VIEW = View("naps", "Who rests.", columns=("seconds", "id"), help="list who rests")
TAKEN: dict[str, list["Nap"]] = {}  # by node


@dataclass(frozen=True, slots=True)
class Nap:
    """A rest that somebody takes."""

    id: str
    tenant: str
    seconds: Annotated[float, "How long it was."]
    use: Use = NO_USE

    def position(self, sort: str) -> str:
        return position(sort, self.id, 0.0, self.use.amounts(sort))


def naps(node: NodeOverview, tenant: str | None, window: Window) -> Listing[Nap]:
    found = [each for each in TAKEN[node.status().id] if tenant in (None, each.tenant)]
    return Listing(window.first(found, lambda nap: nap.position(window.sort)), len(found))


NAPS = Question(naps, merged)


@contextmanager
def application(patch: pytest.MonkeyPatch) -> Iterator[FastAPI]:
    """The REST API with naps, and the command line that knows them."""
    app, router = build_api(), ResourceRouter(tags=["naps"])
    add_list(router, VIEW, NAPS, answer_of(Nap, "NapAnswer"))
    app.include_router(router, prefix="/api/v1/tenants/{tenant}")
    patch.setattr(nouns, "LISTS", (*nouns.LISTS, (nouns.Resource.of_view(VIEW), VIEW.help)))
    yield app
