"""`apply`, `plan` and `export` as far as they ask nobody: help and wrong usage."""

import pytest

from tests.cli.test_rest import code_of


@pytest.mark.parametrize("command", ["apply", "plan"])
def test_help_says_what_the_exit_codes_mean(capsys, command):
    assert code_of([command, "--help"]) == 0
    assert (
        "With --check: 0 nothing differs, 2 something differs, 1 an error of whatever kind." in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["apply"], 2),
        (["apply", "--check"], 1),
        (["apply", "--check", "-f", "/nowhere"], 1),
        (["apply", "-f", "/nowhere"], 2),
        (["apply", "/nowhere"], 2),
        (["plan", "/nowhere"], 2),
        (["apply", "--check", "--nonsense"], 1),
        (["apply", "--check", "--dry-run", "-f", "x"], 1),
        (["plan", "--yes", "-f", "x"], 2),
        (["export", "--tenant", "BAD"], 2),
    ],
)
def test_with_check_exit_code_2_never_means_an_error(capsys, monkeypatch, words, code):
    monkeypatch.setenv("TRUNKLINE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("TRUNKLINE_KEY", "tlk_x")
    assert code_of(words) == code
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("command", ["apply", "plan"])
def test_a_file_may_stand_without_an_option(capsys, monkeypatch, tmp_path, command):
    monkeypatch.setenv("TRUNKLINE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("TRUNKLINE_KEY", "tlk_x")
    (tmp_path / "g.yaml").write_text("tenants: {acme: {}}")
    assert code_of([command, str(tmp_path / "g.yaml")]) == 1
    assert "does not answer" in capsys.readouterr().err


def test_a_gateway_that_does_not_answer_is_an_error_for_check(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("TRUNKLINE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("TRUNKLINE_KEY", "tlk_x")
    (tmp_path / "g.yaml").write_text("tenants: {acme: {}}")
    assert code_of(["apply", "--check", "-f", str(tmp_path / "g.yaml")]) == 1
    assert "does not answer" in capsys.readouterr().err
