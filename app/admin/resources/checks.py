"""…/backends/{backend}:check and :restart: does it work, and once more from the beginning."""

from typing import Any, Self

from fastapi import APIRouter
from pydantic import BaseModel, Field

from app.admin.context import MayManage
from app.admin.idempotency import ONCE
from app.admin.resources.backends import BackendName, find_backend
from app.admin.route import AdminRoute
from app.backends.backend_check import Trial
from app.errors import Conflict
from app.http.problems import responses

router = APIRouter(route_class=AdminRoute, tags=["backends"])


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


class CheckAnswer(BaseModel):
    """What a backend offers. Everything but `steps` is the backend's own word, cut to a length."""

    ok: bool
    protocol_version: str | None
    server: dict[str, str] = Field(description="`name`, `title`, `version`.")
    capabilities: dict[str, Any]
    tools: int | None = Field(description="null: it does not offer any such list.")
    resources: int | None
    prompts: int | None
    steps: list[StepAnswer] = Field(
        description="Those that were taken; on failure the last one is the one that failed."
    )
    failure: FailureAnswer | None

    @classmethod
    def of(cls, trial: Trial) -> Self:
        """Shows the value."""
        failure = trial.failure
        return cls(
            ok=failure is None,
            protocol_version=trial.protocol_version,
            server=trial.server,
            capabilities=trial.capabilities,
            tools=trial.counts["tools"],
            resources=trial.counts["resources"],
            prompts=trial.counts["prompts"],
            steps=[StepAnswer(step=step.name, ms=step.ms) for step in trial.steps],
            failure=None
            if failure is None
            else FailureAnswer(
                step=failure.step,
                reason=failure.reason,
                detail=failure.detail,
                hint=failure.hint,
                stderr=list(failure.stderr),
            ),
        )


@router.post("/{backend}:check", dependencies=[ONCE], responses=responses(409))
async def check_backend(access: MayManage, backend: BackendName) -> CheckAnswer:
    """Starts one process of the backend, enabled or not, asks what it offers, and stops it. Takes a minute at most.

    The answer is 200 whether or not the backend works: `ok` tells. One check of a backend at a time.
    """
    spec = await find_backend(access, backend)
    limits = (await access.admin.tenants.get(access.tenant)).limits
    under_way = access.admin.checks_under_way
    if spec.key in under_way:
        raise Conflict("this backend is being checked")
    under_way.add(spec.key)
    try:
        await access.admin.audit.append(access.act("backend.check", f"backends/{spec.name}"))
        return CheckAnswer.of(await access.admin.node.check(spec, limits))
    finally:
        under_way.discard(spec.key)


@router.post("/{backend}:restart", status_code=204, dependencies=[ONCE], responses=responses(409))
async def restart_backend(access: MayManage, backend: BackendName) -> None:
    """Ends the backend's sessions and processes and starts its warm ones anew. Clients can begin new sessions then."""
    spec = await find_backend(access, backend)
    await access.admin.audit.append(access.act("backend.restart", f"backends/{spec.name}"))
    access.admin.effects.backend_restarted(spec.key)
