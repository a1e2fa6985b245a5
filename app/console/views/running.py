"""What runs: sessions, processes, and what has failed."""

from starlette.responses import HTMLResponse

from app.console.rest import Refused
from app.console.visit import Visit


async def sessions(visit: Visit) -> HTMLResponse:
    """The sessions of a tenant, on all nodes."""
    found = await visit.of_tenant("/sessions", cursor=visit.asked("cursor"), limit=50)
    return visit.show("sessions.html", sessions=found)


async def processes(visit: Visit) -> HTMLResponse:
    """The processes of a tenant, on all nodes."""
    found = await visit.of_tenant("/processes", cursor=visit.asked("cursor"), limit=50)
    return visit.show("processes.html", processes=found)


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


async def failures(visit: Visit) -> HTMLResponse:
    """The last failures of backends, newest first."""
    found = await visit.of_tenant("/failures", cursor=visit.asked("cursor"), limit=100)
    return visit.show("failures.html", failures=found)


PAGES = (
    ("/tenants/{tenant}/sessions", sessions),
    ("/tenants/{tenant}/processes", processes),
    ("/tenants/{tenant}/processes/{process}", process),
    ("/tenants/{tenant}/failures", failures),
)
