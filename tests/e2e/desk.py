"""Desk: a person in front of a real Chromium, who has signed in to the console."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page

from tests.integration.gateway import ROOT, Gateway

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
DEEP = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}
_AXE = ROOT / "tests/npm/node_modules/axe-core/axe.min.js"
_BAD = ("error", "warning")


class Desk:
    """`page` is Playwright's. What the browser complained of is in `complaints`."""

    def __init__(self, gateway: Gateway, context: BrowserContext) -> None:
        self.gateway, self.context = gateway, context
        self.page: Page = context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.complaints.append(f"exception: {error}"))

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in _BAD:
            self.complaints.append(f"{message.type}: {message.text}")

    def sign_in(self, key: str) -> None:
        self.page.goto(self.gateway.url + "/console")
        self.page.get_by_label("API key or token").fill(key)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url("**/console")

    def open(self, path: str) -> Page:
        """A page of the console, once its scripts have run."""
        self.page.goto(f"{self.gateway.url}/console{path}", wait_until="load")
        return self.page

    def findings(self) -> list[str]:
        """What axe-core finds that is serious: its rules for WCAG 2.2 A and AA, and good practice."""
        if not self.page.evaluate("() => 'axe' in window"):
            self.page.evaluate(_AXE.read_text())
        found: dict[str, Any] = self.page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{each['id']}: {each['help']} at {[node['target'] for node in each['nodes']][:5]}"
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
        ]

    def is_too_wide(self) -> bool:
        """Whether the page scrolls sideways."""
        return bool(
            self.page.evaluate("() => document.documentElement.scrollWidth > document.documentElement.clientWidth")
        )

    def picture(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=file, full_page=False)


@contextmanager
def desk(chromium: Browser, gateway: Gateway, key: str | None = None, **options: Any) -> Iterator[Desk]:
    """A browser profile of its own, signed in with the key. The browser must have complained of nothing at the end."""
    context = chromium.new_context(viewport=options.pop("viewport", DEEP), **options)
    try:
        made = Desk(gateway, context)
        if key is not None:
            made.sign_in(key)
        yield made
        assert not made.complaints, made.complaints
    finally:
        context.close()
