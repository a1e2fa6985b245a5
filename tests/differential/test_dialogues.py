"""What an official client and a server say to each other is the same through the gateway as without.

Each server is spoken to directly by the client of its own era, then through the gateway by the clients of both; each
dialogue is written down at both ends (`recording.py`), and compared message by message, in both directions. What may
differ is `allowed.py`, and nothing else.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from tests.differential.allowed import COALESCED, Pair
from tests.differential.comparing import differences
from tests.differential.recording import TEE, Dialogue, recorded_client
from tests.differential.scripts import LEVEL, SERVERS, Person, Server
from tests.integration.gateway import Endpoint, Gateway

ERAS = ("legacy", "sessionless")
ACCEPTS = {
    "both": "application/json, text/event-stream",
    "json": "application/json",
    "events": "text/event-stream",
}
INITIALIZE_S = 300  # a tenth of it is how long a slow start may take before the gateway speaks in the older era
OFTEN = {"conformance"}  # without --long: it starts in no time

pytestmark = pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")


class Place:
    """Where a server works, and where its lines are written down; the same for all dialogues of a server."""

    def __init__(self, server: Server, directory: Path) -> None:
        self.server, self.work, self._journals = server, directory / "work", directory / "journals"
        self._count = 0

    def dialogue(self) -> Dialogue:
        """A new one, with nothing left of the last."""
        self.work.mkdir(parents=True, exist_ok=True)
        for file in self.work.iterdir():
            file.unlink()
        self._count += 1
        journals = self._journals / str(self._count)
        journals.mkdir(parents=True)
        return Dialogue(journals)

    def command(self, dialogue: Dialogue, era: str) -> list[str]:
        return [*TEE, str(dialogue.journals), *self.server.command(era, self.work)]


async def talk(
    place: Place,
    dialogue: Dialogue,
    era: str,
    transport: AbstractAsyncContextManager[Any],
    *,
    awaited: Mapping[str, Mapping[str, int]],
    gives_up: bool = True,
) -> None:
    """All that a client of this era says to the server. In each step it waits for so many messages of the server."""
    options = {"mode": "legacy"} if era == "legacy" else {"mode": "auto", "log_level": LEVEL}
    async with recorded_client(transport, dialogue, **options, **Person(place.work).callbacks) as client:
        await dialogue.has_heard(awaited.get("opening", {}), 0)
        for step in place.server.says(era, place.work):
            if gives_up or not step.gives_up:
                await dialogue.step(step.name, partial(step.act, client, dialogue), awaited.get(step.name, {}))


async def directly(place: Place, era: str) -> Dialogue:
    dialogue = place.dialogue()
    command, *arguments = place.command(dialogue, era)
    server = StdioServerParameters(command=command, args=arguments, env=place.server.env(place.work))
    await talk(place, dialogue, era, stdio_client(server), awaited={"opening": place.server.opening})
    return dialogue


@asynccontextmanager
async def _over_http(endpoint: Endpoint, accept: str) -> AsyncIterator[Any]:
    async def accepts(request: httpx2.Request) -> None:
        if request.method == "POST":
            request.headers["Accept"] = accept

    hooks = {"request": [accepts]}
    async with (
        httpx2.AsyncClient(headers=endpoint.headers, timeout=120, event_hooks=hooks) as http,
        streamable_http_client(endpoint.mcp, http_client=http) as streams,
    ):
        yield streams


async def through(gateway: Gateway, place: Place, pair: Pair, expected: Dialogue) -> Dialogue:
    dialogue = place.dialogue()
    command = place.command(dialogue, pair.server)
    endpoint = gateway.endpoint(command, env=place.server.env(place.work), timeouts={"initialize_s": INITIALIZE_S})
    transport = _over_http(endpoint, ACCEPTS[pair.accept])
    # The client closes while such a call is open: it bears the end of a stream then, but no JSON.
    gives_up = pair.accept != "json"
    await talk(place, dialogue, pair.client, transport, awaited=_awaited(pair, expected), gives_up=gives_up)
    return dialogue


def _awaited(pair: Pair, expected: Dialogue) -> dict[str, Mapping[str, int]]:
    """What comes on another stream than the answers: how much in each step, coalesced at most."""
    if pair.is_bridged:
        return {}
    server = SERVERS[pair.name]
    methods = pair.by_the_way - server.by_the_way
    awaited: dict[str, Mapping[str, int]] = {"opening": server.opening}
    for step, heard in expected.heard_by_step().items():
        if counts := {each: 1 if each in COALESCED else heard[each] for each in heard.keys() & methods}:
            awaited[step] = counts
    return awaited


def pairs(name: str, era: str, full: bool) -> list[Pair]:
    accepts = ACCEPTS if full else ["both"]
    clients = [era] if SERVERS[name].is_dual else ERAS
    return [Pair(name, client, era, accept) for client in clients for accept in accepts]


def _marks(name: str, server: Server) -> list[pytest.MarkDecorator]:
    return [pytest.mark.node] * server.needs_node + [pytest.mark.long] * (name not in OFTEN)


SPOKEN_TO = [
    pytest.param(name, era, id=f"{name}-{era}", marks=_marks(name, server))
    for name, server in SERVERS.items()
    for era in server.eras
]


@pytest.mark.parametrize(("name", "era"), SPOKEN_TO)
async def test_what_client_and_server_say_is_the_same_through_the_gateway(
    gateway: Gateway, name: str, era: str, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    place = Place(SERVERS[name], tmp_path)
    expected = await directly(place, era)
    wrong: list[str] = []
    for pair in pairs(name, era, pytestconfig.getoption("long")):
        dialogue = await through(gateway, place, pair, expected)
        if found := differences(pair, expected, dialogue):
            wrong += [str(pair), *found]
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)
