"""`trunkline calls` against a real gateway's answers."""

import json

import httpx2
import pytest

from app.cli.parser import parse
from app.errors import InvalidRequest

CALL = {
    "id": "1", "at": "2026-01-01T00:00:00Z", "tool": "echo\x1b[2J", "outcome": "ok", "duration_ms": 1.5, "backend": "b",
    "subject": "alice", "client_name": "c", "method": "tools/call", "session": "s", "request_id": "r",
}  # fmt: skip


@pytest.fixture(autouse=True)
def gateway(monkeypatch):
    monkeypatch.setenv("TRUNKLINE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("TRUNKLINE_KEY", "tlk_x")


def run(monkeypatch, *words: str, pages: list[list[object]]) -> list[str]:
    asked: list[str] = []

    def answer(_: object, method: str, url: str, **given: object) -> httpx2.Response:
        asked.append(f"{url} {given}")
        items = pages.pop(0) if pages else []
        return httpx2.Response(200, json={"items": items, "next_cursor": None, "silent_nodes": ["n9"]})

    monkeypatch.setattr(httpx2.Client, "request", answer)
    options = parse(["calls", *words])
    assert options.run(options) == 0
    return asked


def test_a_table_that_a_terminal_can_show(monkeypatch, capsys):
    (asked,) = run(monkeypatch, "--tenant", "acme", "outcome=error", "min_ms=5", pages=[[CALL]])
    assert "/tenants/acme/calls" in asked
    shown = capsys.readouterr()
    assert "alice" in shown.out
    assert "\x1b" not in shown.out
    assert "n9" in shown.err


def test_those_of_all_tenants_and_of_one_client(monkeypatch, capsys):
    (asked,) = run(monkeypatch, "--tenant", "-", "--client", "cursor", pages=[[{**CALL, "tenant": "acme"}]])
    assert "/tenants/-/calls" in asked
    assert "'client_name': 'cursor'" in asked
    assert capsys.readouterr().out.split()[:2] == ["at", "tenant"]


def test_sums(monkeypatch, capsys):
    group = {
        "name": "echo",
        "within": "b",
        "count": 3,
        "errors": 1,
        "p50_ms": 1.0,
        "p99_ms": 2.0,
        "bytes_in": 1,
        "bytes_out": 2,
    }
    (asked,) = run(monkeypatch, "--by", "tool", "--json", "--limit", "1", pages=[[group, group]])
    assert "calls:grouped" in asked
    assert "limit" not in asked
    shown = capsys.readouterr()
    assert json.loads(shown.out) == [group]
    assert "these are the first 1 of 2; use --limit for more" in shown.err


@pytest.mark.parametrize("word", ["limit=3", "cursor=abc"])
def test_how_many_is_no_filter(word):
    options = parse(["calls", word])
    with pytest.raises(InvalidRequest, match="--limit NUMBER"):
        options.run(options)


def test_that_there_are_more_is_said(monkeypatch, capsys):
    page = {"items": [CALL], "total": 7, "next_cursor": "abc", "silent_nodes": []}
    monkeypatch.setattr(httpx2.Client, "request", lambda *_, **__: httpx2.Response(200, json=page))
    options = parse(["calls", "--limit", "1"])
    assert options.run(options) == 0
    assert "these are the first 1 of 7; use --limit for more" in capsys.readouterr().err


def test_nothing_is_said_to_be_nothing(monkeypatch, capsys):
    run(monkeypatch, pages=[[]])
    assert "there are no calls" in capsys.readouterr().err
