"""The names under which a member's tools and prompts are shown."""

import hashlib
import re
from collections.abc import Iterable

from app.domain.resources.backends import MAX_TOOL_NAME

_DIGEST = 6

_other = re.compile(r"[^A-Za-z0-9_-]")


def accepted(name: str) -> str:
    """A name that clients accept, the same for the same `name`: other characters become `_`; of a long one the
    beginning is kept, with a digest of the whole."""
    plain = _other.sub("_", name)
    if len(plain) <= MAX_TOOL_NAME and plain:
        return plain
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:_DIGEST]
    return f"{plain[: MAX_TOOL_NAME - _DIGEST - 1]}_{digest}"


def shown_prompts(prefix: str | None, prompts: Iterable[str]) -> dict[str, str]:
    """The member's own name of each prompt, by the name that is shown. Of two with one name the first is shown."""
    shown: dict[str, str] = {}
    for prompt in prompts:
        shown.setdefault(shown_as(prompt, prefix), prompt)
    return shown


def shown_as(name: str, prefix: str | None) -> str:
    """As clients accept it: with the prefix; without one (None) as it is."""
    return name if prefix is None else accepted(prefix + name)
