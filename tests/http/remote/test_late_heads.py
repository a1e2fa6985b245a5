"""LateSend: whenever the real head comes, one head goes out and the answer is whole."""

import asyncio
from typing import Any

import pytest

from app.http.remote.late_heads import LateHeads

START: Any = {"type": "http.response.start", "status": 200, "headers": []}
BODY: Any = {"type": "http.response.body", "body": b"answer"}


@pytest.mark.parametrize("steps", [0, 1, 2])
async def test_a_head_that_comes_just_when_it_is_late_is_sent_once(steps: int) -> None:
    """The task that says that it is late may not have taken its first step by then."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    late = LateHeads().watch(send)
    late.breathe(asyncio.get_running_loop())
    for _ in range(steps):
        await asyncio.sleep(0)
    await late(START)
    await late(BODY)
    await late.done()
    assert [message["type"] for message in sent].count("http.response.start") == 1
    assert sent[0]["type"] == "http.response.start"
    assert sent[-1]["body"].endswith(b"answer")
    assert (sent[0] is START) == (steps == 0)
