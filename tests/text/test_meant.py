"""Whoever mistypes a name is told what was probably meant."""

from app.text.meant import did_you_mean, nearest


def test_what_is_like_nothing_has_no_suggestion() -> None:
    assert nearest("frobnicate", ["list", "show"]) == "" == did_you_mean("frobnicate", ["list", "show"])


def test_another_word_for_the_same_is_known_where_that_is() -> None:
    assert nearest("get", ["set", "show"]) == "show"
    assert nearest("get", ["set", "list"]) == "set"
