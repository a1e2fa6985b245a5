"""How many tokens a tenant's authorization server gives out in a second: to programs that act by themselves, and for
refresh tokens, each of which is used once.

    .venv/bin/python bench/token_endpoint.py [--seconds 10] [--at-once 16] [--connections 60]

Starts a gateway of its own with SQLite, has a person allow so many connections, and asks from this machine.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx2

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.console.browser import Browser
from tests.integration.gateway import ECHO, running_gateway
from tests.integration.person import Person, Program

EACH = 20  # connections of a person


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--connections", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_gateway(Path(folder) / "data") as gateway:
        endpoint = gateway.endpoint(ECHO)
        gateway.api("PATCH", f"/tenants/{endpoint.tenant}", {"sign_in": {}})
        client = {"name": "batch", "authentication": "secret", "scopes": ["mcp:connect"]}
        secret = gateway.api("POST", f"/tenants/{endpoint.tenant}/clients", client)["secret"]
        issuer = f"{gateway.url}/oauth/{endpoint.tenant}"
        own = {"grant_type": "client_credentials", "client_id": "batch", "client_secret": secret}
        held = list[str]()
        with httpx2.Client(timeout=30) as http:
            while len(held) < options.connections:
                with Browser(gateway) as browser:
                    person, program = Person(browser, gateway.key(endpoint.tenant)), Program(http, issuer, endpoint.mcp)
                    held += [program.connected(person)["refresh_token"] for _ in range(EACH)]
        name = program.client_id

        async def by_itself(http: httpx2.AsyncClient, _: int) -> None:
            _good(await http.post(issuer + "/token", data=own))

        async def refreshed(http: httpx2.AsyncClient, which: int) -> None:
            form = {"grant_type": "refresh_token", "refresh_token": held[which], "client_id": name}
            held[which] = _good(await http.post(issuer + "/token", data=form))["refresh_token"]

        for words, ask in (("client_credentials", by_itself), ("rotating refreshes", refreshed)):
            rate = asyncio.run(_rate(ask, options.seconds, options.at_once, options.connections))
            print(f"{words:20} {rate:7.0f} a second")


def _good(answer: httpx2.Response) -> dict[str, str]:
    assert answer.status_code == 200, answer.text
    found: dict[str, str] = answer.json()
    return found


async def _rate(
    ask: Callable[[httpx2.AsyncClient, int], Awaitable[None]], seconds: float, at_once: int, of: int
) -> float:
    """Answers a second, of so many requests at once; each worker takes its own share of the connections in turn."""
    done, ends_at = 0, time.monotonic() + seconds

    async def work(http: httpx2.AsyncClient, number: int) -> None:
        nonlocal done
        which = number
        while time.monotonic() < ends_at:
            await ask(http, which)
            done += 1
            which = which + at_once if which + at_once < of else number

    began = time.monotonic()
    async with httpx2.AsyncClient(timeout=30) as http, asyncio.TaskGroup() as workers:
        for number in range(min(at_once, of)):
            workers.create_task(work(http, number))
    return done / (time.monotonic() - began)


if __name__ == "__main__":
    main()
