"""What is wrong with a command is said, and what is right is let through."""

import argparse
import re
from collections.abc import Mapping

import pytest

from app.cli.parser import make_parser
from tests.documents.command_lines import ROOT, commands_of, problems_of


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("trunkline backends lst --tenant acme", "did you mean `list`?"),
        ("trunkline serve --prot 80", "did you mean `--port`?"),
        ("KEY=$(trunkline keys create --tenant acme --scoop mcp:connect)", "--scoop"),
        ("docker run --rm -v trunkline:/data trunkline serve --dmo", "--dmo"),
        ("docker compose exec gateway-1 trunkline keys create --tenant default", "--scope"),
        ("scripts/tset", "there is no scripts/tset"),
        ("scripts/test --quik", "has no --quik"),
        (".venv/bin/python -m pytest -n 0 tests/nowhere", "there is no tests/nowhere"),
        (".venv/bin/python -m tests.nothing", "there is no module"),
        (".venv/bin/python bench/console.py --ronds 2", "has no --ronds"),
        ("cp deploy/systemd/trunkline.servce /etc", "there is no deploy/systemd/trunkline.servce"),
        ("trnkline version", "nobody knows 'trnkline'"),
        ("echo 'open", "unexpected EOF"),
    ],
)
def test_a_wrong_command_is_noticed(script: str, words: str):
    assert words in "\n".join(problems_of(script))


@pytest.mark.parametrize(
    "script",
    [
        "trunkline keys revoke $ID --tenant T   # for good",
        "until curl -fsS http://127.0.0.1:8080/readyz 2>/dev/null; do sleep 0.5; done",
        "cat > x <<END\nnot a command\nEND\ntrunkline version",
        "docker build -t trunkline . && docker run trunkline serve --demo",
        "post() { curl -d \"$1\" x; }\npost '{}'",
    ],
)
def test_a_right_one_is_not(script: str):
    assert problems_of(script) == []


def test_a_script_is_taken_apart_into_its_commands():
    script = "a 'b c' > d | e 2>/dev/null &&\n  f \\\n g # h\nX=1 i \"$(j k)\" &"
    assert sorted(commands_of(script)) == [["a", "b c"], ["e"], ["f", "g"], ["i", "SUBSTITUTED"], ["j", "k"]]


def test_the_commands_that_hints_name_are_there():
    """Those in the texts of the program itself: of errors, problems, checks and pages."""
    found, parser = 0, make_parser()
    for file in [*(ROOT / "app").rglob("*.py"), *(ROOT / "app").rglob("*.html")]:
        text = re.sub(r'"\s*\n\s*f?"', "", file.read_text())  # a text over several lines
        for named in re.findall(r"`trunkline ([a-z][^`\n]+)`", text):
            verbs, words = subcommands(parser), named.split()
            while verbs and words and words[0] != "...":
                assert words[0] in verbs, f"{file}: trunkline {named}"
                verbs, found = subcommands(verbs[words.pop(0)]), found + 1
    assert found > 30


def subcommands(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    return next((each.choices for each in parser._actions if isinstance(each, argparse._SubParsersAction)), {})
