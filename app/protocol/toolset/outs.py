"""What a FanOut asks its owner to do, and the recipes that run in front of it."""

from collections.abc import Callable

import msgspec

from app.domain.resources.recipes import Recipe
from app.errors import GatewayError
from app.protocol.commands import Dropped
from app.protocol.jsonrpc import Params, Response


class ToSession(msgspec.Struct, gc=False):
    """A line for the session. With `among` it is a question that belongs to one of the calls with these ids; empty if
    the member works on none."""

    line: bytes
    among: tuple[bytes, ...] | None = None


class Listed(msgspec.Struct, gc=False):
    """The answer to a call of the session: a list, which many answers share."""

    id: bytes
    result: bytes


class ToMember(msgspec.Struct, gc=False):
    """A line for a member; if it cannot be written, the `call` fails. Only a call may start the member. `cancels`: a
    call that need not be sent any more, if it was not."""

    member: int
    line: bytes
    call: bytes | None = None
    cancels: bytes | None = None


class FailCall(msgspec.Struct, gc=False):
    """A call of the session fails."""

    id: bytes
    error: GatewayError


class ListsChanged(msgspec.Struct, gc=False):
    """A member says, by this notification, that the lists of these methods have changed."""

    member: int
    change: str
    methods: tuple[str, ...]


class Noise(msgspec.Struct, gc=False):
    """A line of a member that is no JSON."""

    member: int
    line: bytes


# --- recipes

INNER = b'"recipe-'  # with which ids begin of calls that recipes make


class RunRecipe(msgspec.Struct, gc=False):
    """A call of the session, with this id, is that of a recipe. `succeeded` is to be called if it succeeds."""

    id: bytes
    recipe: Recipe
    params: Params
    succeeded: Callable[[], None] | None = None


class InnerCall(msgspec.Struct, gc=False):
    """A step of a recipe: a call under an id of ours, for a `call` of the session. It may be refused first."""

    call: bytes
    id: bytes
    line: bytes


class InnerCallAnswered(msgspec.Struct, gc=False):
    """A member has answered it."""

    id: bytes
    response: Response


class InnerCallOver(msgspec.Struct, gc=False):
    """It has its outcome, or is given up."""

    id: bytes


class RunBegins(msgspec.Struct, gc=False):
    """A recipe runs for this call of the session, for so long at most."""

    call: bytes
    deadline_s: float


class RunPauses(msgspec.Struct, gc=False):
    """The run for this call of the session has done much work: it goes on when others had their turn."""

    call: bytes


class RunEnds(msgspec.Struct, gc=False):
    """It is over. `steps` are the outcomes of its steps."""

    call: bytes
    recipe: str
    outcome: str
    steps: tuple[str, ...]


OfRecipes = RunRecipe | InnerCall | InnerCallAnswered | InnerCallOver | RunBegins | RunPauses | RunEnds
Out = ToSession | Listed | ToMember | FailCall | ListsChanged | Noise | Dropped | OfRecipes
