"""What a toolset shows a caller, where lists of its members or of itself say what they may use."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from app.domain import Selection
from app.domain.resources.access import AccessEntry, Who
from app.domain.resources.guides import Guide
from app.domain.resources.recipes import Recipe
from app.protocol.search.work import finished
from app.protocol.toolset.allowed import Allowed
from app.protocol.toolset.listing import Place, Shown, ToolsetListing, Withheld
from app.protocol.toolset.offer import Known
from app.protocol.toolset.own import Own
from tests.protocol.recipes.dishes import recipe as cook
from tests.protocol.recipes.dishes import step
from tests.protocol.toolset.offers import decoded, offer, shown, tool

NOTHING = Allowed([])


def may(**patterns: Any) -> Allowed:
    return Allowed([AccessEntry(Who(everyone=True), **patterns)])


def member(name: str, allowed: Allowed | None = None, prefix: str | None = "", **more: Any) -> Shown:
    lists: dict[str, Any] = {
        "tools": [tool("read", description="reads apples"), tool("write", description="writes apples")],
        "prompts": [{"name": "ask"}, {"name": "tell"}],
        "resources": [{"uri": f"note://{name}/1"}, {"uri": f"note://{name}/2"}],
        "templates": [{"uriTemplate": f"{name}://open/{{id}}"}, {"uriTemplate": f"{name}://shut/{{id}}"}],
    }
    return shown(name, offer(name, **{**lists, **more}), prefix)._replace(allowed=allowed)


def names(listing: ToolsetListing, kind: str, key: str = "name") -> list[str]:
    method = f"{kind}/list" if kind != "resourceTemplates" else "resources/templates/list"
    return [each[key] for each in decoded(listing.result(method))[kind]]


def everything(listing: ToolsetListing) -> list[list[str]]:
    kinds = ("tools", "name"), ("prompts", "name"), ("resources", "uri"), ("resourceTemplates", "uriTemplate")
    return [names(listing, *each) for each in kinds]


@pytest.mark.parametrize("of", ["member", "toolset"])
def test_only_what_a_list_lists_is_shown_and_known(of):
    prefix = "red_" if of == "toolset" else ""
    allowed = may(
        tools=(f"{prefix}read",), prompts=(f"{prefix}ask",), resources=("note://red/1", "red://open/*")
    )  # a toolset's list has the names that it shows
    listing = ToolsetListing(
        [member("red", allowed if of == "member" else None)], allowed=allowed if of == "toolset" else None
    )
    assert everything(listing) == [["red_read"], ["red_ask"], ["note://red/1"], ["red://open/{id}"]]
    assert listing.tools == ["red_read"]
    assert listing.tool("red_read") == Place(0, "read")
    assert listing.tool("red_write") is None
    assert (listing.prompt("red_ask"), listing.prompt("red_tell")) == (Place(0, "ask"), None)
    assert (listing.member_of_uri("note://red/1"), listing.member_of_uri("note://red/2")) == (0, None)
    assert (listing.member_of_uri("red://open/7"), listing.member_of_uri("red://shut/7")) == (0, None)
    assert listing.member_of_reference("red://open/{id}") == 0
    assert listing.member_of_reference("red://shut/{id}") is None
    assert listing.member_of_reference("note://red/2") is None
    assert listing.schema("red_write") == "the toolset shows no tool red_write"
    with pytest.raises(KeyError):
        listing.definition("red_write")


def test_what_one_of_the_lists_leaves_out_is_not_shown():
    listing = ToolsetListing(
        [member("red", may(tools=("*",), resources=("note://red/1",)))], allowed=may(tools=("*_read",), prompts=("*",))
    )
    assert everything(listing) == [["red_read"], [], [], []]


def test_a_list_that_names_somebody_else_shows_nothing():
    for listing in (ToolsetListing([member("red", NOTHING)]), ToolsetListing([member("red")], allowed=NOTHING)):
        assert everything(listing) == [[], [], [], []]
        assert listing.tool("red_read") is listing.prompt("red_ask") is None
        assert listing.member_of_uri("note://red/1") is None
        assert listing.is_closed(listing.members[0])
        assert not listing.may_read(0, "note://red/unlisted")
    one = ToolsetListing([member("red", NOTHING), member("blue", may(tools=("read",)))])
    assert [one.is_closed(each) for each in one.members] == [True, False]
    assert everything(one) == [["blue_read"], [], [], []]


def test_a_name_is_taken_for_all_or_for_nobody():
    """Else a member that nobody has listed could be called by those who may not call the one that is meant."""
    listing = ToolsetListing([member("red", NOTHING, None), member("blue", None, None)])
    assert everything(listing)[:2] == [[], []]
    assert listing.tool("read") is listing.prompt("ask") is None
    assert "blue: the tool read is hidden: red has one of this name too" in listing.clashes
    assert everything(listing)[2] == ["note://blue/1", "note://blue/2"]


def test_a_resource_keeps_its_uri_where_the_first_member_that_has_it_may_not_be_read():
    same = [{"uri": "note://same"}]
    one = ToolsetListing([member("red", NOTHING, resources=same), member("blue", resources=same)])
    assert everything(one)[2] == []
    assert one.member_of_uri("note://same") is None
    assert one.refuses("note://same")
    assert not one.may_read(1, "note://same")


def test_a_resource_stays_readable_where_a_later_member_has_one_that_is_not_listed():
    same = [{"uri": "note://same"}]
    one = ToolsetListing([member("red", resources=same), member("blue", NOTHING, resources=same)])
    assert everything(one)[2] == ["note://same"]
    assert one.member_of_uri("note://same") == 0
    assert one.may_read(0, "note://same")
    assert not one.may_read(1, "note://same")


def test_a_withheld_tool_that_is_not_listed_is_unknown_and_says_nothing():
    why = {"write": "it has changed", "was": "it is gone", "read": "it has changed too"}
    listing = ToolsetListing([member("red", may(tools=("read",)))._replace(withheld=why)])
    assert listing.tool("red_read") == Withheld(0, "it has changed too")
    assert listing.tool("red_write") is listing.tool("red_was") is None
    assert listing.schema("red_was") == "the toolset shows no tool red_was"
    blue = member("blue", None, None, tools=[tool("red_was")])
    assert ToolsetListing([*listing.members, blue]).tool("red_was") is None


def app(name: str, uri: str) -> dict[str, Any]:
    return tool(name, _meta={"ui": {"resourceUri": uri}})


def test_the_user_interface_of_a_tool_is_read_by_whoever_may_call_it():
    tools = [app("draw", "ui://draw"), app("paint", "ui://paint")]
    listing = ToolsetListing([member("red", may(tools=("draw",)), tools=tools, resources=[{"uri": "ui://draw"}])])
    assert (listing.member_of_uri("ui://draw"), listing.member_of_uri("ui://paint")) == (0, None)
    assert listing.may_read(0, "ui://draw")
    assert names(listing, "resources", "uri") == ["ui://draw"]
    assert listing.refuses("ui://paint")
    assert not listing.refuses("ui://draw/more")


def test_the_user_interface_of_one_member_opens_no_resource_of_another():
    red = member("red", None, tools=[app("draw", "ui://draw")], resources=[])
    blue = member("blue", NOTHING, resources=[{"uri": "ui://draw"}])
    listing = ToolsetListing([red, blue])
    assert names(listing, "resources", "uri") == []
    assert listing.member_of_uri("ui://draw") == 0
    assert listing.may_read(0, "ui://draw")
    assert not listing.may_read(1, "ui://draw")


def guide(name: str) -> Guide:
    return Guide(name=name, text="bananas", changed_at=datetime.now(UTC))


def test_guides_are_listed_as_prompts_or_as_resources():
    own = Own([guide("open"), guide("read"), guide("shut")])
    listing = ToolsetListing([], own, allowed=may(prompts=("open",), resources=("guide://read",)))
    assert everything(listing) == [[], ["open"], ["guide://read"], []]
    assert (listing.prompt("open"), listing.prompt("read"), listing.prompt("shut")) == (Place(0, "open"), None, None)
    assert listing.member_of_uri("guide://read") == 0
    assert listing.member_of_uri("guide://open") is listing.member_of_uri("guide://shut") is None
    assert listing.refuses("guide://shut")
    assert sorted(hit.id for hit in listing.index.search("bananas")) == ["guide://open", "guide://read"]
    assert not listing.shows("guide://shut")
    nothing = ToolsetListing([], own, allowed=NOTHING)
    assert everything(nothing) == [[], [], [], []]
    assert nothing.refuses("guide://open")


def recipe(name: str, *tools: str) -> Recipe:
    steps = (step(f"s{number}", each) for number, each in enumerate(tools))
    return replace(cook(*steps), name=name)


RECIPES = [recipe("harmless", "red_read"), recipe("harmful", "red_read", "red_write"), recipe("other", "red_gone")]


def test_a_recipe_is_shown_to_whoever_may_call_all_of_its_steps():
    whole = ToolsetListing([member("red")], Own((), RECIPES))
    assert names(whole, "tools") == ["harmless", "harmful", "other", "red_read", "red_write"]
    listing = ToolsetListing([member("red", may(tools=("read",)))], Own((), RECIPES))
    assert names(listing, "tools") == ["harmless", "other", "red_read"]
    assert listing.tool("harmful") is None
    assert listing.tool("harmless") == Place(1, "harmless")


def test_a_recipe_is_a_tool_of_the_list_of_its_toolset():
    listing = ToolsetListing([member("red")], Own((), RECIPES), allowed=may(tools=("harmful", "red_*")))
    assert names(listing, "tools") == ["harmful", "red_read", "red_write"]
    assert listing.tool("harmless") is None


def test_no_member_takes_the_name_of_a_recipe_that_is_not_listed():
    taker = member("blue", None, None, tools=[tool("harmful")])
    listing = ToolsetListing([member("red", may(tools=("read",))), taker], Own((), RECIPES))
    assert listing.tool("harmful") is None
    assert names(listing, "tools") == ["harmless", "other", "red_read"]


def test_the_index_of_a_listing_has_only_what_it_shows():
    whole = ToolsetListing([member("red"), member("blue")])
    assert [hit.id for hit in whole.index.search("apples")] == ["red_read", "red_write", "blue_read", "blue_write"]
    part = ToolsetListing([member("red", may(tools=("read",))), member("blue", NOTHING)], None, whole)
    assert [hit.id for hit in part.index.search("apples")] == ["red_read"]
    assert not part.shows("red_write")


def test_an_index_of_before_shows_nothing_that_is_not_listed_now():
    tools = [tool(f"t{number}", description="apples") for number in range(200)]
    whole = ToolsetListing([member("red", None, tools=tools)])
    finished(whole.indexing())
    part = ToolsetListing([member("red", may(tools=("t7",)), tools=tools)], None, whole)
    assert not part.is_indexed
    assert [hit.id for hit in part.index.search("apples") if part.shows(hit.id)] in (["red_t7"], [])
    finished(part.indexing())
    assert [hit.id for hit in part.index.search("apples")] == ["red_t7"]


def test_a_list_holds_when_a_member_offers_something_else():
    listing = ToolsetListing([member("red", may(tools=("read",)))], Own([guide("g")]), None, may(tools=("red_*",)))
    more = offer("red", tools=[tool("read"), tool("write"), tool("new")], resources=[{"uri": "note://new"}])
    changed = finished(listing.with_offer(0, Known(more)))
    assert everything(changed) == [["red_read"], [], [], []]
    assert changed.tool("red_new") is None
    assert changed.member_of_uri("guide://g") is None
    assert changed.allowed is listing.allowed


def test_what_no_member_lists_is_read_where_a_pattern_allows_it():
    listing = ToolsetListing([member("red", may(resources=("note://red/*",))), member("blue")])
    assert listing.may_read(0, "note://red/other")
    assert not listing.may_read(0, "file:///etc/passwd")
    assert listing.may_read(1, "file:///etc/passwd")
    assert listing.may_read(0, "note://red/1")
    assert listing.members[0].selection == Selection()


def test_a_template_opens_what_a_pattern_lists_only():
    """It is listed for its own text. A pattern for that is none for what it makes."""
    general = [{"uriTemplate": "note://{+path}"}]
    listing = ToolsetListing(
        [member("red", may(resources=("note://{+path}", "note://open/*")), templates=general, resources=[])]
    )
    assert names(listing, "resourceTemplates", "uriTemplate") == ["note://{+path}"]
    assert (listing.member_of_uri("note://open/7"), listing.member_of_uri("note://shut/7")) == (0, None)
    assert not listing.may_read(0, "note://shut/7")


@pytest.mark.parametrize("path", [
    "open/../shut", "open/..", "open/%2e%2E/shut", "open/.%2e/shut", "open/..%2fshut", "open%2f..%2fshut", "open/./x",
    "open/..\\shut", "open/..?x", "open/..#x",
])  # fmt: skip
def test_a_pattern_opens_no_path_that_a_server_may_read_as_another_one(path):
    uri = f"note://all/{path}"
    listing = ToolsetListing([member("red", may(resources=("note://all/open*",)), resources=[])])
    assert not listing.may_read(0, uri)
    assert ToolsetListing([member("red", resources=[])]).may_read(0, uri)
    listed = member("red", may(resources=("note://all/open*",)), resources=[{"uri": uri}])
    assert ToolsetListing([listed]).member_of_uri(uri) == 0  # as the server itself calls it
    assert ToolsetListing([listed]).may_read(0, uri)


@pytest.mark.parametrize("path", ["open/.x", "open/x.", "open/...", "open/a..b/c", "open/x?y=..", "open/..x"])
def test_a_pattern_opens_paths_with_other_dots(path):
    listing = ToolsetListing([member("red", may(resources=("note://all/open*",)), resources=[])])
    assert listing.may_read(0, f"note://all/{path}")
