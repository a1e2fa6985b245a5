"""`apply`, `plan` and `export`."""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from app.cli.files.carrying_out import carry_out
from app.cli.files.current import CurrentTenant, read_tenant, tenant_names
from app.cli.files.exporting import export
from app.cli.files.gateway_file import MAX_FILE_BYTES, read_files
from app.cli.files.kinds import KINDS
from app.cli.files.plan import CHANGE, MAKE, REMOVE, Plan, make_plan
from app.cli.files.schema import schema
from app.cli.rest import Rest, open_rest
from app.errors import GatewayError, InvalidRequest
from app.text.terminal.progress import Progress
from app.text.terminal.text import printable

DIFFERS = 2
_SIGNS = {MAKE: "+", CHANGE: "~", REMOVE: "-"}


def apply_files(options: argparse.Namespace) -> int:
    """`apply` and `plan`: shows what differs; `apply` also carries it out, once it has been confirmed."""
    if options.schema:
        print(json.dumps(schema(), indent=2))
        return 0
    try:
        return _apply(options)
    except InvalidRequest as error:
        if not options.check:
            raise
        # With --check the exit code 2 says that something differs.
        raise GatewayError(str(error), hint=error.hint or "") from None


def _apply(options: argparse.Namespace) -> int:
    files = [*options.files, *options.paths]
    if not files:
        raise InvalidRequest("which files? Give FILE, a folder, or - for stdin")
    tenants = read_files(files, os.environ)
    is_dry = options.check or options.dry_run
    with open_rest(options, is_patient=True) as rest:
        with Progress() as progress:
            plan = make_plan(rest, tenants, prune=options.prune, begin=progress.begin)
        print(_plan_json(plan) if options.json else _plan_text(plan), flush=True)
        if is_dry or not plan.steps:
            return DIFFERS if plan.steps and options.check else 0
        if not options.yes and not _is_confirmed(options):
            print("trunkline: nothing was changed", file=sys.stderr)
            return 1
        with Progress() as progress:
            carry_out(rest, plan, begin=progress.begin, say=progress.say)
    done = f"{plan.count(MAKE)} made, {plan.count(CHANGE)} changed, {plan.count(REMOVE)} removed"
    print(f"trunkline: {done}", file=sys.stderr)
    return 0


def export_files(options: argparse.Namespace) -> int:
    """`export`: writes what the gateway has, on stdout or into a file."""
    with open_rest(options, is_patient=True) as rest, Progress() as progress:
        tenants = _read(rest, options.tenant, progress)
    if missing := [tenant.name for tenant in tenants if not tenant.exists]:
        raise GatewayError(f"there is no tenant {', '.join(missing)}")
    exported = export(tenants)
    if len(exported.text().encode()) > MAX_FILE_BYTES:
        words = f"`apply` reads at most {MAX_FILE_BYTES >> 20} MiB of a file, and this is more"
        raise GatewayError(words, hint="export one tenant after the other, with --tenant")
    if options.output and options.output != "-":
        _write(options.output, exported.text())
    else:
        print(exported.text(), end="")
    if exported.variables:
        count = len(exported.variables)
        words = "a secret is a reference that is" if count == 1 else f"{count} secrets are references that are"
        print(f"trunkline: {words} to be filled in; the head of the file names the variables", file=sys.stderr)
    return 0


def _read(rest: Rest, names: Sequence[str] | None, progress: Progress) -> list[CurrentTenant]:
    """Everything of these tenants; by default of all."""
    progress.begin("reading the list of tenants")
    found, names = list[CurrentTenant](), list(dict.fromkeys(names or tenant_names(rest)))
    for number, name in enumerate(names, 1):
        progress.begin(f"reading {number} of {len(names)}: tenant {name}")
        found.append(read_tenant(rest, name, tuple(kind.section for kind in KINDS)))
    return found


def _write(path: str, text: str) -> None:
    """Replaces the file as a whole: if something fails, the old one is still there. A link stays, and what is no file:
    to replace a device or pipe would take it from everybody."""
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            return
        target = os.path.realpath(path)
        folder = os.path.dirname(target)
        descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=".trunkline-")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise GatewayError(f"cannot write {path!r}: {error.strerror}") from None


def _is_confirmed(options: argparse.Namespace) -> bool:
    if "-" in options.files or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidRequest("nothing was changed: there is nobody to ask here; give --yes to carry this out")
    print("Carry this out? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _plan_text(plan: Plan) -> str:
    lines = list[str]()
    for step in plan.steps:
        lines.append(f"{_SIGNS[step.action]} {step.what}")
        lines += [f"    {change.line(is_made=step.action == MAKE)}" for change in step.changes]
    if not plan.steps:
        return f"nothing differs: {plan.same} as the files say"
    counts = f"{plan.count(MAKE)} to make, {plan.count(CHANGE)} to change, {plan.count(REMOVE)} to remove"
    return "\n".join([*map(printable, lines), f"{counts}; {plan.same} as the files say"])


def _plan_json(plan: Plan) -> str:
    def shown(step: Any) -> dict[str, Any]:
        changed = [{"path": each.path, "old": each.old, "new": each.new} for each in step.changes]
        named = {"tenant": step.tenant, "kind": step.one, "name": step.name or step.tenant}
        return {"action": step.action, **named, "changes": changed}

    return json.dumps({"steps": [shown(step) for step in plan.steps], "same": plan.same}, indent=2)
