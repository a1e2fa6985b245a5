"""The form of a backend's settings: it loses nothing, and changes what was changed."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.conftest import NO_PLAYWRIGHT, Fleet

expect = pytest.importorskip("playwright.sync_api", reason=NO_PLAYWRIGHT).expect
pytestmark = pytest.mark.e2e
Sit = Callable[..., Any]

EVERY: dict[str, dict[str, Any]] = {
    "command": {
        "command": "/bin/cat", "args": ["-u", " two  words ", "", "a\nb", "<b>"], "env": {"A": "1", "B": "x=y\nz"},
        "cwd": "work dir", "recovery": "respawn", "warm": "auto", "max_processes": 7, "calls_per_session": 9,
        "timeouts": {
            "initialize_s": 12.5, "call_s": 30, "idle_s": 900, "absolute_s": 7200, "reclaim_idle_s": 61, "park_s": 45,
        },
        "sandbox": {
            "mode": "require", "require": ["files", "processes"], "read": ["/srv/a b", "/srv/c"], "write": ["/srv/d"],
            "network": "web",
        },
        "limits": {"memory_mb": 256, "pids": None, "cpu": 0.5, "files": 512, "disk_mb": None}, "start": "auto",
        "include": ["a*", "b"], "exclude": ["c?"], "rename": {"a": "z"}, "describe": {"b": "d\n</textarea>"},
        "pin": "warn", "pin_minor": "accept",
    },
    "shared": {
        "command": "/bin/cat", "args": ["one", "two"], "isolation": "shared", "broadcast": True, "warm": 3,
        "sandbox": {"mode": "off"},
    },
    "kept": {
        "command": "/bin/cat", "state": "keep", "start": "fork", "limits": {"cpu": None},
        "sandbox": {"network": {"allow": ["db.internal:5432", "10.20.0.0/16:443"], "web": True}},
    },
    "far": {
        "url": "https://far.example/mcp", "transport": "sse", "headers": {"Authorization": "Bearer x", "X-Odd": "a=b"},
        "recovery": "respawn", "calls_per_session": 3, "timeouts": {"call_s": 7}, "exclude": ["x"], "pin": "block",
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", EVERY)
def test_saving_the_form_as_it_is_changes_nothing(sit_down: Sit, fleet: Fleet, kind: str) -> None:
    fleet.gateway.api("POST", "/tenants/acme/backends", {"name": kind, "enabled": False, "reason": "r", **EVERY[kind]})
    before = shown(fleet, kind)
    desk = sit_down("platform")
    page = desk.open(f"/tenants/acme/backends/{kind}/settings")
    assert desk.findings() == []
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status")).to_contain_text("Nothing was changed.")
    # Also if every field is sent, as if each had been changed, and changed back.
    page.evaluate("() => delete document.querySelector('form[data-changes]').dataset.changes")
    with page.expect_request("**/console/-/api/v1/**") as sent:
        page.get_by_role("button", name="Save").click()
    page.wait_for_url(f"**/backends/{kind}")
    body = sent.value.post_data_json
    assert shown(fleet, kind) == before
    told = {**before, **{name: value for name, value in body.items() if not isinstance(value, dict)}}
    assert told == before
    assert set(EVERY[kind]) <= set(body)  # the form has a field for each of them
    fleet.gateway.api("DELETE", f"/tenants/acme/backends/{kind}")


def shown(fleet: Fleet, name: str) -> dict[str, Any]:
    """What is registered, and its version, which each change raises."""
    found = fleet.gateway.api("GET", f"/tenants/acme/backends/{name}")
    return {each: found[each] for each in ("version", "enabled", "reason", *EVERY["command"], *EVERY["far"], "state",
                                           "isolation", "broadcast")}  # fmt: skip


def test_only_what_was_changed_is_sent(sit_down: Sit, fleet: Fleet) -> None:
    variables = {"KEEP": "1", "DROP": "2", "constructor": "2", "CHANGE": "3"}  # each object has a `constructor`
    made = {"env": variables, "limits": {"pids": 32}, "rename": {"a": "b", "c": "d"}}
    fleet.gateway.add_backend("acme", "plain", "/bin/cat", [], **made)
    page = sit_down("platform").open("/tenants/acme/backends/plain")
    page.get_by_role("link", name="Settings").click()
    for summary in page.locator("summary").all():
        summary.click()
    page.get_by_label("Warm processes").fill("auto")
    page.get_by_label("Start", exact=False).select_option("fork")
    page.get_by_label("When a process ends").select_option("respawn")
    page.get_by_label("An idle session is parked or frozen").fill("30")
    page.get_by_label("Processes and threads of one").fill("")
    page.get_by_label("May read besides").fill("/srv/one\n/srv/two")
    page.get_by_label("Other names").fill('{"a": "e"}')
    lines = page.get_by_label("Environment").input_value().splitlines()
    kept = [line for line in lines if not line.startswith(("DROP", "constructor"))]
    page.get_by_label("Environment").fill("\n".join(kept).replace("CHANGE=***", "CHANGE=4") + "\nNEW=5")
    with page.expect_request("**/console/-/api/v1/**") as sent:
        page.get_by_role("button", name="Save").click()
    page.wait_for_url("**/backends/plain")
    body = sent.value.post_data_json
    gone = {"DROP": None, "constructor": None}
    assert body.pop("env") == {"KEEP": "***", "TEST_MARK": "***", "CHANGE": "4", "NEW": "5", **gone}
    assert body == {
        "warm": "auto", "start": "fork", "recovery": "respawn", "timeouts": {"park_s": 30}, "limits": {"pids": None},
        "sandbox": {"read": ["/srv/one", "/srv/two"]}, "rename": {"a": "e", "c": None},
    }  # fmt: skip
    now = fleet.gateway.api("GET", "/tenants/acme/backends/plain")
    assert (now["warm"], now["start"], now["timeouts"]["park_s"], now["limits"]["pids"]) == ("auto", "fork", 30.0, None)
    assert (set(now["env"]), now["rename"]) == ({"KEEP", "CHANGE", "NEW", "TEST_MARK"}, {"a": "e"})
    fleet.gateway.api("DELETE", "/tenants/acme/backends/plain")


def test_what_is_refused_is_said_at_its_field_and_nothing_is_lost(sit_down: Sit, fleet: Fleet) -> None:
    fleet.gateway.add_backend("acme", "strict", "/bin/cat", [])
    desk = sit_down("platform")
    page = desk.open("/tenants/acme/backends/strict/settings")
    page.locator("summary", has_text="Its sessions").click()
    page.get_by_label("A call is answered within").fill("9999999")
    page.get_by_label("Warm processes").fill("2")
    page.locator("summary", has_text="Its sessions").click()  # closed again
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("86400")
    expect(page.get_by_label("A call is answered within")).to_be_visible()
    expect(page.get_by_label("A call is answered within")).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("Warm processes")).to_have_value("2")
    page.get_by_label("A call is answered within").fill("99")
    page.get_by_role("button", name="Save").click()
    page.wait_for_url("**/backends/strict")
    now = fleet.gateway.api("GET", "/tenants/acme/backends/strict")
    assert (now["warm"], now["timeouts"]["call_s"]) == (2, 99.0)
    fleet.gateway.api("DELETE", "/tenants/acme/backends/strict")
    desk.complaints.clear()  # Chromium says in its console that the first answer was 422


def test_administrators_of_a_tenant_see_the_fields_that_they_may_change(sit_down: Sit, fleet: Fleet) -> None:
    fleet.gateway.api("POST", "/tenants/acme/backends", {"name": "far", **EVERY["far"]})
    page = sit_down("admin").open("/tenants/acme/backends/clock/settings")
    expect(page.get_by_label("Command")).to_have_count(0)
    page.get_by_label("Harmless edits").select_option("accept")
    page.get_by_role("button", name="Save").click()
    page.wait_for_url("**/backends/clock")
    fleet.gateway.api("PATCH", "/tenants/acme/backends/clock", {"pin_minor": "ask"})
    page.goto(fleet.gateway.url + "/console/tenants/acme/backends/far/settings")
    page.locator("summary", has_text="Its sessions").click()
    page.get_by_label("A call is answered within").fill("8")
    page.get_by_role("button", name="Save").click()
    page.wait_for_url("**/backends/far")
    now = fleet.gateway.api("GET", "/tenants/acme/backends/far")
    assert (now["timeouts"]["call_s"], set(now["headers"])) == (8.0, {"Authorization", "X-Odd"})
    fleet.gateway.api("DELETE", "/tenants/acme/backends/far")


def test_a_new_backend_can_have_all_of_it(sit_down: Sit, fleet: Fleet) -> None:
    page = sit_down("platform").open("/tenants/acme/backends:new")
    form = page.locator("form[data-path$='/backends']")
    form.get_by_label("Name lower-case").fill("complete")
    form.get_by_label("Command").fill("/bin/cat")
    form.get_by_label("Warm processes").fill("auto")
    for summary in form.locator("summary").all():
        summary.click()
    form.get_by_label("Start", exact=False).select_option("auto")
    form.get_by_label("When a process ends").select_option("respawn")
    form.get_by_label("An idle session is parked or frozen").fill("60")
    form.get_by_role("button", name="Add").click()
    page.wait_for_url("**/backends/complete")
    made = fleet.gateway.api("GET", "/tenants/acme/backends/complete")
    assert (made["warm"], made["start"], made["timeouts"]["park_s"]) == ("auto", "auto", 60.0)
    assert made["limits"]["memory_mb"] is not None  # left empty: the default
    fleet.gateway.api("DELETE", "/tenants/acme/backends/complete")
