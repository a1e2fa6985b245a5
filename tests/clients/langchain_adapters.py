"""MultiServerMCPClient of langchain-mcp-adapters."""
# mypy: ignore-errors
# Its packages are in an environment of its own.

import asyncio
import json
import os
from contextlib import asynccontextmanager
from datetime import timedelta

import trials
from langchain_mcp_adapters.callbacks import Callbacks
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools
from mcp.types import ElicitResult


async def accept(mcp_context: object, params: object, context: object) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "Ada"})


CONNECTION = {
    "transport": "http",
    "url": os.environ["URL"],
    "headers": {"Authorization": f"Bearer {os.environ['KEY']}"},
}


@asynccontextmanager
async def connect(within_s=None):
    """One session for all calls; with a time-out as `get_tools` does it, one for each call."""

    async def call(name, arguments):
        answer = await tools[name].ainvoke(arguments)
        return answer if isinstance(answer, str) else answer[0]["text"]

    if within_s is not None:
        kwargs = {"read_timeout_seconds": timedelta(seconds=within_s)}
        client = MultiServerMCPClient({"trunkline": {**CONNECTION, "session_kwargs": kwargs}})
        tools = {tool.name: tool for tool in await client.get_tools()}
        yield call
        return
    async with MultiServerMCPClient({"trunkline": CONNECTION}).session("trunkline") as session:
        tools = {tool.name: tool for tool in await load_mcp_tools(session)}
        yield call


async def main() -> None:
    steps: list[float] = []

    async def progressed(progress: float, total: float | None, message: str | None, context: object) -> None:
        steps.append(progress)

    client = MultiServerMCPClient(
        {"trunkline": CONNECTION},
        callbacks=Callbacks(on_progress=progressed, on_elicitation=accept),
    )
    tools = {tool.name: tool for tool in await client.get_tools()}

    async def call(name: str) -> str:
        answer = await tools[name].ainvoke({})
        return answer if isinstance(answer, str) else answer[0]["text"]

    text = await call("test_simple_text")
    await call("test_tool_with_progress")
    hello = await call("test_input_required_result_elicitation")
    # It reads every resource that it finds.
    resources = [str(blob.metadata["uri"]) for blob in await client.get_resources("trunkline")]
    print(json.dumps({"text": text, "resources": resources, "progress": steps, "elicitation": hello}))


asyncio.run(trials.run(connect, 3) if trials.is_wanted() else main())
