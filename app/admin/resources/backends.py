"""…/backends and …/failures, of one tenant."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Self

import anyio.to_thread
from fastapi import Path, Request, Response
from pydantic import BaseModel, Field

from app.admin._backend_rights import (
    is_only_asked_for,
    is_theirs,
    own_scope,
    require_given_anew,
    require_may_allow,
    require_may_check,
    require_may_register,
    require_theirs,
    scope_to_add,
    scope_to_change,
)
from app.admin._backend_state import (
    ChangedBackend,
    KeptFailure,
    ListedBackends,
    RunningBackends,
    ShownBackend,
    shown_failure,
)
from app.admin._conditions import AskedState, etag, tagged
from app.admin._merge_patch import patched
from app.admin._paging import AskedNewestOfBackend, AskedPage
from app.admin._route import ResourceRouter
from app.admin._step_stream import RESPONSES, Check, StepStream, wants_steps
from app.admin._switches import Switch, switched
from app.admin._view import add_list
from app.admin.audit_changes import changes_of_backend
from app.admin.context import Access, MayManage, MayPerhapsManage, MayRead
from app.admin.idempotency import ONCE
from app.admin.schemas.backends import BackendAnswer, BackendBody, BackendPatch, StoredBackend
from app.auth.outbound_urls import UrlRefused
from app.auth.policy import has_scope, is_platform_admin
from app.auth.sealing import SealBroken
from app.backends.checks.backend_check import CheckResult
from app.backends.checks.proposals import member_of, patch_of
from app.backends.checks.steps import Steps
from app.backends.packages.recognition import names_package
from app.backends.upstreams.certificates import expiring
from app.backends.upstreams.upstream_secrets import destination_of, opened, sealed, secrets_of
from app.cluster.node_status.questions import BACKENDS, FAILURES, SANDBOX
from app.cluster.node_status.views import FailureView
from app.concurrency.at_once import at_once
from app.domain import BackendSpec, Scope, Tenant, is_name, views
from app.domain.resources.backends import HIDDEN, SECRETS_OF_CONNECT
from app.domain.resources.members import flat, plain
from app.errors import BackendError, BackendNotFound, Conflict, Forbidden, InvalidRequest
from app.http.problems import responses
from app.jail.sandbox.report import paths_not_here
from app.protocol.openapi.document import UnfitDocument, is_url
from app.storage.tools.approvals import Judgement
from app.text.credentials import restored, secrets_in
from app.text.pem import PemRefused, require_key_of
from app.text.terminal.text import printable

router = ResourceRouter(tags=["backends"])

MAX_WHO = 200  # characters of who asks for a backend
BackendName = Annotated[str, Path(description="The backend's name.")]


class StepAnswer(BaseModel):
    """One step of a check."""

    step: str = Field(examples=["start", "initialize", "tools/list"])
    ms: float


class FailureAnswer(BaseModel):
    """Why a check ended early."""

    step: str
    reason: str
    detail: str
    hint: str | None
    stderr: list[str]


class MissedAnswer(BaseModel):
    """Something that the node has and the backend's sandbox withheld, or a limit that it reached."""

    kind: str = Field(description="`file`, `address`, `system call` or `limit`.")
    what: str = Field(examples=["/srv/repository", "127.0.0.1:5432", "64 processes and threads"])
    access: str | None = Field(description="To a file: `read` or `write`.")
    count: int = Field(description="How often the backend asked for it.")
    proposal: dict[str, Any] | None = Field(
        description="What to add to `sandbox`, of a `limit` to `limits`; null: no entry would help, or none should.",
        examples=[{"read": ["/srv/repository"]}, {"network": {"allow": ["127.0.0.1:5432"]}}, {"pids": 128}],
    )
    granted_by: str | None = Field(
        description="The scope that adding it needs; null: there is no proposal.",
        examples=[Scope.PLATFORM_ADMIN.value, Scope.TENANT_ADMIN.value],
    )
    may_grant: bool = Field(description="Whether who asked for the check has that scope.")
    uid: int | None = Field(
        description="The sandbox shows the file, but owner and mode keep it from this user, as whom the backend runs.",
        examples=[60123],
    )
    note: str | None = Field(description="What the entry opens, or why there is none.")


