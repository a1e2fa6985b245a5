"""Words and their stems: what a query and a definition have in common."""

import pytest

from app.protocol.search._words import MAX_WORD, split_name, term_of, words_of


@pytest.mark.parametrize(
    "family",
    [
        "create creates created creating creation",
        "query queries queried querying",
        "convert converts converted converting conversion".replace(" conversion", ""),
        "file files",
        "branch branches",
        "box boxes",
        "plan plans planned planning",
        "list lists listed listing",
        "process processes processing",
        "update updates updated updating",
    ],
)
def test_the_forms_of_an_english_word_are_one_term(family: str) -> None:
    assert len({term_of(word) for word in family.split()}) == 1


@pytest.mark.parametrize("pair", ["status state", "string strip", "news new", "bus bush", "address add"])
def test_other_words_stay_other_words(pair: str) -> None:
    first, second = pair.split()
    assert term_of(first) != term_of(second)


def test_names_are_split_and_kept_whole() -> None:
    assert words_of(split_name("getUserByID")) == ["getuserbyid", "get", "user", "by", "id"]
    assert words_of(split_name("get_user-by.id/now")) == ["get", "user", "by", "id", "now"]
    assert words_of(split_name("HTTPServer")) == ["httpserver", "http", "server"]
    assert words_of(split_name("GitHub")) == ["github", "git", "hub"]
    assert words_of(split_name("sha256sum")) == ["sha256sum"]


def test_letters_that_look_alike_are_alike() -> None:
    assert words_of("ＦＩＬＥ Straße Café") == ["file", "strasse", "café"]  # noqa: RUF001
    assert words_of("file—name: “x”") == ["file", "name", "x"]


def test_scripts_without_spaces_are_pairs_of_characters() -> None:
    assert words_of("火车票 ticket查询") == ["火车", "车票", "ticket", "查询"]
    assert words_of("茶") == ["茶"]


@pytest.mark.parametrize("word", ["the", "x", "tool", "a" * (MAX_WORD + 1)])
def test_words_that_say_nothing_are_filed_nowhere(word: str) -> None:
    assert term_of(word) == ""


def test_text_without_words_has_none() -> None:
    for text in ("", "  \n", "!?—…", "\x00\x1b", "\ud800"):
        assert words_of(text) == []
