"""Who may do what, and who has done what: tenants, keys, issuers, the audit trail."""

from collections.abc import Sequence
from typing import Any

from starlette.responses import HTMLResponse

from app.admin.client_config import CLIENTS, PASTE_HERE, Target, endpoint, install_links
from app.console.visit import Visit
from app.http.dependencies import BASE_URL

_CONNECTING = frozenset({"mcp:connect", "tenant:admin", "platform:admin"})  # each for all of them
AUDIT_FILTERS = ("action", "target", "actor", "request_id", "since", "until")


async def tenants(visit: Visit) -> HTMLResponse:
    """All tenants."""
    found = await visit.get("/tenants", cursor=visit.asked("cursor"), limit=100)
    return visit.show("tenants.html", tenants=found)


async def keys(visit: Visit) -> HTMLResponse:
    """The API keys of a tenant, and a form for a new one."""
    found = await visit.all(
        keys=visit.of_tenant("/keys", cursor=visit.asked("cursor"), limit=100),
        backends=visit.of_tenant("/backends", limit=100),
    )
    return visit.show("keys.html", gateway=visit.request.scope[BASE_URL], **found)


async def key(visit: Visit) -> HTMLResponse:
    """One key: what it may, from where it was used, and what to paste into clients. Nobody has the key itself."""
    path = f"/keys/{visit.request.path_params['key']}"
    if visit.renewed:
        return visit.show("key.html", about=await visit.of_tenant(path))
    found = await visit.all(
        "about",
        about=visit.of_tenant(path),
        backends=visit.of_tenant("/backends", limit=100),
        toolsets=visit.of_tenant("/toolsets", limit=100),
    )
    about = found.pop("about")
    names = _connectable(about["scopes"], [each["name"] for part in found.values() if part for each in part["items"]])
    wanted = visit.asked("for") if visit.asked("for") in names else next(iter(names), "")
    return visit.show("key.html", about=about, names=names, wanted=wanted, snippets=_snippets(visit, wanted), **found)


def _connectable(scopes: Sequence[str], names: Sequence[str]) -> Sequence[str]:
    """The backends and toolsets that a key with these scopes may connect to."""
    may_all = not _CONNECTING.isdisjoint(scopes)
    return [name for name in names if may_all or f"mcp:connect:{name}" in scopes]


def _snippets(visit: Visit, name: str) -> dict[str, Any]:
    """For each client the text to paste; and links that some of them open. Empty without a name."""
    if not name:
        return {"clients": [], "links": {}}
    target = Target(name, endpoint(visit.request.scope[BASE_URL], visit.tenant, name))
    clients = []
    for client in CLIENTS.values():
        words = [client.where, f"Replace {PASTE_HERE} by the key." if client.key_in_text else "", client.key]
        about = " ".join(filter(None, words)).format(key_env=target.key_env)
        clients.append({"title": client.title, "about": about, "text": client.render([target])})
    return {"clients": clients, "links": install_links(target), "variable": target.key_env}


async def issuers(visit: Visit) -> HTMLResponse:
    """The issuers of tokens that a tenant trusts."""
    found = await visit.of_tenant("/issuers", cursor=visit.asked("cursor"), limit=100)
    return visit.show("issuers.html", issuers=found)


async def connections(visit: Visit) -> HTMLResponse:
    """What people have connected: of a tenant for who may read it, else and below no tenant one's own."""
    of_all = "tenant" in visit.request.path_params and visit.may("tenant:read")
    asked = {"cursor": visit.asked("cursor"), "limit": 100, "mine": "" if of_all else "true"}
    found = await visit.of_tenant("/connections", **asked)
    return visit.show("connections.html", connections=found, of_all=of_all)


async def audit(visit: Visit) -> HTMLResponse:
    """What was changed, by whom."""
    asked = {name: visit.asked(name) for name in AUDIT_FILTERS}
    found = await visit.of_tenant("/audit", cursor=visit.asked("cursor"), limit=50, **asked)
    return visit.show("audit.html", audit=found, asked=asked)


PAGES = (
    ("/tenants", tenants),
    ("/tenants/{tenant}/keys", keys),
    ("/tenants/{tenant}/keys/{key}", key),
    ("/tenants/{tenant}/issuers", issuers),
    ("/connections", connections),
    ("/tenants/{tenant}/connections", connections),
    ("/tenants/{tenant}/audit", audit),
)
