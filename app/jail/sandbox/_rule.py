"""Which sandbox counts: that of the backend, or the platform's rule."""

from dataclasses import replace
from typing import Literal

from app.domain import Sandbox

Platform = Literal["auto", "require"]  # the setting SANDBOX


def effective(sandbox: Sandbox, platform: Platform, *, tenant_exempt: bool) -> Sandbox:
    """The sandbox of a backend under the rule of the platform.

    `require` of the platform turns `auto` and `off` into `require` of all guarantees. A backend that requires only
    some of them keeps its list, which a platform administrator wrote.
    """
    if platform == "auto" or tenant_exempt or sandbox.mode == "require":
        return sandbox
    return replace(sandbox, mode="require", require=())
