"""The registry's list is read seldom, and its documents say what they should, whatever the names."""

from dataclasses import dataclass
from datetime import UTC, datetime

import anyio
import anyio.lowlevel
import pytest
from prometheus_client import Counter

from app.domain import RegistryMode
from app.errors import InvalidRequest, StorageUnavailable
from app.http._registry_documents import Asked, Documents, etag_of
from app.http.registry import MAX_REMEMBERED, REMEMBER_S, Registries, _since
from app.limits.caller_rates import RateLimiter

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@dataclass
class Server:
    name: str
    title: str = ""
    is_toolset: bool = False
    version: int = 1
    created_at: datetime = AT
    changed_at: datetime = AT


@dataclass
class Listing:
    mode: RegistryMode
    servers: tuple[Server, ...] = ()


class Asking:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.now = 0.0
        self.error: Exception | None = None

    async def listing(self, tenant: str) -> Listing:
        self.asked.append(tenant)
        await anyio.lowlevel.checkpoint()
        if self.error is not None:
            raise self.error
        return Listing("public", (Server("a"),))

    async def issuers(self, tenant: str) -> list[str]:
        return []

    def registries(self) -> Registries:
        limiter = RateLimiter("registry", Counter("x", "x", ["limit"], registry=None), lambda: self.now)
        return Registries(self.listing, self.issuers, limiter, lambda: self.now)


async def test_a_list_is_asked_for_once_whoever_wants_it_at_once():
    asking = Asking()
    registries = asking.registries()
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(registries.of, "acme")
    assert asking.asked == ["acme"]
    asking.now = REMEMBER_S + 0.1
    await registries.of("acme")
    assert asking.asked == ["acme"] * 2


async def test_a_database_that_is_away_is_not_remembered():
    asking = Asking()
    registries = asking.registries()
    asking.error = StorageUnavailable()
    with pytest.raises(StorageUnavailable):
        await registries.of("acme")
    asking.error = None
    assert (await registries.of("acme"))[0].mode == "public"


async def test_few_tenants_are_remembered():
    asking = Asking()
    registries = asking.registries()
    for number in range(MAX_REMEMBERED + 1):
        await registries.of(f"t{number}")
    assert len(registries._known) == MAX_REMEMBERED
    await registries.of("t0")
    assert asking.asked.count("t0") == 2


def test_times_may_have_a_zone_or_none():
    assert _since("") is None
    assert _since("2026-01-01T00:00:00Z") == _since("2026-01-01T01:00:00+01:00") == _since("2026-01-01T00:00:00")
    with pytest.raises(InvalidRequest):
        _since("soon")


@pytest.mark.parametrize(
    ("base_url", "name"),
    [
        ("https://mcp.example.com", "com.example.mcp/acme.a"),
        ("https://mcp.example.com:8443", "com.example.mcp/acme.a"),
        ("http://localhost:8080", "localhost/acme.a"),
        ("http://127.0.0.1:8080", "local.gateway/acme.a"),
        ("http://[::1]:8080", "local.gateway/acme.a"),
    ],
)
def test_names_are_the_host_in_reverse(base_url, name):
    assert Documents("acme", base_url).name_of(Server("a")) == name


def test_long_names_and_titles_fit_the_schema():
    server = Server("n" * 63, title="t" * 200, is_toolset=True)
    shown = Documents("a" * 63, "https://x.example").answer(server)["server"]
    assert (len(shown["title"]), len(shown["description"])) == (100, 100)
    assert len(shown["name"]) <= 200


def test_pages_follow_each_other_without_a_gap():
    servers = [Server(f"s{number:02}") for number in range(25)]
    documents, after, seen = Documents("acme", "https://x.example"), "", []
    while True:
        page = documents.page(servers, Asked(after=after, limit=10))
        seen += [each["server"]["name"].rpartition(".")[2] for each in page["servers"]]
        if not (after := page["metadata"].get("nextCursor", "")):
            break
    assert seen == [server.name for server in servers]
    assert etag_of(page) == etag_of(dict(reversed(list(page.items()))))
