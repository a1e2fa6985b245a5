"""The pages, by their address below /console."""

from collections.abc import Sequence

from app.console.views import access, calls, offers, overview, running, traffic
from app.console.visit import Page

PAGES: Sequence[tuple[str, Page]] = (
    *overview.PAGES,
    *offers.PAGES,
    *running.PAGES,
    *calls.PAGES,
    *traffic.PAGES,
    *access.PAGES,
)
