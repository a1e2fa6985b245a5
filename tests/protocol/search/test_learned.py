"""What earlier calls say about a query, within limits, and what it may change in an answer."""

import json
import random

import pytest

from app.protocol.search import learned as learned_module
from app.protocol.search.documents import Definition, Document, Source
from app.protocol.search.index import MOST_EVIDENCE, ToolIndex
from app.protocol.search.learned import MAX_AGE_S, MAX_BYTES, MAX_CALLS, MAX_ID, MAX_QUERIES, MAX_TOOLS, Learned


def taught(*links: tuple[str, str]) -> Learned:
    learned = Learned()
    for query, tool in links:
        learned.learn(query, tool, 0)
    return learned


def restored(learned: Learned) -> Learned:
    again = Learned()
    again.merge(json.loads(json.dumps(learned.as_json())))
    return again


def test_a_query_like_an_earlier_one_speaks_for_its_tool() -> None:
    learned = taught(("reimburse the travel costs", "expenses"), ("book a meeting room", "rooms"))
    assert list(learned.evidence("travel reimbursing", 0)) == ["expenses"]
    assert learned.evidence("unheard of", 0) == {}
    assert Learned().evidence("travel", 0) == {}


def test_the_more_alike_the_more_it_speaks() -> None:
    learned = taught(("invoice of a supplier", "a"), ("invoice reminder for late customers", "b"))
    found = learned.evidence("supplier invoice", 0)
    assert found["a"] > found["b"] > 0
    assert found["a"] == pytest.approx(1.0)


def test_the_order_and_the_form_of_words_do_not_matter() -> None:
    assert len(taught(("list open invoices", "a"), ("invoice, open: listing", "a"))) == 1


def test_a_tool_that_is_called_more_often_gets_the_larger_part() -> None:
    found = taught(*[("open invoice", "a")] * 3, ("open invoice", "b")).evidence("open invoice", 0)
    assert found["a"] > found["b"] > 0


def test_a_query_that_says_nothing_teaches_nothing() -> None:
    assert len(taught(("", "a"), ("the tool", "a"), ("open invoice", "x" * (MAX_ID + 1)))) == 0


def test_what_nobody_called_for_long_is_forgotten() -> None:
    learned = taught(("open invoice", "old"))
    assert learned.evidence("open invoice", MAX_AGE_S + 1) == {}
    learned.learn("open invoice", "new", MAX_AGE_S + 1)
    assert "old" not in json.dumps(learned.as_json())


def test_habits_can_change() -> None:
    learned = taught(*[("open invoice", "old")] * 1_000, *[("open invoice", "new")] * MAX_CALLS)
    found = learned.evidence("open invoice", 0)
    assert found["new"] > found["old"]


def test_the_longest_unasked_make_room() -> None:
    learned = taught(*((f"topic{number}", "a") for number in range(MAX_QUERIES)))
    learned.learn("topic0", "a", 0)
    learned.learn("another", "a", 0)
    assert len(learned) == MAX_QUERIES
    assert learned.evidence("topic1", 0) == {}
    assert learned.evidence("topic0", 0)
    assert learned.evidence("another", 0)


def test_it_has_a_limit_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned_module, "MAX_BYTES", 5_000)
    learned = taught(*((f"topic{n} of{n}", f"tool{n}" * 20) for n in range(200)))
    assert len(json.dumps(learned.as_json())) < 1.2 * 5_000
    assert learned.evidence("topic199", 0)
    assert MAX_BYTES > 5_000


def test_a_query_has_a_limit_of_tools() -> None:
    learned = taught(*[("open invoice", "usual")] * 2, *(("open invoice", f"tool{n}") for n in range(50)))
    found = learned.evidence("open invoice", 0)
    assert len(found) == MAX_TOOLS
    assert {"usual", "tool49"} <= set(found)


def test_cleared_is_as_new() -> None:
    learned = taught(("open invoice", "a"))
    learned.clear()
    assert repr(learned) == repr(Learned()) == "<Learned [0 queries, 0 bytes]>"
    assert learned.evidence("open invoice", 0) == {}


def queries_of(learned: Learned) -> set[str]:
    queries = learned.as_json()["queries"]
    assert isinstance(queries, list)
    return set(map(str, queries))


def seeded(number: int) -> Learned:
    chosen = random.Random(number)
    words = [f"word{each}" for each in range(40)]
    links = [(" ".join(chosen.sample(words, 4)), f"tool{chosen.randrange(30)}") for _ in range(200)]
    return taught(*links)


def test_kept_and_read_again_it_says_the_same() -> None:
    learned = seeded(1)
    again = restored(learned)
    assert repr(again) == repr(learned)
    assert again.as_json() == learned.as_json()
    for query in ("word1 word2", "word3 word4 word5", "word39"):
        assert again.evidence(query, 0) == learned.evidence(query, 0)


def test_what_two_nodes_learned_is_merged_once() -> None:
    first, second = seeded(1), seeded(2)
    merged = restored(first)
    merged.merge(second.as_json())
    once = queries_of(merged)
    merged.merge(second.as_json())
    merged.merge(first.as_json())
    assert queries_of(merged) == once
    other_way = restored(second)
    other_way.merge(first.as_json())
    assert other_way.evidence("word1 word2 word3", 0) == pytest.approx(merged.evidence("word1 word2 word3", 0))


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"queries": None},
        {"queries": [None, 3, {}, {"terms": [], "calls": {}}, {"terms": "ab", "calls": {"a": [1, 0]}}]},
        {"queries": [{"terms": [1], "calls": {"a": [1, 0]}}, {"terms": ["x"] * 500, "calls": {"a": [1, 0]}}]},
        {"queries": [{"terms": ["x"], "calls": {"a": 1, "b": [1], "c": ["1", 0], "d": [-1, 0], "e" * 999: [1, 0]}}]},
    ],
)
def test_what_is_not_of_its_form_is_left_out(value: object) -> None:
    learned = Learned()
    learned.merge(value)
    assert learned.evidence("x", 0) == {}
    assert len(learned) == 0


