"""No test looks at a moment that another process decides.

These are the ways in which tests were red on a busy machine, each found here:

1. a sleep, and then an assertion that something has happened meanwhile: wait for it (`until`, `becomes`);
2. a wait that gives up within a few seconds: what does not hang may take as long as the machine needs;
3. an assertion that something took less than a few seconds of the clock: count work, or ask the processor's time;
4. a deadline of Hypothesis: `conftest.py` has a profile without.

Where it is right all the same, the line says why behind `# calm:`, for instance that the promise is a time.
"""

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

TESTS = Path(__file__).parent
SLEEPS = ("time.sleep", "asyncio.sleep", "anyio.sleep")
WAITS = ("anyio.fail_after", "asyncio.wait_for", "asyncio.timeout")
CLOCKS = ("monotonic()", "perf_counter()", "took", "elapsed")  # a `stopwatch` takes out what others make slow
FEW_S = 5.0
MARK = "# calm:"

Found = tuple[int, str]  # line, and what is wrong


def uneasy(source: str) -> list[str]:
    """What of a file of tests depends on how busy the machine is, as `LINE: why`."""
    lines = source.splitlines()
    found = {each for node in ast.walk(ast.parse(source)) for each in _looked_at(node)}
    return [f"{line}: {why}" for line, why in sorted(found) if MARK not in lines[line - 1]]


def _looked_at(node: ast.AST) -> list[Found]:
    if isinstance(node, ast.Call):
        return [*_waits(node), *_deadline(node)]
    if isinstance(node, ast.Assert):
        return list(_timed(node))
    body = getattr(node, "body", None)
    return list(_slept(body)) if isinstance(body, list) else []


def _slept(body: list[ast.stmt]) -> Iterator[Found]:
    """A sleep before an assertion; that something has *not* happened is never red because a machine is slow."""
    for slept, after in pairwise(body):
        is_sleep = any(_name(each) in SLEEPS and not _is_nothing(each.args) for each in _calls(slept))
        if is_sleep and isinstance(after, ast.Assert) and not isinstance(after.test, ast.UnaryOp):
            yield slept.lineno, "a sleep, and then an assertion: wait until it is so"


def _waits(call: ast.Call) -> Iterator[Found]:
    keywords = [each.value for each in call.keywords if each.arg in ("timeout", "within_s")]
    if any(_is_few_seconds(given) for given in [*keywords, *(call.args if _name(call) in WAITS else ())]):
        yield call.lineno, "a wait that gives up within a few seconds"


def _timed(asserted: ast.Assert) -> Iterator[Found]:
    for compared in ast.walk(asserted.test):
        if isinstance(compared, ast.Compare) and isinstance(compared.ops[-1], ast.Lt | ast.LtE):
            *_, measured, limit = (compared.left, *compared.comparators)
            if _is_few_seconds(limit) and any(clock in ast.unparse(measured) for clock in CLOCKS):
                yield compared.lineno, "an assertion about a short time of the clock"


def _deadline(call: ast.Call) -> Iterator[Found]:
    if any(each.arg == "deadline" for each in call.keywords) and _name(call).endswith("settings"):
        yield call.lineno, "a deadline of Hypothesis: conftest.py has switched them off for all"


def _calls(statement: ast.stmt) -> list[ast.Call]:
    """In a statement that is nothing but an expression."""
    within = ast.walk(statement) if isinstance(statement, ast.Expr) else ()
    return [node for node in within if isinstance(node, ast.Call)]


def _name(call: ast.Call) -> str:
    """As it is called, `anyio.sleep`; empty for what is called on more than a name."""
    called = call.func
    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
        return f"{called.value.id}.{called.attr}"
    return called.id if isinstance(called, ast.Name) else ""


def _is_nothing(arguments: list[ast.expr]) -> bool:
    return bool(arguments) and isinstance(arguments[0], ast.Constant) and not arguments[0].value


def _is_few_seconds(given: ast.expr) -> bool:
    value = given.value if isinstance(given, ast.Constant) else None
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < FEW_S


def files() -> list[Path]:
    return [path for path in sorted(TESTS.rglob("*.py")) if not {"node_modules", "servers"}.intersection(path.parts)]


def test_no_test_depends_on_how_busy_the_machine_is() -> None:
    found = {str(path.relative_to(TESTS)): uneasy(path.read_text()) for path in files()}
    assert not {name: wrong for name, wrong in found.items() if wrong}


def test_what_it_finds_and_what_it_leaves_alone() -> None:
    tried = """
async def test():
    await anyio.sleep(0.2)
    assert node.sessions() == 1
    time.sleep(1)
    assert not node.sessions()
    await anyio.sleep(0)
    assert node.sessions() == 1
    await anyio.sleep(0.2)  # calm: nothing is to come
    assert node.sessions() == 1
    with anyio.fail_after(2):
        await node.get("/", timeout=1.5)
    with anyio.fail_after(30):
        node.wait(timeout=WITHIN_S)
    assert took_s < 2
    assert watch.seconds < 2
    assert 0.1 < time.monotonic() - began < 20
    assert len(took) < 2.0 or took[3] < 1.0
    settings(deadline=None)
"""
    assert [int(each.partition(":")[0]) for each in uneasy(tried)] == [3, 11, 12, 15, 18, 19]
