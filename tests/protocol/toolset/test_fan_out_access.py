"""FanOut: no request finds what `access` keeps from its caller, and what is counted may be refused."""

from typing import Any

import pytest

from app.domain.resources.access import Kind
from app.errors import GatewayError, RateLimited
from app.protocol.commands import Dropped
from app.protocol.search.learned import Learned
from app.protocol.toolset.fan_out import FanOut
from app.protocol.toolset.greeting import About
from app.protocol.toolset.listing import Place, Shown, ToolsetListing
from app.protocol.toolset.outs import INNER, FailCall, Listed, RunRecipe, ToMember, ToSession
from app.protocol.toolset.own import Own
from app.protocol.toolset.searching import CALL, FIND, NO_SEARCH, Search, Terms
from tests.protocol.recipes.dishes import recipe, step
from tests.protocol.toolset.offers import decoded, offer, shown
from tests.protocol.toolset.test_fan_out import CAPABILITIES, line
from tests.protocol.toolset.test_listing_access import NOTHING, guide, may, member

REFUSED = RateLimited("calls_per_day", "too often")
ALLOWED = may(tools=("read",), prompts=("ask",), resources=("note://red/1", "red://open/*", "other://*"))
COOK = recipe(step("a", "red_read"))  # `cook`


class Counter:
    """Counts, and refuses what it is told to."""

    def __init__(self) -> None:
        self.counted: list[tuple[bytes, Kind, Place, str]] = []
        self.refuses = False

    def __call__(self, *of: Any) -> GatewayError | None:
        self.counted.append(of)
        return REFUSED if self.refuses else None


@pytest.fixture
def counter() -> Counter:
    return Counter()


def red(allowed: Any = ALLOWED) -> Shown:
    made = member("red", allowed)
    assert made.offer is not None
    lists = {method: made.offer.items(method) for method in ("tools/list", "prompts/list", "resources/list")}
    able = offer("red", capabilities=CAPABILITIES, instructions="Be red.")
    for method, items in (*lists.items(), ("resources/templates/list", made.offer.items("resources/templates/list"))):
        able = able.with_list(method, items)
    return made._replace(offer=able)


def opened(listing: ToolsetListing, counter: Counter, search: Search = NO_SEARCH) -> FanOut:
    fan = FanOut(About("all", "1"), listing, search, counter)
    for number in range(len(listing.members)):
        list(fan.opened(number))
    return fan


@pytest.fixture
def fan(counter: Counter) -> FanOut:
    return opened(ToolsetListing([red()], Own([guide("g")], [COOK])), counter)


def ask(fan: FanOut, method: str, number: int = 1, **params: Any) -> Any:
    (out,) = fan.from_session(line(id=number, method=method, params=params))
    return out


def error(out: Any) -> dict[str, Any]:
    assert isinstance(out, ToSession), out
    return decoded(out.line)["error"]


REF_PROMPT, REF_RESOURCE = {"type": "ref/prompt"}, {"type": "ref/resource"}
ROUTES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("tools/call", {"name": "red_read"}, {"name": "red_write"}),
    ("prompts/get", {"name": "red_ask"}, {"name": "red_tell"}),
    ("resources/read", {"uri": "note://red/1"}, {"uri": "note://red/2"}),
    ("resources/read", {"uri": "red://open/7"}, {"uri": "red://shut/7"}),
    ("resources/read", {"uri": "other://in/no/list"}, {"uri": "file:///in/no/list"}),
    ("resources/subscribe", {"uri": "note://red/1"}, {"uri": "note://red/2"}),
    ("resources/subscribe", {"uri": "other://in/no/list"}, {"uri": "file:///in/no/list"}),
    ("resources/unsubscribe", {"uri": "note://red/1"}, {"uri": "note://red/2"}),
    ("completion/complete", {"ref": {**REF_PROMPT, "name": "red_ask"}}, {"ref": {**REF_PROMPT, "name": "red_tell"}}),
    (
        "completion/complete",
        {"ref": {**REF_RESOURCE, "uri": "red://open/{id}"}},
        {"ref": {**REF_RESOURCE, "uri": "red://shut/{id}"}},
    ),
]


