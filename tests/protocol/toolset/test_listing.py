"""What a toolset shows, and which member has what."""

from app.protocol.search.work import finished
from app.protocol.toolset.listing import Place, ToolsetListing, Withheld
from app.protocol.toolset.offer import Known
from tests.protocol.toolset.offers import decoded, offer, shown, tool


def test_items_are_those_of_the_members_but_for_their_names():
    odd = {"x-more": [1.0, {"a": None}], "description": "é"}
    listing = ToolsetListing([shown("red", offer("red", tools=[tool("say", **odd)])), shown("blue", None)])
    assert decoded(listing.result("tools/list")) == {"tools": [tool("red_say", **odd)]}
    alone = ToolsetListing([shown("red", offer("red", tools=[tool("say", **odd)]), None)])
    assert alone.result("tools/list") == b'{"tools":[%b]}' % bytes(alone.members[0].offer.items("tools/list")[0])


def test_a_tool_is_described_in_other_words():
    made = offer("red", tools=[tool("say", description="old"), tool("go", description="same")])
    listing = ToolsetListing([shown("red", made, describe={"say": "new"})])
    assert [each["description"] for each in decoded(listing.result("tools/list"))["tools"]] == ["new", "same"]


def test_of_two_members_with_one_name_the_first_is_shown_and_the_other_named():
    made = offer("any", tools=[tool("say")], prompts=[{"name": "p"}], resources=[{"uri": "a://b"}])
    listing = ToolsetListing([shown("red", made, None), shown("blue", made, None)])
    assert listing.tool("say") == Place(0, "say")
    assert listing.prompt("p") == Place(0, "p")
    assert listing.member_of_uri("a://b") == 0
    assert len(decoded(listing.result("resources/list"))["resources"]) == 1
    assert len(listing.clashes) == 2
    assert all(words.startswith("blue: the ") for words in listing.clashes)
    assert listing.hidden == ["blue: a://b is hidden: red has it too"]


def test_of_two_tools_of_one_member_that_would_have_one_name_the_second_is_named():
    made = offer("any", tools=[tool("a.b"), tool("a/b"), tool("c"), tool("d"), tool("e")])
    listing = ToolsetListing([shown("red", made, rename={"d": "c"}, exclude=("e",))])
    assert listing.tools == ["red_a_b", "red_c"]
    assert [words.split(" is hidden")[0] for words in listing.clashes] == ["red: a/b", "red: d"]


def test_the_user_interface_that_a_tool_names_is_that_of_its_member():
    ui = tool("draw", _meta={"ui": {"resourceUri": "ui://red/app"}})
    old = tool("paint", _meta={"ui/resourceUri": "ui://blue/app"})
    red, blue = offer("red", tools=[ui]), offer("blue", tools=[old])
    listing = ToolsetListing([shown("red", red), shown("blue", blue)])
    assert listing.member_of_uri("ui://red/app") == 0
    assert listing.member_of_uri("ui://blue/app") == 1
    assert listing.tool("draw") is None


def test_what_is_excluded_has_no_name_at_all():
    listing = ToolsetListing([shown("red", offer("red", tools=[tool("say"), tool("rm")]), exclude=("rm",))])
    assert listing.tools == ["red_say"]
    assert listing.tool("red_rm") is None
    assert listing.tool("rm") is None


def test_a_withheld_tool_is_not_shown_says_why_and_keeps_its_name():
    made = offer("red", tools=[tool("say"), tool("rm")])
    red = shown("red", made)._replace(withheld={"rm": "it has changed", "was": "it is gone"})
    blue = shown("blue", offer("blue", tools=[tool("red_rm"), tool("red_was"), tool("go")]), None)
    listing = ToolsetListing([red, blue])
    assert listing.tools == ["red_say", "go"]
    assert listing.tool("red_rm") == Withheld(0, "it has changed")
    assert listing.tool("red_was") == Withheld(0, "it is gone")
    assert listing.tool("rm") is listing.tool("was") is None
    assert [words.split(":")[0] for words in listing.clashes] == ["blue", "blue"]
    assert [hit.id for hit in listing.index.search("rm red")] == ["red_say"]
    assert ToolsetListing([blue, red]).clashes == [
        "red: the tool red_rm is hidden: blue has one of this name too"
    ]  # not of what is gone


def test_items_that_cannot_be_named_are_left_out():
    made = offer("red", tools=[{"name": 1}, {}, tool("say")], resources=[{"uri": None}, {"uri": "a:b"}])
    listing = ToolsetListing([shown("red", made)])
    assert listing.tools == ["red_say"]
    assert len(decoded(listing.result("resources/list"))["resources"]) == 1


def test_a_changed_offer_makes_another_listing():
    listing = ToolsetListing([shown("red", offer("red", tools=[tool("a")])), shown("blue", None)])
    later = finished(listing.with_offer(1, Known(offer("blue", tools=[tool("b")]))))
    assert listing.tools == ["red_a"]
    assert later.tools == ["red_a", "blue_b"]


def test_a_search_after_a_change_finds_what_is_there_now():
    before = ToolsetListing(
        [shown("red", offer("red", tools=[tool("say")])), shown("blue", offer("blue", tools=[tool("rm")]))]
    )
    finished(before.indexing())
    after = finished(before.with_offer(1, Known(offer("blue", tools=[tool("fly")]), {})))
    assert [hit.id for hit in after.index.search("fly")] == ["blue_fly"]
    assert after.index.search("rm") == []
    assert [hit.id for hit in after.index.search("say")] == ["red_say"]
