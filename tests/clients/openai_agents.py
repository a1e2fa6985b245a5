"""MCPServerStreamableHttp of openai-agents.

It takes no elicitation callback: it makes its mcp.Client with a message handler only, so that the client declares no
capability, and a call that asks something must end in an error. Progress has no callback either, but a call may name
its own token, and the message handler hears what comes with it.
"""
# mypy: ignore-errors
# Its packages are in an environment of its own.

import asyncio
import json
import os
from contextlib import asynccontextmanager

import trials
from agents.mcp import MCPServerStreamableHttp
from mcp import MCPError, types

PARAMS = {"url": os.environ["URL"], "headers": {"Authorization": f"Bearer {os.environ['KEY']}"}}


@asynccontextmanager
async def connect(within_s=60):
    async with MCPServerStreamableHttp(params=PARAMS, client_session_timeout_seconds=within_s) as server:

        async def call(name, arguments):
            return (await server.call_tool(name, arguments)).content[0].text

        yield call


async def main() -> None:
    steps: list[float] = []

    async def heard(message: object) -> None:
        if isinstance(message, types.ProgressNotification):
            steps.append(message.params.progress)

    async with MCPServerStreamableHttp(params=PARAMS, name="trunkline", message_handler=heard) as server:
        await server.list_tools()
        text = await server.call_tool("test_simple_text", {})
        resources = await server.list_resources()
        await server.call_tool("test_tool_with_progress", {}, {"progressToken": "a token"})
        refused = None
        try:
            await server.call_tool("test_input_required_result_elicitation", {})
        except MCPError as error:
            refused = error.code
    found = {
        "text": text.content[0].text,
        "resources": [str(resource.uri) for resource in resources.resources],
        "progress": steps,
        "refused": refused,
    }
    print(json.dumps(found))


asyncio.run(trials.run(connect, 3) if trials.is_wanted() else main())