@pytest.mark.parametrize(("method", "listed", "unlisted"), ROUTES)
def test_each_request_finds_what_is_listed_only(fan, counter, method, listed, unlisted):
    assert isinstance(ask(fan, method, **listed), ToMember)
    counted = len(counter.counted)
    refused = error(ask(fan, method, 2, **unlisted))
    open_to_all = opened(ToolsetListing([red(None)]), counter)
    assert isinstance(ask(open_to_all, method, **unlisted), ToMember)
    unknown = {key: value.replace("red_", "red_no_") for key, value in unlisted.items() if isinstance(value, str)}
    if "name" in unknown:  # as what nobody has, but for its name
        other = error(ask(fan, method, 3, **unknown))
        assert (other["code"], other["message"].replace("red_no_", "red_")) == (refused["code"], refused["message"])
    assert len(counter.counted) - counted <= 1  # that of the one who may


def test_of_a_resource_that_only_others_may_read_nobody_is_told_that_it_has_changed(fan):
    def updated(uri: str) -> bytes:
        return line(method="notifications/resources/updated", params={"uri": uri})

    assert fan.from_member(0, updated("note://red/1")) == [ToSession(updated("note://red/1"))]
    assert fan.from_member(0, updated("note://red/2")) == [Dropped("not_allowed")]
    assert fan.from_member(0, updated("file:///x")) == [Dropped("not_allowed")]
    assert fan.from_member(0, line(method="notifications/resources/updated")) == [Dropped("not_allowed")]


def test_who_has_subscribed_to_what_is_not_listed_any_more_hears_nothing_and_may_leave(fan):
    ask(fan, "resources/subscribe", uri="note://red/1")
    fan.from_member(0, line(id=1, result={}))
    fan.show(ToolsetListing([red(may(tools=("*",)))]))
    assert fan.from_member(0, line(method="notifications/resources/updated", params={"uri": "note://red/1"})) == [
        Dropped("not_allowed")
    ]
    assert isinstance(ask(fan, "resources/unsubscribe", 2, uri="note://red/1"), ToMember)


def test_an_open_session_loses_what_is_not_listed_any_more_and_is_told(fan):
    assert isinstance(ask(fan, "tools/call", name="red_read"), ToMember)
    told = [decoded(each.line)["method"] for each in fan.show(ToolsetListing([red(NOTHING)]))]
    assert "notifications/tools/list_changed" in told
    error(ask(fan, "tools/call", 2, name="red_read"))
    listed = ask(fan, "tools/list", 3)
    assert isinstance(listed, Listed)
    assert decoded(listed.result) == {"tools": []}


@pytest.mark.parametrize(("method", "params", "kind", "place"), [
    ("tools/call", {"name": "red_read"}, "tools", Place(0, "read")),
    ("tools/call", {"name": "cook"}, "tools", Place(1, "cook")),
    ("prompts/get", {"name": "red_ask"}, "prompts", Place(0, "ask")),
    ("prompts/get", {"name": "g"}, "prompts", Place(1, "g")),
    ("resources/read", {"uri": "note://red/1"}, "resources", Place(0, "note://red/1")),
    ("resources/read", {"uri": "other://in/no/list"}, "resources", Place(0, "other://in/no/list")),
    ("resources/read", {"uri": "guide://g"}, "resources", Place(1, "guide://g")),
])  # fmt: skip
def test_each_use_counts_once_and_fails_where_the_count_refuses(fan, counter, method, params, kind, place):
    first = ask(fan, method, **params)
    assert not isinstance(first, FailCall)
    (name,) = params.values()
    assert counter.counted == [(b"1", kind, place, name)]
    counter.refuses = True
    assert ask(fan, method, 2, **params) == FailCall(b"2", REFUSED)
    assert fan.from_member(0, line(id=2, result={})) == [Dropped("unknown_answer")]  # nobody was asked


