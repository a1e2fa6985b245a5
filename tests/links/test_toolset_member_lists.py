"""What a member says that it offers, however oddly it says so: one odd item takes nothing away that is beside it."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from app.errors import BackendError
from app.links.inquiry import inquire
from app.protocol.jsonrpc import members_of, string_of
from app.protocol.toolset.offer import Offer
from tests.sessions.fakes import FakeLease, FakeLink

EIGHT = [{"name": f"t{number}", "inputSchema": {"type": "object"}} for number in range(8)]
Answer = Callable[[str, dict[str, Any]], dict[str, Any]]


class Server(FakeLink):
    """Answers each list with what `lists` makes of its method and params."""

    def __init__(self, lists: Answer) -> None:
        super().__init__()
        self._lists = lists

    def send(self, line: bytes) -> None:
        super().send(line)
        message = self.sent[-1]
        if message["method"] == "initialize":
            about = {"capabilities": {"tools": {}, "prompts": {}}, "protocolVersion": "2025-11-25"}
            self.say(id=message["id"], result=about)
        elif "id" in message:
            answer = self._lists(message["method"], message["params"])
            self.say(id=message["id"], **(answer if "error" in answer else {"result": answer}))


async def offered(lists: Answer) -> Offer:
    async def lease() -> Any:
        return FakeLease(Server(lists))

    with anyio.fail_after(60):
        return await inquire(lease, 60.0)


def names(offer: Offer, method: str = "tools/list") -> list[str | None]:
    return [string_of(members_of(item)["name"]) for item in offer.items(method)]


@pytest.mark.parametrize("prompts", [{"prompts": None}, {}, {"prompts": []}])
async def test_a_list_that_is_not_there_is_empty(prompts: dict[str, Any]) -> None:
    found = await offered(lambda method, params: {"tools": EIGHT} if method == "tools/list" else prompts)
    assert (len(names(found)), names(found, "prompts/list"), found.oddities) == (8, [], [])


@pytest.mark.parametrize("odd", [None, "text", 7, [], {"title": "no name"}, {"name": 7}])
async def test_an_odd_item_is_left_out_and_noted(odd: object) -> None:
    found = await offered(lambda method, params: {"tools": [*EIGHT[:4], odd, *EIGHT[4:]], "prompts": []})
    assert names(found) == [tool["name"] for tool in EIGHT]
    assert found.oddities == ["`tools/list`: 1 entry is left out: no object with a `name`"]
    assert Offer.load(found.dump()) == found


@pytest.mark.parametrize(
    "prompts", [{"prompts": {"a": {}}}, {"prompts": "none"}, {"error": {"code": -32603, "message": "not implemented"}}]
)
async def test_a_list_that_cannot_be_used_takes_no_other_away(prompts: dict[str, Any]) -> None:
    found = await offered(lambda method, params: {"tools": EIGHT} if method == "tools/list" else prompts)
    assert (len(names(found)), names(found, "prompts/list")) == (8, [])
    (note,) = found.oddities
    assert note.startswith("`prompts/list`: ")


@pytest.mark.parametrize("tools", [{"tools": "none"}, {"error": {"code": -32603, "message": "not now"}}])
async def test_tools_that_cannot_be_read_are_not_taken_for_none(tools: dict[str, Any]) -> None:
    with pytest.raises(BackendError):
        await offered(lambda method, params: tools if method == "tools/list" else {"prompts": []})


@pytest.mark.parametrize("cursor", ["", "c1", 7, 7.5])
async def test_a_cursor_that_leads_to_the_same_page_ends_the_list(cursor: object) -> None:
    asked: list[object] = []

    def lists(method: str, params: dict[str, Any]) -> dict[str, Any]:
        asked.append(params.get("cursor"))
        return {"tools": EIGHT, "nextCursor": cursor} if method == "tools/list" else {"prompts": []}

    found = await offered(lists)
    assert names(found) == [tool["name"] for tool in EIGHT]
    assert asked == [None, cursor, None]  # as it was written
    assert "`tools/list`: its `nextCursor` leads to nothing new: no more was read" in found.oddities
    assert ("`tools/list`: its `nextCursor` is no string" in found.oddities) is not isinstance(cursor, str)


async def test_pages_that_go_round_are_read_once() -> None:
    pages = {None: (EIGHT[:4], "b"), "b": (EIGHT[4:], "c"), "c": (EIGHT[:4], "b")}

    def lists(method: str, params: dict[str, Any]) -> dict[str, Any]:
        items, after = pages[params.get("cursor")]
        return {"tools": items, "nextCursor": after} if method == "tools/list" else {"prompts": []}

    assert names(await offered(lists)) == [tool["name"] for tool in EIGHT]


@pytest.mark.parametrize("cursor", ["", 7])
async def test_an_odd_cursor_that_the_server_refuses_itself_was_the_end(cursor: object) -> None:
    def lists(method: str, params: dict[str, Any]) -> dict[str, Any]:
        if "cursor" in params:
            return {"error": {"code": -32602, "message": "Invalid cursor"}}
        return {"tools": EIGHT, "prompts": [], "nextCursor": cursor} if method == "tools/list" else {"prompts": []}

    found = await offered(lists)
    assert len(names(found)) == 8
    assert any("Invalid cursor" in note for note in found.oddities)
