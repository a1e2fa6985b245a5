"""Offers: read page by page, bounded, and stored as they were said."""

import msgspec
import pytest

from app.errors import InvalidResponse
from app.protocol.jsonrpc import encoded
from app.protocol.toolset.offer import MAX_BYTES, MAX_ITEMS, Offer, promised
from tests.protocol.toolset.offers import offer, tool


def test_an_offer_comes_back_as_it_was_stored():
    made = offer("red", tools=[tool("a", more=[1.0, "é\ud83d"[:1]])], instructions="Use it.")
    assert Offer.load(made.dump()) == made
    assert made.instructions == "Use it."


def test_a_backend_promises_its_lists_by_its_capabilities():
    assert promised(offer("x", capabilities={"resources": {}, "logging": {}}).capabilities) == [
        "resources/list", "resources/templates/list",
    ]  # fmt: skip
    assert promised(offer("x", capabilities=[]).capabilities) == []
    declared: dict[str, object] = {"tools": {}, "prompts": None, "resources": False}
    assert promised(offer("x", capabilities=declared).capabilities) == ["tools/list"]


def test_an_offer_is_bounded_in_entries_and_bytes():
    empty = offer("x")
    with pytest.raises(InvalidResponse, match=r"more than \d+ entries"):
        empty.with_list("tools/list", [msgspec.Raw(b"{}")] * (MAX_ITEMS + 1))
    with pytest.raises(InvalidResponse, match="MiB"):
        empty.with_list("tools/list", [encoded({"name": "x" * MAX_BYTES})])
