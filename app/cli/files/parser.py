"""The options of `apply`, `plan` and `export`."""

import argparse

from app.cli.usage.later import Later
from app.cli.usage.options import Commands, add_command, add_gateway_options, name_of

_APPLY = """
examples:
  trunkline plan -f gateway.yaml                 what would be changed
  trunkline apply -f gateway.yaml                shows that, asks, and carries it out
  trunkline apply -f gateways/ --prune --yes     a folder; what its sections do not name is removed
  trunkline apply -f gateway.yaml --check        for scripts: does the gateway still have what the file says?
  trunkline apply --schema > gateway.schema.json for editors

A file has tenants, each with `limits` and other members of its own, and with the sections backends, toolsets, guides,
recipes and issuers (docs/files-as-truth.md). What no file names is left alone. With --prune, objects are removed that a
section of a file does not name; a section that is not in the file is left alone, and so are tenants.

Secrets are references in `env`, `headers` and `secret`: ${env:NAME} and ${file:PATH} are read where this command runs.
Plans never show them.

Exit codes: 0 done, or nothing differs; 1 refused, failed or not confirmed; 2 wrong usage or files.
With --check: 0 nothing differs, 2 something differs, 1 an error of whatever kind.
"""
_EXPORT = """
examples:
  trunkline export -o gateway.yaml
  trunkline export --tenant acme

The file is what `trunkline apply` accepts. Secrets are references to environment variables, which its head names: a
gateway does not show them. API keys, switched-off principals and approved tools are not in it.
"""


def add_file_commands(commands: Commands) -> None:
    """Adds `apply`, `plan` and `export`."""
    apply = add_command(commands, "apply", "make a gateway what files say", _APPLY)
    _add_plan_options(apply)
    apply.add_argument("--yes", action="store_true", help="do not ask")
    dry = apply.add_mutually_exclusive_group()
    dry.add_argument("--dry-run", action="store_true", help="only show the plan")
    dry.add_argument(
        "--check", action="store_true", help="only compare: exit code 0 nothing differs, 2 differs, 1 error"
    )
    apply.add_argument("--schema", action="store_true", help="print the JSON Schema of the files")
    apply.set_defaults(run=Later("app.cli.files.commands.apply_files"))

    plan = add_command(commands, "plan", "show what `apply` would change", _APPLY)
    _add_plan_options(plan)
    plan.set_defaults(
        run=Later("app.cli.files.commands.apply_files"), dry_run=True, check=False, schema=False, yes=False
    )

    export = add_command(commands, "export", "write what a gateway has as a file for `apply`", _EXPORT)
    add_gateway_options(export)
    export.add_argument(
        "--tenant", type=name_of("tenant"), action="append", help="can be given repeatedly; default: all"
    )
    export.add_argument("-o", "--output", metavar="FILE", help="instead of stdout")
    export.set_defaults(run=Later("app.cli.files.commands.export_files"))


def _add_plan_options(parser: argparse.ArgumentParser) -> None:
    files_help = "YAML or JSON, or a folder of such files; - is stdin; can be given repeatedly"
    parser.add_argument("paths", nargs="*", metavar="FILE", help="as with -f")
    parser.add_argument("-f", "--file", dest="files", action="append", default=[], metavar="FILE", help=files_help)
    parser.add_argument("--prune", action="store_true", help="remove what the sections of the files do not name")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    add_gateway_options(parser)
