"""Query parameters that a route does not know: refused by name, because a filter that is ignored answers with
everything, and a `dry_run` that is ignored is a change."""

from collections import Counter

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError

from app.http.problems import MAX_ERRORS

MAX_SHOWN = 100  # characters of a name that somebody made up


def known_parameters(dependant: Dependant) -> frozenset[str]:
    """What a route, or anything that it depends on, takes from the query."""
    names = {field.alias for field in dependant.query_params}
    return frozenset(names.union(*(known_parameters(each) for each in dependant.dependencies)))


def require_known(request: Request, known: frozenset[str]) -> None:
    """Looks at the query of a request.

    Raises:
        RequestValidationError: it has a parameter that is not `known`, or one twice.
    """
    if not request.scope["query_string"]:
        return
    counts = Counter(name for name, _ in request.query_params.multi_items())
    errors = [
        {"type": "parameter", "loc": ("query", name[:MAX_SHOWN]), "msg": _problem(name[:MAX_SHOWN], known)}
        for name, count in counts.items()
        if name not in known or count > 1
    ]
    if errors:
        raise RequestValidationError(errors[:MAX_ERRORS])


def _problem(name: str, known: frozenset[str]) -> str:
    if name in known:
        return f"the parameter `{name}` stands twice; send it once"
    listed = ", ".join(f"`{each}`" for each in sorted(known))
    return f"there is no parameter `{name}` here; " + (f"known are {listed}" if known else "this route takes none")
