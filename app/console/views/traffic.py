"""Inspections: the messages of a session while they pass."""

from starlette.responses import HTMLResponse

from app.console.visit import Visit


async def inspections(visit: Visit) -> HTMLResponse:
    """The inspections of a tenant, and a form for a new one; `?session=` is the one that it is for."""
    found = await visit.of_tenant("/inspections", cursor=visit.asked("cursor"), limit=50)
    more = {}
    if not visit.renewed:  # the form stays as it is
        more = await visit.all(about=visit.of_tenant(""), sessions=visit.of_tenant("/sessions", limit=200))
    return visit.show("inspections.html", found=found, wanted=visit.asked("session"), **more)


async def inspection(visit: Visit) -> HTMLResponse:
    """The messages of one, which the page asks REST for."""
    about = await visit.of_tenant(f"/inspections/{visit.request.path_params['inspection']}")
    return visit.show("traffic.html", about=about)


PAGES = (
    ("/tenants/{tenant}/inspections", inspections),
    ("/tenants/{tenant}/inspections/{inspection}", inspection),
)
