"""What is going on: of the platform, and of one tenant."""

from collections.abc import Awaitable
from typing import Any

from starlette.responses import HTMLResponse

from app.console.views.problems import problems_of
from app.console.visit import Visit

# limit of a tenant -> how it is called, and its unit
LIMITS = {
    "sessions": ("Sessions", ""),
    "processes": ("Processes", ""),
    "in_flight": ("Calls in flight", ""),
    "memory_mb": ("Memory of processes", " MiB"),
    "spawns_per_minute": ("Starts in this minute", ""),
    "parked_sessions": ("Parked sessions", ""),
    "frozen_sessions": ("Frozen sessions", ""),
}
_NO_NUMBERS = {"activity": "", "latest": ""}
_LATEST = 9  # steps that browsers are told again, which have the others: a renewal may be late, the next one be lost


async def home(visit: Visit) -> HTMLResponse:
    """All tenants for administrators of the platform: what is wrong, what went on; else one's own."""
    if not visit.me["is_platform_admin"]:
        return await tenant(visit)
    asked = _of_both(visit, "")
    if visit.shows("now"):
        asked |= {"nodes": visit.get("/nodes"), "use": visit.get("/use", limit=50)}
    return visit.show("platform.html", **_NO_NUMBERS | await visit.all(**asked))


async def tenant(visit: Visit) -> HTMLResponse:
    """One tenant: what is wrong, what went on, its limits, its backends, its last failures."""
    asked = _of_both(visit, f"/tenants/{visit.tenant}")
    if visit.shows("now"):
        asked |= {
            "about": visit.of_tenant(""),
            "backends": visit.of_tenant("/backends", limit=100),
            "failures": visit.of_tenant("/failures", limit=5),
        }
    return visit.show("tenant.html", limits=LIMITS, **_NO_NUMBERS | await visit.all(**asked))


def _of_both(visit: Visit, path: str) -> dict[str, Awaitable[Any]]:
    """What the parts of both overviews need. The charts are drawn once the page is there: it does not wait for them."""
    asked = dict[str, Awaitable[Any]]()
    if visit.shows("problems"):
        asked["problems"] = problems_of(visit, f"{path}/problems")
    if "chartdata" in visit.renewed:
        asked["activity"] = visit.text(f"{path}/activity", node=visit.asked("node"))
    if "chartlatest" in visit.renewed:
        asked["latest"] = visit.text(f"{path}/activity", node=visit.asked("node"), steps=_LATEST)
    return asked


async def nodes(visit: Visit) -> HTMLResponse:
    """The nodes, their load, and how they confine backends."""
    return visit.show("nodes.html", nodes=await visit.get("/nodes", limit=100))


PAGES = (("", home), ("/tenants/{tenant}", tenant), ("/nodes", nodes))
