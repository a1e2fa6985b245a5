"""What a document refers to within itself."""

from typing import Any

from referencing import Registry, Specification
from referencing.exceptions import Unresolvable

MAX_STEPS = 32  # from one reference to the next


class LeftOut(Exception):
    """A part of a document that cannot be expressed, in words that complete "it …"."""


class References:
    """Looks references up. Other documents are not read: what they say could change without anybody's act."""

    def __init__(self, document: Any) -> None:
        contents = Specification.OPAQUE.create_resource(document)
        self._resolver: Any = Registry[Any]().with_resource("", contents).resolver("")

    def target(self, reference: str) -> Any:
        """What it refers to, which may be a reference again. Raises LeftOut."""
        if not reference.startswith("#"):
            raise LeftOut(f"refers to another document (`{_short(reference)}`)")
        try:
            return self._resolver.lookup(reference).contents
        except (Unresolvable, ValueError, TypeError, LookupError):
            raise LeftOut(f"refers to `{_short(reference)}`, which the document does not have") from None

    def resolved(self, node: Any) -> dict[str, Any]:
        """The object itself, where it may be a reference. Raises LeftOut: it is none, or refers to nothing."""
        for _ in range(MAX_STEPS):
            if not isinstance(node, dict):
                raise LeftOut("has something that is no object where one must be")
            reference = node.get("$ref")
            if not isinstance(reference, str):
                return node
            node = self.target(reference)
        raise LeftOut("has a reference that refers to itself")


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:99]}…"
