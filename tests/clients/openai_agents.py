"""MCPServerStreamableHttp of openai-agents."""
# mypy: ignore-errors
# Its packages are in an environment of its own.

import asyncio
import json
import os

from agents.mcp import MCPServerStreamableHttp


async def main() -> None:
    params = {"url": os.environ["URL"], "headers": {"Authorization": f"Bearer {os.environ['KEY']}"}}
    async with MCPServerStreamableHttp(params=params, name="trunkline") as server:
        await server.list_tools()
        text = await server.call_tool("test_simple_text", {})
        resources = await server.list_resources()
    uris = [str(resource.uri) for resource in resources.resources]
    print(json.dumps({"text": text.content[0].text, "resources": uris}))


asyncio.run(main())
