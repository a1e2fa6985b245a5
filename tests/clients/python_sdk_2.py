"""The Python SDK 2.x; `auto` is its default."""
# mypy: ignore-errors
# Its packages are in an environment of its own.

import asyncio
import json
import os

import httpx2
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


async def main() -> None:
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {os.environ['KEY']}"}) as http:
        transport = streamable_http_client(os.environ["URL"], http_client=http)
        await use(lambda **callbacks: Client(transport, **callbacks))


if __name__ == "__main__":
    asyncio.run(main())
