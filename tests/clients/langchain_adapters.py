"""MultiServerMCPClient of langchain-mcp-adapters."""
# mypy: ignore-errors
# Its packages are in an environment of its own.

import asyncio
import json
import os

from langchain_mcp_adapters.callbacks import Callbacks
from langchain_mcp_adapters.client import MultiServerMCPClient
from mcp.types import ElicitResult


async def accept(mcp_context: object, params: object, context: object) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "Ada"})


async def main() -> None:
    steps: list[float] = []

    async def progressed(progress: float, total: float | None, message: str | None, context: object) -> None:
        steps.append(progress)

    headers = {"Authorization": f"Bearer {os.environ['KEY']}"}
    client = MultiServerMCPClient(
        {"trunkline": {"transport": "http", "url": os.environ["URL"], "headers": headers}},
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


asyncio.run(main())
