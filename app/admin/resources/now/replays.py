"""…/inspections/{inspection}/messages/{message}:replay: one recorded call, made again."""

from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, NamedTuple

import msgspec
from fastapi import Path
from pydantic import BaseModel, Field

from app.admin.context import Access, MayManage
from app.admin.idempotency import ONCE
from app.admin.resources.backends import StepAnswer, find_backend
from app.admin.resources.now.inspections import InspectionId, require_allowed, seen
from app.admin.route import ResourceRouter
from app.catalog.entries import Entry
from app.catalog.judging import tool_of, withheld
from app.domain import BackendSpec, Scope
from app.errors import Conflict, NotFound
from app.http.problems import responses
from app.inspections.message import InspectedMessage
from app.links.toolsets import members_of
from app.protocol.toolset.member_tools import shows
from app.protocol.toolset.offer import Offer
from app.this_node.replaying import Replayed, ToolsCall

MAX_DIGITS = 15
MAX_NAME = 200  # characters of a tool's name in a refusal
LOOKED_AHEAD = 500  # messages after the call, among which its answer is looked for

router = ResourceRouter(tags=["inspections"])


class DifferenceAnswer(BaseModel):
    """A place where the answers differ."""

    at: str = Field(description="A JSON pointer into the answer.", examples=["/result/content/0/text"])
    before: str | None = Field(description="As JSON, cut; null: it was not there.")
    now: str | None


class ReplayAnswer(BaseModel):
    """What the call has answered now, secrets masked."""

    backend: str
    took_ms: float | None = Field(description="The call alone, without the start of the process.")
    took_ms_before: float | None
    answer: str | None = Field(description='`{"result": …}` or `{"error": …}`, as JSON.')
    is_cut: bool
    same: bool | None = Field(description="Whether it is what was answered before; null: one of them is not known.")
    differences: list[DifferenceAnswer] = Field(description="The first twenty.")
    steps: list[StepAnswer]
    failure: str | None = Field(description="Why there is no answer.")

    @classmethod
    def of(cls, backend: str, replayed: Replayed, took_ms_before: float | None) -> "ReplayAnswer":
        steps = [StepAnswer(step=each.name, ms=each.ms) for each in replayed.steps]
        return cls(**{**asdict(replayed), "steps": steps}, backend=backend, took_ms_before=took_ms_before)


@router.post("/inspections/{inspection}/messages/{message}:replay", dependencies=[ONCE], responses=responses(409))
async def replay_call(
    access: MayManage, inspection: InspectionId, message: Annotated[str, Path(description="Its number.")]
) -> ReplayAnswer:
    """Makes a recorded `tools/call` again, as it went to the backend: with a process of its own, never that of the
    session, and for a minute at most. Tools can change things: it is a call like any other. Refused where a value was
    masked, since nobody knows it any more; and where the tool is not shown now, is withheld by a pin, or is offered by
    the new process otherwise than the catalogue knows it."""
    await require_allowed(access, payloads=True)
    is_number = message.isascii() and message.isdigit() and len(message) <= MAX_DIGITS
    recorded = await _recorded(access, inspection, int(message) if is_number else 0)
    call, params = recorded.message, _params(recorded.message)
    spec = await find_backend(access, recorded.backend)
    if spec.toolset is not None:
        raise Conflict("this call was answered by the toolset itself; replay a call of one of its members")
    if not spec.enabled:
        raise Conflict("the backend is switched off")
    tool = str(params.get("name"))
    await _require_shown(access, recorded, spec, tool)
    entry = (await access.admin.catalog.entries(access.tenant, [spec.name])).get(spec.name)
    _require_approved(spec, tool, entry)
    answer = await _answer_to(access, inspection, call)
    before = None if answer is None else answer.payload
    with access.alone(f"backends/{spec.name}", "a check or a replay with this backend is under way; wait for its end"):
        limits = (await access.admin.tenants.get(access.tenant)).limits
        await require_allowed(access, payloads=True)
        await access.require_still(Scope.TENANT_ADMIN)
        detail = f"message {call.number}, the tool {call.tool}"
        await access.admin.audit.append(access.act("inspection.replay", f"inspections/{inspection}", detail))
        wanted = ToolsCall(params, before, partial(_refusal, access, spec, tool, entry))
        found = await access.admin.node.replay(spec, limits, wanted)
        await require_allowed(access, payloads=True)
        await access.require_still(Scope.TENANT_ADMIN)
    return ReplayAnswer.of(spec.name, found, None if answer is None else answer.took_ms)


