"""…/guides: what is written, shown and refused."""

import pytest

PATH = "/api/v1/tenants/acme/guides"


async def test_a_guide_is_written_shown_changed_and_removed(rig):
    made = await rig.ask("POST", PATH, {"name": "refunds", "title": "Refunds", "text": "# Refunds"})
    assert made.status_code == 201
    assert made.headers["Location"] == PATH + "/refunds"
    shown = await rig.ask("GET", PATH + "/refunds")
    assert shown.json() == made.json()
    assert shown.json()["text"] == "# Refunds"
    listed = (await rig.ask("GET", PATH)).json()["items"]
    assert [each["name"] for each in listed] == ["refunds", "style"]
    assert all("text" not in each for each in listed)
    changed = await rig.ask("PATCH", PATH + "/refunds", {"text": "new", "title": None})
    assert (changed.json()["text"], changed.json()["title"], changed.json()["version"]) == ("new", "", 2)
    assert changed.json()["changed_at"] > made.json()["changed_at"]
    same = await rig.ask("PATCH", PATH + "/refunds", {"text": "new"})
    assert same.json() == changed.json()
    stale = await rig.ask("PATCH", PATH + "/refunds", {"text": "x"}, headers={"If-Match": made.headers["ETag"]})
    assert stale.status_code == 412
    assert (await rig.ask("DELETE", PATH + "/refunds")).status_code == 204
    assert (await rig.ask("GET", PATH + "/refunds")).status_code == 404
    assert rig.heard == [("writings", "acme")] * 3


@pytest.mark.parametrize(
    "body",
    [
        {"name": "g"},
        {"name": "g", "text": ""},
        {"name": "g", "text": "a\0b"},
        {"name": "g", "text": "ü" * 33_000},  # characters are few enough, bytes are not
        {"name": "g", "text": "x" * 65_537},
        {"name": "G", "text": "x"},
        {"name": "g", "text": "x", "title": "a\nb"},
        {"name": "g", "text": "x", "description": "x" * 1001},
    ],
)
async def test_what_cannot_be_a_guide_is_refused(rig, body):
    assert (await rig.ask("POST", PATH, body)).status_code == 422


async def test_a_name_is_taken_once_in_a_tenant(rig):
    assert (await rig.ask("POST", PATH, {"name": "style", "text": "x"})).status_code == 409


async def test_administrators_of_a_tenant_write_guides_and_readers_read_them(rig):
    admin, reader = await rig.key("acme", "tenant:admin"), await rig.key("acme", "tenant:read")
    body = {"name": "g", "text": "x" * 65_536}
    assert (await rig.ask("POST", PATH, body, key=reader)).status_code == 403
    assert (await rig.ask("POST", PATH, body, key=admin)).status_code == 201
    assert (await rig.ask("GET", PATH + "/g", key=reader)).status_code == 200


async def test_a_toolset_says_which_guides_it_shows(rig):
    path = "/api/v1/tenants/acme/toolsets"
    made = await rig.ask("POST", path, {"name": "work", "guides": ["st*", "later"]})
    assert (made.json()["guides"], made.json()["shown_guides"]) == (["st*", "later"], ["style"])
    changed = await rig.ask("PATCH", path + "/work", {"guides": []})
    assert changed.json()["shown_guides"] == []
