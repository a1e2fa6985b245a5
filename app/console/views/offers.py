"""What tenants offer: backends, their tools, toolsets."""

from typing import Any

from starlette.responses import HTMLResponse

from app.console.visit import Visit


async def backends(visit: Visit) -> HTMLResponse:
    """The backends of a tenant."""
    found = await visit.all(
        backends=visit.of_tenant("/backends", cursor=visit.asked("cursor"), limit=50),
        catalog=visit.of_tenant("/catalog", cursor=visit.asked("cursor"), limit=50),
    )
    return visit.show("backends.html", **found)


async def new_backend(visit: Visit) -> HTMLResponse:
    """A form for one, or a paste of several."""
    await visit.of_tenant("/backends", limit=1)  # whether there is such a tenant, for this visitor
    return visit.show("new_backend.html")


async def backend(visit: Visit) -> HTMLResponse:
    """One backend: what it offers, how it is confined, what runs."""
    path = f"/backends/{visit.request.path_params['backend']}"
    about = await visit.of_tenant(path)
    if not visit.shows("offer"):
        return visit.show("backend.html", about=about)
    found = await visit.all(
        catalog=visit.of_tenant(path.replace("/backends/", "/catalog/")),
        tools=visit.of_tenant(f"{path}/tools", limit=200),
    )
    return visit.show("backend.html", about=about, offered=_offered(found["catalog"]), **found)


async def edit_backend(visit: Visit) -> HTMLResponse:
    """The members of one backend, to be changed."""
    about = await visit.of_tenant(f"/backends/{visit.request.path_params['backend']}")
    return visit.show("edit_backend.html", about=about)


def _offered(catalog: Any) -> dict[str, list[dict[str, Any]]]:
    """The definitions of a backend, as it has written them: no member is certain, nor its type."""
    offered = catalog["definitions"] if catalog else {}
    return {
        kind: [
            {
                "name": str(each.get("uri") or each.get("uriTemplate") or each.get("name") or ""),
                "title": str(each.get("title") or ""),
                "description": str(each.get("description") or ""),
                "whole": each,
            }
            for each in offered.get(kind) or []
            if isinstance(each, dict)
        ]
        for kind in ("tools", "prompts", "resources", "templates")
    }


async def toolsets(visit: Visit) -> HTMLResponse:
    """The toolsets of a tenant."""
    return visit.show("toolsets.html", toolsets=await visit.of_tenant("/toolsets", cursor=visit.asked("cursor")))


async def new_toolset(visit: Visit) -> HTMLResponse:
    """A form."""
    return visit.show("new_toolset.html", backends=await visit.of_tenant("/backends", limit=100))


async def toolset(visit: Visit) -> HTMLResponse:
    """One toolset: its members, and the names that it shows."""
    path = f"/toolsets/{visit.request.path_params['toolset']}"
    return visit.show("toolset.html", about=await visit.of_tenant(path))


async def try_backend(visit: Visit) -> HTMLResponse:
    """What a backend offers, to be tried: the page is an MCP client."""
    name = visit.request.path_params["backend"]
    await visit.of_tenant(f"/backends/{name}")
    return visit.show("try.html", section="backends", name=name, tool=visit.asked("tool"))


async def try_toolset(visit: Visit) -> HTMLResponse:
    """Likewise a toolset."""
    name = visit.request.path_params["toolset"]
    await visit.of_tenant(f"/toolsets/{name}")
    return visit.show("try.html", section="toolsets", name=name, tool=visit.asked("tool"))


PAGES = (
    ("/tenants/{tenant}/backends", backends),
    ("/tenants/{tenant}/backends:new", new_backend),
    ("/tenants/{tenant}/backends/{backend}", backend),
    ("/tenants/{tenant}/backends/{backend}/settings", edit_backend),
    ("/tenants/{tenant}/backends/{backend}/try", try_backend),
    ("/tenants/{tenant}/toolsets", toolsets),
    ("/tenants/{tenant}/toolsets:new", new_toolset),
    ("/tenants/{tenant}/toolsets/{toolset}", toolset),
    ("/tenants/{tenant}/toolsets/{toolset}/try", try_toolset),
)