@pytest.mark.parametrize(("method", "params"), [
    ("tools/list", {}), ("prompts/list", {}), ("resources/list", {}), ("resources/templates/list", {}),
    ("resources/subscribe", {"uri": "note://red/1"}), ("resources/unsubscribe", {"uri": "note://red/1"}),
    ("completion/complete", {"ref": {**REF_PROMPT, "name": "red_ask"}}), ("logging/setLevel", {"level": "info"}),
])  # fmt: skip
def test_other_requests_do_not_count(fan, counter, method, params):
    fan.from_session(line(id=1, method=method, params=params))
    assert counter.counted == []


def test_calls_of_a_recipe_count_and_are_refused_like_those_of_the_client(fan, counter):
    inner = INNER + b'1"'
    message = b'{"jsonrpc":"2.0","id":%b,"method":"tools/call","params":{"name":"red_read"}}' % inner
    (out,) = fan.from_session(message)
    assert (type(out), out.call) == (ToMember, inner)
    assert counter.counted == [(inner, "tools", Place(0, "read"), "red_read")]
    fan.from_member(0, b'{"jsonrpc":"2.0","id":%b,"result":{}}' % inner)
    counter.refuses = True
    assert fan.from_session(message) == [FailCall(inner, REFUSED)]
    fan.show(ToolsetListing([red(NOTHING)], Own((), [COOK])))
    (out,) = fan.from_session(message)
    assert type(out) is not ToMember


def test_a_recipe_with_a_step_that_is_not_listed_does_not_run(counter):
    fan = opened(ToolsetListing([red(NOTHING)], Own((), [COOK])), counter)
    error(ask(fan, "tools/call", name="cook"))
    fan = opened(ToolsetListing([red()], Own((), [COOK])), counter)
    assert isinstance(ask(fan, "tools/call", name="cook"), RunRecipe)


@pytest.fixture
def searched(counter: Counter) -> FanOut:
    search = Search("search", Terms(("*",), Learned(), lambda: 1000.0))
    fan = opened(ToolsetListing([red()]), counter, search)
    fan.from_session(line(id=0, method="initialize", params={"protocolVersion": "2025-11-25"}))
    return fan


def test_a_search_finds_calls_and_lists_nothing_that_is_not_listed(searched, counter):
    found = decoded(ask(searched, "tools/call", name=FIND, arguments={"query": "apples"}).line)["result"]
    assert [each["name"] for each in found["structuredContent"]["tools"]] == ["red_read"]
    assert "write" not in found["content"][0]["text"]
    assert [each["name"] for each in decoded(ask(searched, "tools/list").result)["tools"]] == [FIND, CALL, "red_read"]
    assert isinstance(ask(searched, "tools/call", 2, name=CALL, arguments={"name": "red_read"}), ToMember)
    error(ask(searched, "tools/call", 3, name=CALL, arguments={"name": "red_write"}))
    assert [each[3] for each in counter.counted] == ["red_read"]


def test_what_others_have_found_is_not_found_by_who_may_not_use_it(counter):
    learned = Learned()
    for _ in range(5):
        learned.learn("fruit", "red_write", 1000.0)
    fan = opened(ToolsetListing([red()]), counter, Search("search", Terms((), learned, lambda: 1000.0)))
    fan.from_session(line(id=0, method="initialize", params={"protocolVersion": "2025-11-25"}))
    found = decoded(ask(fan, "tools/call", name=FIND, arguments={"query": "fruit"}).line)
    assert found["result"]["structuredContent"]["tools"] == []


def test_a_server_of_which_nothing_may_be_used_says_nothing(counter):
    blue = shown("blue", offer("blue", instructions="Be blue."))
    for allowed, words in ((ALLOWED, "# red\n\nBe red.\n\n# blue\n\nBe blue."), (NOTHING, "# blue\n\nBe blue.")):
        fan = opened(ToolsetListing([red(allowed), blue]), counter)
        (out,) = fan.from_session(line(id=0, method="initialize", params={"protocolVersion": "2025-11-25"}))
        assert isinstance(out, ToSession)
        assert decoded(out.line)["result"]["instructions"] == words
    fan = FanOut(About("red", "1", is_backend=True), ToolsetListing([red(NOTHING)]))
    (out,) = fan.from_session(line(id=0, method="initialize", params={"protocolVersion": "2025-11-25"}))
    assert isinstance(out, ToSession)
    assert "instructions" not in decoded(out.line)["result"]
