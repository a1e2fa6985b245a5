"""A sessionless server's own `requestState`: sealed for its client, and given back to the server as it was."""

import json
from typing import Any

import msgspec
import pytest

from app.auth.sealing import Sealer
from app.domain import Principal
from app.errors import StateRefused
from app.protocol.jsonrpc import Response
from app.sessions.sessionless._request_state import RequestStateSeal
from app.sessions.sessionless.pooled_sessions import Caller
from app.sessions.sessionless.requests import SessionlessRequests
from tests.sessions.sessionless.client import ACCEPT, TEXT, Client, start
from tests.sessions.sessionless.servers import FakeServer, ServerPool, sessionless_server

QUESTION = {"q1": {"method": "elicitation/create", "params": {"message": "who?"}}}
STATE = "user=1; step=2; \u00e9\n"


@pytest.fixture
def pool() -> ServerPool:
    return ServerPool(sessionless_server)


@pytest.fixture
def client(sessionless: SessionlessRequests, principal: Principal) -> Client:
    return Client(sessionless, principal, {"elicitation": {}})


async def asked(client: Client, pool: ServerPool, state: Any = STATE) -> tuple[dict[str, Any], FakeServer]:
    """What the client gets where the server asks for input."""
    sent, server = await start(client, pool)
    server.answer({"resultType": "input_required", "inputRequests": QUESTION, "requestState": state})
    return await sent.outcome(), server


async def retry(client: Client, state: Any) -> Any:
    return await client.send(name="x", inputResponses={"q1": ACCEPT}, requestState=state)


@pytest.mark.parametrize("state", [STATE, "", "x" * 100_000, {"not": ["a", "string"]}, None])
async def test_the_server_gets_its_state_back_as_it_wrote_it(client: Client, pool: ServerPool, state: Any) -> None:
    result, server = await asked(client, pool, state)
    assert result["inputRequests"] == QUESTION
    assert "user=1" not in json.dumps(result)
    for _ in range(2):  # how often it is good is the server's affair
        sent = await retry(client, result["requestState"])
        params = server.sent[-1]["params"]
        assert (params["requestState"], params["inputResponses"]) == (state, {"q1": ACCEPT})
        server.answer(TEXT)
        assert (await sent.outcome())["content"] == TEXT["content"]


async def test_it_is_worth_nothing_to_anybody_else_or_anywhere_else(
    client: Client, pool: ServerPool, sessionless: SessionlessRequests, principal: Principal
) -> None:
    result, server = await asked(client, pool)
    before = len(server.sent_with("tools/call"))
    stranger = Client(sessionless, Principal("acme", "key", "k2", principal.scopes), client.capabilities)
    with pytest.raises(StateRefused) as caught:
        await retry(stranger, result["requestState"])
    assert caught.value.reason == "state_invalid"
    assert len(server.sent_with("tools/call")) == before
    assert all(not other.sent_with("tools/call") for other in pool.servers if other is not server)


@pytest.mark.parametrize("state", ["", "x", STATE, 7, None, {}])
async def test_what_no_server_has_said_does_not_reach_one(client: Client, pool: ServerPool, state: Any) -> None:
    _, server = await asked(client, pool)
    before = len(server.sent_with("tools/call"))
    with pytest.raises(StateRefused):
        await retry(client, state)
    assert len(server.sent_with("tools/call")) == before


async def test_a_result_that_asks_for_nothing_passes_as_it_is(client: Client, pool: ServerPool) -> None:
    sent, server = await start(client, pool)
    server.answer({**TEXT, "resultType": "complete", "requestState": "input_required"})
    assert (await sent.outcome())["requestState"] == "input_required"


def test_states_open_on_every_node_and_for_one_backend_of_one_tenant_only() -> None:
    here, there = (RequestStateSeal(Sealer(b"k" * 32)) for _ in range(2))
    stranger = RequestStateSeal(Sealer(b"x" * 32))
    caller = Caller(Principal("acme", "https://idp", "a|b", frozenset()), "acme", "echo")
    answer = Response(b"1", "result", msgspec.Raw(b'{"resultType":"input_required","requestState":"s"}'))
    params = json.loads(bytes(here.sealed(caller, answer).value))
    given = {"requestState": msgspec.Raw(json.dumps(params["requestState"]).encode())}
    assert there.opened(caller, given) == {"requestState": msgspec.Raw(b'"s"')}
    others = [
        caller._replace(backend="other"),
        caller._replace(tenant="zenith"),
        caller._replace(principal=Principal("acme", "https://idp|a", "b", frozenset())),
    ]
    for other in others:
        with pytest.raises(StateRefused):
            here.opened(other, given)
    with pytest.raises(StateRefused):
        stranger.opened(caller, given)
    assert here.opened(caller, None) is None
