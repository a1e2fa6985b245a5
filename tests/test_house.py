"""The house is in order: packages say what they are for, files have a size, a document names what there is, and tests
stand where their module does."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from tests.long import ALWAYS, LONG

ROOT = Path(__file__).resolve().parent.parent
APP, TESTS = ROOT / "app", ROOT / "tests"
ARCHITECTURE = ROOT / "docs/architecture.md"
MAX_MODULES, MAX_LINES, MAX_FUNCTION = 14, 400, 60

PACKAGES = sorted(path.parent for path in APP.rglob("__init__.py"))
MODULES = sorted(APP.rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(APP))


@pytest.mark.parametrize("package", PACKAGES, ids=name_of)
def test_a_package_says_what_lives_there_and_is_not_crowded(package: Path) -> None:
    assert ast.get_docstring(ast.parse((package / "__init__.py").read_text()))
    modules = [each for each in package.glob("*.py") if each.name != "__init__.py"]
    assert len(modules) <= MAX_MODULES


def test_files_can_be_read_in_one_go() -> None:
    long = {name_of(each) for each in MODULES if len(each.read_text().splitlines()) > MAX_LINES}
    assert not long


def functions_over(limit: int) -> list[str]:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return [
        f"{name_of(path)}:{node.lineno} {node.name}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, kinds) and (node.end_lineno or 0) - node.lineno >= limit
    ]


def test_so_can_functions() -> None:
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
    names = {path.stem for path in package.iterdir() if path.suffix == ".py" or path.is_dir()} | {package.name}
    subject = test.stem.removeprefix("test_")
    return any(subject == name or subject.startswith(f"{name}_") for name in names - {"__init__", "__pycache__"})


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


def _is_there(place: str, function: str) -> bool:
    path = TESTS / place
    return path.exists() and (not function or f"def {function}(" in path.read_text())


# --- doors


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported_by_others() -> set[str]:
    """Modules that something outside of their package imports: what stands in its door."""
    names = {module_name(path) for path in MODULES}
    found = set()
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or node.module is None:
                continue
            parts = {f"{node.module}.{each.name}" for each in node.names} & names or {node.module}
            found |= {part for part in parts if not module_name(path).startswith(part.rpartition(".")[0] + ".")}
    return found


def test_what_only_a_package_uses_is_inside_of_it() -> None:
    """A module is in the door of its package when others import it, or the contracts protect it."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    declared = {
        module for each in contracts if each["name"].startswith("Inside ") for module in each["protected_modules"]
    }
    packages = {module_name(path / "__init__.py") for path in PACKAGES} - {"app"}
    modules = {module_name(path) for path in MODULES if path.name not in ("__init__.py", "__main__.py")}
    of_packages = {each for each in modules if each.rpartition(".")[0] in packages}
    assert of_packages - imported_by_others() == declared
