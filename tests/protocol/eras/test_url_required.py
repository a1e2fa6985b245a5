"""-32042 of 2025-11-25, read (server/elicitation, "URL Elicitation Required Error")."""

import json
from typing import Any

import msgspec
import pytest

from app.protocol.eras.url_required import MAX_URLS, is_url_required, required_urls, was_opened
from app.protocol.jsonrpc import Response


def refusal(data: Any, code: int = -32042) -> Response:
    value = {"code": code, "message": "sign in first", "data": data}
    return Response(b"1", "error", msgspec.Raw(json.dumps(value).encode()))


def url(number: int = 1) -> dict[str, Any]:
    return {"mode": "url", "url": f"https://{number}.example", "message": "here", "elicitationId": "e"}


def read(response: Response) -> Any:
    return [{name: json.loads(bytes(value)) for name, value in params.items()} for params in required_urls(response)]


def test_each_url_is_a_question_without_its_id() -> None:
    asked = {"mode": "url", "url": "https://1.example", "message": "here"}
    assert read(refusal({"elicitations": [url(1), url(2)]})) == [asked, {**asked, "url": "https://2.example"}]


@pytest.mark.parametrize(
    "data",
    [
        None,
        7,
        {},
        {"elicitations": None},
        {"elicitations": 7},
        {"elicitations": []},
        {"elicitations": [7]},
        {"elicitations": [{"mode": "form"}]},
        {"elicitations": [url(), {"mode": "url", "url": 7}]},
        {"elicitations": [url()] * (MAX_URLS + 1)},
    ],
)
def test_what_names_no_urls_asks_nothing(data: Any) -> None:
    assert read(refusal(data)) == []


def test_only_the_error_with_that_code_is_one() -> None:
    assert is_url_required(refusal(None))
    assert not is_url_required(refusal({"elicitations": [url()]}, code=-32602))
    assert not is_url_required(Response(b"1", "result", msgspec.Raw(b'{"code":-32042}')))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ('{"action":"accept"}', True),
        ('{"action":"decline"}', False),
        ('{"action":"cancel"}', False),
        ('{"action":"?"}', None),
        ('{"action":7}', None),
        ("{}", None),
        ('"accept"', None),
        ("null", None),
    ],
)
def test_an_answer_says_whether_the_url_was_opened(answer: str, said: bool | None) -> None:
    assert was_opened(msgspec.Raw(answer.encode())) is said
