"""Inspections: the messages of a session while they pass."""

from starlette.responses import HTMLResponse

from app.console.visit import Visit


async def inspections(visit: Visit) -> HTMLResponse:
    """The inspections of a tenant, and a form for a new one; `?session=` or `?backend=` is what it is for."""
    parts = {"found": visit.of_tenant("/inspections", cursor=visit.asked("cursor"), limit=50)}
    if not visit.renewed:  # the form stays as it is
        parts |= {
            "about": visit.of_tenant(""),
            "sessions": visit.of_tenant("/sessions", limit=200),
            "backends": visit.of_tenant("/backends", limit=100),
            "toolsets": visit.of_tenant("/toolsets", limit=100),
        }
    wanted, backend = visit.asked("session"), visit.asked("backend")
    return visit.show("inspections.html", wanted=wanted, wanted_backend=backend, **await visit.all("found", **parts))


async def inspection(visit: Visit) -> HTMLResponse:
    """The messages of one, which the page asks REST for."""
    about = await visit.of_tenant(f"/inspections/{visit.request.path_params['inspection']}")
    return visit.show("traffic.html", about=about)


PAGES = (
    ("/tenants/{tenant}/inspections", inspections),
    ("/tenants/{tenant}/inspections/{inspection}", inspection),
)
