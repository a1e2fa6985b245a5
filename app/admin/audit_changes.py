"""What the audit trail says about a change: the differences between the answers before and after, without secrets."""

from typing import Any

from pydantic import BaseModel

from app.admin.schemas.backends import BackendAnswer
from app.admin.schemas.issuers import IssuerAnswer
from app.backends.upstreams.upstream_secrets import secrets_of
from app.domain import BackendSpec, Issuer
from app.domain.resources.backends import HIDDEN
from app.storage.audit import Change, between

# What the act's target says already, and what changes without an act.
_LEFT_OUT = {"id", "tenant", "version", "created_at", "changed_at", "last_used_at", "key"}


def changes_of(old: BaseModel | None, new: BaseModel | None) -> tuple[Change, ...]:
    """Between two answers; None is an object that did not exist, or no longer does."""
    return between(_members(old), _members(new))


def changes_of_backend(old: BackendSpec | None, new: BackendSpec | None) -> tuple[Change, ...]:
    """With the names of variables, headers and members that have another secret now, but without the secrets."""
    before, after = ({} if spec is None else _members(BackendAnswer.of(spec)) for spec in (old, new))
    if old is None or new is None:
        return between(before, after)
    was, now = _secrets(old), _secrets(new)
    other = [name for name in was if was[name] != now.get(name)]
    other += [name for name in ("args", "url") if getattr(old, name) != getattr(new, name)]
    return between(before, after, other)


def _secrets(spec: BackendSpec) -> dict[str, str]:
    return {f"env.{name}": value for name, value in spec.env.items()} | secrets_of(spec)


def changes_of_issuer(old: Issuer | None, new: Issuer | None) -> tuple[Change, ...]:
    """With the marks of secrets that are others now."""
    before, after = ({} if each is None else _issuer(each) for each in (old, new))
    if old is None or new is None:
        return between(before, after)
    other = ["secret"] if old.sealed_secret != new.sealed_secret else []
    other += ["sign_in.client_secret"] if old.sealed_client_secret != new.sealed_client_secret else []
    return between(before, after, other)


def _issuer(issuer: Issuer) -> dict[str, Any]:
    members = {**_members(IssuerAnswer.of(issuer)), "secret": None if issuer.sealed_secret is None else HIDDEN}
    if (sign_in := members["sign_in"]) is not None and sign_in.pop("has_client_secret"):
        sign_in["client_secret"] = HIDDEN
    return members


def _members(answer: BaseModel | None) -> dict[str, Any]:
    return {} if answer is None else answer.model_dump(mode="json", exclude=_LEFT_OUT)
