"""…/issuers/{issuer}:check: can its keys be fetched, and why is this token refused?"""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Self

from fastapi import Request
from pydantic import BaseModel, Field, SecretStr

from app.admin._route import ResourceRouter
from app.admin.context import Access, MayManage
from app.admin.idempotency import ONCE
from app.admin.resources.issuers import IssuerId, find_issuer, sees_all
from app.admin.schemas.fields import Answer, Name, SortedTexts, Strict
from app.auth.issuer_check import Asked, Checked, FetchedKeys
from app.auth.tokens import Target
from app.domain import Scope
from app.errors import InvalidRequest
from app.http.dependencies import BASE_URL
from app.http.problems import responses

MAX_SENT = 16_384  # twice the maximum of a token, so that a check can say that it is too long
MAX_BACKENDS = 100

router = ResourceRouter(tags=["issuers"])


class IssuerCheckBody(Strict):
    """A token to check. It is neither stored nor shown."""

    token: Annotated[SecretStr, Field(max_length=MAX_SENT)] | None = None
    backend: Name | None = Field(
        default=None, description="For this backend of the tenant; without one, for any of them and the REST API."
    )


class PublishedKeyAnswer(Answer):
    """A key that the issuer publishes."""

    kid: str | None
    algorithms: SortedTexts = Field(description="What it can verify here.")
    problem: str | None = Field(description="Why it cannot verify anything here.")


class KeysAnswer(BaseModel):
    """The keys as just fetched. For an issuer with a secret: whether the secret can be decrypted."""

    urls: list[str] = Field(description="The URLs that were fetched, in order.")
    ms: float
    found: list[PublishedKeyAnswer]
    error: str | None
    setting: str | None = Field(description="The setting of the gateway that could prevent the error.")

    @classmethod
    def of(cls, keys: FetchedKeys) -> Self:
        found = [PublishedKeyAnswer.of(key) for key in keys.found]
        return cls(urls=keys.urls, ms=round(keys.ms, 1), found=found, error=keys.error, setting=keys.setting)


class RuleAnswer(BaseModel):
    """One rule. Values of the token are cut to a maximum length; its signature is never shown."""

    rule: str = Field(examples=["form", "issuer", "signature", "audience", "expiry", "scopes"])
    passed: bool | None = Field(description="null: it could not be checked.")
    expected: Any
    actual: Any
    hint: str | None


class IssuerCheckAnswer(BaseModel):
    """`ok`: tokens of the issuer can be accepted now; with a token: this one is."""

    ok: bool
    problem: str | None = Field(description="Why no token of this issuer can be accepted now.")
    keys: KeysAnswer
    rules: list[RuleAnswer] = Field(description="In the order of a sign-in; empty without a token.")
    granted_scopes: SortedTexts | None = Field(description="What the token grants if it passes every rule.")
    tenants: dict[str, SortedTexts] | None = Field(
        description="The same for each tenant that it names, if an issuer of the platform is checked for no tenant."
    )
    expires_at: datetime | None

    @classmethod
    def of(cls, checked: Checked) -> Self:
        return cls(
            ok=checked.ok,
            problem=checked.problem,
            keys=KeysAnswer.of(checked.keys),
            rules=[RuleAnswer(**asdict(step.finding), passed=step.passed) for step in checked.steps],
            granted_scopes=checked.granted,
            tenants=checked.reached,
            expires_at=None if checked.expires_at is None else datetime.fromtimestamp(checked.expires_at, UTC),
        )


@router.post("/issuers/{issuer}:check", dependencies=[ONCE], responses=responses(409))
async def check_issuer(
    access: MayManage, issuer: IssuerId, request: Request, body: IssuerCheckBody | None = None
) -> IssuerCheckAnswer:
    """Fetches the issuer's keys again, and applies each rule of a sign-in to a token. Takes at most ten seconds.

    The answer is 200 whether or not it works: see `ok`. Only one check of an issuer at a time.
    """
    found = await find_issuer(access, issuer)
    asked = body or IssuerCheckBody()
    resources = await _resources(access, request.scope.get(BASE_URL, ""), asked.backend)
    # Whoever sees the whole list checks all of it; a tenant's part of it is checked below that tenant.
    tenant = None if found.tenants is not None and sees_all(access) else access.tenant
    if tenant is None and asked.token is not None and not found.audience:
        below = f"/api/v1/tenants/{{tenant}}/issuers/{found.id}:check"
        raise InvalidRequest(f"without an `audience` its tokens are for one endpoint: ask {below}", field="token")
    now = access.admin.now().timestamp()
    token = None if asked.token is None else Asked(asked.token.get_secret_value().strip(), tenant, resources, now)
    target = f"issuers/{found.id}"
    with access.alone(target, "a check of this issuer is under way; wait for its end"):
        await access.admin.audit.append(access.act("issuer.check", target, found.issuer))
        checked = await access.admin.issuer_check.run(found, token)
        await access.require_still(Scope.TENANT_ADMIN)
        return IssuerCheckAnswer.of(checked)


async def _resources(access: Access, base_url: str, backend: str | None) -> list[str]:
    """The audiences that a token may have if the issuer names none."""
    if backend is not None:
        return [Target(access.tenant, backend, base_url).resource]
    backends = await access.admin.backends.list(access.tenant, limit=MAX_BACKENDS)
    return [Target(access.tenant, name, base_url).resource for name in ("", *(spec.name for spec in backends))]
