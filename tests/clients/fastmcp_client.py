"""The client of fastmcp."""
# mypy: ignore-errors
# Its packages are in an environment of its own.

import asyncio
import json
import os
from contextlib import asynccontextmanager

import trials
from fastmcp import Client


async def accept(message: str, response_type: type, params: object, context: object) -> object:
    return {"name": "Ada"} if response_type is None else response_type(name="Ada")


@asynccontextmanager
async def connect(within_s=None):
    async with Client(os.environ["URL"], auth=os.environ["KEY"]) as client:

        async def call(name, arguments):
            return (await client.call_tool(name, arguments, timeout=within_s, raise_on_error=False)).content[0].text

        yield call


async def main() -> None:
    steps: list[float] = []

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    async with Client(
        os.environ["URL"], auth=os.environ["KEY"], elicitation_handler=accept, progress_handler=progressed
    ) as client:
        text = await client.call_tool("test_simple_text", {})
        resources = await client.list_resources()
        await client.call_tool("test_tool_with_progress", {})
        hello = await client.call_tool("test_input_required_result_elicitation", {})
    found = {
        "text": text.content[0].text,
        "resources": [str(resource.uri) for resource in resources],
        "progress": steps,
        "elicitation": hello.content[0].text,
    }
    print(json.dumps(found))


asyncio.run(trials.run(connect, 0.3) if trials.is_wanted() else main())
