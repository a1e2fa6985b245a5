"""A page waits for a silent node once: it asks for everything that nodes are asked for at the same time."""

from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from app.console.rest import Refused
from app.console.views import access, running, traffic
from app.console.visit import Page, Visit
from app.http.dependencies import BASE_URL


class Waiting(Visit):
    """Each answer comes when all are asked for."""

    renewed = ()

    def __init__(self, count: int, refused: str = "") -> None:
        self._count, self._refused, self._all = count, refused, anyio.Event()
        self.asked_for: list[str] = []
        self.tenant = "acme"

    @property
    def request(self) -> Any:
        parts = {"key": "k1", "process": "p1"}
        return SimpleNamespace(path_params=parts, scope={BASE_URL: "http://gateway"})

    @request.setter
    def request(self, value: Any) -> None: ...

    def asked(self, name: str) -> str:
        return ""

    async def get(self, path: str, **query: object) -> Any:
        self.asked_for.append(path)
        if len(self.asked_for) == self._count:
            self._all.set()
        await self._all.wait()
        if self._refused and path.endswith(self._refused):
            raise Refused(404, {"title": "gone"})
        return {"items": [{"id": "p1", "name": "echo"}], "lines": [], "scopes": []}

    def show(self, template: str, status: int = 200, **values: Any) -> Any:
        return values


PAGES = {"key": (access.key, 3), "process": (running.process, 2), "inspections": (traffic.inspections, 5)}


@pytest.mark.parametrize(("page", "count"), PAGES.values(), ids=PAGES)
async def test_all_parts_are_asked_for_at_once(page: Page, count: int) -> None:
    with anyio.fail_after(5):
        found: Any = await page(Waiting(count))
    assert found


@pytest.mark.parametrize(
    ("page", "count", "refused"),
    [(*PAGES["key"], "/keys/k1"), (*PAGES["process"], "/processes"), (*PAGES["inspections"], "/inspections")],
)
async def test_what_the_page_is_about_must_be_there(page: Page, count: int, refused: str) -> None:
    with anyio.fail_after(5), pytest.raises(Refused):
        await page(Waiting(count, refused))


async def test_the_page_of_a_process_does_without_its_stderr() -> None:
    with anyio.fail_after(5):
        found: Any = await running.process(Waiting(2, "/stderr"))
    assert found["about"]["id"] == "p1"
    assert not found["stderr"]
