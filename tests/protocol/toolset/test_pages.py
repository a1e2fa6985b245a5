"""Pages: which answers go on, and where a list ends that has no end. How odd ones are read: tests/links."""

from typing import Any

import msgspec
import pytest

from app.errors import InvalidResponse
from app.protocol.jsonrpc import Response, encoded
from app.protocol.toolset.offer import MAX_ITEMS
from app.protocol.toolset.pages import MAX_PAGES, Pages


def page(*names: str, **more: Any) -> Response:
    return Response(b"1", "result", encoded({"tools": [{"name": name} for name in names], **more}))


def test_pages_are_asked_for_by_their_cursors() -> None:
    pages = Pages("tools/list")
    assert pages.params == {}
    assert pages.take(page("a", nextCursor="é"))
    assert pages.params == {"cursor": encoded("é")}
    assert not pages.take(page("b", nextCursor=None))
    assert ([bytes(each) for each in pages.items], pages.notes) == ([b'{"name":"a"}', b'{"name":"b"}'], [])


def test_a_resource_is_told_from_others_by_its_uri() -> None:
    pages = Pages("resources/list")
    listed = [{"uri": "a://1", "name": "x"}, {"uri": "a://2", "name": "x"}]
    assert not pages.take(Response(b"1", "result", encoded({"resources": listed})))
    assert len(pages.items) == 2


def test_an_item_that_breaks_the_json_of_its_list_takes_away_no_other() -> None:
    """Half of an emoji, as a JavaScript server writes that cuts a description; an item with endless levels."""
    pages = Pages("tools/list")
    deep = b'{"name":"deep","x":%b1%b}' % (b"[" * 2000, b"]" * 2000)
    cut, huge = rb'{"name":"cut","description":"x \ud83d"}', b'{"name":"huge","x":1e999}'
    listed = b'{"tools":[{"name":"ok"},%b,%b,%b]}' % (cut, deep, huge)
    assert not pages.take(Response(b"1", "result", msgspec.Raw(listed)))
    assert [msgspec.json.decode(each) for each in pages.items] == [
        {"name": "ok"},
        {"name": "cut", "description": "x ?"},
    ]
    assert pages.notes == ["2 entries are left out: no object with a `name`"]
    assert pages.failure is None


def test_a_list_is_bounded_in_pages_and_entries() -> None:
    pages = Pages("tools/list")
    for number in range(1, MAX_PAGES):
        assert pages.take(page(f"t{number}", nextCursor="more"))
    assert not pages.take(page("one more", nextCursor="more"))
    assert (len(pages.items), pages.notes) == (MAX_PAGES, ["`tools/list` has more than 100 pages"])
    with pytest.raises(InvalidResponse, match=f"{MAX_ITEMS} entries"):
        Pages("tools/list").take(page(*map(str, range(MAX_ITEMS + 1))))
