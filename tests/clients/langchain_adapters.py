"""MultiServerMCPClient of langchain-mcp-adapters."""
# mypy: ignore-errors
# Its packages are in an environment of its own.

import asyncio
import json
import os

from langchain_mcp_adapters.client import MultiServerMCPClient


async def main() -> None:
    headers = {"Authorization": f"Bearer {os.environ['KEY']}"}
    connection = {"transport": "streamable_http", "url": os.environ["URL"], "headers": headers}
    client = MultiServerMCPClient({"trunkline": connection})
    tools = {tool.name: tool for tool in await client.get_tools()}
    answer = await tools["test_simple_text"].ainvoke({})
    text = answer if isinstance(answer, str) else answer[0]["text"]
    async with client.session("trunkline") as session:
        resources = await session.list_resources()
    print(json.dumps({"text": text, "resources": [str(resource.uri) for resource in resources.resources]}))


asyncio.run(main())
