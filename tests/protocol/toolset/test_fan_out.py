"""FanOut: every message goes to the member it is meant for, whatever ids and names members use."""

import json
import random

import pytest

from app.errors import BackendExited
from app.protocol.commands import Dropped
from app.protocol.search.learned import Learned
from app.protocol.search.work import finished
from app.protocol.toolset import searching
from app.protocol.toolset._member_questions import MAX_QUESTIONS
from app.protocol.toolset.fan_out import MAX_URIS, FanOut
from app.protocol.toolset.greeting import About
from app.protocol.toolset.listing import ToolsetListing
from app.protocol.toolset.offer import Known
from app.protocol.toolset.outs import FailCall, ListsChanged, Noise, ToMember, ToSession
from app.protocol.toolset.searching import NO_SEARCH, Search, Terms
from tests.protocol.toolset.offers import offer, shown, tool

CAPABILITIES: dict[str, object] = {"tools": {}, "resources": {}, "prompts": {}, "logging": {}}


def line(**message) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode()


def listing(*names: str) -> ToolsetListing:
    return ToolsetListing(
        [
            shown(
                name,
                offer(
                    name,
                    capabilities=CAPABILITIES,
                    tools=[tool("say"), tool(f"own-{name}")],
                    prompts=[{"name": "p"}],
                    resources=[{"uri": f"note://{name}"}],
                    templates=[{"uriTemplate": f"{name}://{{id}}"}],
                ),
            )
            for name in names
        ]
    )


@pytest.fixture
def fan() -> FanOut:
    made = FanOut(About("all", "1"), listing("red", "blue"))
    for member in (0, 1):
        list(made.opened(member))
    return made


def call(fan: FanOut, number: int, name: str, **params) -> ToMember:
    (out,) = fan.from_session(line(id=number, method="tools/call", params={"name": name, **params}))
    assert isinstance(out, ToMember)
    return out


def error_of(outs) -> dict:
    (out,) = outs
    return json.loads(out.line)["error"]


def test_a_call_goes_to_its_member_under_the_members_own_name(fan):
    out = call(fan, 1, "blue_say", arguments={"a": 1.0}, _meta={"progressToken": 1})
    assert (out.member, out.call) == (1, b"1")
    assert json.loads(out.line)["params"] == {"name": "say", "arguments": {"a": 1.0}, "_meta": {"progressToken": 1}}
    answer = line(id=1, result={"content": []})
    assert fan.from_member(1, answer) == [ToSession(answer)]


def test_a_member_answers_only_what_it_was_asked(fan):
    call(fan, 1, "blue_say")
    assert fan.from_member(0, line(id=1, result={})) == [Dropped("unknown_answer")]
    assert fan.from_member(0, line(id=None, error={"code": 1, "message": "x"})) == [Dropped("unknown_answer")]
    progress = line(method="notifications/progress", params={"progressToken": 1, "progress": 1})
    assert fan.from_member(0, progress) == [Dropped("unknown_progress")]
    assert fan.from_member(1, progress) == [ToSession(progress)]
    assert fan.oversized(0, b'{"jsonrpc":"2.0","id":1,"result":') == [Dropped("oversized")]
    (failed,) = fan.oversized(1, b'{"jsonrpc":"2.0","id":1,"result":')
    assert (type(failed), failed.id) == (FailCall, b"1")
    assert fan.from_member(1, line(id=1, result={})) == [Dropped("unknown_answer")]


def test_a_broken_answer_fails_its_call_and_noise_is_told(fan):
    call(fan, 1, "blue_say")
    (failed,) = fan.from_member(1, b'{"jsonrpc":"2.0","id":1,"result":{"a":NaN}}x')
    assert (type(failed), failed.id) == (FailCall, b"1")
    assert fan.from_member(0, b"Welcome!")[0] == Noise(0, b"Welcome!")
    two = line(method="notifications/message", params={"data": 1}) + line(method="notifications/message", params={})
    assert len(fan.from_member(0, two)) == 2


