"""What a claim over its quota is refused with, in words that do not depend on the store."""

from app.errors import QuotaExceeded

RETRY_S = 5.0  # sessions end in minutes rather than milliseconds

_WHOSE = {"sessions": "the tenant", "sessions_per_principal": "this principal"}


def exceeded(limit: str, used: int) -> QuotaExceeded:
    """The refusal, where `used` sessions are open already."""
    return QuotaExceeded(limit, f"{_WHOSE[limit]} has {used} sessions open, its limit", retry_after_s=RETRY_S)
