"""Packages and images that administrators of a tenant may register themselves: `packages_allow` of the tenant. Pure."""

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from fnmatch import fnmatchcase

from app.backends.images.recognition import NotRunnable, recognised_image
from app.backends.packages.recognition import NotInstallable, recognised
from app.domain import BackendSpec, ProcessLimits, Tenant
from app.domain.resources.destinations import not_covered


def is_permitted(tenant: Tenant, spec: BackendSpec) -> bool:
    """Whether the tenant's list has all that the backend is started from, and it asks for nothing of the node: no path,
    no network but what the tenant may give, not more than the usual limits."""
    names, allowed = _names(spec), list(map(_normal, tenant.packages_allow))
    are_listed = bool(names) and all(any(fnmatchcase(name, each) for each in allowed) for name in names)
    return are_listed and _is_confined(tenant, spec)


def _names(spec: BackendSpec) -> Sequence[str]:
    """As in the list; none where no package and no image is named, or one with a path of the node, which its sandbox
    would open."""
    try:
        if (image := recognised_image(spec.command, spec.args)) is not None:
            return () if image.mounts else [f"oci:{image.name}"]
        request = recognised(spec.command, spec.args)
    except (NotInstallable, NotRunnable):
        return ()
    if request is None or any(_leads_out(each) for argument in request.args for each in (argument, _value(argument))):
        return ()
    return [_normal(f"{request.registry}:{each}") for each in request.names]


def _value(argument: str) -> str:
    return argument.partition("=")[2]


def _leads_out(path: str) -> bool:
    """Of the home of the process."""
    return path.startswith("/") or ".." in path.split("/")


def _normal(name: str) -> str:
    """PyPI knows one package by several spellings."""
    return re.sub(r"[-_.]+", "-", name).lower() if name.startswith("pypi:") else name


def _is_confined(tenant: Tenant, spec: BackendSpec) -> bool:
    usual, sandbox = BackendSpec("", "", ""), spec.sandbox
    is_near = sandbox.network_kind == "none" or (
        sandbox.network_kind == "allow" and not sandbox.has_web and not not_covered(sandbox.allow, tenant.network_allow)
    )
    limits = ((getattr(spec.limits, each.name), getattr(usual.limits, each.name)) for each in fields(ProcessLimits))
    are_usual = all(own is not None and own <= most for own, most in limits)
    has_path = (spec.cwd or "").startswith("/")
    return is_near and are_usual and not has_path and replace(sandbox, network="none") == usual.sandbox
