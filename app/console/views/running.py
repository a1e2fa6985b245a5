"""What runs: sessions, processes, and what has failed."""

from starlette.responses import HTMLResponse

from app.console.rest import Refused
from app.console.visit import Page, Visit
from app.domain.views import CALLERS, FAILURES, PROCESSES, SESSIONS, View


def rows_of(view: View, limit: int = 50) -> Page:
    """The page of a view, of one tenant on all nodes, in the template with its name."""

    async def page(visit: Visit) -> HTMLResponse:
        found = await visit.of_tenant(f"/{view.name}", cursor=visit.asked("cursor"), limit=limit)
        return visit.show(f"{view.name}.html", **{view.name: found})

    return page


async def process(visit: Visit) -> HTMLResponse:
    """One process, with the end of its stderr, which renews itself."""
    wanted = visit.request.path_params["process"]
    found = await visit.all(
        "listing",
        listing=visit.of_tenant("/processes", process=wanted),
        stderr=visit.of_tenant(f"/processes/{wanted}/stderr", lines=200),
    )
    about = next(iter(found.pop("listing")["items"]), None)
    if about is None:
        raise Refused(404, {"title": "This process has ended", "detail": "Or its node did not answer within a second."})
    return visit.show("process.html", about=about, **found)


PAGES = (
    ("/tenants/{tenant}/sessions", rows_of(SESSIONS)),
    ("/tenants/{tenant}/processes", rows_of(PROCESSES)),
    ("/tenants/{tenant}/processes/{process}", process),
    ("/tenants/{tenant}/callers", rows_of(CALLERS, 100)),
    ("/tenants/{tenant}/failures", rows_of(FAILURES, 100)),
)
