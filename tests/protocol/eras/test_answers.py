"""Answers as the other era has them; -32042 of 2025-11-25 (server/elicitation, "URL Elicitation Required Error")."""

import json
from typing import Any

import msgspec
import pytest

from app.protocol.eras.answers import CACHEABLE, MAX_URLS, complete, is_url_required, required_urls, tagged, was_opened
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
        {"elicitations": [{"mode": "url", "url": 7}]},
        {"elicitations": [url()] * (MAX_URLS + 1)},
    ],
)
def test_what_names_no_urls_asks_nothing(data: Any) -> None:
    assert read(refusal(data)) == []


@pytest.mark.parametrize("odd", [7, None, {"mode": "form"}, {"mode": "url", "url": 7}])
def test_an_odd_item_takes_away_no_url_beside_it(odd: Any) -> None:
    assert [each["url"] for each in read(refusal({"elicitations": [url(1), odd, url(2)]}))] == [
        "https://1.example",
        "https://2.example",
    ]


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


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value).encode())


def test_a_result_gets_what_the_revision_adds() -> None:
    result = json.loads(complete(raw({"tools": [], "_meta": {"k": 1}}), "tools/list", raw({"name": "s"})))
    assert result == {
        "tools": [],
        "resultType": "complete",
        "_meta": {"k": 1, "io.modelcontextprotocol/serverInfo": {"name": "s"}},
        "ttlMs": 0,
        "cacheScope": "private",
    }


def test_what_a_result_says_itself_is_kept() -> None:
    own = {"resultType": "task", "ttlMs": 9, "cacheScope": "public", "_meta": {"io.modelcontextprotocol/serverInfo": 1}}
    assert json.loads(complete(raw(own), "tools/list", raw({}))) == own


@pytest.mark.parametrize("method", ["tools/call", "prompts/get", "completion/complete", *sorted(CACHEABLE)])
def test_only_what_may_be_cached_says_for_how_long(method: str) -> None:
    result = json.loads(complete(raw({}), method, None))
    assert ("ttlMs" in result) == ("cacheScope" in result) == (method in CACHEABLE)


def test_a_tag_replaces_another_and_keeps_the_rest() -> None:
    key = "io.modelcontextprotocol/subscriptionId"
    params = tagged({"uri": raw("a"), "_meta": raw({key: 1, "k": 2})}, b'"mine"')
    assert json.loads(msgspec.json.encode(params)) == {"uri": "a", "_meta": {key: "mine", "k": 2}}
    assert json.loads(msgspec.json.encode(tagged(None, b"7"))) == {"_meta": {key: 7}}
