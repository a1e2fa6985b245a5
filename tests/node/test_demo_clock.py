"""The demo's own server: a few methods, by hand, and as a process."""

import json
import subprocess
import sys
from datetime import datetime

import pytest

from app.node import demo_clock
from app.protocol.revisions import HANDSHAKE

INITIALIZE = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}


def ask(method, **params):
    return demo_clock.respond(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}))


@pytest.mark.parametrize("revision", HANDSHAKE)
def test_it_speaks_every_handshake_revision(revision):
    assert ask("initialize", protocolVersion=revision)["result"]["protocolVersion"] == revision
    assert ask("initialize", protocolVersion="2099-01-01")["result"]["protocolVersion"] == demo_clock.REVISIONS[0]


def test_it_tells_the_time_anywhere():
    (tool,) = ask("tools/list")["result"]["tools"]
    result = ask("tools/call", name=tool["name"], arguments={"timezone": "Asia/Tokyo"})["result"]
    told = json.loads(result["content"][0]["text"])
    assert datetime.fromisoformat(told["datetime"]).utcoffset().total_seconds() == 9 * 3600
    assert result["isError"] is False
    assert json.loads(ask("tools/call", name=tool["name"])["result"]["content"][0]["text"])["timezone"] == "UTC"


@pytest.mark.parametrize("zone", ["Nowhere/At_All", "../etc/passwd", "/etc/passwd", "a\0b", "x" * 5000])
def test_a_zone_that_there_is_not_is_an_error_of_the_tool(zone):
    result = ask("tools/call", name="get_current_time", arguments={"timezone": zone})["result"]
    assert result["isError"] is True
    assert "Europe/Zurich" in result["content"][0]["text"]
    assert len(result["content"][0]["text"]) < 300


def test_what_it_does_not_have_is_refused_and_notifications_are_not_answered():
    assert ask("prompts/list")["error"]["code"] == demo_clock.METHOD_NOT_FOUND
    assert ask("tools/call", name="other")["error"]["code"] == demo_clock.INVALID_PARAMS
    assert ask("ping")["result"] == {}
    assert demo_clock.respond('{"jsonrpc":"2.0","method":"notifications/initialized"}') is None
    assert demo_clock.respond('[{"jsonrpc":"2.0","id":1,"method":"ping"}]') is None


def test_as_a_process_it_ends_with_its_stdin():
    lines = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE},
        {"jsonrpc": "2.0", "method": "x"},
    ]
    done = subprocess.run(
        [sys.executable, "-I", demo_clock.__file__],
        input="".join(json.dumps(line) + "\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    (answered,) = done.stdout.splitlines()
    assert json.loads(answered)["result"]["serverInfo"]["name"] == "trunkline-clock"
    assert done.stderr == ""
