"""…/backends/{backend}/tools: what was found of each tool, compared with what a person has approved."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import msgspec
from fastapi import Path
from pydantic import BaseModel, Field, StringConstraints

from app.admin._paging import AskedPage, Page
from app.admin._route import ResourceRouter
from app.admin.context import Access, MayManage, MayRead
from app.admin.idempotency import ONCE
from app.admin.schemas.fields import Strict
from app.backends.catalog.entries import Decision, Entry
from app.backends.catalog.judging import items_of, read_tool
from app.domain import Scope, is_name
from app.errors import BackendNotFound
from app.http.problems import responses
from app.protocol.approval import difference, visible
from app.storage.tools.approvals import Approval

router = ResourceRouter(tags=["tools"])

BackendName = Annotated[str, Path(description="The backend's name.")]
MAX_TOOLS = 5000


class ToolAnswer(BaseModel):
    """One tool of a backend, as it is offered now."""

    tool: str
    status: str = Field(
        description="`approved`, `accepted` (a harmless edit of what was approved), `changed`, `new`, `rejected`, "
        "`gone`; `unknown` where nothing is pinned."
    )
    reasons: list[str] = Field(description="Why a change is not harmless (docs/pins.md).")
    withheld: str | None = Field(description="Why it is neither shown nor called; null: it is.")
    difference: list[dict[str, Any]] = Field(description="`path`, `before`, `after`, and `hunks` of long texts.")
    by: str | None = Field(description="Who has approved or rejected it last.")
    at: datetime | None


class DecisionBody(Strict):
    """Which tools, as the backend offers them now."""

    tools: list[Annotated[str, StringConstraints(min_length=1, max_length=256)]] | None = Field(
        None, max_length=MAX_TOOLS, description="null: those that wait: new, changed and gone ones."
    )
    revision: int | None = Field(
        None, description="That of the catalogue that was looked at: if it is another one now, nothing happens (409)."
    )


@router.get("/backends/{backend}/tools")
async def list_tools(access: MayRead, backend: BackendName, asked: AskedPage) -> Page[ToolAnswer]:
    """The backend's tools by name, with what has changed since they were approved."""
    key = await _key(access, backend)
    entry = (await access.admin.catalog.entries(*_one(key))).get(backend)
    said = (await access.admin.catalog.approvals(key)).tools
    if entry is None:
        return Page(items=[], next_cursor=None)
    answers = await access.admin.catalog.aside(access.tenant, _answers, entry, said, asked)
    await access.require_still(Scope.TENANT_READ)
    return asked.page(list(answers), str, answers.__getitem__)


@router.post("/backends/{backend}/tools:approve", status_code=204, dependencies=[ONCE], responses=responses(409))
async def approve_tools(access: MayManage, backend: BackendName, body: DecisionBody) -> None:
    """Approves tools as they are offered now, by default those that wait; clients see and call them again. What is gone
    is forgotten."""
    await _decide(access, backend, body, approves=True)


@router.post("/backends/{backend}/tools:reject", status_code=204, dependencies=[ONCE], responses=responses(409))
async def reject_tools(access: MayManage, backend: BackendName, body: DecisionBody) -> None:
    """Rejects tools as they are offered now, by default those that wait: they are withheld until they are offered
    otherwise, or approved."""
    await _decide(access, backend, body, approves=False)


async def _decide(access: Access, backend: str, body: DecisionBody, *, approves: bool) -> None:
    key = await _key(access, backend)
    what = "those that wait" if body.tools is None else " ".join(body.tools)
    act = access.act("tool.approve" if approves else "tool.reject", f"backends/{backend}", visible(what)[:1000])
    decision = Decision(approves, body.tools, body.revision, access.principal.name)
    await access.admin.catalog.decide(key, decision, act=act)


async def _key(access: Access, backend: str) -> tuple[str, str]:
    """Raises BackendNotFound."""
    if not is_name(backend):
        raise BackendNotFound
    await access.admin.backends.get(access.tenant, backend)
    return (access.tenant, backend)


def _one(key: tuple[str, str]) -> tuple[str, list[str]]:
    return key[0], [key[1]]


def _answers(entry: Entry, approvals: Mapping[str, Approval], asked: AskedPage) -> dict[str, ToolAnswer]:
    """Of the page, by tool. Compares long texts word by word: that may take a while."""
    offered, answers = items_of(entry.offer), dict[str, ToolAnswer]()
    for name in sorted(name for name in {*offered, *approvals} if name > asked.after):
        definition = read_tool(offered[name]) if name in offered else None
        if definition is not None or name in approvals:
            answers[name] = _shown_in(entry, definition, approvals.get(name), name)
        if len(answers) == asked.fetch:
            break
    return answers


def _shown_in(entry: Entry, offered: dict[str, Any] | None, said: Approval | None, tool: str) -> ToolAnswer:
    found = entry.pins.get(tool)
    approved = None if said is None or said.approved is None else msgspec.json.decode(said.approved)
    is_readable = found is not None and found["fingerprint"] is not None  # else it is too large to be looked at
    changes = [] if approved is None or offered is None or not is_readable else difference(approved, offered)
    withheld = None if entry.known is None else entry.known.withheld.get(tool)
    return ToolAnswer(
        tool=tool,
        status="unknown" if found is None else found["status"],
        reasons=[] if found is None else found["reasons"],
        withheld=withheld,
        difference=[asdict(each) for each in changes],
        by=None if said is None else said.by,
        at=None if said is None else said.at,
    )
