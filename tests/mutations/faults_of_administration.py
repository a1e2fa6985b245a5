"""Faults of what administrators are shown and decide: files, the catalogue, problems."""

from tests.mutations.fault import Fault

ROUND = ("tests/cli/files/test_exporting.py",)
SEARCH = ("tests/admin/resources/tools/test_toolsets.py",)
CATALOG = ("tests/backends/catalog/test_catalog.py",)
USES = ("tests/auth/test_credential_uses.py",)
ENDS = ("tests/cluster/test_changes.py",)
DUE = ("tests/admin/resources/now/test_problems.py",)
REST = ("tests/http/transports/test_rest.py",)
FILES = ("tests/cli/files/test_gateway_file.py",)
RECIPES = ("tests/admin/resources/tools/test_recipes.py",)
PROBLEMS = ("tests/http/test_problems.py",)
PAGING = ("tests/admin/test_paging.py",)
EXPORTING = "app/cli/files/exporting.py"

DECLARED = ("tests/admin/test_resource.py",)

FAULTS_OF_ADMINISTRATION = (
    Fault(
        "a patch that changes nothing makes a version",
        "app/admin/_resource.py",
        "if changed != found:",
        "if True:",
        ("tests/admin/resources/tools/test_guides.py",),
    ),
    Fault(
        "a tenant has one more of a declared resource than it may",
        "app/storage/declared.py",
        "resource.name, resource.per_tenant, words",
        "resource.name, resource.per_tenant + 1, words",
        DECLARED,
    ),
    Fault(
        "a patch of a declared resource removes nothing from an object",
        "app/admin/schemas/declared.py",
        "dict[get_args(kind)[0], value | None] | None",
        "kind | None",
        DECLARED,
    ),
    Fault(
        "a change of a declared resource asks for no state",
        "app/storage/_rows.py",
        "unchanged = and_(self.row(*key), self._table.c.version == version)",
        "unchanged = self.row(*key)",
        ("tests/storage/test_declared.py",),
    ),
    Fault(
        "an export leaves out what a value of any form shares with its default",
        EXPORTING,
        "if kind.is_filled(member) else",
        "if member else",
        ROUND,
    ),
    Fault(
        "an export has a text that looks like a reference",
        EXPORTING,
        "        if kind.has_references:",
        "        if False:",
        ROUND,
    ),
    Fault(
        "a plan asks which files there are where the command runs",
        "app/cli/files/gateway_file.py",
        "return model.model_validate(members, context=ELSEWHERE)",
        "return model.model_validate(members)",
        FILES,
    ),
    Fault(
        "a recipe has a value too deep for those who read it",
        "app/admin/schemas/recipes.py",
        "    if not levels:",
        "    if False:",
        RECIPES,
    ),
    Fault(
        "a toolset gives up before its recipe does",
        "app/admin/resources/tools/toolsets.py",
        "if recipe.method.deadline_s >= spec.timeouts.call_s:",
        "if recipe.method.deadline_s > spec.timeouts.call_s:",
        RECIPES,
    ),
    Fault(
        "a search fails at a recipe",
        "app/admin/resources/tools/catalog.py",
        "is_recipe = listing.is_own(place.member)",
        "is_recipe = False",
        SEARCH,
    ),
    Fault(
        "a decision without a list is of all tools",
        "app/backends/catalog/judging.py",
        'if tool not in found or needs_person(_status(found[tool]["status"]))]',
        "]",
        CATALOG,
    ),
    Fault(
        "what was shown of a revoked key is shown on",
        "app/auth/credential_uses.py",
        "return identity in self._settled and",
        "return False and",
        USES,
    ),
    Fault(
        "a revoked key leaves its alarm",
        "app/cluster/node_status/change_effects.py",
        """Its sessions end.\"""
        self._authenticator.forget(identity)
        self._authenticator.uses.settle(lambda each: each == identity)
""",
        """Its sessions end.\"""
        self._authenticator.forget(identity)
""",
        ENDS,
    ),
    Fault(
        "a key that is switched off is said to expire",
        "app/storage/due.py",
        "        api_keys.c.enabled,\n",
        "",
        DUE,
    ),
    Fault(
        "the traceback of a bug in REST has no request id",
        "app/http/transports/rest.py",
        """        except Exception:
            log.exception(""",
        """        except ZeroDivisionError:
            log.exception(""",
        REST,
    ),
    Fault(
        "every error of a body is made, however many there are",
        "app/admin/schemas/fields.py",
        "if error.error_count() <= MAX_WRONG:",
        "if True:",
        PROBLEMS,
    ),
    Fault(
        "a page has as many bytes as its items",
        "app/admin/_paging.py",
        "if items and size > MAX_BYTES:",
        "if False:",
        PAGING,
    ),
    Fault(
        "a page is empty if its first item is large",
        "app/admin/_paging.py",
        "if items and size > MAX_BYTES:",
        "if size > MAX_BYTES:",
        PAGING,
    ),
    Fault(
        "large items are read all at once",
        "app/admin/_paging.py",
        "min(AT_ONCE, self.fetch - len(found))",
        "self.fetch - len(found)",
        PAGING,
    ),
    Fault(
        "large items are read on when the page is full",
        "app/admin/_paging.py",
        "and len(found) < self.fetch and size <= MAX_BYTES:",
        "and len(found) < self.fetch:",
        PAGING,
    ),
    Fault(
        "a patch removes nulls that it does not name",
        "app/admin/_merge_patch.py",
        "merged = dict(members)",
        "merged = {name: value for name, value in members.items() if value is not None}",
        RECIPES,
    ),
)
