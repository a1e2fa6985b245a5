"""Names that options and help need: of clients, views, and kinds of objects of the REST API. What they mean stands
elsewhere, and is not imported for them; declarations of resources import little enough."""

from dataclasses import dataclass
from typing import Any, Self

from app.domain import views
from app.domain.resources import clients, guides, recipes, toolsets
from app.domain.resources.resource import Resource as Declared
from app.domain.views import View

CLIENTS = (  # those of `app.admin.client_config`
    "claude-code", "claude-desktop", "cursor", "vscode", "windsurf", "cline", "codex", "openai-agents", "langchain",
)  # fmt: skip
DEFAULT_KEY_ENV = "GATEWAY_KEY"
CALL_GROUPS = ("backend", "tool", "outcome", "subject", "client")  # those of `app.telemetry.call_history.query`
VIEWS = ("processes", "sessions", "tenants")  # of `top`
SORTS = ("memory", "cpu", "calls", "age")
ALL = "-"  # as the tenant: all of them, where the REST API allows it


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object. `id` is the member that names it in a path, `made_by` the member that the argument of
    `create` sets; `first` are the leading columns of a list; `next` is what to do with a new one; `fixed` cannot be
    changed. `of_all`: its list may be of all tenants."""

    name: str
    of_tenant: bool = True
    of_all: bool = False
    id: str = "id"
    made_by: str = "name"
    first: tuple[str, ...] = ()
    next: str = ""
    fixed: tuple[str, ...] = ("name",)
    about: str = ""

    @classmethod
    def of(cls, declared: Declared[Any], then: str = "") -> Self:
        """A declared resource; without `then`, what to do with a new one is to look at it."""
        look = f"trunkline {declared.name} show {{name}} --tenant {{tenant}}"
        fixed, about = ("name", declared.goes_with), declared.about[0].lower() + declared.about[1:].rstrip(".")
        return cls(declared.name, id="name", first=declared.columns, next=then or look, fixed=fixed, about=about)

    @classmethod
    def of_view(cls, view: View) -> Self:
        """A list of what runs now."""
        of_tenant, of_all = view.whose != "platform", view.whose == "tenants"
        return cls(view.name, of_tenant=of_tenant, of_all=of_all, first=view.columns)


TENANTS = Resource(
    "tenants", of_tenant=False, id="name", first=("name", "enabled", "reason"),
    next="trunkline backends create NAME --tenant {name} -- COMMAND ARGUMENTS",
)  # fmt: skip
BACKENDS = Resource(
    "backends", id="name", first=("name", "status", "enabled", "reason", "last_error", "command", "url", "args"),
    next="trunkline backends check {name} --tenant {tenant}",
)  # fmt: skip
TOOLSETS = Resource.of(toolsets.TOOLSETS, "trunkline tools {name} --tenant {tenant}")
GUIDES = Resource.of(guides.GUIDES, "trunkline toolsets set TOOLSET --tenant {tenant} guides[]={name}")
RECIPES = Resource.of(recipes.RECIPES)
CATALOG = Resource(
    "catalog", id="backend", first=("backend", "tools", "prompts", "resources", "templates", "problem", "changed_at")
)
KEYS = Resource("keys", first=("id", "name", "enabled", "reason", "scopes", "expires_at", "revoked_at", "last_used_at"))
PRINCIPALS = Resource("principals", first=("issuer", "subject", "enabled", "reason", "at"))
ISSUERS = Resource(
    "issuers", made_by="issuer", first=("id", "issuer", "enabled", "algorithms", "max_scopes"),
    next="trunkline issuers check {name} --tenant {tenant} token=@FILE",
)  # fmt: skip
OAUTH_CLIENTS = Resource.of(clients.CLIENTS)
CONNECTIONS = Resource(
    "connections", first=("id", "client_title", "client_host", "issuer", "subject", "backend", "used_at", "ends_at")
)
SESSIONS = Resource.of_view(views.SESSIONS)
INSPECTIONS = Resource.of_view(views.INSPECTIONS)
PROCESSES = Resource.of_view(views.PROCESSES)
NODES = Resource("nodes", of_tenant=False, first=("id", "url", "sessions", "processes", "draining", "problem"))
ACCESS = Resource("access")
CALLERS = Resource.of_view(views.CALLERS)
AUDIT = Resource("audit", first=("at", "tenant", "action", "target", "actor", "request_id"))
CALLS = Resource("calls", of_all=True, first=(
    "at", "tenant", "tool", "outcome", "duration_ms", "backend", "subject", "client_name", "method", "session",
    "request_id",
))  # fmt: skip
LISTS = (  # what can only be listed, and what their commands do
    (Resource.of_view(views.USE), views.USE.help),
    (CALLERS, views.CALLERS.help),
    (Resource.of_view(views.FAILURES), views.FAILURES.help),
    (NODES, "list the gateway's nodes"),
    (AUDIT, "list administrative changes, newest first"),
)
