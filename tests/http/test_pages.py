"""What anybody may ask for as often as they like: answered as by the application, and made once."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from prometheus_client import CollectorRegistry

from app.http.health import Health
from app.http.pages import pages
from app.node.application import build_api


async def _ready() -> dict[str, str]:
    return {"database": "ok"}


@pytest.fixture
def health() -> Health:
    readiness: Any = SimpleNamespace(check=_ready, degraded=dict)
    return Health(readiness, CollectorRegistry())


def client(app: Any) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://testserver")


async def test_pages_are_what_the_application_answers(health: Health) -> None:
    api = build_api()
    api.state.health = health
    all_pages = pages(api, health)
    answered = {path: page for path, page in all_pages.items() if not path.startswith("/api/docs")}
    assert set(answered) == {"/livez", "/readyz", "/api/v1/openapi.json"}
    for path, page in answered.items():
        async with client(api) as behind, client(page) as front:
            wanted, got = await behind.get(path), await front.get(path)
        assert (got.status_code, got.headers["content-type"]) == (200, wanted.headers["content-type"])
        assert got.content == wanted.content


async def test_the_document_is_made_once(health: Health, monkeypatch: pytest.MonkeyPatch) -> None:
    api, made = build_api(), list[int]()
    generate: Callable[[], dict[str, Any]] = api.openapi

    def counted() -> dict[str, Any]:
        made.append(1)
        return generate()

    monkeypatch.setattr(api, "openapi", counted)
    async with client(pages(api, health)["/api/v1/openapi.json"]) as http:
        for _ in range(3):
            assert (await http.get("/api/v1/openapi.json")).json()["info"]["title"] == api.title
    assert made == [1]
