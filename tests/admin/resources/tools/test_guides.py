"""…/guides: what is written, shown and refused."""

import pytest

PATH = "/api/v1/tenants/acme/guides"


async def test_toolsets_follow_each_change(rig):
    await rig.ask("POST", PATH, {"name": "refunds", "text": "# Refunds"})
    await rig.ask("PATCH", PATH + "/refunds", {"text": "new"})
    assert (await rig.ask("PATCH", PATH + "/refunds", {"text": "new"})).json()["version"] == 2
    await rig.ask("DELETE", PATH + "/refunds")
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


async def test_the_largest_guide_is_taken(rig):
    assert (await rig.ask("POST", PATH, {"name": "g", "text": "x" * 65_536})).status_code == 201


async def test_a_toolset_says_which_guides_it_shows(rig):
    path = "/api/v1/tenants/acme/toolsets"
    made = await rig.ask("POST", path, {"name": "work", "guides": ["st*", "later"]})
    assert (made.json()["guides"], made.json()["shown_guides"]) == (["st*", "later"], ["style"])
    changed = await rig.ask("PATCH", path + "/work", {"guides": []})
    assert changed.json()["shown_guides"] == []
