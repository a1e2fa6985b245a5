"""…/issuers/{issuer}:check: can its keys be had, and why is this token refused?"""

from datetime import UTC, datetime
from typing import Annotated, Any, Self

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, SecretStr

from app.admin.context import Access, Issuers, MayManage
from app.admin.idempotency import ONCE
from app.admin.resources.issuers import IssuerId, find_issuer, sees_all
from app.admin.route import AdminRoute
from app.admin.schemas.fields import Name, Strict
from app.auth.issuer_check import Asked, Checked, KeyLook, Step
from app.auth.tokens import Target
from app.errors import Conflict, InvalidRequest
from app.http.dependencies import BASE_URL
from app.http.problems import responses

MAX_SENT = 16_384  # twice what a token may have: a longer one is told so
MAX_BACKENDS = 100

router = APIRouter(route_class=AdminRoute, tags=["issuers"])


class IssuerCheckBody(Strict):
    """A token to look at. It is neither kept nor repeated."""

    token: Annotated[SecretStr, Field(max_length=MAX_SENT)] | None = None
    backend: Name | None = Field(
        default=None, description="For which backend of the tenant; without one, for any of them and the REST API."
    )


class PublishedKeyAnswer(BaseModel):
    """A key that the issuer publishes."""

    kid: str | None
    algorithms: list[str] = Field(description="What it can verify here.")
    problem: str | None = Field(description="Why it verifies nothing here.")


class KeysAnswer(BaseModel):
    """What was found when the keys were fetched just now. Of an issuer with a secret: whether it opens."""

    urls: list[str] = Field(description="What was asked, in this order.")
    ms: float
    found: list[PublishedKeyAnswer]
    error: str | None
    setting: str | None = Field(description="The setting of the gateway that could change the error.")

    @classmethod
    def of(cls, look: KeyLook) -> Self:
        """Shows the value."""
        found = [
            PublishedKeyAnswer(kid=key.kid, algorithms=list(key.algorithms), problem=key.problem) for key in look.found
        ]
        return cls(urls=look.urls, ms=round(look.ms, 1), found=found, error=look.error, setting=look.setting)


class RuleAnswer(BaseModel):
    """One rule. What is shown of the token is cut to a length; its signature never is shown."""

    rule: str = Field(examples=["form", "issuer", "signature", "audience", "expiry", "scopes"])
    passed: bool | None = Field(description="null: it could not be asked.")
    expected: Any
    actual: Any
    hint: str | None

    @classmethod
    def of(cls, step: Step) -> Self:
        """Shows the value."""
        finding = step.finding
        return cls(
            rule=finding.rule,
            passed=step.passed,
            expected=finding.expected,
            actual=finding.actual,
            hint=finding.hint,
        )


class IssuerCheckAnswer(BaseModel):
    """`ok`: a token can be believed now; with a token, this one is."""

    ok: bool
    problem: str | None = Field(description="Why no token of this issuer can be believed now.")
    keys: KeysAnswer
    rules: list[RuleAnswer] = Field(description="In the order in which a sign-in asks them; empty without a token.")
    granted_scopes: list[str] | None = Field(description="What the token confers if it passes every rule.")
    tenants: dict[str, list[str]] | None = Field(
        description="The same in each tenant that it names, where an issuer of the platform is asked for none."
    )
    expires_at: datetime | None

    @classmethod
    def of(cls, checked: Checked) -> Self:
        """Shows the value."""
        expires_at = checked.expires_at
        return cls(
            ok=checked.ok,
            problem=checked.problem,
            keys=KeysAnswer.of(checked.look),
            rules=[RuleAnswer.of(step) for step in checked.steps],
            granted_scopes=None if checked.granted is None else sorted(checked.granted),
            tenants=None
            if checked.reached is None
            else {tenant: sorted(scopes) for tenant, scopes in checked.reached.items()},
            expires_at=None if expires_at is None else datetime.fromtimestamp(expires_at, UTC),
        )


@router.post("/{issuer}:check", dependencies=[ONCE], responses=responses(409))
async def check_issuer(
    access: MayManage, issuers: Issuers, issuer: IssuerId, request: Request, body: IssuerCheckBody | None = None
) -> IssuerCheckAnswer:
    """Fetches the issuer's keys anew, and lets a token run through each rule of a sign-in. Takes ten seconds at most.

    The answer is 200 whether or not it works: `ok` tells. One check of an issuer at a time.
    """
    found = await find_issuer(access, issuers, issuer)
    asked = body or IssuerCheckBody()
    resources = await _resources(access, request.scope.get(BASE_URL, ""), asked.backend)
    # Who may see the whole list asks for all of it: what a tenant's share of it does is asked below the tenant.
    tenant = None if found.tenants is not None and sees_all(access) else access.tenant
    if tenant is None and asked.token is not None and not found.audience:
        below = f"/api/v1/tenants/{{tenant}}/issuers/{found.id}:check"
        raise InvalidRequest(f"without an `audience` its tokens are for one endpoint: ask {below}", field="token")
    now = access.admin.now().timestamp()
    token = None if asked.token is None else Asked(asked.token.get_secret_value().strip(), tenant, resources, now)
    with issuers.checking(access.tenant, found.id) as is_alone:
        if not is_alone:
            raise Conflict("this issuer is being checked")
        await access.admin.audit.append(access.act("issuer.check", f"issuers/{found.id}", found.issuer))
        return IssuerCheckAnswer.of(await issuers.check.run(found, token))


async def _resources(access: Access, base_url: str, backend: str | None) -> list[str]:
    """What a token may be for, unless the issuer says that."""
    if backend is not None:
        return [Target(access.tenant, backend, base_url).resource]
    backends = await access.admin.backends.list(access.tenant, limit=MAX_BACKENDS)
    return [Target(access.tenant, name, base_url).resource for name in ("", *(spec.name for spec in backends))]