@pytest.mark.parametrize(
    ("method", "params", "member"),
    [
        ("resources/read", {"uri": "note://blue"}, 1),
        ("resources/read", {"uri": "red://7"}, 0),
        ("prompts/get", {"name": "blue_p"}, 1),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "red_p"}}, 0),
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": "blue://{id}"}}, 1),
        ("tools/call", {"name": "blue_own-blue"}, 1),
    ],
)
def test_each_request_finds_its_member(fan, method, params, member):
    (out,) = fan.from_session(line(id=1, method=method, params=params))
    assert (out.member, out.call) == (member, b"1")


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("tools/call", {"name": "say"}, -32602),
        ("tools/call", {"name": "own-blue"}, -32602),  # the name that its member knows is not shown
        ("tools/call", {"name": None}, -32602),
        ("tools/call", {}, -32602),
        ("prompts/get", {"name": "p"}, -32602),
        ("resources/read", {"uri": "who://knows"}, -32002),
        ("tasks/get", {"taskId": "t"}, -32602),
        ("logging/setLevel", {"level": "loud"}, -32602),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "p"}}, -32602),
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": "blue://7"}}, -32602),  # is listed by nobody
        ("completion/complete", {"ref": {"type": "ref/tool", "name": "blue_say"}}, -32602),
        ("server/discover", {}, -32601),
        ("tasks/list", {}, -32601),
    ],
)
def test_what_nobody_has_is_an_error(fan, method, params, code):
    assert error_of(fan.from_session(line(id=1, method=method, params=params)))["code"] == code


@pytest.mark.parametrize("prefix", ["", None])
@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("through", ["call", "search", "recipe"])
def test_a_call_of_a_withheld_tool_is_refused_and_goes_to_no_other_member(prefix, gone, through):
    """Neither to one whose own name of a tool is the name that was called, nor to one that would be shown under it."""
    rm = tool("rm", _meta={"ui": {"resourceUri": "ui://red/app"}})
    red = shown("red", offer("red", tools=[] if gone else [rm]))._replace(withheld={"rm": "it has changed"})
    blue = shown("blue", offer("blue", tools=[tool("red_rm")], templates=[{"uriTemplate": "x://{a}"}]), prefix)
    search = Search("search", Terms((), None, lambda: 0.0)) if through == "search" else NO_SEARCH
    fan = FanOut(About("all", "1"), ToolsetListing([red, blue]), search)
    fan.from_session(line(id=0, method="initialize", params={}))
    params = {"name": "red_rm", "arguments": {"iban": "CH93"}}
    if through == "search":
        params = {"name": "call_tool", "arguments": params}
    outs = fan.from_session(line(id="recipe-1" if through == "recipe" else 1, method="tools/call", params=params))
    assert error_of(outs) == {"code": -32602, "message": "it has changed", "data": {"reason": "tool_withheld"}}
    assert fan.listing.schema("red_rm") == "it has changed"
    assert fan.listing.tools == ([] if prefix is None else ["blue_red_rm"])
    if not gone:  # nor is its user interface read elsewhere
        call_of_blue = fan.from_session(line(id=2, method="resources/read", params={"uri": "x://1"}))
        assert call_of_blue[0].member == 1
        outs = fan.from_session(line(id=3, method="resources/read", params={"uri": "ui://red/app"}))
        assert error_of(outs)["code"] == -32002


def test_a_renamed_tool_is_called_by_the_name_that_is_shown_and_by_no_other():
    alone = shown("red", offer("red", tools=[tool("rm"), tool("ls")]), None, rename={"rm": "tidy"}, exclude=("ls",))
    fan = FanOut(About("red", "1", is_backend=True), ToolsetListing([alone]))
    assert json.loads(call(fan, 1, "tidy").line)["params"]["name"] == "rm"
    for name in ("rm", "ls"):
        assert error_of(fan.from_session(line(id=2, method="tools/call", params={"name": name})))["code"] == -32602


def test_a_resource_in_no_list_is_that_of_the_newest_call(fan):
    call(fan, 1, "red_say")
    call(fan, 2, "blue_say")
    (out,) = fan.from_session(line(id=3, method="resources/read", params={"uri": "who://knows"}))
    assert out.member == 1