# --- in an answer

NAMES = "account booking budget contract customer delivery invoice meeting order payment product refund report user"
THINGS = NAMES.split()
VERBS = ["approve", "archive", "cancel", "create", "export", "find", "list", "send"]


def catalogue() -> ToolIndex:
    source = Source("office")
    names = [f"{verb}_{thing}" for thing in THINGS for verb in VERBS]
    return ToolIndex([Document(name, source, Definition(name, description=f"For the {name[::-1]}")) for name in names])


INDEX = catalogue()


def shown(query: str, learned: Learned | None = None, limit: int = 5) -> list[str]:
    evidence = learned.evidence(query, 0) if learned else {}
    return [hit.id for hit in INDEX.search(query, limit, evidence)]


def test_what_callers_meant_replaces_what_has_a_word_in_common() -> None:
    """Of five that are shown, the last two: the others are better by the query's own words."""
    source = Source("office")
    names = ["find_customer_account", "count_money", "move_back", "transfer_money", "go_back", "create_refund"]
    index = ToolIndex([Document(each, source, Definition(each)) for each in names])
    query, evidence = "find account of customer: money back", {"create_refund": 0.9}
    before = [hit.id for hit in index.search(query)]
    after = [hit.id for hit in index.search(query, 5, evidence)]
    assert "create_refund" not in before
    assert "create_refund" in after
    assert set(before[:3]) <= set(after)


def test_what_nobody_has_called_stays_if_it_is_nearly_the_best() -> None:
    source = Source("office")
    index = ToolIndex([Document(f"money_{n}", source, Definition("money")) for n in range(9)])
    before = [hit.id for hit in index.search("money")]
    assert [hit.id for hit in index.search("money", 5, {"money_8": 5.0})] == before
    assert [hit.id for hit in index.search("money", 5, {"money_4": 5.0})] == ["money_4", *before[:4]]


def test_of_those_that_were_called_the_one_that_fits_is_shown() -> None:
    source = Source("office")
    index = ToolIndex([Document(f"money_{n}", source, Definition("money")) for n in range(9)])
    evidence = {f"money_{n}": 0.01 for n in range(8)} | {"money_8": 1.0}
    found = [hit.id for hit in index.search("money", 5, evidence)]
    assert found == ["money_8", "money_0", "money_1", "money_2", "money_3"]


def test_a_query_without_a_known_word_finds_what_was_called_after_it() -> None:
    learned = taught(("klaxon zeppelin", "create_refund"))
    assert shown("zeppelin klaxon") == []
    assert shown("zeppelin klaxon", learned) == ["create_refund"]


def test_a_tool_that_is_gone_is_not_found() -> None:
    assert shown("zeppelin", taught(("zeppelin", "no_such_tool"))) == []


def test_evidence_has_a_most() -> None:
    plain = INDEX.search("create invoice", 50)
    found = {
        hit.id: hit.score for hit in INDEX.search("create invoice", 50, {"send_report": 1e9, "create_invoice": 1e9})
    }
    assert found["send_report"] == pytest.approx(MOST_EVIDENCE * plain[0].score)
    assert found["create_invoice"] == pytest.approx((1 + MOST_EVIDENCE) * plain[0].score)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("limit", [1, 3, 5, 10, 50])
def test_the_first_three_fifths_stay_whatever_was_learned(seed: int, limit: int) -> None:
    chosen = random.Random(seed)
    tools = [f"{verb}_{thing}" for thing in THINGS for verb in VERBS]
    words = THINGS + VERBS + ["now", "monthly", "urgent", "again"]
    learned = taught(*((" ".join(chosen.sample(words, 3)), chosen.choice(tools)) for _ in range(300)))
    for _ in range(100):
        query = " ".join(chosen.sample(words, 3))
        before, after = shown(query, limit=limit), shown(query, learned, limit)
        assert len(before) <= len(after) <= limit
        assert len(set(after)) == len(after)
        assert set(before[: limit * 3 // 5]) <= set(after)


def traffic(seed: int, tools: list[str], count: int) -> list[tuple[str, str]]:
    """Queries in words of the callers' own: each thing has a nickname, each tool is asked for with some noise."""
    chosen = random.Random(seed)
    links = []
    for tool in chosen.choices(tools, k=count):
        verb, _, thing = tool.partition("_")
        asked = [chosen.choice([verb, "handle", "do"]), chosen.choice([thing, f"nick{THINGS.index(thing)}"])]
        links.append((" ".join([*asked, chosen.choice(["today", "for ACME", "urgently", "in Berlin"])]), tool))
    return links


def recall(links: list[tuple[str, str]], learned: Learned | None = None) -> float:
    return sum(tool in shown(query, learned) for query, tool in links) / len(links)


@pytest.mark.parametrize("seed", range(8))
def test_learning_finds_used_tools_more_often_and_the_others_as_often_as_before(seed: int) -> None:
    tools = [f"{verb}_{thing}" for thing in THINGS for verb in VERBS]
    random.Random(seed).shuffle(tools)
    used, never = tools[:20], tools[20:]
    learned = taught(*traffic(seed, used, 400))
    later, others = traffic(seed + 100, used, 300), traffic(seed + 200, never, 300)
    assert recall(later, learned) > recall(later) + 0.1
    assert recall(others, learned) >= recall(others)
