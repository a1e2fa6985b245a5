"""Words and sentences as a model reads them."""

from app.protocol.approval._words import key, plain, sentences, stem, words


def test_a_plain_text_has_nothing_hidden() -> None:
    assert plain("\uff21l\u200bways") == "Always"


def test_words_are_in_lower_case() -> None:
    assert words("Don't STOP, read_file 2") == ["dont", "stop", "read", "file", "2"]


def test_sentences_end_at_stops_lists_and_paragraphs() -> None:
    text = "One. Two: three\nof three\n- four\n\nfive"
    assert list(sentences(text)) == ["One.", "Two", "three\nof three", "- four", "five"]


def test_spelling_does_not_count_in_names() -> None:
    assert key("Read-File") == key("readFile") == key("r\u0435ad_file") == "readfile"


def test_endings_do_not_make_a_new_word() -> None:
    assert {stem(each) for each in ("send", "sends", "sending")} == {"send"}
