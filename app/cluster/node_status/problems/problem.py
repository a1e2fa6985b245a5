"""Problem: something that a person should look at, in words; sent between nodes, and shown by the REST API."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Severity = Literal["critical", "warning", "info"]  # as in deploy/prometheus/rules.yml
SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "info")
MAX_PROBLEMS = 200  # that a node tells: the worst

# What of the gateway itself tenants are told, by kind: that it is so, not where or why.
_FOR_ALL = {
    "redis": "The gateway's Redis does not work: new sessions may be refused; open ones go on.",
    "database": "The gateway's database does not work: changes, and clients that it has not seen lately, are refused.",
    "overload": "The gateway is overloaded: new sessions are refused.",
}
_TELL = "Tell the operator of the gateway."


@dataclass(frozen=True, slots=True)
class Problem:
    """`kind` is a stable word. `about`: what it concerns, a kind and a name. `see`: the page of the console that
    helps, a kind and a name. `since` is Unix time, 0 if it is not known better than "seen now". `tenant` is None for
    what concerns the platform."""

    kind: str
    severity: Severity
    about: tuple[str, str]
    words: str
    do: str
    see: tuple[str, str] = ("", "")
    tenant: str | None = None
    since: float = 0.0
    nodes: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str | None, tuple[str, str]]:
        """What makes it the same problem, at another time or on another node."""
        return (self.kind, self.tenant, self.about)

    @property
    def rank(self) -> tuple[int, float, str, str]:
        """The worst first, then the newest."""
        return (SEVERITIES.index(self.severity), -self.since, self.tenant or "", f"{self.kind} {self.about}")


def for_tenant(problems: Iterable[Problem], tenant: str | None) -> list[Problem]:
    """What this tenant may know; None: a platform administrator, who may know everything."""
    if tenant is None:
        return list(problems)
    found = []
    for each in problems:
        if each.tenant == tenant:
            found.append(each)
        elif each.tenant is None and each.kind in _FOR_ALL:
            about = ("gateway", "gateway")
            found.append(replace(each, about=about, words=_FOR_ALL[each.kind], do=_TELL, see=("", ""), nodes=()))
    return found


def merged(problems: Iterable[Problem]) -> Sequence[Problem]:
    """One list of those of all nodes: the same problem of several nodes once, with the words of the first."""
    found: dict[tuple[str, str | None, tuple[str, str]], Problem] = {}
    for each in problems:
        known = found.get(each.key)
        if known is not None:
            since = min(filter(None, (known.since, each.since)), default=0.0)
            each = replace(known, since=since, nodes=tuple(sorted({*known.nodes, *each.nodes})))  # noqa: PLW2901
        found[each.key] = each
    return sorted(found.values(), key=lambda each: each.rank)
