"""mcp-remote, started with an address and nothing else: a browser opens, a person signs in there, and it works."""

import os
from collections.abc import Iterator
from pathlib import Path

import anyio
import httpx2
import pytest
from mcp import Client, StdioServerParameters

from tests.clients import environments
from tests.clients.environments import Unavailable
from tests.console.browser import Browser
from tests.integration.gateway import ECHO, Gateway, running_gateway, until
from tests.integration.person import Person
from tests.integration.test_sign_in import connections

pytestmark = [
    pytest.mark.clients,
    pytest.mark.real,
    pytest.mark.timeout(3 * environments.INSTALL_S),  # the first run installs
]
BROWSER = '#!/bin/sh\nprintf "%s" "$1" > "$0.fresh" && mv "$0.fresh" "$0.url"\n'


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    with running_gateway(tmp_path / "data") as gateway:
        yield gateway


class Opened:
    """What its host's browser is: a program that keeps the address that it is to open."""

    def __init__(self, directory: Path) -> None:
        self.program = directory / "browser"
        self.program.write_text(BROWSER)
        self.program.chmod(0o755)

    @property
    def url(self) -> str:
        file = self.program.with_suffix(".url")
        return file.read_text() if file.exists() else ""


async def use(address: str, home: Path, opened: Opened) -> list[str]:
    """The tools that a host sees through mcp-remote."""
    environment = environments.node("mcp_remote")
    if isinstance(environment, Unavailable):
        pytest.skip(environment.reason)
    program = str(environment / "node_modules/.bin/mcp-remote")
    given = {"HOME": str(home), "PATH": os.environ["PATH"], "BROWSER": str(opened.program), "DISPLAY": ""}
    server = StdioServerParameters(command=program, args=[address], env=given)
    with anyio.fail_after(60):
        async with Client(server, mode="legacy") as client:
            return [each.name for each in (await client.list_tools()).tools]


async def test_mcp_remote_needs_the_address_alone(gateway: Gateway, tmp_path: Path) -> None:
    endpoint = gateway.endpoint(ECHO)
    gateway.api("PATCH", f"/tenants/{endpoint.tenant}", {"sign_in": {}})
    opened, found = Opened(tmp_path), list[list[str]]()

    async def use_it() -> None:
        found.append(await use(endpoint.mcp, tmp_path, opened))

    with Browser(gateway) as browser:
        person = Person(browser, endpoint.key)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(use_it)
            await until(lambda: bool(opened.url))
            back = await anyio.to_thread.run_sync(person.sent_to, opened.url)
            async with httpx2.AsyncClient(timeout=30) as http:
                assert (await http.get(back)).status_code == 200
        opened.program.with_suffix(".url").unlink()
        await use_it()  # the second start goes on with what it has kept
    assert opened.url == ""
    assert found[0] == found[1] != []
    assert "A program on your machine" in person.pages[0]
    assert len(person.pages) == len(connections(endpoint)) == 1
