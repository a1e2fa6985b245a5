"""survey: what a Redis says of itself, what it may refuse to say, and that nothing stays open."""

import anyio
import pytest
from redis.exceptions import ResponseError

from app.cluster.redis.survey import in_one_line, survey
from app.errors import RoutesUnavailable
from tests.redis_servers import RedisServer


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis may have to wait for a processor."""
    monkeypatch.setattr("app.cluster.redis.survey.WITHIN_S", 60.0)


async def test_a_redis_says_version_policy_time_and_how_quick_it_is(redis_server: RedisServer):
    found = await survey(redis_server.url)
    assert found.version >= (6, 2)
    assert found.policy == "noeviction"
    assert abs(found.ahead_s) < 1
    assert 0 < found.latency_s < 1
    with redis_server.client() as client, anyio.fail_after(30):
        while len(client.client_list()) > 1:  # that client alone
            await anyio.sleep(0.01)


async def test_a_redis_that_does_not_tell_its_policy_is_asked_for_the_rest():
    with RedisServer("--rename-command", "CONFIG", "") as server:
        found = await survey(server.url)
    assert found.policy is None
    assert found.version >= (6, 2)


async def test_a_redis_that_refuses_scripts_is_not_usable():
    with RedisServer("--rename-command", "EVAL", "") as server, pytest.raises(RoutesUnavailable, match="unknown"):
        await survey(server.url)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TimeoutError(), "it does not answer"),
        (ResponseError(f"no room. script: {'5e' * 20}, on @user_script:28."), "no room."),
        (
            ResponseError(f"ERR Error running script (call to f_{'5e' * 20}): @user_script:5: -OOM no room."),
            "OOM no room.",
        ),
        (ConnectionError(), "ConnectionError"),
        (ConnectionError("Error 111\nconnecting"), "Error 111 connecting"),
    ],
)
def test_an_error_without_a_text_has_one(error, words):
    assert in_one_line(error) == words


async def test_no_error_repeats_the_password():
    with RedisServer("--requirepass", "other") as server, pytest.raises(RoutesUnavailable) as caught:
        await survey(server.url.replace("redis://", "redis://:hunter2@"))
    assert "hunter2" not in str(caught.value)
