"""Toolsets: several backends behind one address. To everything but administration a toolset is a backend."""

from app.domain import BackendSpec
from app.domain.resources.resource import Resource

TOOLSETS = Resource(
    BackendSpec,
    "toolsets",
    one="toolset",
    about="Several backends behind one address.",
    per_tenant=1000,
    columns=("name", "title", "enabled", "reason"),
    words={
        "create": "Makes one address of several backends. Members that nobody has asked yet what they offer are asked "
        "now, which\nmay take 20 seconds.",
        "get": "One toolset, with what it shows and what is wrong with its members. The tag covers its registration "
        "only.",
        "change": "Changes a toolset: open sessions keep what they have. Or switches it off or on, as with a backend.",
        "delete": "Removes a toolset and ends its sessions. Its members stay.",
    },
)
