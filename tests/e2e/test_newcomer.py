"""Somebody who is new to Trunkline, with nothing in a cache: from a clone to a tool tried in the browser."""

import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import NO_PLAYWRIGHT, WHERE
from tests.integration.gateway import ROOT

expect = pytest.importorskip("playwright.sync_api", reason=NO_PLAYWRIGHT).expect
WITHIN_S = 600  # two minutes are the aim, on a machine that does nothing else
pytestmark = [pytest.mark.e2e, pytest.mark.newcomer, pytest.mark.timeout(WITHIN_S + 60)]
_STEPS = re.compile(r"^## From a clone.*?^```sh parsed\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """What the README says is to be typed."""
    found = _STEPS.search((ROOT / "README.md").read_text())
    assert found
    return [line.partition("#")[0].strip() for line in found[1].splitlines() if line.strip()]


def environment(directory: Path) -> dict[str, str]:
    """An empty home, empty caches, and of the rest only where packages come from."""
    home, cache = directory / "home", directory / "cache"
    home.mkdir()
    cache.mkdir()
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_", "SSL_CERT"))}
    empty = {"UV_NO_CACHE": "1", "PIP_NO_CACHE_DIR": "1", "XDG_CACHE_HOME": str(cache)}
    return {**kept, **empty, "HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin", "TRUNKLINE_PORT": "0"}


@contextmanager
def typed(lines: list[str], directory: Path) -> Iterator["queue.Queue[str]"]:
    """A shell in which these were typed; what it says line by line, and an empty one at its end."""
    said = queue.Queue[str]()
    shell = subprocess.Popen(
        ["sh", "-ec", "\n".join(lines)],
        cwd=directory,
        env=environment(directory),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )

    def read() -> None:
        assert shell.stdout is not None
        for line in shell.stdout:
            said.put(line)
        said.put("")

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield said
    finally:
        os.killpg(shell.pid, signal.SIGTERM)
        try:
            shell.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
        reader.join()
        assert shell.stdout is not None
        shell.stdout.close()


def page_named(said: "queue.Queue[str]") -> str:
    """The address that is printed for the browser."""
    heard, ends_at = [], time.monotonic() + WITHIN_S
    while line := said.get(timeout=max(0.1, ends_at - time.monotonic())):
        heard.append(line)
        if found := re.search(r"http://\S+/console/\S+", line):
            return found[0]
    raise AssertionError("".join(heard))


def test_a_tool_is_tried_after_three_commands_at_most(tmp_path: Path, record_property: Any) -> None:
    from playwright.sync_api import sync_playwright

    from tests.e2e.desk import FLAGS

    browser_there = next((path for path in WHERE if Path(path).exists()), None)
    if browser_there is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    lines = [line.replace("ADDRESS", str(ROOT)) for line in commands()]
    assert len(lines) <= 3
    began = time.monotonic()
    with typed(lines, tmp_path) as said, sync_playwright() as playwright:
        address = page_named(said)
        page = playwright.chromium.launch(executable_path=browser_there, args=list(FLAGS)).new_page()
        page.goto(address)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("link", name="Try it").click()
        page.get_by_role("button", name="get_current_time").click()
        page.get_by_label("timezone").fill("Asia/Tokyo")
        page.get_by_role("button", name="Call", exact=True).click()
        expect(page.locator("#outcome")).to_contain_text("Asia/Tokyo", timeout=30_000)
    took_s = time.monotonic() - began
    record_property("seconds", round(took_s))
    print(f"from the first command to the tool's answer: {took_s:.0f} s, load {os.getloadavg()[0]:.1f}")
