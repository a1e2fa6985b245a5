"""The last calls of a tenant."""

from starlette.responses import HTMLResponse

from app.console.visit import Visit
from app.telemetry.call_history.query import GROUPS

FILTERS = {
    "backend": "Backend", "tool": "Tool", "outcome": "Outcome", "subject": "Who", "client_name": "Client",
    "session": "Session", "request_id": "Request", "since": "Since", "until": "Until", "min_ms": "Longer than (ms)",
}  # fmt: skip


async def calls(visit: Visit) -> HTMLResponse:
    """One by one, or summed by what they have in common."""
    asked, by = {name: visit.asked(name) for name in FILTERS}, visit.asked("by")
    if by in GROUPS:
        found = await visit.of_tenant("/calls:grouped", by=by, **asked)
    else:
        found = await visit.of_tenant("/calls", cursor=visit.asked("cursor"), limit=50, **asked)
    return visit.show("calls.html", found=found, filters=FILTERS, asked=asked, by=by, groups=GROUPS)


PAGES = (("/tenants/{tenant}/calls", calls),)
