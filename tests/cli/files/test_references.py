"""Secrets that a file names: where they are read from, and what is refused."""

import pytest

from app.cli.files.references import (
    MAX_SECRET_BYTES,
    changed,
    escaped,
    filled,
    has_reference,
    unescaped,
    variable_name,
)
from app.errors import InvalidRequest


def test_environment_files_and_what_is_no_reference(tmp_path):
    (tmp_path / "key").write_text("of a file\r\n")
    environ = {"TOKEN": "of the environment, ${env:OTHER}"}
    assert filled("Bearer ${env:TOKEN}", tmp_path, environ) == "Bearer of the environment, ${env:OTHER}"
    assert filled("${file:key}/${file:" + str(tmp_path / "key") + "}", tmp_path, {}) == "of a file/of a file"
    assert filled("$${env:TOKEN} $TOKEN {x}", tmp_path, environ) == "${env:TOKEN} $TOKEN {x}"
    assert filled("${home}/x", tmp_path, {}) == filled("$${home}/x", tmp_path, {}) == "${home}/x"


@pytest.mark.parametrize("text", ["a ${env:X} $${y} ${", "$${env:X}", "$$${file:a}${env:", "${env:${file:x}}", "$"])
def test_what_is_escaped_is_no_reference_and_what_it_was(text):
    assert not has_reference(escaped(text))
    assert unescaped(escaped(text)) == text
    assert changed({text: [text, 1, None]}, escaped) == {escaped(text): [escaped(text), 1, None]}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("${env:NOPE}", "NOPE is not set"),
        ("${env:EMPTY}", "EMPTY is not set, or is empty"),
        ("${file:nope}", "cannot read"),
        ("${file:a\0b}", "not the name of a file"),  # a traceback, which says where the command is installed
        ("${file:empty}", "is empty"),
        ("${file:large}", "is larger than"),
        ("${NAME}", "a reference is"),
        ("${env:}", "a reference is"),
        ("${env:A B}", "a reference is"),
        ("${env:A", "a reference is"),
        ("${", "a reference is"),
    ],
)
def test_what_is_refused(tmp_path, text, problem):
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "large").write_text("x" * (MAX_SECRET_BYTES + 1))
    with pytest.raises(InvalidRequest, match=problem):
        filled(text, tmp_path, {"EMPTY": ""})


def test_a_variable_that_is_set_may_be_empty_where_empty_means_something(tmp_path):
    assert filled("a${env:EMPTY}", tmp_path, {"EMPTY": ""}, may_be_empty=True) == "a"
    with pytest.raises(InvalidRequest, match=r"NOPE is not set$"):
        filled("${env:NOPE}", tmp_path, {}, may_be_empty=True)


def test_what_looks_like_a_reference():
    assert [has_reference(text) for text in ("${env:A}", "x${file:a}", "$${env:A}", "${A}", "a")] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_names_of_variables():
    assert variable_name("acme", "time", "X-Api-Key") == "ACME_TIME_X_API_KEY"
    assert variable_name("1a", "https://x/") == "_1A_HTTPS_X"
