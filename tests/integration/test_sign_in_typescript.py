"""Connecting by the address alone, with the OAuth client of the official TypeScript SDK."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.console.browser import Browser
from tests.integration.gateway import ECHO, ROOT, Endpoint, Gateway
from tests.integration.person import HERE, Person

pytestmark = pytest.mark.node


@pytest.fixture(scope="module")
def endpoint(gateway: Gateway) -> Endpoint:
    """A backend of a tenant that has an authorization server."""
    endpoint = gateway.endpoint(ECHO)
    gateway.api("PATCH", f"/tenants/{endpoint.tenant}", {"sign_in": {}})
    return endpoint


@pytest.fixture
def person(gateway: Gateway, endpoint: Endpoint) -> Iterator[Person]:
    with Browser(gateway) as browser:
        yield Person(browser, endpoint.key)


class Started:
    """`tests/npm/sign_in.mjs`, which runs."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def hears(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def says(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "it has ended"
        return json.loads(line)

    def does(self, step: str) -> Any:
        self.hears(step)
        return self.says()["result"]


@contextmanager
def started(endpoint: Endpoint, *client: str) -> Iterator[Started]:
    command = ["node", str(ROOT / "tests/npm/sign_in.mjs"), endpoint.mcp, HERE, *client]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Started(process)
            process.communicate(timeout=30)
            assert process.returncode == 0
        finally:
            process.kill()


def test_it_registers_connects_and_refreshes(endpoint: Endpoint, person: Person) -> None:
    with started(endpoint) as program:
        program.hears(person.sent_to(program.says()["go"]))
        tools = program.does("tools")
        assert tools
        before = program.does("kept")
        assert before["client"]["client_id"].startswith("r-")
        program.does("spoil")
        assert program.does("tools") == tools
        after = program.does("kept")
    assert after["client"] == before["client"]
    assert after["tokens"]["access_token"] not in ("of-nobody", before["tokens"]["access_token"])
    assert after["tokens"]["refresh_token"] != before["tokens"]["refresh_token"]
    assert "In TypeScript" in person.pages[0]
    assert len(person.pages) == 1


@pytest.mark.parametrize("authentication", ["none", "secret"])
def test_a_client_that_the_tenant_knows_needs_no_registration(
    gateway: Gateway, endpoint: Endpoint, person: Person, authentication: str
) -> None:
    name = f"known-{authentication}"
    body = {"name": name, "title": "Known", "authentication": authentication, "redirect_uris": [HERE]}
    gateway.api("PATCH", f"/tenants/{endpoint.tenant}", {"sign_in": {"registration": False}})
    made = gateway.api("POST", f"/tenants/{endpoint.tenant}/clients", body)
    secret = [made["secret"]] if authentication == "secret" else []
    with started(endpoint, name, *secret) as program:
        program.hears(person.sent_to(program.says()["go"]))
        tools = program.does("tools")
        program.does("spoil")
        assert program.does("tools") == tools
    assert "Known" in person.pages[0]
