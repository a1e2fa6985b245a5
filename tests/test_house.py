"""The house is in order: packages say what they are for, functions are short, a document names what there is, private
modules stay in their folder, and tests stand where their module does."""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import NOT_QUICK, QUICK, REAL
from tests.long import ALWAYS, LONG

ROOT = Path(__file__).resolve().parent.parent
APP, TESTS = ROOT / "app", ROOT / "tests"
ARCHITECTURE = ROOT / "docs/architecture.md"
MAX_FUNCTION = 60

PACKAGES = sorted(path.parent for path in APP.rglob("__init__.py"))
MODULES = sorted(APP.rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(APP))


@pytest.mark.parametrize("package", PACKAGES, ids=name_of)
def test_a_package_says_what_lives_there(package: Path) -> None:
    assert ast.get_docstring(ast.parse((package / "__init__.py").read_text()))


_READ = ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Imports and functions, wherever they stand."""
    return tuple(each for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, _READ))


def functions_over(limit: int) -> list[str]:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return [
        f"{name_of(path)}:{node.lineno} {node.name}"
        for path in MODULES
        for node in nodes_of(path)
        if isinstance(node, kinds) and (node.end_lineno or 0) - node.lineno >= limit
    ]


def test_functions_are_short() -> None:
    assert functions_over(MAX_FUNCTION) == []


def rows_of_the_table() -> list[set[str]]:
    """The names in each row's first column, as the import contract writes them."""
    table = ARCHITECTURE.read_text().split("| row | what |")[1].split("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return [{path.removesuffix(".py").strip("/") for path in re.findall(r"`app/([^`]+)`", row)} for row in rows]


def rows_of_the_contract() -> list[set[str]]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(each["layers"] for each in contracts if each.get("containers") == ["app"])
    return [{name for name in re.findall(r"\w+", row) if f"({name})" not in row} for row in layers]


def test_the_table_of_layers_is_the_import_contract() -> None:
    assert rows_of_the_table() == rows_of_the_contract()


@pytest.mark.parametrize("document", ["docs/architecture.md", "docs/several-nodes.md"])
def test_every_file_that_a_document_of_the_house_names_is_there(document: str) -> None:
    named = set(re.findall(r"(?<![\w./-])(?:app/)?((?:\w+/)+\w+\.py)\b", (ROOT / document).read_text()))
    tops = {path.name for path in APP.iterdir()}
    ours = {each for each in named if each.split("/")[0] in tops}
    assert len(ours) > 15
    assert [each for each in sorted(ours) if not (APP / each).is_file()] == []


# --- tests/ mirrors app/

# Folders of tests/ without a package of app/ (tests/README.md says what is in them), and those without tests.
OF_THE_WHOLE = {
    "chaos", "clients", "conformance", "deploy", "differential", "documents", "e2e", "incidents", "integration",
    "mutations", "packaging",
}  # fmt: skip

# Files that are of no one module beside them, and why they stand there all the same.
OF_SEVERAL = {
    "admin/resources/test_live.py": "sessions, processes, nodes and checks: whatever nodes show of themselves",
    "test_calm.py": "of the tests",
    "cluster/routing/test_routes.py": "both stores of routes",
    "test_house.py": "of all modules",
    "test_started.py": "of the tests",
    "test_version.py": "of app/__init__.py",
}


def files_with_tests() -> list[Path]:
    files = [path.relative_to(TESTS) for path in TESTS.rglob("test_*.py") if "node_modules" not in path.parts]
    return sorted(each for each in files if each.parts[0] not in OF_THE_WHOLE)


def names_a_module(test: Path) -> bool:
    """Whether for `X/test_Y.py` or `X/test_Y_suffix.py` there is a module or package Y in app/X; Y may be X itself."""
    package = APP / test.parent
    modules = {path.stem.removeprefix("_") for path in package.iterdir() if path.suffix == ".py" or path.is_dir()}
    names = modules | {package.name}
    subject = test.stem.removeprefix("test_")
    return any(subject == name or subject.startswith(f"{name}_") for name in names - {"_init__", "_pycache__"})


def test_every_folder_of_tests_is_a_package_or_of_the_whole() -> None:
    folders = {path.parent for path in files_with_tests()}
    assert [str(each) for each in sorted(folders) if not (APP / each / "__init__.py").is_file()] == []


def test_the_tests_of_a_module_stand_where_the_module_does() -> None:
    misplaced = {str(each) for each in files_with_tests() if (APP / each.parent).is_dir() and not names_a_module(each)}
    assert misplaced == set(OF_SEVERAL)


def test_what_waits_for_long_is_there() -> None:
    named = [*LONG, *(f"{file}::{test}" for file, tests in ALWAYS.items() for test in tests)]
    gone = [each for each in named if not _is_there(*each.partition("::")[::2])]
    assert gone == []
    assert ALWAYS.keys() <= set(LONG)


@pytest.mark.parametrize("places", [REAL, QUICK, NOT_QUICK])
def test_so_are_the_folders_that_runs_are_made_of(places: tuple[str, ...]) -> None:
    assert [each for each in places if not _is_there(each, "")] == []


def _is_there(place: str, function: str) -> bool:
    path = TESTS / place
    return path.exists() and (not function or f"def {function}(" in path.read_text())


# --- private modules


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports() -> Iterator[tuple[str, str]]:
    """By whom, and which module, of all that are in app/."""
    names = {module_name(each): each for each in MODULES}
    for name, path in names.items():
        for node in nodes_of(path):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                for each in {f"{node.module}.{one.name}" for one in node.names} & names.keys() or {node.module}:
                    yield name, each


def test_a_module_with_an_underscore_is_imported_from_its_own_folder_only() -> None:
    others = [
        f"{name} imports {each}"
        for name, each in imports()
        if each.rpartition(".")[2].startswith("_") and not name.startswith(each.rpartition(".")[0])
    ]
    assert others == []


# Nobody imports these rooms but what starts them: in there an underscore would say nothing.
AT_THE_TOP = ("cli", "node", "console")


def test_what_only_its_own_folder_imports_has_an_underscore() -> None:
    imported_by: dict[str, set[str]] = {}
    for name, each in imports():
        imported_by.setdefault(each, set()).add(name)
    private = {
        each
        for each, users in imported_by.items()
        if len(parts := each.split(".")) > 2 and parts[1] not in AT_THE_TOP and not (APP / Path(*parts[1:])).is_dir()
        if all(user.startswith(each.rpartition(".")[0]) for user in users)
    }
    assert [each for each in sorted(private) if not each.rpartition(".")[2].startswith("_")] == []
