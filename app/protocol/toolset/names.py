"""The names under which a member's tools and prompts are shown, and with how many of them a list is short."""

import hashlib
import re
from collections.abc import Iterable

FEW_TOOLS = 20  # with which a list is better than a search
MAX_NAME = 64  # clients refuse longer names of tools, or cut them
_DIGEST = 6

_is_plain = re.compile(r"[A-Za-z0-9_-]{1,64}").fullmatch
_other = re.compile(r"[^A-Za-z0-9_-]")


def is_accepted(name: str) -> bool:
    """Whether clients accept a tool of this name."""
    return _is_plain(name) is not None


def accepted(name: str) -> str:
    """A name that clients accept, the same for the same `name`: other characters become `_`; of a long one the
    beginning is kept, with a digest of the whole."""
    plain = _other.sub("_", name)
    if len(plain) <= MAX_NAME and plain:
        return plain
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:_DIGEST]
    return f"{plain[: MAX_NAME - _DIGEST - 1]}_{digest}"


def shown_prompts(prefix: str | None, prompts: Iterable[str]) -> dict[str, str]:
    """The member's own name of each prompt, by the name that is shown. Of two with one name the first is shown."""
    shown: dict[str, str] = {}
    for prompt in prompts:
        shown.setdefault(shown_as(prompt, prefix), prompt)
    return shown


def shown_as(name: str, prefix: str | None) -> str:
    """As clients accept it: with the prefix; without one (None) as it is."""
    return name if prefix is None else accepted(prefix + name)
