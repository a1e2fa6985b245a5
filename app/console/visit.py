"""Visit: a page that somebody who has signed in asks for; and how pages are made."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import anyio
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from app import __version__
from app.console import wording
from app.console.assets import Assets
from app.console.rest import Refused, Rest
from app.console.sessions import SignedIn

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
    "Cache-Control": "no-store",
}


class Missing(NamedTuple):
    """A part of a page that REST has refused, and why: shown in its place."""

    words: str
    status: int

    def __bool__(self) -> bool:
        return False


class Templates:
    """The templates of the console. What they show is escaped; a name that nobody has given is an error."""

    def __init__(self, assets: Assets) -> None:
        self._environment = Environment(
            loader=PackageLoader("app.console"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
            lstrip_blocks=True,
        )  # fmt: skip
        self._environment.globals.update(asset=assets.url, version=__version__, url=page_url)
        self._environment.filters.update(wording.FILTERS)
        self._environment.tests["missing"] = lambda part: isinstance(part, Missing)

    def response(self, name: str, values: Mapping[str, Any], status: int = 200) -> HTMLResponse:
        """A page."""
        text = self._environment.get_template(name).render(**values)
        return HTMLResponse(text, status, headers=HEADERS)


def page_url(*parts: str, **query: object) -> str:
    """The address of a page of the console; the parts are escaped, empty values of the query left out."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    path = "/".join(["/console", *(quote(part, safe=":") for part in parts)])
    return path + ("?" + urlencode(given) if given else "")


class Visit:
    """`me`: what `…/me` answers. `tenant`: the one that the page is about, else that of the visitor."""

    def __init__(
        self, request: Request, signed_in: SignedIn, me: Mapping[str, Any], rest: Rest, templates: Templates
    ) -> None:
        self.request, self.me = request, me
        self.tenant: str = request.path_params.get("tenant", me["tenant"])
        self._signed_in, self._rest, self._templates = signed_in, rest, templates

    def asked(self, name: str) -> str:
        """A parameter of the query; empty if there is none."""
        return self.request.query_params.get(name, "").strip()

    def next_query(self, cursor: str) -> str:
        """The query of this page from `cursor` on."""
        return urlencode({**self.request.query_params, "cursor": cursor})

    async def get(self, path: str, **query: object) -> Any:
        """What REST answers to a GET of `/api/v1` + path. Raises Refused."""
        return await self._rest.get(self.request.scope, self._signed_in, path, query)

    async def of_tenant(self, path: str, **query: object) -> Any:
        """As `get`, below the tenant of the page."""
        return await self.get(f"/tenants/{self.tenant}{path}", **query)

    async def all(self, **parts: Awaitable[Any]) -> dict[str, Any]:
        """Several answers at once; a Missing for each that was refused."""
        found = dict[str, Any]()

        async def find(name: str, part: Awaitable[Any]) -> None:
            try:
                found[name] = await part
            except Refused as refused:
                if refused.status == 401:
                    raise
                found[name] = Missing(str(refused), refused.status)

        try:
            async with anyio.create_task_group() as tasks:
                for name, part in parts.items():
                    tasks.start_soon(find, name, part)
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
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
        """A page. Each template has `visit`, `csrf`, and what is given."""
        common = {"visit": self, "csrf": self._signed_in.csrf, "here": self.request.scope["path"]}
        return self._templates.response(template, {**common, **values}, status)


Page = Callable[[Visit], Awaitable[HTMLResponse]]
