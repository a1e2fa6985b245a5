"""What a query finds, in which order, and what is too much."""

import itertools
import random
from typing import Any

import pytest

from app.protocol.search import index as index_module
from app.protocol.search._words import MAX_QUERY
from app.protocol.search.documents import Definition, Document, Source
from app.protocol.search.index import MAX_LIMIT, ToolIndex

FILES = Source("filesystem", None, "Reads and writes files on this machine")
GITHUB = Source("github", "GitHub", "Repositories, issues and pull requests")
WEATHER = Source("weather")


def path(description: str) -> dict[str, object]:
    return {"type": "object", "properties": {"path": {"type": "string", "description": description}}}


def document(key: str, source: Source, name: str, description: str = "", **more: Any) -> Document:
    return Document(key, source, Definition(name, description=description, **more))


DOCUMENTS = [
    document("read", FILES, "read_file", "Returns the contents of a file", input_schema=path("of the file")),
    document("write", FILES, "write_file", "Creates a file or overwrites it", input_schema=path("target")),
    document("tree", FILES, "directory_tree", "A recursive view of directories as JSON"),
    document("move", FILES, "move_file", "Moves or renames files and directories"),
    document("issue", GITHUB, "createIssue", "Opens a new issue in a repository"),
    document("issues", GITHUB, "listIssues", "Issues of a repository, by state and label"),
    document("pull", GITHUB, "createPullRequest", "Opens a pull request from a branch"),
    document("forecast", WEATHER, "get_forecast", "Weather of the next days for a city", title="Forecast"),
    document("refunds", Source("handbook"), "refunds", "How refunds over 500 are approved", kind="guide"),
]
INDEX = ToolIndex(DOCUMENTS)


def ids(query: str, limit: int = 5, index: ToolIndex = INDEX) -> list[str]:
    return [hit.id for hit in index.search(query, limit)]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("read a file", "read"),
        ("create a github issue", "issue"),
        ("list the issues with a label", "issues"),
        ("merge my branch: create pull request", "pull"),
        ("will it rain in Berlin? weather", "forecast"),
        ("temperature tomorrow", "forecast"),
        ("relocate a document to another folder", "move"),
        ("show nested folders", "tree"),
        ("save text to disk as file", "write"),
        ("createIssue", "issue"),
        ("CREATE_ISSUE", "issue"),
        ("guide about refund approval", "refunds"),
    ],
)
def test_the_tool_that_is_meant_comes_first(query: str, first: str) -> None:
    assert ids(query)[0] == first


def test_the_name_of_a_server_finds_its_tools() -> None:
    assert set(ids("github")) == {"issue", "issues", "pull"}


@pytest.mark.parametrize("query", ["", "   ", "the tool of the server", "?!", "zzzz", "\ud800", "a" * 5_000])
def test_a_query_that_says_nothing_finds_nothing(query: str) -> None:
    assert INDEX.search(query) == []


def test_an_empty_index_finds_nothing() -> None:
    assert ToolIndex([]).search("file") == []


def test_scores_fall() -> None:
    scores = [hit.score for hit in INDEX.search("create a file or an issue", 50)]
    assert scores == sorted(scores, reverse=True)
    assert scores[-1] > 0


@pytest.mark.parametrize(("limit", "found"), [(1, 1), (3, 3), (0, 1), (-5, 1), (50, 9), (10**9, 9)])
def test_a_limit_is_brought_into_its_range(limit: int, found: int) -> None:
    assert len(ids("file issue request weather refund", limit)) == found


def test_no_answer_is_longer_than_the_largest_limit() -> None:
    index = ToolIndex([document(str(each), FILES, "same") for each in range(200)])
    assert ids("same", 1000, index) == [str(each) for each in range(MAX_LIMIT)]


def test_equal_documents_stay_in_order() -> None:
    index = ToolIndex([document(each, FILES, "same") for each in "cab"])
    assert ids("same", 3, index) == ["c", "a", "b"]
    assert ids("same", 2, index) == ["c", "a"]


def test_the_order_of_the_words_and_of_the_documents_changes_no_score() -> None:
    seeded = random.Random(7)
    for _ in range(20):
        shuffled = seeded.sample(DOCUMENTS, len(DOCUMENTS))
        again = {
            hit.id: pytest.approx(hit.score) for hit in ToolIndex(shuffled).search("create file issue weather", 50)
        }
        assert {hit.id: hit.score for hit in INDEX.search("weather issue file create", 50)} == again


def test_a_query_may_be_asked_again() -> None:
    assert all(INDEX.search("issues of a repository") == INDEX.search("issues of a repository") for _ in range(3))


def test_two_documents_with_one_id_are_refused() -> None:
    with pytest.raises(ValueError, match="same id"):
        ToolIndex([DOCUMENTS[0], DOCUMENTS[0]])


def test_a_long_description_does_not_drown_the_others() -> None:
    wordy = document("wordy", FILES, "misc", " ".join(f"file read weather issue w{n}" for n in range(50)))
    index = ToolIndex([*DOCUMENTS, wordy])
    assert [ids(query, 1, index) for query in ("read file", "weather forecast", "create issue")] == [
        ["read"], ["forecast"], ["issue"],
    ]  # fmt: skip


def test_documents_over_the_limit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "MAX_DOCUMENTS", 4)
    index = ToolIndex(DOCUMENTS)
    assert (len(index), index.left_out) == (4, 5)
    assert ids("github issue", 5, index) == []
    assert "4 documents" in repr(index)
    assert "5 left out" in repr(index)


def test_what_is_over_the_length_of_a_query_is_not_read() -> None:
    assert ids("zz " * MAX_QUERY + "weather") == []
    many = " ".join("".join(letters) for letters in itertools.islice(itertools.product("qxz", repeat=5), 100))
    assert ids(f"{many} weather") == []
    assert ids(f"weather {many}") == ["forecast"]


def test_a_word_that_nearly_all_have_finds_the_best_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "DOCUMENTS_OF_A_TERM", 2)
    described = [document(str(each), WEATHER, "x", "file " + "word " * each) for each in range(9, 1, -1)]
    index = ToolIndex([*described, document("named", WEATHER, "file")])
    assert ids("file", 5, index) == ["named", "2"]


def test_weights_that_are_remembered_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "MAX_WEIGHED", 10)
    index = ToolIndex([Document(f"{n}", Source("any"), Definition(f"{n}", None, f"common word{n}")) for n in range(8)])
    for n in range(8):
        assert index.search(f"word{n}")[0].id == f"{n}"
        assert len(index.search("common", 50)) == 8
    assert sum(map(len, index._impacts.values())) <= 10


def test_a_search_can_be_interrupted_between_its_words() -> None:
    index = ToolIndex([Document("1", Source("any"), Definition("one", None, "alpha beta gamma"))])
    work = index.searching("alpha beta gamma")
    assert len(list(work)) >= 3
