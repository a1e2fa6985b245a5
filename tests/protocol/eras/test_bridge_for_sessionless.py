"""Bridge between a client of 2026-07-28 and a server of it, where a toolset is between them: nothing is lost."""

from typing import Any

import msgspec
import pytest

from app.protocol.eras.bridge import Bridge
from app.protocol.eras.input_required import INPUT_KEY, MAX_KEY, without_key
from app.protocol.jsonrpc import encoded
from tests.protocol.eras.talk import SAY, Talk, one

MISSING = {"code": -32021, "message": "no", "data": {"requiredCapabilities": {"sampling": {}}}}


@pytest.fixture
def talk() -> Talk:
    talk = Talk()
    talk.bridge = Bridge(for_sessionless=True)
    talk.session(id=1, method="initialize", params={"capabilities": {"elicitation": {}}})
    talk.server(id=1, result={"supportedVersions": ["2026-07-28"], "capabilities": {}})
    return talk


def test_a_missing_capability_stays_what_it_is(talk: Talk) -> None:
    talk.call(5)
    assert one("session", talk.server(id=5, error=MISSING))["error"] == MISSING
    usual = Talk().opened()
    usual.call(5)
    assert one("session", usual.server(id=5, error=MISSING))["error"]["code"] == -32603


def test_a_question_comes_with_the_key_of_its_server(talk: Talk) -> None:
    talk.call(5)
    params = one("session", talk.asks(5, user_name=SAY))["params"]
    assert params["_meta"] == {INPUT_KEY: "user_name"}
    usual = Talk().opened()
    usual.call(5)
    assert "_meta" not in one("session", usual.asks(5, user_name=SAY))["params"]


@pytest.mark.parametrize("result", [{}, {"supportedVersions": ["2025-11-25"]}, []])
def test_a_server_that_answers_everything_is_none_of_this_revision(result: Any) -> None:
    talk = Talk()
    talk.bridge = Bridge(for_sessionless=True)
    talk.session(id=1, method="initialize", params={})
    assert "2026-07-28" in one("session", talk.server(id=1, result=result))["error"]["message"]


@pytest.mark.parametrize(
    ("meta", "key", "left"),
    [
        ({INPUT_KEY: "a"}, "a", None),
        ({INPUT_KEY: "a", "b": 1}, "a", {"b": 1}),
        ({INPUT_KEY: ""}, None, None),
        ({INPUT_KEY: 7}, None, None),
        ({INPUT_KEY: "x" * (MAX_KEY + 1)}, None, None),
        ({"b": 1}, None, {"b": 1}),
    ],
)
def test_a_key_is_for_the_gateway_and_not_for_the_client(meta: Any, key: str | None, left: Any) -> None:
    params, found = without_key({"message": encoded("?"), "_meta": encoded(meta)})
    assert found == key
    shown = {name: msgspec.json.decode(value) for name, value in params.items()}
    assert shown == {"message": "?", **({} if left is None else {"_meta": left})}