def test_questions_with_equal_ids_have_different_ones_for_the_session(fan):
    call(fan, 7, "red_say")
    asked = {}
    for member in (0, 1):
        (out,) = fan.from_member(member, line(id=1, method="roots/list", params={"_meta": {"progressToken": "t"}}))
        asked[member] = json.loads(out.line)["id"]
        assert out.among == ((b"7",) if member == 0 else ())
    assert asked[0] != asked[1]
    progress = line(method="notifications/progress", params={"progressToken": asked[1], "progress": 1})
    (told,) = fan.from_session(progress)
    assert (told.member, json.loads(told.line)["params"]["progressToken"]) == (1, "t")
    for member in (1, 0):
        (out,) = fan.from_session(line(id=asked[member], result={"roots": [member]}))
        assert (out.member, json.loads(out.line)) == (
            member,
            {"jsonrpc": "2.0", "id": 1, "result": {"roots": [member]}},
        )
    assert fan.from_session(line(id=asked[0], result={})) == []


def test_a_question_is_withdrawn_by_its_member_only(fan):
    (out,) = fan.from_member(0, line(id=1, method="roots/list"))
    withdrawn = line(method="notifications/cancelled", params={"requestId": 1})
    assert fan.from_member(1, withdrawn) == [Dropped("unknown_cancel")]
    (told,) = fan.from_member(0, withdrawn)
    assert json.loads(told.line)["params"]["requestId"] == json.loads(out.line)["id"]
    assert fan.from_member(0, withdrawn) == [Dropped("unknown_cancel")]


def test_a_member_has_a_bounded_number_of_questions(fan):
    for number in range(MAX_QUESTIONS):
        assert isinstance(fan.from_member(0, line(id=number, method="roots/list"))[0], ToSession)
    for number in (MAX_QUESTIONS, 0):
        assert error_of(fan.from_member(0, line(id=number, method="roots/list")))["code"] == -32603
    assert isinstance(fan.from_member(1, line(id=0, method="roots/list"))[0], ToSession)


def test_a_ping_is_answered_at_once_on_either_side(fan):
    assert fan.from_member(0, line(id=1, method="ping")) == [ToMember(0, line(id=1, result={}))]
    assert fan.from_session(line(id=1, method="ping")) == [ToSession(line(id=1, result={}))]


def test_a_member_that_is_lost_takes_its_own_calls_and_questions_with_it(fan):
    call(fan, 1, "red_say")
    call(fan, 2, "blue_say")
    (asked,) = fan.from_member(0, line(id=1, method="roots/list"))
    outs = fan.lost(0, error := BackendExited())
    assert outs[0] == FailCall(b"1", error)
    assert json.loads(outs[1].line)["params"]["requestId"] == json.loads(asked.line)["id"]
    assert len(outs) == 2
    assert fan.from_member(1, line(id=2, result={})) == [ToSession(line(id=2, result={}))]
    assert fan.lost(0, error) == []


def test_a_cancelled_call_may_still_be_answered(fan):
    call(fan, 1, "red_say")
    (out,) = fan.from_session(line(method="notifications/cancelled", params={"requestId": 1}))
    assert (out.member, out.cancels) == (0, b"1")
    assert fan.from_session(line(method="notifications/cancelled", params={"requestId": 1})) == []
    assert fan.from_member(0, line(id=1, result={})) == [ToSession(line(id=1, result={}))]


def test_levels_and_subscriptions_are_told_to_members_that_start_later():
    fan = FanOut(About("all", "1"), listing("red", "blue"))
    (answer,) = fan.from_session(line(id=1, method="logging/setLevel", params={"level": "error"}))
    assert isinstance(answer, ToSession)
    assert [json.loads(each)["method"] for each in fan.opened(0)] == ["notifications/initialized", "logging/setLevel"]
    fan.from_session(line(id=2, method="resources/subscribe", params={"uri": "note://red"}))
    fan.from_member(0, line(id=2, result={}))
    fan.lost(0, BackendExited())
    again = [json.loads(each) for each in fan.opened(0)]
    assert again[2]["params"] == {"uri": "note://red"}
    assert fan.from_member(0, line(id=again[2]["id"], result={})) == []
    assert "resources/subscribe" not in {json.loads(each)["method"] for each in fan.opened(1)}