class CheckAnswer(BaseModel):
    """What a backend offers. All but `steps` comes from the backend itself, cut to a maximum length."""

    ok: bool
    protocol_version: str | None
    server: dict[str, str] = Field(description="`name`, `title`, `version`.")
    capabilities: dict[str, Any]
    tools: int | None = Field(description="null: it offers no such list.")
    resources: int | None
    prompts: int | None
    steps: list[StepAnswer] = Field(description="The steps that were taken; on failure the last one failed.")
    failure: FailureAnswer | None
    missed: list[MissedAnswer] = Field(
        description="What its sandbox kept from it: what its registration or its stderr names, addresses, or what it "
        "asked for last before it failed. At most ten."
    )
    unwatched: str | None = Field(description="Why something may be missing in `missed`.")
    patch: dict[str, Any] | None = Field(
        description="What a PATCH of the backend adds all those proposals with that who asked may grant, short of "
        "`network: host`; null: nothing.",
        examples=[{"sandbox": {"read": ["/srv/repository"]}}],
    )
    tag: str = Field(description="Of the registration that was checked, for `If-Match` of that PATCH.")
    start_used: str = Field(description="How its processes are started on this node: `exec` or `fork`.")
    start_reason: str = Field(description="Why they are executed, if its `start` is another.")
    left_out: list[str] = Field(default=[], description="What of its `openapi` could not be made a tool, and why.")

    @classmethod
    def of(cls, result: CheckResult, spec: BackendSpec, access: Access, tenant: Tenant) -> Self:
        steps = [StepAnswer(step=step.name, ms=step.ms) for step in result.steps]
        found = result.findings.missed
        scopes = [
            None if each.proposal is None else scope_to_add(spec, member_of(each), each.proposal, tenant)
            for each in found
        ]
        may = [each is not None and has_scope(access.principal, access.tenant, each) for each in scopes]
        missed = [
            {**asdict(each), "granted_by": scope, "may_grant": allowed}
            for each, scope, allowed in zip(found, scopes, may, strict=True)
        ]
        patch = patch_of(spec, (each for each, allowed in zip(found, may, strict=True) if allowed)) or None
        members = {**asdict(result), **asdict(result.findings), **result.counts, "missed": missed, "patch": patch}
        tag = etag(BackendAnswer.of(spec))
        return cls(**{**members, "ok": result.failure is None, "steps": steps, "tag": tag})


class ListedFailure(KeptFailure):
    """One failure, with its backend."""

    tenant: str
    backend: str

    @classmethod
    def of(cls, view: FailureView, *, in_full: bool) -> Self:
        members = shown_failure(view.failure, in_full=in_full)
        return cls.model_validate({**members, "tenant": view.tenant, "backend": view.backend})


@router.post("/backends", status_code=201, dependencies=[ONCE], responses=responses(409))
async def create_backend(access: MayManage, body: BackendBody, response: Response) -> ChangedBackend:
    """Registers a command, which permits the tenant to run it: only for platform administrators. Or the `url` of a
    server, or the document of an HTTP API (`openapi`), for which nothing is started here: administrators of the tenant
    may do that too. What of a document could not be made a tool is in `notes`.

    Of commands they may register packages and images that the tenant's `packages_allow` lists, without a path of the
    node, with no network but what `network_allow` has, and within the usual limits. What else they ask for of those
    is registered as a request: switched off, until a platform administrator switches it on, and nothing is installed
    before."""
    spec = await register(access, body)
    response.headers["Location"] = f"/api/v1/tenants/{spec.tenant}/backends/{spec.name}"
    return await _changed(access, response, spec)


@router.get("/backends")
async def list_backends(access: MayRead, asked: AskedPage) -> ListedBackends:
    """The tenant's backends by name: their registration, state and last failure."""
    found = await access.admin.backends.list(access.tenant, after=asked.after, limit=asked.fetch)
    if not found:
        return ListedBackends(items=[], next_cursor=None, silent_nodes=[])
    running = RunningBackends(await access.admin.node.ask(BACKENDS, access.tenant, found[0].name, found[-1].name))
    page = asked.page(found, lambda spec: spec.name, running.listed)
    return ListedBackends(**dict(page), silent_nodes=running.silent)


@router.get("/backends/{backend}")
async def get_backend(access: MayRead, backend: BackendName, response: Response) -> ShownBackend:
    """One backend, with its last failures on all nodes; only administrators see stderr and the affected sessions.
    The tag covers its registration, not what runs."""
    spec = await find_backend(access, backend)
    tagged(response, BackendAnswer.of(spec))
    node = access.admin.node
    runs, sandboxes = await at_once(node.ask(BACKENDS, access.tenant, spec.name, spec.name), node.ask(SANDBOX))
    in_full = has_scope(access.principal, access.tenant, Scope.TENANT_ADMIN)
    notes = await _notes(access, spec)
    return RunningBackends(runs).shown(spec, sandboxes.rows, notes, in_full=in_full)


