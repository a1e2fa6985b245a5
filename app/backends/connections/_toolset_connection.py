"""ToolsetConnection: a session's connection to the members of a toolset, which each have a process of their own, once
it is called.

`protocol/toolset/fan_out.py` decides which member gets a message; this carries it out.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import anyio
import anyio.abc
import msgspec

from app.backends.connections._bridged import BridgedSession
from app.backends.connections._caller_access import CallerAccess
from app.backends.connections._captured import Capture
from app.backends.connections._session_recipes import SessionRecipes
from app.backends.connections._toolset_member import State, ToolsetMember
from app.backends.connections.era import Era
from app.backends.connections.source import ConnectionLease, Keeper
from app.domain import Principal
from app.domain.resources.access import Kind
from app.errors import GatewayError, RateLimited
from app.limits.caller_limits import Allowance
from app.limits.loop_shares import LoopShares
from app.processes.connection import BackendListener
from app.processes.endings import Exit
from app.protocol.toolset.fan_out import FanOut
from app.protocol.toolset.greeting import About
from app.protocol.toolset.listing import Place, ToolsetListing
from app.protocol.toolset.offer import Known, Offer
from app.protocol.toolset.outs import (
    INNER,
    FailCall,
    InnerCall,
    InnerCallAnswered,
    InnerCallOver,
    Listed,
    ListsChanged,
    Noise,
    OfRecipes,
    Out,
    RunBegins,
    RunEnds,
    RunPauses,
    RunRecipe,
    ToMember,
    ToSession,
)
from app.protocol.toolset.recipe_runs import RecipeRuns, Room
from app.protocol.toolset.searching import Search
from app.telemetry.metrics import Metrics

LIST_S = 30.0  # how long a member may take to list what has changed
REST_S = 0.5  # between two such lists: one that changes without end costs no more than this,
RESTS = 4  # and so many times as long as the last one took,
MAX_REST_S = 10.0  # but no longer than this

log = logging.getLogger(__name__)


class Seat(NamedTuple):
    """A member's place in a session. `lease` waits for a process, which has to be initialized within `within_s`.
    `on_changed`: the member says that its lists have changed, so what others see of it may be outdated; `withheld`:
    which of the tools that it offers now are not shown, and why. `era` is shared by all sessions with this backend."""

    lease: Callable[[], Awaitable[ConnectionLease]]
    within_s: float
    on_changed: Callable[[], None]
    withheld: Callable[[Offer], Awaitable[Mapping[str, str]]]
    era: Era


@runtime_checkable
class ToolsetSession(BridgedSession, Protocol):
    """A Session."""

    def backend_answered(self, call: bytes, result: bytes) -> None:
        """This call has its result: JSON on one line, which is not copied."""

    def call_counted(self, call: bytes, allowances: Sequence[Allowance]) -> None:
        """This call counts for these limits of its caller."""


class Front(NamedTuple):
    """What the session sees. `room`: for the results of recipes, shared by all sessions, as `shares` is: the tenant's
    share of the loop. `access`: how often its caller may use what is listed; None: as often as they like. `on_caller`:
    the caller may be allowed something else now."""

    about: About
    listing: ToolsetListing
    search: Search
    tenant: str
    room: Room
    shares: LoopShares
    access: CallerAccess | None = None
    on_caller: Callable[["ToolsetConnection", Principal], None] = lambda connection, principal: None


class ToolsetConnection:
    """Fulfils ProcessConnection, and is its own lease. `seats` are those of the members of the listing, in its order.
    `ends_with_member`: the session ends when a process does, as there is only one."""

    def __init__(
        self,
        front: Front,
        seats: Sequence[Seat],
        tasks: anyio.abc.TaskGroup,
        metrics: Metrics,
        *,
        ends_with_member: bool = False,
    ) -> None:
        self._fan_out = FanOut(front.about, front.listing, front.search, self._count)
        self._access, self._on_caller = front.access, front.on_caller
        where = f"the toolset {front.about.name} of {front.tenant}"
        runs = RecipeRuns(self._fan_out, time.monotonic, front.room)
        self._recipes = SessionRecipes(where, runs, self._carry_out_all, metrics, self._run_later)
        self._seats, self._tasks, self._metrics = tuple(seats), tasks, metrics
        self._tenant, self._shares = front.tenant, front.shares
        self._ends_with_member = ends_with_member
        self._listener: ToolsetSession | None = None
        self._speaking: ToolsetMember | None = None
        self._to_list: dict[tuple[int, str], tuple[str, ...]] = {}  # methods, by member and notification
        self._is_listing = False
        self._members = [
            ToolsetMember(index, self, seat.lease, tasks, seat.within_s, seat.era) for index, seat in enumerate(seats)
        ]

    # --- ConnectionLease

    @property
    def connection(self) -> "ToolsetConnection":
        return self

    @property
    def was_warm(self) -> bool:
        return True

    def handshake_succeeded(self) -> None:
        """Does nothing: no process has taken part."""

    def release(self, reason: str) -> None:
        self._recipes.end()
        self._listener = None
        for member in self._members:
            member.release(reason)
        self._fan_out.end()

    @property
    def has_process(self) -> bool:
        return any(each.has_process for each in self._members)

    def unsent(self) -> Collection[bytes]:
        """Members have ids of their own."""
        return ()

    def park(self, keeper: Keeper, with_news: bool = True) -> bool:
        """As Parkable.park, where there is one backend of which some tools are shown. The members of other toolsets
        keep their processes: each would be idle at another time, and only a session can be parked."""
        return self._ends_with_member and self._members[0].park(keeper)

    # --- ProcessConnection

    @property
    def id(self) -> str:
        """Of the process that was started first, of those that run; empty if there is none."""
        return next((each.process for each in self._members if each.process is not None), "")

    @property
    def processes(self) -> list[str]:
        """The ids of all its processes."""
        return [each.process for each in self._members if each.process is not None]

    def attach(self, listener: BackendListener) -> None:
        assert isinstance(listener, ToolsetSession)
        self._listener = listener
        self._recipes.attach(listener)

    def send(self, line: bytes) -> None:
        """As BackendConnection.send. What the toolset answers itself comes later, not from within this call."""
        began, of_recipes = self._shares.uncharged(), self._recipes.runs.from_session(line)
        outs = self._fan_out.from_session(line) if of_recipes is None else of_recipes
        for out in outs:
            if type(out) is ToMember and out.call is not None:
                self._call(out, out.call)
            elif type(out) is ToMember:
                self._tell_member(out)
            else:  # its own answer: of a search, for example
                self._shares.charge(self._tenant, self._shares.uncharged() - began)
                asyncio.get_running_loop().call_soon(self._carry_out, out)

    def _call(self, out: ToMember, call: bytes) -> None:
        try:
            self._members[out.member].send(out.line, call)
        except GatewayError:
            self._fan_out.unsent(call)
            raise

    def _call_for_recipe(self, out: ToMember, call: bytes) -> None:
        try:
            self._call(out, call)
        except GatewayError as error:
            self._carry_out_all(self._recipes.runs.failed(call, error))

    def capture(self, capture: Capture | None, member: str = "") -> None:
        """As Capturable: it sees what each member gets and says."""
        for index, each in enumerate(self._members):
            each.capture(capture, self._name(index))

    def pause_reading(self) -> None:
        for member in self._members:
            member.pause_reading()

    def resume_reading(self) -> None:
        for member in self._members:
            member.resume_reading()

    def asked_for(self, size: int) -> None:
        if self._speaking is not None:
            self._speaking.asked_for(size)

    def heard_noise(self, line: bytes) -> None:
        """Does nothing: noise of members does not reach the session."""

    def answering(self) -> bytes | None:
        found: bytes | None = None
        for index, member in enumerate(self._members):
            named = member.answering()
            if named and self._fan_out.owns(index, named):
                return self._recipes.runs.outer(named)
            if named is not None:
                found = b""
        return found

    # --- members

    def lose(self, member: int, error: GatewayError, reason: str) -> None:
        """Ends the member's process: an administrator has removed, changed or restarted the backend."""
        self._members[member].lose(error, reason)

    def show(self, listing: ToolsetListing, access: CallerAccess | None = None) -> None:
        """The toolset shows this from now on, of the same members; `access` as in Front."""
        self._access = access
        self._carry_out_all(self._fan_out.show(listing))

    def caller_is(self, principal: Principal) -> None:
        """As CallerSeen."""
        self._on_caller(self, principal)

    def _count(self, call: bytes, kind: Kind, place: Place, shown: str) -> GatewayError | None:
        """Counts a call of what is shown under this name; the error with which it is refused."""
        if self._access is None or not (allowances := self._access.allowances(kind, place, shown)):
            return None
        if self._listener is not None:
            self._listener.call_counted(call, allowances)
        try:
            self._access.spend(allowances)
        except RateLimited as refused:
            return refused
        return None

    @property
    def listing(self) -> ToolsetListing:
        """What it shows."""
        return self._fan_out.listing

    # --- Side, for its members

    @property
    def hello(self) -> dict[str, msgspec.Raw]:
        return self._fan_out.hello

    def opened(self, member: int) -> Iterable[bytes]:
        return self._fan_out.opened(member)

    def member_sent(self, member: int, line: bytes, among: tuple[bytes, ...] | None = None) -> None:
        self._speaking = self._members[member]
        try:
            self._carry_out_all(self._fan_out.from_member(member, line, among))
        finally:
            self._speaking = None

    def member_sent_too_much(self, member: int, beginning: bytes, end: bytes) -> None:
        self._carry_out_all(self._fan_out.oversized(member, beginning, end))

    def member_failed(self, call: bytes, error: GatewayError) -> None:
        self._carry_out_all(self._fan_out.failed(call, error))

    def member_lost(self, member: int, error: GatewayError, exit: Exit | None) -> None:
        listener = self._listener
        self._metrics.toolset_members_lost.labels(error.reason).inc()
        self._carry_out_all(self._fan_out.lost(member, error))
        if self._ends_with_member and exit is not None and listener is not None:
            self._listener = None
            listener.backend_exited(exit)

    # --- what is to be done

    def _carry_out_all(self, outs: Iterable[Out]) -> None:
        for out in outs:
            self._carry_out(out)

    def _carry_out(self, out: Out) -> None:
        match out:
            case ToSession() | Listed():
                self._tell_session(out)
            case ToMember(call=bytes() as call):
                self._call_for_recipe(out, call)
            case ToMember():
                self._tell_member(out)
            case FailCall() if out.id.startswith(INNER):
                self._carry_out_all(self._recipes.runs.failed(out.id, out.error))
            case FailCall():
                if self._listener is not None:
                    self._listener.backend_failed(out.id, out.error)
            case (
                RunRecipe()
                | InnerCall()
                | InnerCallAnswered()
                | InnerCallOver()
                | RunBegins()
                | RunPauses()
                | RunEnds()
            ):
                self._carry_out_of_recipes(out)
            case ListsChanged():
                self._lists_changed(out)
            case Noise():
                self._members[out.member].heard_noise(out.line)
            case _:
                self._metrics.messages_dropped.labels(out.reason).inc()

    def _carry_out_of_recipes(self, out: OfRecipes) -> None:
        """Expressions are evaluated where a run begins, and where a step has its answer."""
        if isinstance(out, RunRecipe | InnerCallAnswered):
            with self._shares.measured(self._tenant):
                self._recipes.carry_out(out)
        else:
            self._recipes.carry_out(out)

    def _tell_session(self, out: ToSession | Listed) -> None:
        if self._listener is None:
            return
        if isinstance(out, Listed):
            self._listener.backend_answered(out.id, out.result)
        elif out.among is None:
            self._listener.backend_sent(out.line)
        else:
            self._listener.backend_asked(out.line, self._recipes.runs.among(out.among))

    def _tell_member(self, out: ToMember) -> None:
        if out.cancels is not None and self._members[out.member].withdraw(out.cancels):
            return
        try:
            self._members[out.member].send(out.line, None)
        except GatewayError:
            self._metrics.messages_dropped.labels("backend_deaf").inc()

    def _run_later(self, call: bytes) -> None:
        self._tasks.start_soon(self._run_on, call, name="go on with a recipe")

    async def _run_on(self, call: bytes) -> None:
        try:
            await self._shares.turn(self._tenant)
            with self._shares.measured(self._tenant):
                self._carry_out_all(self._recipes.runs.go_on(call))
        except Exception:  # which would end the tasks of all sessions
            log.exception("Could not go on with a recipe")

    # --- lists that change

    def _lists_changed(self, out: ListsChanged) -> None:
        """Asks for them again, one after the other: while one is asked for, the same change counts once."""
        self._seats[out.member].on_changed()
        self._to_list[out.member, out.change] = out.methods
        if not self._is_listing:
            self._is_listing = True
            self._tasks.start_soon(self._list_again, name="list what a member offers now")

    async def _list_again(self) -> None:
        try:
            while self._to_list and self._listener is not None:
                member, change = next(iter(self._to_list))
                began = time.monotonic()
                await self._list_one(member, change, self._to_list.pop((member, change)))
                await anyio.sleep(max(REST_S, min(MAX_REST_S, RESTS * (time.monotonic() - began))))
        except Exception:  # which would end the tasks of all sessions
            log.exception("Could not ask a member of a toolset for its lists")
        finally:
            self._is_listing = False

    async def _list_one(self, index: int, change: str, methods: Iterable[str]) -> None:
        offer, member = self.listing.members[index].offer, self._members[index]
        if offer is None or member.state is not State.OPEN:
            return
        try:
            with anyio.fail_after(LIST_S):
                for method in methods:
                    offer = await member.listed(method, offer)
                listing = await self._listing_with(index, offer)
        except (GatewayError, TimeoutError) as error:
            log.warning("A member of a toolset, %s, did not list what has changed: %s", self._name(index), error)
            return
        if self._listener is not None:
            self._carry_out_all(self._fan_out.show(listing, change))

    async def _listing_with(self, index: int, offer: Offer) -> ToolsetListing:
        """Made in pieces: there may be thousands of tools, in many sessions at once. Again, if the toolset shows
        something else by then: somebody may have approved or rejected a tool."""
        while (shown := self.listing).members[index].offer != offer:
            known = Known(offer, await self._seats[index].withheld(offer))
            listing = await self._shares.in_pieces(self._tenant, shown.with_offer(index, known))
            if self.listing is shown:
                return listing
        return shown  # with what is withheld of the same: whoever decides otherwise tells this session

    def _name(self, index: int) -> str:
        return self.listing.members[index].name