def test_a_session_has_a_bounded_number_of_subscriptions(fan):
    for number in range(MAX_URIS):
        fan.from_session(line(id=number, method="resources/subscribe", params={"uri": f"red://{number}"}))
        fan.from_member(0, line(id=number, result={}))
    outs = fan.from_session(line(id=999, method="resources/subscribe", params={"uri": "red://x"}))
    assert error_of(outs)["code"] == -32602


def test_a_task_is_asked_for_where_it_was_made(fan):
    for number, (name, member) in enumerate((("red_say", 0), ("blue_say", 1)), start=1):
        call(fan, number, name, task={})
        fan.from_member(member, line(id=number, result={"task": {"taskId": f"t{member}", "status": "working"}}))
    (out,) = fan.from_session(line(id=5, method="tasks/result", params={"taskId": "t1"}))
    assert out.member == 1
    status = line(method="notifications/tasks/status", params={"taskId": "t1", "status": "working"})
    assert fan.from_member(0, status) == [Dropped("unknown_task")]
    assert fan.from_member(1, status) == [ToSession(status)]


def test_changes_of_a_members_lists_are_the_owners_business(fan):
    (out,) = fan.from_member(1, line(method="notifications/resources/list_changed"))
    change = "notifications/resources/list_changed"
    assert out == ListsChanged(1, change, ("resources/list", "resources/templates/list"))
    made = offer("blue", capabilities=CAPABILITIES, tools=[tool("new")], prompts=[{"name": "p"}])
    later = finished(fan.listing.with_offer(1, Known(made)))
    told = [json.loads(each.line)["method"] for each in fan.show(later)]
    assert told == ["notifications/tools/list_changed", "notifications/resources/list_changed"]
    assert fan.show(later) == []
    assert fan.show(later, change) == [ToSession(line(method=change))]


def searched(mode: str = "search", client: str = "any", always: tuple[str, ...] = ()) -> FanOut:
    now = iter(range(10**6))
    terms = Terms(always, Learned(), lambda: float(next(now)))
    made = FanOut(About("all", "1"), listing("red", "blue"), Search(mode, terms))
    made.from_session(line(id=0, method="initialize", params={"clientInfo": {"name": client}}))
    return made


def tools_of(fan: FanOut) -> list[str]:
    (out,) = fan.from_session(line(id=1, method="tools/list"))
    return [each["name"] for each in json.loads(out.result)["tools"]]


def found(fan: FanOut, query: object, **arguments: object) -> list[str]:
    params = {"name": "find_tools", "arguments": {"query": query, **arguments}}
    (out,) = fan.from_session(line(id=2, method="tools/call", params=params))
    result = json.loads(out.line)["result"]
    tools = result["structuredContent"]["tools"]
    assert not tools or json.loads(result["content"][0]["text"]) == tools
    return [each["name"] for each in tools]


def test_a_searched_toolset_lists_its_search_and_what_is_always_there():
    assert tools_of(searched()) == ["find_tools", "call_tool"]
    assert tools_of(searched(always=("*_say",))) == ["find_tools", "call_tool", "red_say", "blue_say"]
    fan = searched(always=("*",))
    fan.show(ToolsetListing([shown("red", offer("red", tools=[tool("call_tool"), tool("say")]), None)]))
    assert tools_of(fan) == ["find_tools", "call_tool", "say"]


@pytest.mark.parametrize(("client", "is_searched"), [("any", True), ("claude-code", False)])
def test_who_searches_in_the_list_gets_the_list(client, is_searched, monkeypatch):
    monkeypatch.setattr(searching, "FEW_TOOLS", 3)
    assert (tools_of(searched("auto", client))[0] == "find_tools") is is_searched
    monkeypatch.setattr(searching, "FEW_TOOLS", 4)
    assert len(tools_of(searched("auto", client))) == 4


def test_a_client_that_searches_itself_is_told_which_tools_are_to_be_there_from_the_beginning():
    (out,) = searched("auto", "claude-code", always=("*_say",)).from_session(line(id=1, method="tools/list"))
    listed = json.loads(out.result)["tools"]
    marked = [each["name"] for each in listed if each.get("_meta") == {"anthropic/alwaysLoad": True}]
    assert (marked, len(listed)) == (["red_say", "blue_say"], 4)
    (out,) = searched("list", "claude-code", always=("*_say",)).from_session(line(id=1, method="tools/list"))
    assert b"alwaysLoad" not in out.result


