"""Resource: what is declared of one kind of object. `app/domain/resources/guides.py` is the simplest."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from app.domain.resources.members import DeclaredMember, declared_members

V = TypeVar("V")

_WORDS = {
    "create": "Creates a {one}.",
    "list": "The tenant's {name} by name.",
    "get": "One {one}.",
    "change": "Changes a {one}.",
    "delete": "Removes a {one}.",
}


@dataclass(frozen=True, eq=False)
class Resource(Generic[V]):
    """A kind of object that belongs to a tenant and has a name there.

    `name` stands in paths, in tables and in files; `columns` are the first ones of a list. `unlisted` members are shown
    of one object only. A row goes with its tenant, or with the object that the member `goes_with` names. `members` are
    those of the model, if nothing else is said; `rules` are about several of them; `words` the descriptions of routes
    and bodies, where the usual ones do not do.
    """

    model: type[V]
    name: str
    one: str
    about: str
    per_tenant: int
    columns: tuple[str, ...] = ("name", "changed_at")
    unlisted: tuple[str, ...] = ()
    goes_with: str = ""
    members: tuple[DeclaredMember, ...] = ()
    rules: tuple[Callable[[V], None], ...] = ()
    words: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.members:
            object.__setattr__(self, "members", declared_members(self.model))

    def missing(self) -> str:
        """The message where there is none of a name."""
        return f"{self.one.capitalize()} not found"

    def words_of(self, verb: str) -> str:
        """The description of a route."""
        return self.words.get(verb) or _WORDS[verb].format(one=self.one, name=self.name)
