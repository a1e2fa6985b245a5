"""What a toolset says of itself: all that its members can."""

from app.protocol.jsonrpc import Request, encoded
from app.protocol.toolset.greeting import About, answer_to, capabilities_of
from app.protocol.toolset.listing import ToolsetListing
from tests.protocol.toolset.offers import decoded, offer, shown


def listing_of(*capabilities, instructions=("", "")):
    offers = [
        offer(f"m{i}", capabilities=each, instructions=words)
        for i, (each, words) in enumerate(zip(capabilities, instructions, strict=False))
    ]
    return ToolsetListing([shown(f"m{i}", each) for i, each in enumerate(offers)])


def test_capabilities_are_those_of_any_member_and_lists_change():
    red = {"tools": {}, "resources": {"subscribe": False}, "tasks": {"list": {}, "requests": {"tools": {"call": {}}}}}
    blue = {"resources": {"subscribe": True}, "logging": {}, "tasks": {"cancel": {}}, "extensions": {"a/b": {"c": 1}}}
    assert capabilities_of(listing_of(red, blue)) == {
        "tools": {"listChanged": True},
        "resources": {"subscribe": True, "listChanged": True},
        "logging": {},
        "tasks": {"requests": {"tools": {"call": {}}}, "cancel": {}},
        "extensions": {"a/b": {"c": 1}},
    }


def test_it_speaks_the_clients_revision_or_its_newest():
    for asked, spoken in (("2024-11-05", "2024-11-05"), ("1999-01-01", "2025-11-25"), (7, "2025-11-25")):
        hello = Request(b"1", "initialize", {"protocolVersion": encoded(asked)})
        result = decoded(answer_to(hello, About("all", "3", "Everything"), listing_of({})))["result"]
        assert result["protocolVersion"] == spoken
        assert result["serverInfo"] == {"name": "all", "version": "3", "title": "Everything"}


def test_its_instructions_are_its_own_or_those_of_its_members():
    hello = Request(b"1", "initialize", None)
    listing = listing_of({}, {}, instructions=("One.", "Two."))
    assert (
        decoded(answer_to(hello, About("all", "1"), listing))["result"]["instructions"]
        == "# m0\n\nOne.\n\n# m1\n\nTwo."
    )
    own = decoded(answer_to(hello, About("all", "1", instructions="Mine."), listing))
    assert own["result"]["instructions"] == "Mine."


def test_a_backend_speaks_for_itself():
    hello = Request(b"1", "initialize", {"protocolVersion": encoded("2025-06-18")})
    result = decoded(answer_to(hello, About("b", "1", is_backend=True), listing_of({"tools": {}})))["result"]
    assert result == {
        "protocolVersion": "2025-06-18", "serverInfo": {"name": "m0", "version": "1"}, "capabilities": {"tools": {}},
    }  # fmt: skip
