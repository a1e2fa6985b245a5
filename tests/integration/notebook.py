"""Somebody of 2026-07-28 who uses tests/servers/notebook.py, whose memory tells whether one process had all of it."""

import itertools
import json
import random
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import anyio
import httpx2

from tests.integration.gateway import ROOT, Endpoint
from tests.integration.sessionless_wire import ASKED, SessionlessClient
from tests.integration.wire import answer

NOTEBOOK = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/notebook.py")]
# Who leaves a call while it is asked what another call wants to know takes the question with it, for a while.
KINDS = (("put", "ask", "twice", "meet", "hold", "list"), ("put", "meet", "leave", "hold", "list"))


class Person:
    """Somebody who uses the notebook, and notes which processes have answered."""

    def __init__(self, http: httpx2.AsyncClient, endpoint: Endpoint, nodes: list[str] | None = None) -> None:
        self.client = SessionlessClient(http, endpoint, nodes or [endpoint.mcp], ASKED)
        self.put: dict[str, str] = {}
        self.processes: set[int] = set()

    async def said(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """What a tool says; whatever is asked meanwhile is answered, whichever call it belongs to."""
        params: dict[str, Any] = {"name": tool, "arguments": arguments}
        result = answer(await self.client.post("tools/call", **params))
        while result["resultType"] == "input_required":
            answers = {key: self.answer_to(asked["params"]) for key, asked in result["inputRequests"].items()}
            more = {"inputResponses": answers, "requestState": result["requestState"]}
            result = answer(await self.client.post("tools/call", **params, **more))
        said: dict[str, Any] = json.loads(result["content"][0]["text"])
        self.processes.add(said["process"])
        return said

    def answer_to(self, question: dict[str, Any]) -> dict[str, Any]:
        key, process = question["message"].split()
        self.processes.add(int(process))
        (field,) = question["requestedSchema"]["properties"]
        return {"action": "accept", "content": {field: f"value of {key}"}}

    async def one(self, kind: str, key: str) -> None:
        """One of many calls of every kind."""
        if kind in ("put", "ask", "twice"):
            self.put[key] = f"value of {key}"
            await self.said(kind, key=key, value=self.put[key])
        elif kind == "meet":
            async with anyio.create_task_group() as tasks:
                for _ in range(2):
                    tasks.start_soon(partial(self.said, "meet", key=key))
        elif kind == "hold":
            await self.give_up(key, "vendor/hold", key=key)
        elif kind == "leave":
            await self.give_up(key, "tools/call", name="hold", arguments={"key": key})
        else:
            await self.pages()

    async def give_up(self, call: str, method: str, **params: Any) -> None:
        """A call whose client leaves once the process has it."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(self.client.post, method, **params))
            await self.said("held", key=call)
            tasks.cancel_scope.cancel()  # which closes the connection, and that is the cancel of this revision

    async def pages(self) -> None:
        found: list[str] = []
        page = await self.client.request("prompts/list")
        while True:
            found += [prompt["name"] for prompt in page["prompts"]]
            if "nextCursor" not in page:
                break
            page = await self.client.request("prompts/list", cursor=page["nextCursor"])
        assert found == [f"prompt-{number}" for number in range(5)]

    async def run(self, kinds: Sequence[str], calls: int, at_once: int) -> None:
        """So many calls, so many of them at once."""
        kinds = random.sample([kind for kind, _ in zip(itertools.cycle(kinds), range(calls), strict=False)], calls)
        numbered = enumerate(kinds)

        async def some() -> None:
            for number, kind in numbered:
                await self.one(kind, f"{id(kinds)}-{number}")

        async with anyio.create_task_group() as tasks:
            for _ in range(at_once):
                tasks.start_soon(some)