@router.patch("/backends/{backend}", responses=responses(409, 412))
async def change_backend(
    access: MayManage, backend: BackendName, patch: BackendPatch, response: Response, if_match: AskedState
) -> ChangedBackend:
    """Changes a backend: open sessions keep their process, new ones get the new version. Or switches it off or on, as
    administrators of the tenant may do too: off, its sessions end within a second on every node, and its processes
    stop. Only the platform switches on what the platform has switched off. They may also have in its
    `sandbox.network.allow` what the tenant's `network_allow` has, and change all of a backend that they may register.
    """
    asked = patch.model_fields_set - ({"sandbox"} if _is_of_the_network(patch) else set[str]())
    spec = await find_backend(access, backend)
    needed = Scope.TENANT_ADMIN if await is_theirs(access, spec) else scope_to_change(spec, asked)
    if not has_scope(access.principal, access.tenant, needed):
        raise Forbidden([needed], held=access.principal.scopes)
    if_match.require(BackendAnswer.of(spec))
    switch = switched(access, Switch(spec.enabled, spec.reason, spec.off_by_platform), patch)
    changed = await _patched(access, spec, patch, switch)
    if _is_of_the_network(patch):
        await require_may_allow(access, spec.sandbox, changed.sandbox)
    if scope_to_change(spec, asked) is Scope.PLATFORM_ADMIN:
        await require_theirs(access, changed)
        require_given_anew(access, spec, patch)
    is_granted = changed.enabled and not spec.enabled and spec.package is None
    changed = await access.admin.packages.resolved(changed, None if is_granted else spec)
    if changed.package != spec.package:  # it may have taken a while
        await access.require_still(own_scope(access))
        await require_theirs(access, changed)
    if changed != spec:
        names, changes = " ".join(sorted(patch.model_fields_set)), changes_of_backend(spec, changed)
        act = access.act("backend.change", f"backends/{spec.name}", names, changes=changes)
        store = partial(access.admin.backends.replace, access.tenant, changed, act=act)
        with if_match.still():
            if (changed.pin, changed.pin_minor) != (spec.pin, spec.pin_minor):
                changed = await _under_its_policy(access, changed, store)
            else:
                changed = await store()
            if changed.access != spec.access:
                await access.admin.catalog.reread(spec.key)
        access.admin.catalog.used(changed)
    return await _changed(access, response, changed)


@router.delete("/backends/{backend}", status_code=204, responses=responses(409, 412))
async def delete_backend(access: MayPerhapsManage, backend: BackendName, if_match: AskedState) -> None:
    """Removes a backend and ends its sessions. One that is started by a command only the platform removes, but for
    those that administrators of the tenant may register."""
    spec = await find_removable(access, backend)
    if_match.require(BackendAnswer.of(spec))
    act = access.act("backend.delete", f"backends/{spec.name}", changes=changes_of_backend(spec, None))
    with if_match.still():
        await access.admin.backends.delete(access.tenant, spec.name, version=if_match.version(spec.version), act=act)


@router.post(
    "/backends/{backend}:check",
    dependencies=[ONCE],
    response_model=CheckAnswer,
    responses={**responses(409), **RESPONSES},
)
async def check_backend(access: MayManage, backend: BackendName, request: Request) -> Response | CheckAnswer:
    """Starts one process of the backend, enabled or not, asks what it offers, and stops it. Takes at most a minute; and
    if it works, up to 20 seconds in which the catalogue asks it too: then its tools can be approved.

    The answer is 200 whether or not the backend works: see `ok`. Only one check of a backend at a time.

    With `Accept: text/event-stream` each step is told while it is taken, as events with JSON: `begun` with `step`,
    `number` and `of` (how many there will be, as far as is known), `taken` with `step` and `ms`, and at the end
    `result` with the answer, or `problem`. Who leaves before ends the check.
    """
    checking = _checking(access, await find_backend(access, backend))
    if wants_steps(request):
        return StepStream(request, checking, partial(access.require_still, Scope.TENANT_ADMIN))
    async with checking as check:
        return await check(Steps())