class _Recorded(NamedTuple):
    """The request as it went to the backend, which one, and which address the session had."""

    message: InspectedMessage
    backend: str
    inspected: str


async def _recorded(access: Access, inspection: str, number: int) -> _Recorded:
    """Raises NotFound, Conflict."""
    for _ in range(2):  # it, and if that is the client's request, what became of it
        page = await seen(access, inspection, max(0, number - 1), 1)
        found = next((each for each in page.messages if each.number == number), None)
        if found is None:
            raise NotFound("This message is not kept any more")
        if found.method != "tools/call" or found.kind != "request" or found.direction != "to_server":
            raise Conflict("only a `tools/call` can be replayed")
        inspected = page.view.about.backend
        if found.side == "backend":
            return _Recorded(found, found.member or inspected, inspected)
        if not found.pair:
            raise Conflict("this call did not reach a backend, so there is nothing to replay")
        number = found.pair
    raise NotFound("This message is not kept any more")


def _params(call: InspectedMessage) -> dict[str, Any]:
    """Raises Conflict: it is not known whole."""
    if call.payload is None or call.is_cut:
        raise Conflict(
            "the payload of this call was not kept whole: open an inspection with `payloads`, or it is large"
        )
    if call.secrets:
        words = f"{call.secrets} values of this call are masked, and nobody knows them any more"
        raise Conflict(f"{words}; call the tool by hand, with values of your own")
    params = msgspec.json.decode(call.payload).get("params")
    return params if isinstance(params, dict) else {}


async def _require_shown(access: Access, recorded: _Recorded, spec: BackendSpec, tool: str) -> None:
    """What the address of the session does not show now is not called by way of a replay either. Raises Conflict."""
    address = spec
    if recorded.inspected != spec.name:
        try:
            address = await access.admin.toolsets.find(access.tenant, recorded.inspected)
        except NotFound:
            raise Conflict(f"there is no toolset {recorded.inspected} any more") from None
        if not address.enabled:
            raise Conflict(f"the toolset {recorded.inspected} is switched off")
    if not any(each.backend == spec.name and shows(each.selection, tool) for each in members_of(address)):
        words = f"{recorded.inspected} does not show the tool {tool[:MAX_NAME]} of {spec.name}"
        raise Conflict(f"{words}: see its `include` and `exclude`")


def _require_approved(spec: BackendSpec, tool: str, entry: Entry | None) -> None:
    """As far as it is known without a process. Raises Conflict."""
    if spec.pin == "off":
        return
    if entry is None:
        if spec.pin == "block":
            raise Conflict("it is not known yet which tools of the backend are approved; check the backend first")
        return
    if (why := withheld(entry.offer, entry.pins, spec.pin).get(tool)) is not None:
        raise Conflict(why)


async def _refusal(access: Access, spec: BackendSpec, tool: str, entry: Entry | None, offer: Offer) -> str | None:
    """Why the tool must not be called, by what the new process offers. One may offer something else to the catalogue
    than to those who call it."""
    named = f"the tool {tool[:MAX_NAME]}"
    offered = tool_of(offer, tool)
    if offered is None:
        return f"the process that was started for it does not offer {named}, or nobody can read its definition"
    if (why := (await access.admin.catalog.withheld(spec.key, offer)).get(tool)) is not None:
        return why
    if entry is not None and tool_of(entry.offer, tool) != offered:
        words = f"the process that was started for it offers {named} otherwise than the catalogue knows it"
        return f"{words}; check the backend, and look at the tool (`trunkline catalog show`)"
    return None


async def _answer_to(access: Access, inspection: str, call: InspectedMessage) -> InspectedMessage | None:
    """What the backend answered, if it is kept, whole or not."""
    page = await seen(access, inspection, call.number, LOOKED_AHEAD)
    found = next((each for each in page.messages if each.answers == call.number), None)
    return None if found is None or found.is_cut else found
