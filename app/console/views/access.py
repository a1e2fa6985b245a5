"""Who may do what, and who has done what: tenants, keys, issuers, the audit trail."""

from starlette.responses import HTMLResponse

from app.console.visit import Visit

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
    return visit.show("keys.html", **found)


async def issuers(visit: Visit) -> HTMLResponse:
    """The issuers of tokens that a tenant trusts."""
    found = await visit.of_tenant("/issuers", cursor=visit.asked("cursor"), limit=100)
    return visit.show("issuers.html", issuers=found)


async def audit(visit: Visit) -> HTMLResponse:
    """What was changed, by whom."""
    asked = {name: visit.asked(name) for name in AUDIT_FILTERS}
    found = await visit.of_tenant("/audit", cursor=visit.asked("cursor"), limit=50, **asked)
    return visit.show("audit.html", audit=found, asked=asked)


PAGES = (
    ("/tenants", tenants),
    ("/tenants/{tenant}/keys", keys),
    ("/tenants/{tenant}/issuers", issuers),
    ("/tenants/{tenant}/audit", audit),
)