@asynccontextmanager
async def _checking(access: Access, spec: BackendSpec) -> AsyncIterator[Check[CheckAnswer]]:
    """Raises Conflict, Forbidden, StorageUnavailable: it is not checked."""
    require_may_check(access, spec)
    tenant, target = await access.admin.tenants.get(access.tenant), f"backends/{spec.name}"

    async def check(steps: Steps) -> CheckAnswer:
        steps.expect("catalog")
        found = await access.admin.check(spec, tenant.limits, steps)
        if found.failure is None:
            with steps.timed("catalog"):
                await access.admin.catalog.ask(spec.key)
        left_out = await access.admin.documents.left_out(spec)
        await access.require_still(Scope.TENANT_ADMIN)
        answer = CheckAnswer.of(replace(found, steps=steps.taken), spec, access, tenant)
        return answer.model_copy(update={"left_out": left_out})

    with access.alone(target, "a check of this backend is under way; wait for its end"):
        await access.admin.audit.append(access.act("backend.check", target))
        yield check


@router.post("/backends/{backend}:restart", status_code=204, dependencies=[ONCE], responses=responses(409))
async def restart_backend(access: MayManage, backend: BackendName) -> None:
    """Ends the backend's sessions and processes and starts new warm ones. Clients can then open new sessions."""
    spec = await find_backend(access, backend)
    await access.admin.audit.append(access.act("backend.restart", f"backends/{spec.name}"))


def _shown_failure(access: Access, view: FailureView) -> ListedFailure:
    who = access.principal
    in_full = is_platform_admin(who) or has_scope(who, access.tenant, Scope.TENANT_ADMIN)
    return ListedFailure.of(view, in_full=in_full)


add_list(router, views.FAILURES, FAILURES, ListedFailure, asked=AskedNewestOfBackend, show=_shown_failure)


async def register(access: Access, body: BackendBody) -> BackendSpec:
    """Stores the backend, with an entry in the audit trail, and tells the nodes.

    Raises:
        Conflict: the name is taken.
        Forbidden: only the platform registers commands.
        InvalidRequest: its URL may not be reached, or its document cannot be used.
    """
    spec: BackendSpec = body.value(tenant=access.tenant)
    is_request = await is_only_asked_for(access, spec)
    by_platform = is_platform_admin(access.principal)
    _require_secrets(spec)
    spec = await _made(access, spec)
    spec = _granted(access, spec, None, is_given=True)
    spec = _sealed(access, replace(spec, off_by_platform=by_platform and not spec.enabled))
    spec = _as_request(access, spec) if is_request else await _with_package(access, spec)
    act = access.act("backend.create", f"backends/{spec.name}", changes=changes_of_backend(None, spec))
    return await access.admin.backends.create(access.tenant, spec, act=act)


async def _with_package(access: Access, spec: BackendSpec) -> BackendSpec:
    """With what its command names installed, if that is a package; not for a name that is taken.

    Raises:
        Conflict, InvalidRequest, QuotaExceeded: it cannot be.
        Unauthenticated, Forbidden: the request may not do that any more.
    """
    if not names_package(spec.command, spec.args):
        return spec
    with suppress(BackendNotFound):
        await access.admin.backends.get(access.tenant, spec.name)
        raise Conflict("the name is taken by a backend or a toolset")
    spec = await access.admin.packages.resolved(spec)
    await access.require_still(own_scope(access))
    return _as_request(access, spec) if await is_only_asked_for(access, spec) else spec


def _as_request(access: Access, spec: BackendSpec) -> BackendSpec:
    """What only the platform switches on. Nothing of it is installed before that."""
    who = printable(access.principal.name)[:MAX_WHO]
    reason = f"asked for by {who}: a platform administrator has to switch it on"
    return replace(spec, package=None, enabled=False, reason=reason, off_by_platform=True)


async def find_backend(access: Access, name: str) -> BackendSpec:
    """Raises BackendNotFound."""
    if not is_name(name):
        raise BackendNotFound
    return await access.admin.backends.get(access.tenant, name)


async def find_removable(access: Access, name: str) -> BackendSpec:
    """A backend that who asks may remove. Raises BackendNotFound; Forbidden, also where there is none."""
    try:
        spec = await find_backend(access, name)
    except BackendNotFound:
        require_may_register(access, None)
        raise
    if not await is_theirs(access, spec):
        require_may_register(access, spec.url)
    return spec


def _is_of_the_network(patch: BackendPatch) -> bool:
    return patch.sandbox is not None and patch.sandbox.model_fields_set == {"network"}


