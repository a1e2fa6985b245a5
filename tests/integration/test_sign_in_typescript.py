"""The OAuth client of the official TypeScript SDK, which knows an address alone."""

import json
import subprocess
from typing import IO, Any

import pytest

from tests.console.browser import Browser
from tests.integration.gateway import ECHO, ROOT, Gateway
from tests.integration.person import Person

pytestmark = pytest.mark.node


def told(output: IO[str]) -> Any:
    line = output.readline()
    assert line, "the program has ended"
    return json.loads(line)


def test_it_registers_comes_back_and_refreshes(gateway: Gateway):
    endpoint = gateway.endpoint(ECHO)
    gateway.api("PATCH", f"/tenants/{endpoint.tenant}", {"sign_in": {}})
    command = ["node", str(ROOT / "tests/npm/sign_in.mjs"), endpoint.mcp]
    with (
        Browser(gateway) as browser,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program,
    ):
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            person = Person(browser, endpoint.key)
            program.stdin.write(person.sent_to(told(program.stdout)["authorize"]) + "\n")
            program.stdin.flush()
            first, second = told(program.stdout), told(program.stdout)
        finally:
            program.kill()
    assert first["tools"] > 0
    assert second == {"tools": first["tools"], "turned": True}
    assert "TypeScript" in person.pages[0]
