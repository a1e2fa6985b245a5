"""Visit: a page that somebody who has signed in asks for; and how pages are made."""

import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

import anyio
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.types import Message

from app import __version__
from app.console import wording
from app.console.assets import Assets
from app.console.backend_form import groups
from app.console.renewals import HEADER, MAX_PARTS
from app.console.rest import Refused, Rest
from app.console.sessions import SignedIn

if TYPE_CHECKING:
    from jinja2 import Environment

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types console"
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def locked_down(start: Message) -> Message:
    """The beginning of an answer, with those of these headers that it does not have."""
    headers = MutableHeaders(raw=list(start["headers"]))
    for name, value in HEADERS.items():
        headers.setdefault(name, value)
    return {**start, "headers": headers.raw}


class Missing(NamedTuple):
    """A part of a page that REST has refused, and why: shown in its place."""

    words: str
    status: int

    def __bool__(self) -> bool:
        return False


class Templates:
    """The templates of the console. What they show is escaped; a name that nobody has given is an error."""

    def __init__(self, assets: Assets, base: str) -> None:
        """`base`: what a proxy strips from the addresses of pages."""
        self._assets, self._base = assets, base

    @cached_property
    def _environment(self) -> "Environment":
        from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - many nodes show no page

        assets, base = self._assets, self._base
        found = Environment(
            loader=PackageLoader("app.console"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
            lstrip_blocks=True,
        )  # fmt: skip
        found.globals.update(
            asset=lambda name: base + assets.url(name), version=__version__, base=base,
            url=lambda *parts, **query: base + page_url(*parts, **query), backend_form=groups,
        )  # fmt: skip
        found.filters.update(wording.FILTERS)
        found.tests["odd_line"] = wording.is_odd_line
        found.tests["missing"] = lambda part: isinstance(part, Missing)
        return found

    def response(self, name: str, values: Mapping[str, Any], status: int = 200) -> HTMLResponse:
        """A page."""
        text = self._environment.get_template(name).render(self._with_macros(values))
        return HTMLResponse(text, status, headers=HEADERS)

    def parts(self, name: str, ids: Collection[str], values: Mapping[str, Any]) -> HTMLResponse:
        """Only these parts of a page. A part is a block whose name is `part_` and its id."""
        template = self._environment.get_template(name)
        context = template.new_context(self._with_macros(values))
        blocks = (template.blocks.get("part_" + each) for each in ids)
        text = "".join("".join(block(context)) for block in blocks if block is not None)
        return HTMLResponse(text, headers=HEADERS)

    def _with_macros(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """`parts`: what parts.html defines, for this page."""
        macros = self._environment.get_template("parts.html")
        return {**values, "parts": macros.make_module(dict(values))}


def page_url(*parts: str, **query: object) -> str:
    """The path of a page of the console; the parts are escaped, empty values of the query left out."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    path = "/".join(["/console", *(quote(part, safe=":") for part in parts)])
    return path + ("?" + urlencode(given) if given else "")


_names = re.compile(r"[a-z]{1,20}(?: [a-z]{1,20})*", re.ASCII).fullmatch
_RIGHTS = ("tenant", "is_platform_admin", "scopes", "may")


class Visit:
    """`me`: what `…/me` answers. `tenant`: the one that the page is about, else that of the visitor. `renewed`: the ids
    of the parts of the page that a browser asks for again; of the visitor they know only its rights."""

    def __init__(
        self, request: Request, signed_in: SignedIn, me: Mapping[str, Any], rest: Rest, templates: Templates
    ) -> None:
        named = request.headers.get(HEADER, "")
        self.renewed = tuple(sorted(set(named.split())))[:MAX_PARTS] if _names(named) else ()
        self.request, self.me = request, {name: me[name] for name in _RIGHTS} if self.renewed else me
        self.tenant: str = request.path_params.get("tenant", me["tenant"])
        self._signed_in, self._rest, self._templates = signed_in, rest, templates

    @property
    def what(self) -> tuple[object, ...]:
        """What is asked for, and with which rights: visits for which it is equal get the same answer."""
        scope, rights = self.request.scope, (str(self.me[name]) for name in _RIGHTS)
        return (scope["path"], scope["query_string"], self.renewed, *rights)

    def shows(self, part: str) -> bool:
        """Whether this part is asked for: all are, unless it is a renewal."""
        return not self.renewed or part in self.renewed

    def asked(self, name: str) -> str:
        """A parameter of the query; empty if there is none."""
        return self.request.query_params.get(name, "").strip()

    def next_query(self, cursor: str) -> str:
        """The query of this page from `cursor` on."""
        return urlencode({**self.request.query_params, "cursor": cursor})

    async def get(self, path: str, **query: object) -> Any:
        """What REST answers to a GET of `/api/v1` + path. Raises Refused."""
        return await self._rest.get(self.request.scope, self._signed_in, path, query)

    async def text(self, path: str, **query: object) -> str:
        """The same, as the text that it is."""
        return await self._rest.text(self.request.scope, self._signed_in, path, query)

    async def of_tenant(self, path: str, **query: object) -> Any:
        """As `get`, below the tenant of the page."""
        return await self.get(f"/tenants/{self.tenant}{path}", **query)

    async def all(self, *needed: str, **parts: Awaitable[Any]) -> dict[str, Any]:
        """Several answers at once, so that a page waits for a silent node once; a Missing for each that was refused.
        Raises Refused: one that is `needed` was."""
        found, refusals = dict[str, Any](), dict[str, Refused]()

        async def find(name: str, part: Awaitable[Any]) -> None:
            try:
                found[name] = await part
            except Refused as refused:
                if refused.status == 401:
                    raise
                found[name] = Missing(str(refused), refused.status)
                refusals[name] = refused

        try:
            async with anyio.create_task_group() as tasks:
                for name, part in parts.items():
                    tasks.start_soon(find, name, part)
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        for name in needed:
            if name in refusals:
                raise refusals[name]
        return found

    def may(self, scope: str) -> bool:
        """Whether the visitor has a scope in the tenant of the page. Only for what is shown: REST decides."""
        is_own = self.tenant == self.me["tenant"] and scope in self.me["may"]
        return bool(self.me["is_platform_admin"]) or is_own

    def may_connect(self, name: str) -> bool:
        """Whether the visitor may open sessions with a backend or a toolset of the tenant. Likewise only for what is
        shown."""
        is_named = self.tenant == self.me["tenant"] and f"mcp:connect:{name}" in self.me["scopes"]
        return is_named or self.may("mcp:connect")

    def show(self, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        """A page, or the parts of it that are renewed. Each template has `visit` and what is given."""
        if self.renewed and status == 200:
            return self._templates.parts(template, self.renewed, {"visit": self, **values})
        common = {"visit": self, "csrf": self._signed_in.csrf, "now": f"{time.time():.3f}"}
        return self._templates.response(template, {**common, **values}, status)


Page = Callable[[Visit], Awaitable[HTMLResponse]]