async def _notes(access: Access, spec: BackendSpec) -> list[str]:
    """What is not there: paths of its sandbox, or of its document. And which of its certificates expire."""
    notes = await anyio.to_thread.run_sync(paths_not_here, spec.sandbox)
    return [*notes, *await access.admin.documents.left_out(spec), *expiring(spec.connect, datetime.now(UTC))]


async def _changed(access: Access, response: Response, spec: BackendSpec) -> ChangedBackend:
    answer = tagged(response, BackendAnswer.of(spec))
    notes = await _notes(access, spec)
    return ChangedBackend(**answer.model_dump(), notes=notes)


async def _under_its_policy(
    access: Access, spec: BackendSpec, store: Callable[..., Awaitable[BackendSpec]]
) -> BackendSpec:
    """Stored with what its policy makes of its tools."""

    def store_with(judgement: Judgement) -> Awaitable[BackendSpec]:
        return store(judgement=judgement)

    return await access.admin.catalog.under(spec.key, spec.pin, spec.pin_minor, store_with)


def _sealed(access: Access, spec: BackendSpec, known: BackendSpec | None = None) -> BackendSpec:
    """With its secrets sealed; those that are the same as the `known` ones are sealed already.

    Raises:
        InvalidRequest: the URL may not be reached; or the secrets were given for another destination; or a key is not
            that of the certificate.
    """
    if spec.url is None:
        return spec
    _require_reachable(access, spec)
    before = {} if known is None else secrets_of(known)
    kept = {name: value for name, value in secrets_of(spec).items() if before.get(name) == value}
    if kept and known is not None and destination_of(known) != destination_of(spec):
        names = ", ".join(f"`{name}`" for name in kept)
        words = (
            "the value was given for another scheme, host or port, `connect.proxy` or `connect.ca`; give it again, or "
            "remove it"
        )
        raise InvalidRequest(f"{names}: {words}", field=next(iter(kept)).partition(".")[0])
    _require_key_of_certificate(access, spec, known, kept)
    return sealed(access.admin.sealer, spec, kept)


def _require_reachable(access: Access, spec: BackendSpec) -> None:
    """Raises InvalidRequest."""
    connect, field = spec.connect, "url"
    try:
        if connect.proxy is None:
            access.admin.upstream_policy.check(spec.url or "")
            return
        access.admin.upstream_policy.check_by_proxy(spec.url or "", is_granted=connect.proxy_is_granted)
        field = "connect/proxy"
        if not connect.proxy_is_granted:
            access.admin.upstream_policy.check(connect.proxy)
    except UrlRefused as problem:
        also = ", or a platform administrator gives the backend this proxy" if field == "connect/proxy" else ""
        raise InvalidRequest(f"{problem}{also}", field=field) from None


def _granted(access: Access, spec: BackendSpec, known: BackendSpec | None, *, is_given: bool) -> BackendSpec:
    """With the mark of a proxy that a platform administrator has given, for this URL. It stays until one of the two
    changes."""
    if spec.connect.proxy is None:
        return spec
    is_same = known is not None and destination_of(known) == destination_of(spec)
    is_granted = (is_same and known is not None and known.connect.proxy_is_granted) or (
        is_platform_admin(access.principal) and (is_given or not is_same)
    )
    return replace(spec, connect=replace(spec.connect, proxy_is_granted=is_granted))


def _require_key_of_certificate(
    access: Access, spec: BackendSpec, known: BackendSpec | None, kept: Mapping[str, str]
) -> None:
    certificate, key = spec.connect.certificate, spec.connect.key
    if certificate is None or key is None or (known is not None and known.connect == spec.connect):
        return
    try:
        if known is not None and "connect.key" in kept:
            key = opened(access.admin.sealer, known)("connect.key")
        require_key_of(certificate, key)
    except (PemRefused, SealBroken) as problem:
        broken = isinstance(problem, SealBroken)
        words = "cannot be opened: give it again" if broken else str(problem)
        raise InvalidRequest(f"`connect.key` {words}", field="connect/key") from None


def _require_secrets(spec: BackendSpec) -> None:
    """Raises InvalidRequest: the definition has marks that stand for no secret."""
    for name, words in (("args", spec.args), ("url", (spec.url or "",)), ("env", spec.env.values())):
        if any(HIDDEN in each for each in words):
            what = f"`{HIDDEN}` stands for a secret that is already set in the same place, but none is: give it again"
            raise InvalidRequest(what, field=name)


