"""The Python SDK 1.x."""
# mypy: ignore-errors
# Its packages are in an environment of its own.

import asyncio
import json
import os
from contextlib import asynccontextmanager
from datetime import timedelta

import trials
from mcp import ClientSession, types
from mcp.client.streamable_http import streamablehttp_client


async def accept(context: object, params: object) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"name": "Ada"})


@asynccontextmanager
async def connect(within_s=None):
    headers = {"Authorization": f"Bearer {os.environ['KEY']}"}
    async with (
        streamablehttp_client(os.environ["URL"], headers=headers) as (read, write, _),
        ClientSession(read, write) as session,
    ):
        await session.initialize()

        async def call(name, arguments):
            timeout = timedelta(seconds=within_s) if within_s else None
            return (await session.call_tool(name, arguments, timeout)).content[0].text

        yield call


async def main() -> None:
    steps: list[float] = []

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    headers = {"Authorization": f"Bearer {os.environ['KEY']}"}
    async with (
        streamablehttp_client(os.environ["URL"], headers=headers) as (read, write, _),
        ClientSession(read, write, elicitation_callback=accept) as session,
    ):
        await session.initialize()
        text = await session.call_tool("test_simple_text", {})
        resources = await session.list_resources()
        await session.call_tool("test_tool_with_progress", {}, progress_callback=progressed)
        hello = await session.call_tool("test_input_required_result_elicitation", {})
    found = {
        "text": text.content[0].text,
        "resources": [str(resource.uri) for resource in resources.resources],
        "progress": steps,
        "elicitation": hello.content[0].text,
    }
    print(json.dumps(found))


asyncio.run(trials.run(connect, 0.3) if trials.is_wanted() else main())
