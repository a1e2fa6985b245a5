"""The Python SDK 2.x; `auto` is its default."""
# mypy: ignore-errors
# Its packages are in an environment of its own.

import asyncio
import json
import os
from contextlib import asynccontextmanager

import httpx2
import trials
from mcp import Client, types
from mcp.client.streamable_http import streamable_http_client


async def accept(context: object, params: object) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"name": "Ada"})


async def use(make_client) -> None:
    steps: list[float] = []

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    async with make_client(elicitation_callback=accept) as client:
        text = await client.call_tool("test_simple_text", {})
        resources = await client.list_resources()
        await client.call_tool("test_tool_with_progress", {}, progress_callback=progressed)
        hello = await client.call_tool("test_input_required_result_elicitation", {})
    found = {
        "text": text.content[0].text,
        "resources": [str(resource.uri) for resource in resources.resources],
        "progress": steps,
        "elicitation": hello.content[0].text,
    }
    print(json.dumps(found))


@asynccontextmanager
async def over_http():
    # Without a time-out of its own: by itself, with only an address, the SDK waits for five minutes.
    headers = {"Authorization": f"Bearer {os.environ['KEY']}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=300) as http,
        streamable_http_client(os.environ["URL"], http_client=http) as streams,
    ):
        yield streams


def trying(make_client):
    """How the trials connect."""

    @asynccontextmanager
    async def connect(within_s=None):
        async with make_client() as client:

            async def call(name, arguments):
                return (await client.call_tool(name, arguments, within_s)).content[0].text

            yield call

    return connect


async def run(make_client) -> None:
    await (trials.run(trying(make_client), 0.3) if trials.is_wanted() else use(make_client))


if __name__ == "__main__":
    asyncio.run(run(lambda **callbacks: Client(over_http(), **callbacks)))
