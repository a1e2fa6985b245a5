"""What a member says that it offers, however oddly it says so: one odd item takes nothing away that is beside it."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from app.backends.connections.inquiry import inquire
from app.errors import BackendError, UpstreamRefused
from app.processes.connection import CallListener
from app.protocol.jsonrpc import encoded, members_of, string_of
from app.protocol.toolset.offer import Offer
from app.protocol.toolset.pages import MAX_BARREN
from tests.sessions.fakes import FakeConnection, FakeLease

EIGHT = [{"name": f"t{number}", "inputSchema": {"type": "object"}} for number in range(8)]
Answer = Callable[[str, dict[str, Any]], Any]


class Server(FakeConnection):
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
            is_error = isinstance(answer, dict) and "error" in answer
            self.say(id=message["id"], **(answer if is_error else {"result": answer}))


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


@pytest.mark.parametrize("answer", [None, {"error": {"code": -32603, "message": "not now"}}])
async def test_a_server_of_which_no_list_can_be_read_is_not_taken_for_one_without_any(answer: Any) -> None:
    with pytest.raises(BackendError):
        await offered(lambda method, params: answer)


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


@pytest.mark.parametrize("odd", ["empty", "repeated"])
async def test_a_page_without_news_does_not_end_a_list_whose_cursor_is_new(odd: str) -> None:
    between = EIGHT[:4] if odd == "repeated" else []
    pages = {None: (EIGHT[:4], "b"), "b": (between, "c"), "c": (EIGHT[4:], None)}

    def lists(method: str, params: dict[str, Any]) -> dict[str, Any]:
        items, after = pages[params.get("cursor")]
        return {"tools": items, "nextCursor": after} if method == "tools/list" else {"prompts": []}

    found = await offered(lists)
    assert (names(found), found.oddities) == ([tool["name"] for tool in EIGHT], [])


async def test_cursors_that_are_new_for_ever_end_after_a_few_empty_pages() -> None:
    asked: list[object] = []

    def lists(method: str, params: dict[str, Any]) -> dict[str, Any]:
        asked.append(method)
        items = [] if "cursor" in params else EIGHT
        return {"tools": items, "nextCursor": str(len(asked))} if method == "tools/list" else {"prompts": []}

    found = await offered(lists)
    assert (len(names(found)), len(asked)) == (8, 1 + MAX_BARREN + 1)
    assert found.oddities == ["`tools/list`: its `nextCursor` leads to nothing new: no more was read"]


@pytest.mark.parametrize("tools", [{"error": {"code": -32603, "message": "not now"}}, None, EIGHT])
async def test_tools_that_cannot_be_read_take_no_other_list_away(tools: Any) -> None:
    found = await offered(lambda method, params: tools if method == "tools/list" else {"prompts": [{"name": "p"}]})
    assert (names(found), names(found, "prompts/list"), found.unread) == ([], ["p"], ("tools/list",))
    (note,) = found.oddities
    assert note.startswith("`tools/list`: ")


async def test_a_page_that_is_refused_leaves_those_before_it() -> None:
    def lists(method: str, params: dict[str, Any]) -> dict[str, Any]:
        if "cursor" in params:
            return {"error": {"code": -32603, "message": "page 2 broke"}}
        return {"tools": EIGHT, "nextCursor": "2"} if method == "tools/list" else {"prompts": [{"name": "p"}]}

    found = await offered(lists)
    assert (len(names(found)), names(found, "prompts/list")) == (8, ["p"])
    assert found.oddities == ["`tools/list`: the server refused `tools/list`: page 2 broke"]


class Failing(Server):
    """Does not answer `prompts/list`, as `how` says."""

    def __init__(self, how: str) -> None:
        super().__init__(lambda method, params: {"tools": EIGHT})
        self._how = how

    def send(self, line: bytes) -> None:
        if b"prompts/list" not in line:
            super().send(line)
        elif self._how == "dies":
            self.die()
        elif self._how == "fails":
            assert isinstance(self.listener, CallListener)
            self.listener.backend_failed(b'"toolset-list-2"', UpstreamRefused("HTTP 404"))
        elif self._how == "answers without an id":
            self.say(error={"code": -32601, "message": "Method not found"})


@pytest.mark.parametrize("how", ["dies", "fails", "answers without an id", "is silent"])
async def test_a_server_that_fails_at_a_list_keeps_what_was_read(how: str) -> None:
    async def lease() -> Any:
        return FakeLease(Failing(how))

    with anyio.fail_after(60):
        found = await inquire(lease, 0.5 if how == "is silent" else 60.0)
    assert (len(names(found)), names(found, "prompts/list")) == (8, [])
    assert found.unread == (() if how == "answers without an id" else ("prompts/list",))
    assert [note.split(":")[0] for note in found.oddities] == ["`prompts/list`"] * len(found.unread)


def test_what_could_not_be_read_stays_as_it_was() -> None:
    def raw(*named: str) -> list[Any]:
        return [encoded({"name": name}) for name in named]

    earlier = Offer.begun(encoded({}), is_sessionless=False).with_list("tools/list", raw("a", "b"))
    earlier = earlier.with_list("prompts/list", raw("p"))
    now = Offer.begun(encoded({}), is_sessionless=False).with_list("prompts/list", [])
    now = now.with_list("tools/list", raw("c", "a"), ["broken"], is_whole=False).completed_by(earlier)
    assert (names(now), names(now, "prompts/list")) == (["c", "a", "b"], [])
    assert Offer.load(now.dump()) == now
    assert now.with_list("tools/list", []).unread == ()
