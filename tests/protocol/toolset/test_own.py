"""Guides: prompts and resources of the toolset itself, which no member can take the place of."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from app.domain.resources.guides import Guide
from app.protocol.toolset.fan_out import MAX_URIS, FanOut
from app.protocol.toolset.greeting import About, capabilities_of
from app.protocol.toolset.listing import ToolsetListing
from app.protocol.toolset.outs import Listed, ToMember, ToSession
from app.protocol.toolset.own import MAX_TEXT, Own
from app.protocol.toolset.searching import Search, Terms
from tests.protocol.toolset.offers import decoded, offer, shown, tool

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
STYLE = Guide(
    name="style", title="Style", description="How to write letters", text="# Style\n\nNo adjectives.", changed_at=AT
)
LONG = Guide(name="long", text="refund " * 3000, changed_at=AT)


def member(name: str, **lists) -> ToolsetListing:
    """A listing that has nothing of its own."""
    capabilities: dict[str, object] = {"tools": {}, "prompts": {}, "resources": {}}
    return ToolsetListing([shown(name, offer(name, capabilities=capabilities, **lists), None)])


def with_guides(listing: ToolsetListing, *guides: Guide) -> ToolsetListing:
    return ToolsetListing(listing.members, Own(guides, may_have_guides=True))


@pytest.fixture
def listing() -> ToolsetListing:
    return with_guides(member("red", tools=[tool("say")]), STYLE, LONG)


@pytest.fixture
def fan(listing: ToolsetListing) -> FanOut:
    return FanOut(About("all", "1"), listing)


def ask(fan: FanOut, method: str, **params):
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    (out,) = fan.from_session(json.dumps(message).encode())
    if isinstance(out, Listed):
        return json.loads(out.result)
    assert isinstance(out, ToSession)
    answer = json.loads(out.line)
    return answer.get("result", answer.get("error"))


def test_a_guide_is_a_prompt_and_a_resource(fan):
    assert ask(fan, "prompts/list")["prompts"] == [
        {"name": "style", "title": "Style", "description": "How to write letters"},
        {"name": "long"},
    ]
    listed = ask(fan, "resources/list")["resources"][0]
    assert listed == {
        "uri": "guide://style",
        "name": "style",
        "title": "Style",
        "description": "How to write letters",
        "mimeType": "text/markdown",
        "size": len(STYLE.text),
        "annotations": {"lastModified": "2026-01-02T03:04:05Z"},
    }
    got = ask(fan, "prompts/get", name="style")
    assert got["messages"] == [{"role": "user", "content": {"type": "text", "text": STYLE.text}}]
    read = ask(fan, "resources/read", uri="guide://style")
    assert read == {"contents": [{"uri": "guide://style", "mimeType": "text/markdown", "text": STYLE.text}]}
    completion = ask(
        fan, "completion/complete", ref={"type": "ref/prompt", "name": "style"}, argument={"name": "a", "value": ""}
    )
    assert completion == {"completion": {"values": []}}
    assert ask(fan, "resources/read", uri="guide://other")["code"] == -32002
    assert ask(fan, "prompts/get", name="other")["code"] == -32602


def test_a_member_cannot_take_the_place_of_a_guide():
    fake = {"uri": "guide://style", "name": "x"}
    listing = with_guides(member("red", prompts=[{"name": "style"}], resources=[fake]), STYLE)
    assert listing.clashes == ["red: the prompt style is hidden: the toolset itself has one of this name too"]
    assert listing.hidden == ["red: guide://style is hidden: the toolset itself has it too"]
    assert len(decoded(listing.result("resources/list"))["resources"]) == 1
    assert "adjectives" in str(ask(FanOut(About("all", "1"), listing), "prompts/get", name="style"))


def test_prompts_and_resources_are_promised_where_there_may_be_guides():
    assert "prompts" not in capabilities_of(ToolsetListing([], Own.chosen([STYLE], ())))
    promised = capabilities_of(ToolsetListing([], Own.chosen([], ("*",))))
    assert promised == {"prompts": {"listChanged": True}, "resources": {"subscribe": True, "listChanged": True}}


def test_only_guides_with_a_matching_name_are_chosen():
    assert list(Own.chosen([STYLE, LONG], ("st*",)).guides) == ["guide://style"]
    assert list(Own.chosen([STYLE, LONG], ("long", "style")).guides) == ["guide://style", "guide://long"]


def test_the_session_is_told_of_lists_and_texts_that_have_changed(fan, listing):
    assert ask(fan, "resources/subscribe", uri="guide://style") == {}
    changed = replace(STYLE, text="new", changed_at=datetime(2027, 1, 1, tzinfo=UTC), version=2)
    told = [json.loads(out.line) for out in fan.show(with_guides(listing, changed, LONG))]
    assert [each["method"] for each in told] == [
        "notifications/resources/list_changed",
        "notifications/resources/updated",
    ]
    assert told[1]["params"] == {"uri": "guide://style"}
    assert ask(fan, "resources/unsubscribe", uri="guide://style") == {}
    told = [json.loads(out.line)["method"] for out in fan.show(with_guides(listing))]
    assert told == ["notifications/prompts/list_changed", "notifications/resources/list_changed"]


def test_subscriptions_have_a_limit(fan, listing):
    for number in range(MAX_URIS):
        fan._subscribed[f"a://{number}"] = 0
    assert ask(fan, "resources/subscribe", uri="guide://style")["code"] == -32602


def test_subscriptions_to_guides_are_no_business_of_members(fan):
    ask(fan, "resources/subscribe", uri="guide://style")
    assert not any(b"guide" in each for each in fan.opened(0))
    assert not [out for out in fan.lost(0, RuntimeError()) if isinstance(out, ToMember)]  # type: ignore[arg-type]


def test_a_search_finds_guides_with_the_beginning_of_their_text(listing):
    fan = FanOut(About("all", "1"), listing, Search("search", Terms((), None, lambda: 0.0)))
    ask(fan, "initialize", protocolVersion="2025-11-25")
    assert "guides" in ask(fan, "tools/list")["tools"][0]["description"]
    found = ask(fan, "tools/call", name="find_tools", arguments={"query": "adjectives in a letter"})
    assert found["structuredContent"] == {
        "tools": [],
        "guides": [
            {
                "name": "style",
                "uri": "guide://style",
                "title": "Style",
                "description": "How to write letters",
                "text": STYLE.text,
            }
        ],
    }
    assert "No adjectives." in found["content"][1]["text"]
    (long,) = ask(fan, "tools/call", name="find_tools", arguments={"query": "refund"})["structuredContent"]["guides"]
    assert (long["isCut"], len(long["text"])) == (True, MAX_TEXT)
