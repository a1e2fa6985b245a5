"""…/toolsets and …/catalog: what is made, shown and refused."""

from typing import Any

import pytest

from app.admin import _paging as paging
from app.backends.catalog import knowledge
from tests.protocol.toolset.offers import offer, tool

PATH = "/api/v1/tenants/acme/toolsets"


@pytest.fixture
async def two(rig):
    """Two backends that offer a tool of one name."""
    await rig.ask("POST", "/api/v1/tenants/acme/backends", {"name": "other", "command": "cat"})
    rig.offers.known[("acme", "echo")] = offer("echo", tools=[tool("say")], prompts=[{"name": "p"}])
    rig.offers.known[("acme", "other")] = offer("other", tools=[tool("say"), tool("rm")], resources=[{"uri": "a:b"}])
    return rig


async def test_a_toolset_is_made_shown_changed_and_removed(two):
    members = [{"backend": "echo"}, {"backend": "other", "prefix": "o-", "exclude": ["rm"]}]
    made = await two.ask("POST", PATH, {"name": "work", "title": "Work", "members": members})
    assert made.status_code == 201
    assert made.headers["Location"] == PATH + "/work"
    shown = (await two.ask("GET", PATH + "/work")).json()
    assert shown == made.json()
    assert shown["shown_tools"] == ["echo_say", "o-say"]
    assert shown["members"][0]["prefix"] == "echo_"
    assert shown["status"][1] == {"backend": "other", "tools": 2, "prompts": 0, "resources": 1, "problem": None}
    changed = await two.ask("PATCH", PATH + "/work", {"members": members[:1], "title": None})
    assert (changed.json()["shown_tools"], changed.json()["title"], changed.json()["version"]) == (["echo_say"], "", 2)
    assert changed.headers["ETag"] != made.headers["ETag"]
    assert (await two.ask("DELETE", PATH + "/work")).status_code == 204
    assert two.heard[-3:] == [("backend", "acme", "work")] * 3


async def test_a_page_of_large_toolsets_has_a_next_one(two, monkeypatch):
    for name in ("one", "two"):
        await two.ask("POST", PATH, {"name": name, "members": [{"backend": "echo"}]})
    whole = (await two.ask("GET", PATH)).json()
    monkeypatch.setattr(paging, "MAX_BYTES", 1)
    listed, cursor = [], ""
    while cursor is not None:
        page = (await two.ask("GET", PATH + (cursor and f"?cursor={cursor}"))).json()
        assert len(page["items"]) == 1
        listed += page["items"]
        cursor = page["next_cursor"]
    assert listed == whole["items"]


async def test_a_clash_is_refused_when_it_is_made_and_both_are_named(two):
    members: list[dict[str, Any]] = [{"backend": "echo", "prefix": ""}, {"backend": "other", "prefix": ""}]
    refused = await two.ask("POST", PATH, {"name": "work", "members": members})
    assert refused.status_code == 409
    assert "other: the tool say is hidden: echo has one of this name too" in refused.json()["detail"]
    members[1]["rename"] = {"say": "shout"}
    assert (await two.ask("POST", PATH, {"name": "work", "members": members})).status_code == 201
    assert (
        await two.ask("PATCH", PATH + "/work", {"members": [{**members[1], "rename": {}}, members[0]]})
    ).status_code == 409


async def test_a_search_has_its_own_two_tools(two):
    two.offers.known[("acme", "other")] = offer("other", tools=[tool("find_tools")])
    body = {"name": "work", "members": [{"backend": "other", "prefix": ""}], "mode": "auto", "always": ["a*"]}
    assert (await two.ask("POST", PATH, body)).status_code == 409
    made = await two.ask("POST", PATH, {**body, "members": [{"backend": "other"}]})
    assert (made.json()["mode"], made.json()["always"], made.json()["learns"]) == ("auto", ["a*"], True)
    changed = await two.ask("PATCH", PATH + "/work", {"mode": "list", "learns": False})
    assert (changed.json()["mode"], changed.json()["learns"]) == ("list", False)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"name": "echo"}, 409),  # a backend has it
        ({"name": "all"}, 409),
        ({"name": "Work"}, 422),
        ({"name": "work", "timeouts": {"park_s": 60}}, 422),
        ({"name": "work", "members": [{"backend": "unknown"}]}, 422),
        ({"name": "work", "members": [{"backend": "all"}]}, 422),  # a toolset
        ({"name": "work", "members": [{"backend": "echo"}, {"backend": "echo", "prefix": "b"}]}, 422),
        ({"name": "work", "members": [{"backend": "echo", "prefix": "a b"}]}, 422),
        ({"name": "work", "members": [{"backend": "echo", "rename": {"a": "b.c"}}]}, 422),
        ({"name": "work", "members": [{"backend": "echo", "rename": {"a": "c", "b": "c"}}]}, 422),
        ({"name": "work", "members": [{"backend": "echo"}] * 101}, 422),
        ({"name": "work", "mode": "best"}, 422),
        ({"name": "work", "reason": "why"}, 422),
    ],
)
async def test_what_cannot_be_a_toolset_is_refused(rig, body, status):
    answer = await rig.ask("POST", PATH, body)
    assert answer.status_code == status, answer.text
    assert rig.heard == []


