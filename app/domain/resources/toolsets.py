"""Toolsets: several backends behind one address. To everything but administration a toolset is a backend."""

from app.domain.resources.backends import BackendSpec, Toolset, access_fits, reason_of_what_is_off
from app.domain.resources.fields import Unfit
from app.domain.resources.members import declared_members, only
from app.domain.resources.resource import Resource


def _each_once(spec: BackendSpec) -> None:
    assert spec.toolset is not None
    names = [member.backend for member in spec.toolset.members]
    if len(set(names)) < len(names):
        raise Unfit("member", "a backend is a member only once")


def _is_not_parked(spec: BackendSpec) -> None:
    if spec.timeouts.park_s is not None:
        raise Unfit("park_s", "sessions of a toolset are not parked: leave `timeouts.park_s` out")


RULES = (_each_once, reason_of_what_is_off, access_fits, _is_not_parked)

TOOLSETS = Resource(
    BackendSpec,
    "toolsets",
    one="toolset",
    about="Several backends behind one address.",
    per_tenant=1000,
    columns=("name", "title", "enabled", "reason"),
    members=(
        *only(BackendSpec, "name"),
        *declared_members(Toolset),
        *only(BackendSpec, "access", "timeouts", "enabled", "reason", "off_by_platform", "version"),
    ),
    words={
        "create": "Makes one address of several backends. Members that nobody has asked yet what they offer are asked "
        "now, which\nmay take 20 seconds.",
        "get": "One toolset, with what it shows and what is wrong with its members. The tag covers its registration "
        "only.",
        "change": "Changes a toolset: open sessions keep what they have. Or switches it off or on, as with a backend.",
        "delete": "Removes a toolset and ends its sessions. Its members stay.",
    },
)
