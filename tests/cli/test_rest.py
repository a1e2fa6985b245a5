"""The commands over REST, as far as they ask nobody: what is refused at once, and the help."""

import json

import httpx2
import pytest

from app import cli
from app.cli import rest


def code_of(words: list[str]) -> int:
    """The exit code, whoever decides on it."""
    try:
        return cli.main(words)
    except SystemExit as ended:
        return int(ended.code or 0)


@pytest.mark.parametrize(
    ("words", "changes", "problem"),
    [
        (["tenants", "list"], {"TRUNKLINE_URL": ""}, "which gateway? Set TRUNKLINE_URL"),
        (["tenants", "list"], {"TRUNKLINE_URL": "ftp://x"}, "is not an http or https URL"),
        (["tenants", "list"], {"TRUNKLINE_KEY": ""}, "there is no key: set TRUNKLINE_KEY"),
        (["tenants", "list"], {"TRUNKLINE_KEY": "two words"}, "TRUNKLINE_KEY does not contain a key"),
        (["tenants", "list"], {"TRUNKLINE_KEY_FILE": "/x"}, "not both"),
        (["tenants", "list", "--key-file", "/nowhere"], {}, "cannot read '/nowhere'"),
        (["tenants", "list"], {"TRUNKLINE_URL": "https://x", "SSL_CERT_FILE": "/nowhere"}, "is SSL_CERT_FILE"),
        (["tenants", "set", "default"], {}, "set what?"),
        (["tenants", "set", "default", "x"], {}, "not of the form name=value"),
        (["tenants", "show", ".."], {}, "is not a name or an id"),
        (["tenants", "show", "default", "more"], {}, "unrecognized arguments"),
        (["tenants", "set", "default", "a=1", "--nonsense"], {}, "unrecognized arguments"),
        (["sessions", "create"], {}, "there is no command 'create'"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_asks_nobody(capsys, monkeypatch, words, changes, problem):
    environ = {"TRUNKLINE_URL": "http://127.0.0.1:1", "TRUNKLINE_KEY": "tlk_x", **changes}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert code_of(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert problem in err
    assert "does not answer" not in err


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999", "http://[::1", "http://127.0.0.1:1/a b"])
def test_an_address_that_cannot_be_one_is_an_error_like_others(capsys, monkeypatch, url):
    monkeypatch.setenv("TRUNKLINE_KEY", "tlk_x")
    assert code_of(["tenants", "list", "--url", url]) == 2  # before anything is dialled
    assert capsys.readouterr().err.splitlines()[-1].startswith("trunkline: ")


def test_a_key_among_the_arguments_is_refused_and_not_repeated(capsys):
    assert code_of(["tenants", "list", "--key", "tlk_secret"]) == 2
    err = capsys.readouterr().err
    assert "set TRUNKLINE_KEY, or give --key-file" in err
    assert "tlk_secret" not in err


@pytest.mark.parametrize(
    "words", [["tenants"], ["backends"], ["keys"], ["issuers"], ["sessions"], ["backends", "set"], ["keys", "create"]]
)
def test_help_has_examples_and_the_exit_codes(capsys, words):
    assert code_of([*words, "--help"]) == 0
    told = capsys.readouterr().out
    assert "trunkline" in told
    assert "Exit codes: 0 done, 1 refused" in told


def test_help_says_how_members_and_secrets_are_given(capsys):
    assert code_of(["backends", "create", "--help"]) == 0
    assert "env.TOKEN=@token.txt" in capsys.readouterr().out


def test_an_address_in_the_open_is_pointed_at(capsys):
    for url, is_open in (("http://gw.example", True), ("https://gw.example", False), ("http://127.0.0.1:1", False)):
        rest._say_which(url)
        assert ("this address is not encrypted" in capsys.readouterr().err) is is_open


ROW = {"id": "a", "sessions": 1, "processes": 1, "cpu_percent": 1.0, "tenant": "t", "resident_bytes": 1}
HUGE, BEFORE = 10**400, "0001-01-01T00:00:00+23:59"
HOSTILE = {
    "errors that are none": (422, {"title": "x", "errors": ["a", 5]}),
    "errors that are no list": (422, {"title": "x", "errors": 5}),
    "a title that is none": (400, {"title": 5, "detail": [7], "hint": {"a": "\x1b"}, "request_id": [1]}),
    "a list that is none": (200, {"items": {"a": 1}}),
    "no list at all": (200, {"items": None}),
    "a list of no objects": (200, {"items": ["a"]}),
    "the end of time": (200, {"items": [{**ROW, "at": BEFORE}], "at": BEFORE}),
    "sizes of no machine": (200, {"items": [{**ROW, "resident_bytes": HUGE, "cpu_percent": HUGE}], "x_bytes": HUGE}),
    "a number of no kind": (200, {"items": [], "total": "x", "silent_nodes": 5}),
    "halves of characters": (200, {"items": [{"id": "\ud800"}], "id": "\ud800", "key": "\ud800"}),
    "a key that steers": (200, {"items": [], "id": "a\x1b[2J", "key": "\x1b[2J\u009b"}),
    "a list without an end": (200, {"items": [], "next_cursor": "again"}),
}  # fmt: skip
DEEP = {"an object in an object": b'{"a":' * 500 + b"1" + b"}" * 500, "lists in lists": b"[" * 100_000 + b"]" * 100_000}


@pytest.mark.parametrize(
    "words",
    [
        ["tenants", "list"],
        ["tenants", "show", "x"],
        ["keys", "create", "--tenant", "x", "--scope", "mcp:connect"],
        ["keys", "rotate", "x", "--tenant", "x"],
        ["sessions", "show", "x", "--tenant", "x"],
        ["top", "--once"],
        ["problems"],
        ["problems", "--tenant", "x", "--json"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("what", [*HOSTILE, *DEEP])
def test_an_answer_of_no_gateway_is_an_error_like_others(capsys, monkeypatch, words, what):
    status, body = (200, DEEP[what]) if what in DEEP else (HOSTILE[what][0], json.dumps(HOSTILE[what][1]).encode())
    answer = httpx2.Response(status, content=body, headers={"Content-Type": "application/json"})
    monkeypatch.setattr(httpx2.Client, "request", lambda *_, **__: answer)
    monkeypatch.setattr("app.cli.top.top.MEASURE_S", 0.0)
    monkeypatch.setenv("TRUNKLINE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("TRUNKLINE_KEY", "tlk_x")
    assert code_of(words) in (0, 1)
    out, err = capsys.readouterr()
    assert not {"\x1b", "\u009b", "\ud800"} & set(out + err)
