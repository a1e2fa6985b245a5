"""Problems on pages: each with the address of the page that helps."""

from collections.abc import Mapping
from typing import Any

from app.console.visit import Visit, page_url

# A kind of `see` in REST -> the parts of a page of the tenant; `*` is the name. Where there is none: of the platform.
_OF_TENANT: Mapping[str, tuple[str, ...]] = {
    "backend": ("backends", "*"),
    "failures": ("failures",),
    "inspection": ("inspections", "*"),
    "keys": ("keys",),
    "process": ("processes", "*"),
    "processes": ("processes",),
    "sessions": ("sessions",),
}
_OF_PLATFORM = frozenset({"node", "nodes"})
# What the link is called.
_NAMES = {
    "backend": "The backend", "failures": "Its failures", "inspection": "Its messages", "keys": "The keys",
    "process": "The process",
    "processes": "The processes", "sessions": "The sessions", "node": "The nodes", "nodes": "The nodes",
}  # fmt: skip


async def problems_of(visit: Visit, path: str) -> Any:
    """What REST answers, with `href` and `link` where a page helps. Raises Refused."""
    found = await visit.get(path)
    for each in found["items"]:
        each["href"], each["link"] = _href(each), _NAMES.get((each["see"] or {}).get("kind", ""), "More")
    return found


def _href(problem: Mapping[str, Any]) -> str:
    """Empty where there is no such page."""
    see, tenant = problem["see"], problem["tenant"]
    if see is None:
        return ""
    if see["kind"] in _OF_PLATFORM:
        return page_url("nodes") + ("#node-" + see["name"] if see["kind"] == "node" else "")
    parts = _OF_TENANT.get(see["kind"])
    if parts is None or tenant is None:
        return ""
    href = page_url("tenants", tenant, *(see["name"] if part == "*" else part for part in parts))
    return href + ("#key-" + see["name"] if see["kind"] == "keys" else "")
