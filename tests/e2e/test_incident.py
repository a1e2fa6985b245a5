"""Three causes at once, each found from the overview in the browser in three clicks at most, as in docs/on-call.md."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import NO_PLAYWRIGHT
from tests.incidents.plays import three_at_once
from tests.incidents.stage import Stage, stage
from tests.postgres import new_database

expect = pytest.importorskip("playwright.sync_api", reason=NO_PLAYWRIGHT).expect
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, postgres_url: str, postgres_template: str) -> Iterator[Stage]:
    directory: Path = tmp_path_factory.mktemp("stage")
    with new_database(postgres_url, postgres_template) as url, stage(directory, url) as staged:
        three_at_once(staged)
        yield staged


@pytest.fixture
def page(chromium: Any, played: Stage) -> Iterator[Any]:
    """The first page that whoever is called sees."""
    from tests.e2e.desk import desk

    with desk(chromium, played.first, played.first.admin_key) as there:
        yield there.page


@pytest.fixture
def keep(request: pytest.FixtureRequest) -> Callable[[Any, str], None]:
    """keep(page, name): the picture of a step of the walk in docs/on-call.md, with --pictures."""
    directory = request.config.getoption("--pictures")

    def picture(page: Any, name: str) -> None:
        if directory is not None:
            page.screenshot(path=Path(directory) / f"incident-{name}.png")

    return picture


def problem(page: Any, words: str) -> Any:
    return page.locator("#problems li").filter(has_text=words)


def test_the_leak_is_found(page: Any, played: Stage, keep: Callable[[Any, str], None]) -> None:
    line = problem(page, "A process of the backend leaks uses")
    expect(line).to_contain_text(f"tenant {played.tenant}")
    expect(page.locator("svg.chart").first).to_be_visible()
    keep(page, "overview")
    line.get_by_role("link", name="The process").click()
    expect(page.locator("h1")).to_contain_text("leaks")
    expect(page.locator("dl")).to_contain_text("MiB")
    keep(page, "process")
    page.get_by_role("link", name="leaks").first.click()
    expect(page.locator("h1")).to_have_text("leaks")


def test_the_abused_key_is_found_and_can_be_switched_off_there(
    page: Any, played: Stage, keep: Callable[[Any, str], None]
) -> None:
    line = problem(page, "is used from 198.51.100.23")
    expect(line).to_contain_text("critical")
    line.get_by_role("link", name="The keys").click()
    expect(page.locator("tr:target")).to_be_visible()
    expect(page.locator("tr:target").get_by_role("button").first).to_be_visible()
    assert f"/tenants/{played.quiet}/keys#key-" in page.url
    keep(page, "key")


def test_the_node_without_redis_is_found_and_why(page: Any, keep: Callable[[Any, str], None]) -> None:
    expect(problem(page, "it cannot use Redis")).to_contain_text("Nothing is heard any more of the node")
    why = problem(page, "Redis cannot be used")
    expect(why).to_contain_text("critical")
    why.get_by_role("link", name="The nodes").click()
    expect(page.locator("h1")).to_have_text("Nodes")
    keep(page, "nodes")


def test_the_charts_show_the_memory_of_the_tenant_and_of_one_node(page: Any, played: Stage) -> None:
    problem(page, "A process of the backend leaks uses").get_by_role("link", name=played.tenant).click()
    memory = page.get_by_role("img", name="Memory of processes")
    expect(memory).to_be_visible()
    expect(page.locator("#chart-node option")).not_to_have_count(1)
    page.get_by_label("Node").select_option(index=1)
    page.locator("#chart-details summary").click()
    expect(page.get_by_role("columnheader", name="Memory of processes: used")).to_be_visible()
