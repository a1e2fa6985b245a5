"""`trunkline problems`: each with what to do, and whether there is one as the exit code."""

import json

import httpx2
import pytest

from app.cli.parser import parse

PROBLEM = {
    "kind": "breaker_open", "severity": "critical", "tenant": "acme", "words": "It ends.\x1b[2J", "do": "Repair it.",
    "about": {"kind": "backend", "name": "echo"}, "since": "2026-01-01T00:00:00Z", "nodes": ["n1"], "see": None,
}  # fmt: skip


@pytest.fixture(autouse=True)
def gateway(monkeypatch):
    monkeypatch.setenv("TRUNKLINE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("TRUNKLINE_KEY", "tlk_x")


def run(monkeypatch, *words: str, items: list[object], silent: tuple[str, ...] = ()) -> tuple[int, list[str]]:
    asked: list[str] = []

    def answer(_: object, method: str, url: str, **__: object) -> httpx2.Response:
        asked.append(url)
        return httpx2.Response(200, json={"items": items, "total": len(items), "silent_nodes": [*silent]})

    monkeypatch.setattr(httpx2.Client, "request", answer)
    options = parse(["problems", *words])
    return options.run(options), asked


def test_a_problem_is_printed_with_its_cause_and_what_to_do(monkeypatch, capsys):
    code, asked = run(monkeypatch, items=[PROBLEM], silent=("n2",))
    out, err = capsys.readouterr()
    assert (code, asked) == (1, ["http://127.0.0.1:1/api/v1/problems"])
    assert out.splitlines() == [
        "critical: It ends.\\x1b[2J",
        "  breaker_open, tenant acme, since 2026-01-01T00:00:00Z, on n1",
        "  Do: Repair it.",
    ]
    assert "silent_nodes: n2" in err


def test_without_one_it_says_so_and_succeeds(monkeypatch, capsys):
    code, asked = run(monkeypatch, "--tenant", "acme", items=[])
    assert (code, asked) == (0, ["http://127.0.0.1:1/api/v1/tenants/acme/problems"])
    out, err = capsys.readouterr()
    assert out == ""
    assert "nothing is wrong" in err


def test_as_json_it_is_what_the_gateway_has_said(monkeypatch, capsys):
    assert run(monkeypatch, "--json", items=[PROBLEM])[0] == 1
    assert json.loads(capsys.readouterr().out) == [PROBLEM]
