"""The official Python client, as it comes, with a server that remembers: many calls at once, of every kind."""

import itertools
import json
import random
from typing import Any

import anyio
import pytest
from mcp import types

from tests.integration.gateway import Gateway
from tests.integration.notebook import KINDS, NOTEBOOK
from tests.integration.servers import python_client, text_of

CALLS, AT_ONCE = 200, 12

pytestmark = pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")


async def answer(context: Any, params: Any) -> types.ElicitResult:
    (field,) = params.requested_schema["properties"]
    return types.ElicitResult(action="accept", content={field: f"value of {params.message.split()[0]}"})


class Official:
    """The client, what it has put, and which processes have answered."""

    def __init__(self, client: Any) -> None:
        self.client, self.put, self.processes = client, dict[str, str](), set[int]()

    async def said(self, tool: str, **arguments: Any) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(text_of(await self.client.call_tool(tool, arguments)))
        self.processes.add(said["process"])
        return said

    async def one(self, kind: str, key: str) -> None:
        if kind in ("put", "ask", "twice"):
            self.put[key] = f"value of {key}"
            await self.said(kind, key=key, value=self.put[key])
        elif kind == "meet":
            async with anyio.create_task_group() as tasks:
                for _ in range(2):
                    tasks.start_soon(lambda: self.said("meet", key=key))
        elif kind == "list":
            await self.pages()
        else:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: self.said("hold", key=key))
                await self.said("held", key=key)
                tasks.cancel_scope.cancel()

    async def pages(self) -> None:
        found, page = [], await self.client.list_prompts()
        while True:
            found += [prompt.name for prompt in page.prompts]
            if page.next_cursor is None:
                break
            page = await self.client.list_prompts(cursor=page.next_cursor)
        assert found == [f"prompt-{number}" for number in range(5)]


async def test_200_mixed_calls_of_the_official_client_get_one_process(gateway: Gateway) -> None:
    async with python_client(
        gateway.endpoint(NOTEBOOK), "streamable", mode="auto", elicitation_callback=answer
    ) as client:
        assert client.protocol_version == "2026-07-28"
        official = Official(client)
        for kinds in (("put", "ask", "twice", "meet", "list"), KINDS[1]):
            numbered = enumerate(random.sample(list(itertools.islice(itertools.cycle(kinds), CALLS // 2)), CALLS // 2))

            async def some(numbered: Any = numbered, kinds: Any = kinds) -> None:
                for number, kind in numbered:
                    await official.one(kind, f"{len(kinds)}-{number}-{id(numbered)}")

            async with anyio.create_task_group() as tasks:
                for _ in range(AT_ONCE):
                    tasks.start_soon(some)
        assert (await official.said("keys"))["stored"] == official.put
        assert len(official.processes) == 1
