"""The fields `RateLimit` and `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers) of what a caller has left."""

import math
import time
from collections.abc import Sequence

from app.limits.caller_limits import Allowance

Fields = list[tuple[bytes, bytes]]


def rate_limit_fields(allowances: Sequence[Allowance]) -> Fields:
    """Empty where nothing is limited. Of several entries, those of a backend and of its toolset, each has its item."""
    now = time.time()
    limits = [each for allowance in allowances for each in allowance.limits]
    if not limits:
        return []
    policy = ", ".join(f'"{name}";q={allowed};w={count.seconds}' for name, count, allowed in limits)
    left = ", ".join(
        f'"{name}";r={max(0, allowed - count.used(now))};t={math.ceil(count.resets_in(now))}'
        for name, count, allowed in limits
    )
    return [(b"ratelimit-policy", policy.encode()), (b"ratelimit", left.encode())]
