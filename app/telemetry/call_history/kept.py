"""KeptCall: a call in the database, or on its way there. CallFacts: what all forms of a call have."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Protocol, Self

from app.telemetry.call_history.history import CallRecord
from app.telemetry.call_history.query import CallFilter, CallGroup

MAX_METHOD = 128  # characters of a method: clients choose it


@dataclass(frozen=True, slots=True)
class CallFacts:
    """A call that is over, on `node`."""

    tenant: str
    backend: str
    method: str
    tool: Annotated[str, "The tool or the prompt, or the URI without its query; empty for other methods."]
    outcome: Annotated[str, "`ok`, `tool_error`, a code of JSON-RPC, or the reason of an error of the gateway."]
    bytes_in: Annotated[int, "Of the request."]
    bytes_out: Annotated[int, "Of the result or the error."]
    principal_tenant: str
    issuer: str
    subject: str
    client_name: str
    client_version: str
    session: Annotated[str, "Its id in the list of sessions."]
    node: str
    request_id: str
    trace_id: str

    def facts(self) -> dict[str, Any]:
        """These members, for another form of it."""
        return {each.name: getattr(self, each.name) for each in fields(CallFacts)}


@dataclass(frozen=True, slots=True)
class KeptCall(CallFacts):
    """`at_us` is when it was over, in microseconds of Unix time."""

    number: int
    at_us: int
    seconds: float

    @classmethod
    def of(cls, call: CallRecord, node: str) -> Self:
        origin, (request_id, trace_id) = call.origin, ("", "") if call.ids is None else call.ids.names()
        return cls(
            number=call.number,
            tenant=origin.tenant,
            at_us=round(call.at * 1_000_000),
            backend=origin.backend,
            method=call.method[:MAX_METHOD],
            tool=call.tool,
            outcome=call.outcome,
            seconds=call.seconds,
            bytes_in=call.bytes_in,
            bytes_out=call.bytes_out,
            principal_tenant=origin.principal_tenant,
            issuer=origin.issuer,
            subject=origin.subject,
            client_name=origin.client_name,
            client_version=origin.client_version,
            session=origin.session,
            node=node,
            request_id=request_id,
            trace_id=trace_id,
        )


class CallShelf(Protocol):
    """Where calls are kept (`storage.calls.CallRepository`). All raise StorageUnavailable."""

    async def add(self, calls: Sequence[KeptCall]) -> None:
        """Stores them all, or none. Raises NotFound: a tenant is gone; Conflict: they are stored already."""

    async def remove_older(self, than_us: int, most: int) -> int:
        """Removes up to so many calls of all tenants from before; returns how many."""

    async def trim(self, tenant: str, kept: int, most: int) -> int:
        """Removes up to so many of a tenant's oldest calls, where it has more than `kept`; returns how many."""


class CallArchive(Protocol):
    """What is asked of it, of one tenant or (None) of all."""

    async def find(
        self, tenant: str | None, wanted: CallFilter, after: tuple[int, int] | None, most: int
    ) -> list[KeptCall]:
        """The newest calls that match, behind the one with this `at_us` and `number`."""

    async def count(self, tenant: str | None, wanted: CallFilter, most: int) -> int:
        """How many match; counts up to `most`."""

    async def groups(
        self, tenant: str | None, wanted: CallFilter, by: str, not_of: Collection[str] = ()
    ) -> list[CallGroup]:
        """Their sums by what they have in common, without those of some nodes."""
