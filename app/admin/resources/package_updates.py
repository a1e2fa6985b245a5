"""…/backends/{backend}:update and …/backends:outdated: another version of a package that a backend is started from."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial

from fastapi import Request, Response
from pydantic import BaseModel, Field

from app.admin._backend_rights import own_scope, require_may_check, require_theirs
from app.admin._route import ResourceRouter
from app.admin._step_stream import RESPONSES, Check, StepStream, wants_steps
from app.admin.audit_changes import changes_of_backend
from app.admin.context import Access, MayManage
from app.admin.idempotency import ONCE
from app.admin.resources.backends import BackendName, FailureAnswer, find_backend
from app.admin.schemas.backends import BackendAnswer, PackageAnswer
from app.admin.schemas.fields import Strict
from app.auth.policy import is_platform_admin
from app.backends.catalog.judging import ToolChanges, changes_of
from app.backends.checks.backend_check import failure_of
from app.backends.checks.steps import Steps
from app.backends.packages.packages import Outdated
from app.backends.packages.recognition import names_package
from app.domain import BackendSpec, Scope
from app.errors import BackendError, GatewayError, InvalidRequest
from app.http.problems import responses
from app.protocol.toolset.offer import Offer

router = ResourceRouter(tags=["backends"])
log = logging.getLogger(__name__)

MAX_SHOWN = 200  # names of tools in each list
_PAGE = 200
_NOT_KNOWN = "its registry does not say which version is the newest; the log of the gateway says why"


class UpdateBody(Strict):
    """Which version of a backend's package. Without `apply` nothing is changed."""

    to: str | None = Field(
        None,
        max_length=100,
        description="A version, which `args` name then if they name one; null: the newest that they allow.",
        examples=["2.1.0"],
    )
    apply: bool = False


class ToolChangesAnswer(BaseModel):
    """Names of tools; at most 200 of each."""

    added: list[str]
    removed: list[str]
    changed: list[str]

    @classmethod
    def of(cls, changes: ToolChanges) -> "ToolChangesAnswer":
        return cls(**{name: list(names)[:MAX_SHOWN] for name, names in changes._asdict().items()})


class UpdateAnswer(BaseModel):
    """What an update changes, or has changed."""

    applied: bool = Field(description="Whether sessions that begin from now on get the new version.")
    before: PackageAnswer | None = Field(description="null: the backend is from before its package was installed.")
    after: PackageAnswer
    args: list[str] = Field(description="Those of the backend with that version.")
    tools: ToolChangesAnswer | None = Field(
        description="What the new version offers otherwise; null: it is the same version, or that is not known of one "
        "of the two."
    )
    withheld: list[str] = Field(
        description="Tools of the new version that are neither shown nor called until a person approves them."
    )
    failure: FailureAnswer | None = Field(
        description="Why a process of the new version does not say what it offers: then nothing is changed."
    )


class OutdatedAnswer(BaseModel):
    """A backend whose package has a newer version in its registry."""

    backend: str
    registry: str = Field(description="`npm` or `pypi`.")
    package: str
    version: str = Field(description="The installed one.")
    newest: str | None = Field(description="null: nobody knows; see `problem`.")
    problem: str | None

    @classmethod
    def of(cls, found: Outdated, *, in_full: bool) -> "OutdatedAnswer":
        package = found.package
        problem = found.problem if in_full or found.problem is None else _NOT_KNOWN
        return cls(
            backend=found.backend,
            registry=package.registry,
            package=package.name,
            version=package.version,
            newest=found.newest,
            problem=problem,
        )


class OutdatedBackends(BaseModel):
    """By name."""

    items: list[OutdatedAnswer]
    next_cursor: None = None


@router.get("/backends:outdated", responses=responses(409))
async def list_outdated(access: MayManage) -> OutdatedBackends:
    """The backends whose package has a newer version in its registry, whatever their command allows. Each package is
    asked for now, for a minute at most; of one whose registry does not answer, `problem` says so."""
    with access.alone("backends:outdated", "the registries are being asked already; wait for the end of that"):
        found = await access.admin.packages.outdated(await _with_packages(access))
    await access.require_still(Scope.TENANT_ADMIN)
    in_full = is_platform_admin(access.principal)
    return OutdatedBackends(items=[OutdatedAnswer.of(each, in_full=in_full) for each in found])


