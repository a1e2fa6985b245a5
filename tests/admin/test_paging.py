"""How much of a list is read and shown at once."""

from collections.abc import Sequence

from pydantic import BaseModel

from app.admin._paging import AT_ONCE, MAX_BYTES, PageQuery


class Text(BaseModel):
    name: str
    text: str


class Stored:
    """A list by name, which keeps how many were read."""

    def __init__(self, *lengths: int) -> None:
        self.texts = [Text(name=f"{number:03}", text="x" * length) for number, length in enumerate(lengths)]
        self.taken = 0

    async def listed(self, tenant: str, *, after: str, limit: int) -> Sequence[Text]:
        found = [each for each in self.texts if each.name > after][:limit]
        self.taken += len(found)
        return found

    async def pages(self, limit: int) -> list[int]:
        """How many items each page has."""
        counts, after, cursor = [], "", "first"
        while cursor:
            page = await PageQuery(limit, after).read(self.listed, "acme", _name, _same)
            counts.append(len(page.items))
            assert page.items or page.next_cursor is None
            cursor, after = page.next_cursor or "", page.items[-1].name if page.items else ""
        return counts


def _name(text: Text) -> str:
    return text.name


def _same(text: Text) -> Text:
    return text


def test_a_page_ends_after_some_bytes_and_says_where_the_next_begins():
    half = Stored(*[MAX_BYTES // 2 - 100] * 5).texts
    first = PageQuery(200, "").page(half, _name, _same)
    assert [each.name for each in first.items] == ["000", "001"]
    assert first.next_cursor is not None
    assert PageQuery(200, "").page(half[4:], _name, _same).next_cursor is None


async def test_a_list_of_large_items_is_whole_in_pages_that_end_after_some_bytes():
    assert await Stored(10, MAX_BYTES + 1, MAX_BYTES * 2, 10, 10).pages(200) == [1, 1, 1, 2]
    assert await Stored(MAX_BYTES + 1).pages(200) == [1]
    assert await Stored(*[10] * 45).pages(20) == [20, 20, 5]
    assert await Stored(*[10] * AT_ONCE).pages(AT_ONCE) == [AT_ONCE]
    assert await Stored().pages(200) == [0]


async def test_no_more_large_items_are_read_than_a_page_may_have():
    many = Stored(*[MAX_BYTES // 2] * 100)
    page = await PageQuery(100, "").read(many.listed, "acme", _name, _same)
    assert (len(page.items), many.taken) == (1, AT_ONCE)