async def test_administrators_of_a_tenant_make_toolsets_and_choose_what_is_shown_but_no_commands(rig):
    key = await rig.key("acme", "tenant:admin")
    assert (await rig.ask("POST", PATH, {"name": "w", "members": [{"backend": "echo"}]}, key=key)).status_code == 201
    path = "/api/v1/tenants/acme/backends/echo"
    shown = await rig.ask("PATCH", path, {"exclude": ["rm"], "describe": {"say": "Says."}}, key=key)
    assert (shown.status_code, shown.json()["exclude"], shown.json()["describe"]) == (200, ["rm"], {"say": "Says."})
    assert (await rig.ask("PATCH", path, {"exclude": [], "command": "sh"}, key=key)).status_code == 403
    back = await rig.ask("PATCH", path, {"describe": {"say": None}, "exclude": None}, key=key)
    assert (back.json()["describe"], back.json()["exclude"]) == ({}, [])
    reader = await rig.key("acme", "tenant:read")
    assert (await rig.ask("GET", PATH, key=reader)).status_code == 200
    assert (await rig.ask("PATCH", PATH + "/all", {"title": "x"}, key=reader)).status_code == 403


async def test_a_member_that_did_not_answer_hides_nothing_of_the_others(two):
    del two.offers.known[("acme", "other")]
    two.offers.problems[("acme", "other")] = "exit status 3"
    made = await two.ask("POST", PATH, {"name": "work", "members": [{"backend": "echo"}, {"backend": "other"}]})
    assert made.json()["shown_tools"] == ["echo_say"]
    assert [each["problem"] for each in made.json()["status"]] == [None, "exit status 3"]


async def test_what_a_member_has_left_out_is_among_the_problems(two):
    odd = two.offers.known[("acme", "other")].with_list("prompts/list", (), ["1 entry is left out"])
    two.offers.known[("acme", "other")] = odd
    made = await two.ask("POST", PATH, {"name": "work", "members": [{"backend": "echo"}, {"backend": "other"}]})
    assert made.json()["problems"] == ["other: `prompts/list`: 1 entry is left out"]
    assert made.json()["shown_tools"] == ["echo_say", "other_say", "other_rm"]
    assert (await two.ask("GET", "/api/v1/tenants/acme/catalog/other")).json()["problem"] == (
        "`prompts/list`: 1 entry is left out"
    )


async def test_the_catalogue_shows_every_backend_known_or_not(two):
    two.offers.problems[("acme", "third")] = "no such program"
    await two.ask("POST", "/api/v1/tenants/acme/backends", {"name": "third", "command": "cat"})
    listed = (await two.ask("GET", "/api/v1/tenants/acme/catalog")).json()["items"]
    assert [(each["backend"], each["tools"], each["problem"]) for each in listed] == [
        ("echo", 1, None), ("other", 2, None), ("third", None, "no such program"),
    ]  # fmt: skip
    one = (await two.ask("GET", "/api/v1/tenants/acme/catalog/other")).json()
    assert one["definitions"]["tools"] == [tool("say"), tool("rm")]
    assert one["protocol_version"] == "2025-11-25"
    assert (await two.ask("GET", "/api/v1/tenants/acme/catalog/all")).status_code == 404


async def test_a_search_finds_what_all_backends_offer_or_only_what_a_toolset_shows(two, monkeypatch):
    monkeypatch.setattr(knowledge, "MAX_AGE_S", 0.0)
    two.offers.known[("acme", "other")] = offer(
        "other", tools=[tool("add_note", description="Writes down a thought.\nMore."), tool("rm", title="Remove")]
    )
    members = [{"backend": "other", "prefix": "o-", "exclude": ["rm"]}]
    await two.ask("POST", PATH, {"name": "work", "members": members})
    path = "/api/v1/tenants/acme/catalog:search"
    for query, expected in (
        ("remove", [("other", "rm", "other_rm", "Remove")]),
        ("thought&toolset=work", [("other", "add_note", "o-add_note", None)]),
        ("remove&toolset=work", []),
    ):
        found = await two.ask("GET", f"{path}?query={query}")
        assert [(each["backend"], each["tool"], each["shown_as"], each["title"]) for each in found.json()["items"]] == (
            expected
        )
    assert (await two.ask("GET", f"{path}?query=x&toolset=other")).status_code == 404
    assert (await two.ask("GET", PATH + "/work")).json()["address"].endswith("/t/acme/work/mcp")
    # What the toolset itself has is found too.
    guide = {"name": "paper", "title": "Paper", "text": "Of thoughts on parchment"}
    await two.ask("POST", "/api/v1/tenants/acme/guides", guide)
    recipe = {"name": "ponder", "toolset": "own", "steps": [{"id": "a", "tool": "other_rm"}]}
    await two.ask("POST", PATH, {"name": "own", "members": [{"backend": "other"}], "guides": ["paper"]})
    assert (await two.ask("POST", "/api/v1/tenants/acme/recipes", recipe)).is_success
    for query, one in (
        ("parchment", ("guide", None, "paper", "guide://paper", "Paper", None)),
        ("ponder", ("recipe", None, "ponder", "ponder", None, None)),
    ):
        (found,) = (await two.ask("GET", f"{path}?query={query}&toolset=own")).json()["items"]
        assert tuple(found[name] for name in ("kind", "backend", "tool", "shown_as", "title", "description")) == one
    assert (await two.ask("GET", path)).status_code == 422
    stranger = await two.key("acme", "mcp:connect")
    assert (await two.ask("GET", f"{path}?query=x", key=stranger)).status_code == 403


async def test_a_check_that_works_asks_for_the_catalogue(rig):
    await rig.ask("POST", "/api/v1/tenants/acme/backends/echo:check")
    assert rig.offers.asked == [("acme", "echo")]
