"""How tenants, backends and homes are named, and what nobody else may be called."""

import re
import unicodedata
from datetime import UTC, datetime, timedelta

NAME_PATTERN = r"^[a-z0-9][a-z0-9-]{0,62}$"
NAME_RULE = "lower-case letters, digits and hyphens, 63 at most"  # the same for people
_is_mark = re.compile(r"key|cli|uid ?[0-9]*").fullmatch
_is_name = re.compile(NAME_PATTERN.strip("^$")).fullmatch
_is_home = re.compile(NAME_PATTERN.strip("^$") + r"(\.[0-9a-f]{1,16})?").fullmatch


def is_name(text: str) -> bool:
    """Whether this is a valid name of a tenant or a backend."""
    return _is_name(text) is not None


def home_of(tenant: str, created_at: datetime) -> str:
    """The name of the home of the tenant's backends. A tenant that is deleted and created again gets another one."""
    return f"{tenant}.{(created_at - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1):x}"


def is_home(text: str) -> bool:
    """Whether this is a valid name of a home."""
    return _is_home(text) is not None


def is_own_mark(text: str) -> bool:
    """Whether it reads like a name that the gateway itself uses for who has done something: `key`, the issuer of API
    keys; `cli`, the command line; `uid 0`, who used it. No issuer may have such a name."""
    plain = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return _is_mark(plain) is not None
