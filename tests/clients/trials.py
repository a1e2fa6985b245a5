"""What every client goes through: the trial that $TRIAL names, $TIMES over; for the programs in Python.

A program hands in how it connects: a context manager whose value calls a tool of `tests/servers/ledger.py` and returns
the text of the answer. With `within_s` its calls end after so long.
"""
# mypy: ignore-errors
# Used in environments of their own.

import asyncio
import json
import os

AT_A_TIME = 5
KINDS = ("count", "tell", "fail")


async def close_after_timeout(connect, times, within_s):
    """So many connections with a call that times out, then closes: how often that was all that happened."""

    async def once():
        async with connect(within_s) as call:
            try:
                text = await call("wait", {})
            except Exception as error:  # noqa: BLE001 - of five libraries
                text = f"{type(error).__name__} {error}"
            assert "tim" in text.lower(), text  # time-out, timed out: each says it in its own words
            return 1

    ended = 0
    while ended < times:
        ended += sum(await asyncio.gather(*(once() for _ in range(min(AT_A_TIME, times - ended)))))
    return ended


async def at_once(connect, times, _):
    """So many calls in parallel: what they are told, which is how many of the same process came before."""
    async with connect() as call:
        return sorted(map(int, await asyncio.gather(*(call("count", {"ms": 200}) for _ in range(times)))))


async def large(connect, times, _):
    """One answer of so many MiB after 20 s: its length, or what is wrong with it."""
    async with connect() as call:
        try:
            return len(await call("big", {"bytes": times << 20, "ms": 20_000}))
        except Exception as error:  # noqa: BLE001 - the test knows which it may be
            return f"{type(error).__name__}: {error}"


async def state(connect, times, _):
    """So many calls of every kind, alone and three at a time: what they are told, as above."""
    async with connect() as call:
        numbers = []
        while len(numbers) < times:
            numbers.append(await call(KINDS[len(numbers) % 3], {}))
            numbers += await asyncio.gather(*(call(kind, {"ms": 5}) for kind in KINDS))
        return sorted(map(int, numbers))


TRIALS = {each.__name__: each for each in (close_after_timeout, at_once, large, state)}


async def run(connect, within_s):
    """`within_s`: after so long a call is to end by itself. Where that holds for the handshake too, that has to fit."""
    trial = TRIALS[os.environ["TRIAL"]]
    print(json.dumps(await trial(connect, int(os.environ["TIMES"]), within_s)))


def is_wanted():
    return "TRIAL" in os.environ