def _restored(spec: BackendSpec, changes: dict[str, Any]) -> dict[str, Any]:
    """With the value that is there where HIDDEN stands for it."""
    changes = dict(changes)
    of_connect = {name for name in SECRETS_OF_CONNECT if getattr(spec.connect, name) is not None}
    for member, known in (("env", spec.env), ("headers", spec.headers), ("connect", of_connect)):
        if given := changes.get(member):
            changes[member] = {name: each for name, each in given.items() if each != HIDDEN or name not in known}
    if changes.get("args"):
        changes["args"] = list(restored(changes["args"], spec.args))
    if changes.get("url") and spec.url is not None:
        changes["url"] = restored([changes["url"]], [spec.url])[0]
    return changes


async def _patched(access: Access, spec: BackendSpec, patch: BackendPatch, switch: Switch) -> BackendSpec:
    changes = _restored(spec, patch.model_dump(exclude_unset=True))
    changes |= {"enabled": switch.enabled, "reason": switch.reason}
    shown = flat(spec)
    members = {name: plain(shown[name]) for name in BackendBody.model_fields} | {"command": spec.command or None}
    del members["connect"]["proxy_is_granted"]
    # Not looked at again: it may have marks, where a secret does not open.
    as_it_is: dict[str, Any] = {} if "env" in changes else {"env": spec.env}
    body = patched(StoredBackend, members | dict.fromkeys(as_it_is), changes, nulls=("limits",))
    new: BackendSpec = replace(body.value(version=spec.version, tenant=spec.tenant), sealed=spec.sealed, **as_it_is)
    if (new.env, new.args, new.url) != (spec.env, spec.args, spec.url):
        _require_secrets(new)
    _require_same_kind(spec, new)
    new = replace(new, made=spec.made, home=spec.home, sandbox_exempt=spec.sandbox_exempt)
    new = await _with_document(access, spec, new, changes.get("openapi"))
    new = _granted(access, new, spec, is_given=(changes.get("connect") or {}).get("proxy") is not None)
    return replace(_sealed(access, new, spec), off_by_platform=switch.off_by_platform)


def _require_same_kind(spec: BackendSpec, new: BackendSpec) -> None:
    """Raises InvalidRequest."""
    if ((new.url or new.openapi) is None) != (spec.url is None):
        words = "a backend with `command` cannot become one with `url`, nor the reverse: register another"
        raise InvalidRequest(words, field="url")
    if (new.openapi is None) != (spec.openapi is None):
        words = "a server of MCP cannot become an API, nor the reverse: register another backend"
        raise InvalidRequest(words, field="openapi")


async def _with_document(access: Access, spec: BackendSpec, new: BackendSpec, given: str | None) -> BackendSpec:
    """The changed backend with what is made of the document that was given with the change, if there was one. Raises as
    `_made`."""
    if given is not None and (given != spec.openapi or _is_address(given)):
        return await _made(access, new)
    if new.url is None and new.openapi is not None:
        raise InvalidRequest("give `url`, or the document again, which may say where the API is", field="url")
    return replace(new, openapi_made=spec.openapi_made)


def _is_address(given: str) -> bool:
    """Whether what is there may be another document now."""
    return is_url(given) is not None


async def _made(access: Access, spec: BackendSpec) -> BackendSpec:
    """With what is made of its document, if it has one. Asks afterwards whether the caller may still do it.

    Raises:
        InvalidRequest: the document cannot be used, or does not say where its API is.
        Conflict: another document of this tenant is being read.
    """
    if spec.openapi is None:
        return spec
    if _is_address(spec.openapi) and secrets_in([spec.openapi]):
        words = "the address has a credential, and everybody who may read the tenant sees it: give the document itself"
        raise InvalidRequest(words, field="openapi")
    with access.alone("openapi", "another document of this tenant is being read; wait for its end"):
        try:
            if _is_address(spec.openapi):
                access.admin.upstream_policy.check(spec.openapi)
            made = await access.admin.documents.made(spec.key, spec.openapi)
        except (UnfitDocument, UrlRefused) as problem:
            raise InvalidRequest(str(problem), field="openapi") from None
        except BackendError as error:
            raise InvalidRequest(f"the document could not be fetched: {error}", field="openapi") from None
    await access.require_still(Scope.TENANT_ADMIN)
    url = spec.url or made.server
    if not url:
        words = "the document does not say where its API is, with an absolute address in `servers`: give `url`"
        raise InvalidRequest(words, field="url")
    return replace(spec, openapi=made.source, openapi_made=made.digest, api=made.stored, url=url)
