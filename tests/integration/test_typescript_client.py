"""The official TypeScript client against server-everything, over both handshake-era transports."""

import json
import subprocess
from typing import Any

import anyio
import pytest

from tests.integration.gateway import ROOT, Endpoint, Gateway
from tests.integration.servers import EVERYTHING, TRANSPORTS, Transport

pytestmark = [pytest.mark.node, pytest.mark.parametrize("transport", TRANSPORTS)]
WITHIN_S = 60


@pytest.fixture(scope="module")
def everything(gateway: Gateway) -> Endpoint:
    return gateway.endpoint(EVERYTHING)


async def drive(endpoint: Endpoint, transport: Transport, *steps: list[Any]) -> list[Any]:
    """Runs the steps in one client; the result of each. An error of a step fails the test."""
    url = endpoint.sse if transport == "sse" else endpoint.mcp
    command = ["node", str(ROOT / "tests/npm/client.mjs"), transport, url, endpoint.key]
    lines = "".join(json.dumps(step) + "\n" for step in steps)
    with anyio.fail_after(WITHIN_S):
        done = await anyio.run_process(command, input=lines.encode(), check=False, stderr=subprocess.STDOUT)
    output = done.stdout.decode()
    assert done.returncode == 0, output
    answers = [json.loads(line) for line in output.splitlines()]
    assert len(answers) == len(steps), output
    assert not [answer for answer in answers if "error" in answer], output
    return [answer["result"] for answer in answers]


def call(name: str, **arguments: Any) -> list[Any]:
    return ["callTool", {"name": name, "arguments": arguments}]


async def test_it_lists_and_calls(everything: Endpoint, transport: Transport) -> None:
    session, tools, echoed, pong, prompts, read = await drive(
        everything,
        transport,
        ["session"],
        ["listTools"],
        call("echo", message="höß 日本"),
        ["ping"],
        ["listPrompts"],
        ["readResource", {"uri": "demo://resource/dynamic/text/3"}],
    )
    assert session["server"]["name"] == "mcp-servers/everything"
    assert "echo" in {tool["name"] for tool in tools["tools"]}
    assert echoed["content"][0]["text"] == "Echo: höß 日本"
    assert pong == {}
    assert {prompt["name"] for prompt in prompts["prompts"]} >= {"simple-prompt", "args-prompt"}
    assert "Resource 3" in read["contents"][0]["text"]


async def test_it_answers_what_the_backend_asks(everything: Endpoint, transport: Transport) -> None:
    _, sampled, elicited, roots = await drive(
        everything,
        transport,
        ["wait", "notifications/tools/list_changed"],
        call("trigger-sampling-request", prompt="a riddle", maxTokens=9),
        call("trigger-elicitation-request"),
        call("get-roots-list"),
    )
    assert "a riddle" in sampled["content"][0]["text"]
    assert "Ada Lovelace" in json.dumps(elicited)
    assert "file:///srv/project" in roots["content"][0]["text"]


async def test_it_sees_progress_and_updates(everything: Endpoint, transport: Transport) -> None:
    uri = "demo://resource/dynamic/text/1"
    progress, _, _, updated = await drive(
        everything,
        transport,
        ["progress", "trigger-long-running-operation", {"duration": 0.3, "steps": 3}],
        ["subscribeResource", {"uri": uri}],
        call("toggle-subscriber-updates"),
        ["wait", "notifications/resources/updated"],
    )
    assert progress["seen"][:2] == [1, 2]  # the SDK may drop one that arrives together with the answer
    assert updated["params"]["uri"] == uri


async def test_it_ends_its_session(everything: Endpoint, transport: Transport) -> None:
    if transport == "sse":
        pytest.skip("an HTTP+SSE session ends with its stream; there is no DELETE")
    session, _ = await drive(everything, transport, ["session"], ["terminate"])
    assert session["id"]
