"""The pictures of the documents: `scripts/test --e2e -n 0 --pictures docs/pictures tests/e2e -k picture`."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import NO_PLAYWRIGHT
from tests.e2e.office import Office, office, put_commands_on
from tests.postgres import new_database

expect = pytest.importorskip("playwright.sync_api", reason=NO_PLAYWRIGHT).expect
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
PHONE = {"width": 390, "height": 844}
SCENES = (("light", None), ("dark", None), ("phone", PHONE))
WORK_S = 180.0  # so long people work before the pictures, that there is something in the charts
LISTS = {
    "platform": "",
    "overview": "/tenants/acme",
    "backend": "/tenants/acme/backends/helpdesk",
    "sessions": "/tenants/acme/sessions",
    "calls": "/tenants/acme/calls",
    "keys": "/tenants/acme/keys",
    "audit": "/tenants/acme/audit",
    "nodes": "/nodes",
}


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Path:
    directory = request.config.getoption("--pictures")
    if directory is None:
        pytest.skip("pictures of the console: pass --pictures DIRECTORY")
    return Path(directory)


@pytest.fixture(scope="module")
def place(
    kept: Path, tmp_path_factory: pytest.TempPathFactory, postgres_url: str, postgres_template: str
) -> Iterator[Office]:
    directory = tmp_path_factory.mktemp("office")
    with pytest.MonkeyPatch.context() as patch, new_database(postgres_url, postgres_template) as database:
        commands = (put_commands_on(directory / "bin"), str(Path(sys.executable).parent), os.environ["PATH"])
        patch.setenv("PATH", os.pathsep.join(commands))
        with office(directory, database) as made:
            yield made


@pytest.fixture(scope="module")
def changed_tool(place: Office) -> None:
    """The helpdesk was approved, and has been updated since."""
    path = "/tenants/acme/backends/helpdesk"
    checked = place.gateway.api("POST", f"{path}:check", {})
    assert checked["ok"], checked
    place.approve("helpdesk")
    place.gateway.api("PATCH", path, {"pin": "warn"})
    place.update_helpdesk()


@pytest.fixture(scope="module")
def busy_office(place: Office, changed_tool: None) -> Office:
    """After people have worked for a while."""
    place.work_for(WORK_S)
    return place


@pytest.fixture(params=SCENES, ids=[name for name, _ in SCENES])
def paint(
    request: pytest.FixtureRequest, busy_office: Office, chromium: Any, kept: Path
) -> Iterator[Callable[[str], Any]]:
    """paint(path) opens a page of the console and returns it with what keeps the picture under a name."""
    from tests.e2e.desk import desk

    scene, viewport = request.param
    options: dict[str, Any] = {"color_scheme": "dark" if scene == "dark" else "light", "reduced_motion": "reduce"}
    if viewport is not None:
        options["viewport"] = viewport
    gateway = busy_office.gateway
    with desk(chromium, gateway, gateway.admin_key, **options) as there:

        def open_page(path: str) -> tuple[Any, Callable[[str], None]]:
            return there.open(path), lambda name: there.picture(kept / f"{name}-{scene}.png")

        yield open_page


def test_pictures_of_lists(paint: Callable[[str], Any]) -> None:
    for name, path in LISTS.items():
        page, keep = paint(path)
        if name in ("platform", "overview"):
            expect(page.locator("svg.chart")).to_have_count(6)
        keep(name)


def test_picture_of_a_tool_that_is_tried(paint: Callable[[str], Any]) -> None:
    page, keep = paint("/tenants/acme/backends/helpdesk/try?tool=open_ticket")
    page.get_by_label("Title *").fill("Printer on floor 2 is offline")
    page.get_by_label("Urgency *").select_option("high")
    page.get_by_role("button", name="Call", exact=True).click()
    expect(page.locator("#outcome")).to_contain_text("4711")
    keep("try")


def test_picture_of_a_process(paint: Callable[[str], Any]) -> None:
    page, keep = paint("/tenants/acme/processes")
    page.get_by_role("row").filter(has_text="helpdesk").get_by_role("link").first.click()
    expect(page.locator("pre")).to_contain_text("search took")
    keep("process")


def test_picture_of_traffic(paint: Callable[[str], Any], busy_office: Office) -> None:
    page, keep = paint("/tenants/acme/sessions")
    row = page.get_by_role("row").filter(has_text="claude-code").filter(has_text="helpdesk")
    row.get_by_role("link", name="Inspect the messages").click()
    page.get_by_label("Why the tenant sees it").fill("Ticket 4702: searches fail now and then")
    page.get_by_label("also what the messages say").check()
    page.get_by_role("button", name="Inspect", exact=True).click()
    page.wait_for_url("**/inspections/*")
    expect(page.locator("#traffic > li").nth(5)).to_be_visible(timeout=60_000)
    page.locator("#traffic > li").nth(0).get_by_text("What it says").first.click()
    keep("traffic")
    page.get_by_role("button", name="Close it").click()
    page.get_by_role("dialog").get_by_role("button", name="Close it").click()
    page.wait_for_url("**/tenants/acme/inspections")