def test_what_is_found_can_be_called_through_the_search_and_directly():
    fan = searched()
    assert found(fan, "own blue")[0] == "blue_own-blue"
    assert len(found(fan, "say", limit=1)) == 1
    assert found(fan, "", limit="x") == found(fan, 7) == []
    arguments = {"name": "blue_say", "arguments": {"text": 1.0}}
    out = call(fan, 3, "call_tool", arguments=arguments, _meta={"progressToken": 3})
    assert (out.member, out.call) == (1, b"3")
    assert json.loads(out.line)["params"] == {"name": "say", "arguments": {"text": 1.0}, "_meta": {"progressToken": 3}}
    assert json.loads(call(fan, 4, "red_say").line)["params"]["name"] == "say"
    for name in ("nobody_has", "find_tools", "call_tool", None):
        params = {"name": "call_tool", "arguments": {"name": name}}
        assert error_of(fan.from_session(line(id=5, method="tools/call", params=params)))["code"] == -32602


def test_a_call_that_succeeds_is_learned_for_its_query_and_one_that_fails_is_not():
    for is_error, learned in ((False, ["blue_say"]), (True, [])):
        fan = searched()
        found(fan, "shout loudly")
        call(fan, 3, "call_tool", arguments={"name": "blue_say"})
        fan.from_member(1, line(id=3, result={"content": [], "isError": is_error}))
        assert found(fan, "shout loudly") == learned


@pytest.mark.parametrize("seed", range(20))
def test_of_many_calls_with_hostile_members_each_is_answered_once_by_its_own(seed):
    """Five members that use the same ids, answer what they were not asked, and die."""
    rand, names = random.Random(seed), [f"m{i}" for i in range(5)]
    fan = FanOut(About("all", "1"), listing(*names))
    owner, answered = dict[int, int](), dict[int, int]()
    open_calls: dict[int, set[int]] = {i: set() for i in range(5)}
    for number in range(1, 400):
        member = rand.randrange(5)
        out = call(fan, number, f"m{member}_say")
        owner[number] = out.member
        assert out.member == member
        open_calls[member].add(number)
        speaker, guess = rand.randrange(5), rand.randrange(1, number + 1)
        for each in fan.from_member(speaker, line(id=guess, result={"by": speaker})):
            if isinstance(each, ToSession):
                assert guess not in answered
                answered[guess] = json.loads(each.line)["result"]["by"]
                open_calls[speaker].remove(guess)
        if rand.random() < 0.02:
            for each in fan.lost(speaker, BackendExited()):
                assert int(each.id) not in answered
                answered[int(each.id)] = owner[int(each.id)]
                open_calls[speaker].remove(int(each.id))
            assert not open_calls[speaker]
    assert answered
    assert all(owner[number] == by for number, by in answered.items())
    assert owner.keys() - answered.keys() == set().union(*open_calls.values())


def test_an_error_without_an_id_is_a_members_call_unless_it_may_be_about_something_else(fan):
    unread = line(id=None, error={"code": -32700, "message": "Parse error"})
    call(fan, 1, "blue_say")
    assert fan.from_member(1, line(id=None, error={"code": -32603, "message": "x"})) == [Dropped("unknown_answer")]
    fan.from_session(line(method="notifications/roots/list_changed"))
    assert fan.from_member(1, unread) == [Dropped("unknown_answer")]
    answer = line(id=1, result={"content": []})
    assert fan.from_member(1, answer) == [ToSession(answer)]
    call(fan, 2, "blue_say")
    (told,) = fan.from_member(1, unread)
    assert json.loads(told.line)["id"] == 2


def test_a_token_that_comes_back_as_a_string_is_passed_on(fan):
    call(fan, 5, "blue_say", _meta={"progressToken": 5})
    for token in ("5", 5.0):
        progress = line(method="notifications/progress", params={"progressToken": token, "progress": 1})
        assert fan.from_member(1, progress) == [ToSession(progress)]
