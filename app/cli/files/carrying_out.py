"""Carries out a plan, one request after the other. Stops at the first that fails and says what is done and what is not;
nothing is taken back: applying the same files again goes on from there."""

from collections.abc import Callable, Sequence

from app.cli.files.differences import changes
from app.cli.files.plan import CHANGE, MAKE, REMOVE, Plan, Step, differences
from app.cli.rest import Refused, Rest
from app.cli.tables import one_line
from app.errors import GatewayError

NOT_FOUND, PRECONDITION_FAILED = 404, 412
DONE = {MAKE: "made", CHANGE: "changed", REMOVE: "removed"}


class Stopped(GatewayError):
    """A step failed. The message says which, why, and what was done before it."""

    reason = "stopped"


def carry_out(rest: Rest, plan: Plan, *, begin: Callable[[str], None], say: Callable[[str], None]) -> None:
    """Carries out every step. `begin` is told which one begins, `say` what was done, in a line each.

    Raises:
        Stopped: a step failed, or the command was interrupted.
    """
    for number, step in enumerate(plan.steps):
        begin(f"applying {number + 1} of {len(plan.steps)}: {step.what}")
        try:
            notes = _carry_out(rest, step)
        except KeyboardInterrupt:
            say(f"interrupted at {step.what}")
            raise Stopped(_account(plan.steps, number, "was interrupted; it may be done or not")) from None
        except GatewayError as error:
            say(f"failed at {step.what}")
            hint = f"\n  hint: {error.hint}" if error.hint else ""
            raise Stopped(_account(plan.steps, number, f"failed: {error}{hint}")) from None
        for line in (f"{DONE[step.action]} {step.what}", *(f"  {note}" for note in notes)):
            say(line)


def _carry_out(rest: Rest, step: Step) -> list[str]:
    """Returns what is to be said of it besides."""
    headers = {"If-Match": step.etag} if step.etag else {}
    try:
        answer = rest.ask(step.method, step.path, step.body, headers=headers)
    except Refused as refusal:
        if refusal.status == NOT_FOUND and step.action == REMOVE:
            return []  # it went with what held it
        if refusal.status == PRECONDITION_FAILED:
            if _is_done(rest, step):
                return []  # the answer to an earlier attempt was lost; or somebody else has done the same
            raise GatewayError(
                "it has been changed since the plan was made, and nothing of that was overwritten",
                hint="look at what has changed, and apply again",
            ) from None
        raise
    if step.wanted is not None and step.action != REMOVE:
        _require_shown(step, answer)
    notes = answer.get("notes") if step.action != REMOVE else None
    return [one_line(note) for note in notes] if isinstance(notes, list) else []


def _is_done(rest: Rest, step: Step) -> bool:
    if step.wanted is None or step.action != CHANGE:
        return False
    return not differences(rest, step.wanted, step.path, rest.ask("GET", step.path))[0]


def _require_shown(step: Step, answer: dict[str, object]) -> None:
    """A merge patch cannot set null inside of an object, and a newer gateway may know better."""
    assert step.wanted is not None
    names = {change.path.partition(".")[0].partition("[")[0] for change in step.changes if not change.is_secret}
    expected = {name: value for name, value in step.wanted.shown.items() if name in names and name in answer}
    left = [change.path for change in changes(step.wanted.kind.seen(answer), expected)]
    if left:
        raise GatewayError(
            f"the gateway has taken it, but shows {', '.join(left[:5])} otherwise than the file",
            hint=f"a null inside of an object cannot be set by a change: remove the {step.one} and apply again",
        )


def _account(steps: Sequence[Step], failed: int, problem: str) -> str:
    lines = [f"{steps[failed].what} {problem}", f"  done: {failed} of {len(steps)}"]
    lines += [f"    {DONE[step.action]} {step.what}" for step in steps[:failed]]
    lines += [f"  not done: {len(steps) - failed}"]
    lines += [f"    {step.what}, to {step.action}" for step in steps[failed:]]
    return "\n".join([*lines, "  apply the same files again to go on"])