@router.post(
    "/backends/{backend}:update",
    dependencies=[ONCE],
    response_model=UpdateAnswer,
    responses={**responses(409), **RESPONSES},
)
async def update_backend(
    access: MayManage, backend: BackendName, body: UpdateBody, request: Request
) -> Response | UpdateAnswer:
    """Installs another version of the package that the backend is started from, starts one process of it, asks what it
    offers, and says what is different; with `apply` sessions that begin from then on get it. Open sessions keep the
    version that they have. Tools that have changed wait for approval as ever.

    It is for who may register the package. Nothing is changed if the version cannot be installed, or does not say what
    it offers: see `failure`. It takes three minutes at most; with `Accept: text/event-stream` its steps are told as
    those of a check are.
    """
    updating = _updating(access, await find_backend(access, backend), body)
    if wants_steps(request):
        return StepStream(request, updating, partial(access.require_still, own_scope(access)))
    async with updating as update:
        return await update(Steps())


async def _with_packages(access: Access) -> list[BackendSpec]:
    found, last = list[BackendSpec](), ""
    while page := await access.admin.backends.list(access.tenant, after=last, limit=_PAGE):
        last = page[-1].name
        found += [spec for spec in page if spec.package is not None]
    return found


@asynccontextmanager
async def _updating(access: Access, spec: BackendSpec, body: UpdateBody) -> AsyncIterator[Check[UpdateAnswer]]:
    """Raises Conflict, Forbidden, InvalidRequest, StorageUnavailable: there is no update."""
    if not names_package(spec.command, spec.args):
        raise InvalidRequest("the command of this backend names no package that is installed from a registry")
    require_may_check(access, spec)
    await require_theirs(access, spec)
    target, limits = f"backends/{spec.name}", (await access.admin.tenants.get(access.tenant)).limits

    async def update(steps: Steps) -> UpdateAnswer:
        steps.expect("install", "tools")
        with steps.timed("install"):
            changed = await access.admin.packages.updated(spec, body.to)
        await access.require_still(own_scope(access))
        if (changed.package, changed.args) == (spec.package, spec.args):
            return _answer(spec, spec)
        with steps.timed("tools"):
            try:
                offer = await access.admin.catalog.offer_of(changed, limits)
            except BackendError as error:
                return _answer(spec, changed, failure=FailureAnswer(**asdict(failure_of("tools", error))))
            answer = await _compared(access, spec, changed, offer)
        await access.require_still(own_scope(access))
        await require_theirs(access, changed)
        if not body.apply:
            return answer
        await _store(access, spec, changed, offer)
        return answer.model_copy(update={"applied": True})

    with access.alone(f"{target}:update", "an update of this backend is under way; wait for its end"):
        if not body.apply:
            await access.admin.audit.append(access.act("backend.update", target, "dry run"))
        yield update


async def _store(access: Access, spec: BackendSpec, changed: BackendSpec, offer: Offer) -> None:
    """With what it offers, so that tools that have changed are withheld from the first session on.

    Raises:
        ConcurrentChange: somebody has changed the backend meanwhile.
    """
    assert changed.package is not None
    detail, changes = f"{changed.package.name} {changed.package.version}", changes_of_backend(spec, changed)
    act = access.act("backend.update", f"backends/{spec.name}", detail, changes=changes)
    stored = await access.admin.backends.replace(access.tenant, changed, act=act)
    try:
        await access.admin.catalog.note(stored, offer)
    except GatewayError as error:  # it is updated all the same, and the catalogue asks it again
        log.warning("Could not note what an updated backend offers: %s", error, extra={"backend": stored.name})
        access.admin.catalog.used(stored)


async def _compared(access: Access, spec: BackendSpec, changed: BackendSpec, offer: Offer) -> UpdateAnswer:
    catalog = access.admin.catalog
    before = await _offer_now(access, spec)
    tools = None if before is None else await catalog.aside(access.tenant, changes_of, before, offer)
    withheld = await catalog.withheld(spec.key, offer)
    answer = _answer(spec, changed, tools=None if tools is None else ToolChangesAnswer.of(tools))
    return answer.model_copy(update={"withheld": sorted(withheld)[:MAX_SHOWN]})


async def _offer_now(access: Access, spec: BackendSpec) -> Offer | None:
    """What the catalogue knows of the version that is there; if it knows nothing, it asks."""
    catalog, asked = access.admin.catalog, (access.tenant, [spec.name])
    entry = (await catalog.entries(*asked)).get(spec.name)
    if entry is None:
        await catalog.ask(spec.key)
        entry = (await catalog.entries(*asked)).get(spec.name)
    return None if entry is None else entry.offer


def _answer(
    spec: BackendSpec,
    changed: BackendSpec,
    *,
    tools: ToolChangesAnswer | None = None,
    failure: FailureAnswer | None = None,
) -> UpdateAnswer:
    before, after = BackendAnswer.of(spec), BackendAnswer.of(changed)
    assert after.package is not None
    return UpdateAnswer(
        applied=False,
        before=before.package,
        after=after.package,
        args=after.args,
        tools=tools,
        withheld=[],
        failure=failure,
    )
