"""…:update and …:outdated: what is stored, what is said of the tools, and who may ask for it."""

import pytest

from app.domain import BackendSpec
from app.errors import StorageUnavailable
from tests.protocol.toolset.offers import offer, tool

PATH = "/api/v1/tenants/acme/backends"
NOTES = {"name": "notes", "command": "npx", "args": ["-y", "notes-mcp", "--port", "3"]}
KEY = ("acme", "notes")


@pytest.fixture(autouse=True)
async def notes(rig):
    assert (await rig.ask("POST", PATH, NOTES)).status_code == 201
    rig.offers.known[KEY] = offer("notes", tools=[tool("read"), tool("write"), tool("gone")])
    rig.offers.newer[KEY] = offer("notes", tools=[tool("read"), tool("write", title="Another"), tool("new")])
    rig.offers.waiting = {"write": "nobody has approved it"}


async def version(rig) -> str:
    return (await rig.ask("GET", f"{PATH}/notes")).json()["package"]["version"]


async def test_a_dry_run_says_what_changes_and_changes_nothing(rig):
    answer = await rig.ask("POST", f"{PATH}/notes:update", {})
    assert answer.status_code == 200
    told = answer.json()
    assert (told["before"]["version"], told["after"]["version"]) == ("1.0.0", "2.0.0")
    assert told["tools"] == {"added": ["new"], "removed": ["gone"], "changed": ["write"]}
    assert (told["withheld"], told["applied"], told["failure"]) == (["write"], False, None)
    assert await version(rig) == "1.0.0"
    last = (await rig.trail("acme"))[-1]
    assert (last.action, last.target, last.detail, last.changes) == ("backend.update", "backends/notes", "dry run", ())


async def test_with_apply_it_is_stored_and_audited(rig):
    rig.heard.clear()
    answer = await rig.ask("POST", f"{PATH}/notes:update", {"to": "2.5.0", "apply": True})
    assert (answer.json()["applied"], answer.json()["after"]["version"]) == (True, "2.5.0")
    assert await version(rig) == "2.5.0"
    last = (await rig.trail("acme"))[-1]
    assert (last.action, last.target, last.detail) == ("backend.update", "backends/notes", "notes-mcp 2.5.0")
    assert "package" in " ".join(each.member for each in last.changes)
    assert rig.heard == [("backend", "acme", "notes")]
    assert rig.offers.known[KEY] is rig.offers.newer[KEY]


@pytest.mark.parametrize("apply", [True, False])
async def test_what_is_there_already_is_no_change(rig, apply):
    await rig.ask("POST", f"{PATH}/notes:update", {"apply": True})
    acts = len(await rig.trail("acme"))
    told = (await rig.ask("POST", f"{PATH}/notes:update", {"apply": apply})).json()
    assert (told["before"], told["applied"], told["tools"]) == (told["after"], False, None)
    assert len(await rig.trail("acme")) == acts + (not apply)


async def test_what_cannot_be_installed_or_started_changes_nothing(rig):
    before = (await rig.ask("GET", f"{PATH}/notes")).json()
    refused = await rig.ask("POST", f"{PATH}/notes:update", {"to": "3", "apply": True})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "#/to")
    told = (await rig.ask("POST", f"{PATH}/notes:update", {"to": "4", "apply": True})).json()
    assert (told["applied"], told["tools"]) == (False, None)
    assert (told["failure"]["step"], told["failure"]["reason"]) == ("tools", "backend_exited")
    assert (await rig.ask("GET", f"{PATH}/notes")).json()["version"] == before["version"]
    assert "backend.update" not in [act.action for act in await rig.trail("acme")]


async def test_what_the_version_before_offers_is_asked_for_if_nobody_knows(rig):
    del rig.offers.known[KEY]
    told = (await rig.ask("POST", f"{PATH}/notes:update", {"apply": True})).json()
    assert (rig.offers.asked, told["tools"], told["applied"]) == ([KEY], None, True)


async def test_what_it_offers_is_asked_again_if_it_could_not_be_noted(rig, monkeypatch):
    async def away(*_):
        raise StorageUnavailable

    used = list[BackendSpec]()
    monkeypatch.setattr(rig.offers, "note", away)
    monkeypatch.setattr(rig.offers, "used", used.append)
    told = (await rig.ask("POST", f"{PATH}/notes:update", {"apply": True})).json()
    assert (told["applied"], [each.package.version for each in used]) == (True, ["2.0.0"])


async def test_its_steps_can_be_watched(rig):
    answer = await rig.ask("POST", f"{PATH}/notes:update", {}, headers={"Accept": "text/event-stream"})
    kinds = [line.removeprefix("event: ") for line in answer.text.splitlines() if line.startswith("event: ")]
    assert kinds == ["begun", "taken", "begun", "taken", "result"]


async def test_only_a_package_is_updated_and_only_by_the_platform(rig):
    refused = await rig.ask("POST", f"{PATH}/echo:update", {})
    assert (refused.status_code, "names no package" in refused.json()["detail"]) == (422, True)
    key = await rig.key("acme", "tenant:admin")
    assert (await rig.ask("POST", f"{PATH}/notes:update", {}, key=key)).status_code == 403
    assert (await rig.ask("POST", f"{PATH}/unknown:update", {})).status_code == 404


async def test_an_update_that_somebody_overtakes_is_refused(rig, monkeypatch):
    updated = type(rig.admin.packages).updated

    async def overtaken(self, spec, to):
        await rig.ask("PATCH", f"{PATH}/notes", {"warm": 1})
        return await updated(self, spec, to)

    monkeypatch.setattr(type(rig.admin.packages), "updated", overtaken)
    answer = await rig.ask("POST", f"{PATH}/notes:update", {"apply": True})
    assert answer.status_code == 409
    assert await version(rig) == "1.0.0"


async def test_outdated_are_listed_and_why_a_registry_does_not_answer_the_platform_sees(rig):
    assert (await rig.ask("POST", PATH, {"name": "far", "command": "npx", "args": ["away-mcp"]})).status_code == 201
    found = (await rig.ask("GET", f"{PATH}:outdated")).json()
    assert found["next_cursor"] is None
    far, notes = found["items"]
    assert notes == {
        "backend": "notes", "registry": "npm", "package": "notes-mcp", "version": "1.0.0", "newest": "2.0.0",
        "problem": None,
    }  # fmt: skip
    assert (far["newest"], far["problem"]) == (None, "ECONNREFUSED registry.internal:443")
    key = await rig.key("acme", "tenant:admin")
    far, _ = (await rig.ask("GET", f"{PATH}:outdated", key=key)).json()["items"]
    assert "registry.internal" not in far["problem"]
    reader = await rig.key("acme", "tenant:read")
    assert (await rig.ask("GET", f"{PATH}:outdated", key=reader)).status_code == 403


async def test_one_list_of_a_tenant_is_asked_for_at_a_time(rig):
    rig.admin.under_way.add(("acme", "backends:outdated"))
    assert (await rig.ask("GET", f"{PATH}:outdated")).status_code == 409
    assert (await rig.ask("GET", "/api/v1/tenants/zenith/backends:outdated")).json()["items"] == []
