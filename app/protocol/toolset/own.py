"""Own: what a toolset has of its own, besides what its members offer: guides and recipes."""

from collections.abc import Sequence
from datetime import UTC
from typing import Any

import msgspec

from app.domain.resources.guides import Guide
from app.domain.resources.recipes import Recipe
from app.protocol.jsonrpc import encode, encoded
from app.protocol.search.patterns import Patterns
from app.protocol.toolset.allowed import Allowed
from app.protocol.toolset.offer import Offer

NAME = "the toolset itself"  # where members have names
SCHEME = "guide://"
MARKDOWN = "text/markdown"
MAX_TEXT = 8 << 10  # characters of one guide that an answer of a search has; a client reads the resource for the rest


def uri_of(guide: str) -> str:
    """Under which the guide of this name is read as a resource."""
    return f"{SCHEME}{guide}"


class Own:
    """Immutable. Guides are shown as prompts and as resources; their URIs are `guide://` and the name. Recipes are
    tools."""

    def __init__(
        self, guides: Sequence[Guide] = (), recipes: Sequence[Recipe] = (), *, may_have_guides: bool = False
    ) -> None:
        self.guides = {uri_of(each.name): each for each in guides}
        self.recipes = {each.name: each for each in recipes}
        self.offer = _offer(guides, may_have_guides=may_have_guides or bool(guides), has_recipes=bool(recipes))

    @classmethod
    def chosen(cls, guides: Sequence[Guide], patterns: Sequence[str], recipes: Sequence[Recipe] = ()) -> "Own":
        """With the guides whose names match one of these patterns."""
        wanted = Patterns.of(patterns)
        chosen = [each for each in guides if wanted.match(each.name)]
        return cls(chosen, recipes, may_have_guides=bool(patterns))

    def narrowed(self, allowed: Allowed) -> "Own":
        """Without what a caller may not use. A guide stays that is listed as a prompt or as a resource."""
        guides = [
            each
            for uri, each in self.guides.items()
            if allowed.lists("prompts", each.name) or allowed.lists("resources", uri)
        ]
        recipes = [each for name, each in self.recipes.items() if allowed.lists("tools", name)]
        return Own(guides, recipes, may_have_guides="resources" in self.offer.capabilities)

    def prompt(self, name: str) -> bytes:
        """The result of `prompts/get`. Raises KeyError: there is no such guide."""
        guide = self.guides[uri_of(name)]
        message = {"role": "user", "content": {"type": "text", "text": guide.text}}
        return encode({**_description(guide), "messages": [message]})

    def resource(self, uri: str) -> bytes:
        """The result of `resources/read`. Raises KeyError: there is no such guide."""
        return encode({"contents": [{"uri": uri, "mimeType": MARKDOWN, "text": self.guides[uri].text}]})

    def found(self, uri: str) -> dict[str, Any]:
        """A guide as a search answers: with the beginning of its text, since few models can read resources."""
        guide = self.guides[uri]
        shown = {"name": guide.name, "uri": uri, **_title(guide), **_description(guide), "text": guide.text[:MAX_TEXT]}
        return {**shown, "isCut": True} if len(guide.text) > MAX_TEXT else shown

    def had(self, uri: str) -> bool:
        """Whether this may be a guide that is gone: no member answers for it."""
        return uri.startswith(SCHEME) and "resources" in self.offer.capabilities

    def changed(self, before: "Own") -> list[str]:
        """The URIs of guides that have another text than before, or are gone."""
        return [uri for uri, guide in before.guides.items() if self.guides.get(uri) != guide]


def _offer(guides: Sequence[Guide], *, may_have_guides: bool, has_recipes: bool) -> Offer:
    """Without recipes: their definitions depend on what members offer."""
    capabilities: dict[str, Any] = {"prompts": {}, "resources": {"subscribe": True}} if may_have_guides else {}
    if has_recipes:
        capabilities["tools"] = {}
    lists = {
        "prompts/list": tuple(encoded(_as_prompt(each)) for each in guides),
        "resources/list": tuple(encoded(_as_resource(each)) for each in guides),
    }
    return Offer(msgspec.Raw(encode({"capabilities": capabilities})), lists if may_have_guides else {})


def _as_prompt(guide: Guide) -> dict[str, Any]:
    return {"name": guide.name, **_title(guide), **_description(guide)}


def _as_resource(guide: Guide) -> dict[str, Any]:
    """With the time of the change, so that a list tells that a text is another one."""
    changed = f"{guide.changed_at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    return {
        "uri": uri_of(guide.name),
        "name": guide.name,
        **_title(guide),
        **_description(guide),
        "mimeType": MARKDOWN,
        "size": len(guide.text.encode()),
        "annotations": {"lastModified": changed},
    }


def _title(guide: Guide) -> dict[str, Any]:
    return {"title": guide.title} if guide.title else {}


def _description(guide: Guide) -> dict[str, Any]:
    return {"description": guide.description} if guide.description else {}
