"""JMESPath with bounds: how long an expression may be, and how much work it may do.

An expression can double what it has with eight characters (`[@,@][]|`), so a limit on its length limits nothing. Every
visit of a node burns fuel, and so does everything that is made or compared, by its size; what burns more is an error.
"""

from collections.abc import Iterator
from typing import Any

import jmespath
import msgspec
from jmespath.exceptions import JMESPathError
from jmespath.functions import Functions
from jmespath.visitor import TreeInterpreter

MAX_EXPRESSION = 1000  # characters
FUEL = 20_000  # of one step, or of the output: at most some 20 ms
FUEL_OF_RUN = 40_000  # of all steps together: those that are skipped follow each other without a pause
FUEL_OF_PIECE = 2_000  # some 5 ms: then others have their turn before the next step
BYTES_OF_FUEL = 256  # of values that are made, compared or passed to a function
MAX_DEPTH = 20  # of templates

Scope = dict[str, Any]

_encode = msgspec.json.Encoder().encode
_FUNCTIONS = Functions()


class BadExpression(ValueError):
    """It cannot be read, or has no value. The message is for those who have written it."""


class Fuel:
    """What the expressions of one step may still burn, as long as there is some left of the whole run."""

    __slots__ = ("_left", "_whole")

    def __init__(self, left: int = FUEL, whole: "Fuel | None" = None) -> None:
        self._left, self._whole = left, whole

    @property
    def left(self) -> int:
        return self._left

    def burn(self, units: int) -> None:
        """Raises BadExpression: there is not so much left."""
        self._left -= units
        if self._left < 0:
            raise BadExpression("the expressions do too much work")
        if self._whole is not None:
            self._whole.burn(units)

    def weigh(self, value: Any) -> None:
        """Burns what the size of a value costs."""
        self.burn(len(_encode(value)) // BYTES_OF_FUEL + 1)


class _Interpreter(TreeInterpreter):
    """Burns fuel."""

    def __init__(self, fuel: Fuel) -> None:
        super().__init__()
        self._fuel = fuel

    def visit(self, node: Any, *args: Any, **kwargs: Any) -> Any:
        self._fuel.burn(1)
        return super().visit(node, *args, **kwargs)

    def visit_multi_select_list(self, node: Any, value: Any) -> Any:
        return None if value is None else [self._weighed(child, value) for child in node["children"]]

    def visit_multi_select_dict(self, node: Any, value: Any) -> Any:
        if value is None:
            return None
        return {child["value"]: self._weighed(child, value) for child in node["children"]}

    def visit_flatten(self, node: Any, value: Any) -> Any:
        merged = super().visit_flatten(node, value)
        self._fuel.burn(len(merged or ()))
        return merged

    def visit_slice(self, node: Any, value: Any) -> Any:
        self._fuel.burn(len(value) // BYTES_OF_FUEL if isinstance(value, list) else 0)
        return super().visit_slice(node, value)

    def visit_comparator(self, node: Any, value: Any) -> Any:
        sides: list[Any] = [{"type": "literal", "value": self._weighed(child, value)} for child in node["children"]]
        return super().visit_comparator({"type": "comparator", "value": node["value"], "children": sides}, value)

    def visit_function_expression(self, node: Any, value: Any) -> Any:
        arguments = [
            self.visit(child, value) if child["type"] == "expref" else self._weighed(child, value)
            for child in node["children"]
        ]
        made = _FUNCTIONS.call_function(node["value"], arguments)
        self._fuel.weigh(made)
        return made

    def _weighed(self, node: Any, value: Any) -> Any:
        made = self.visit(node, value)
        self._fuel.weigh(made)
        return made


def value_of(expression: str, scope: Scope, fuel: Fuel) -> Any:
    """Raises BadExpression."""
    try:
        made = _Interpreter(fuel).visit(_tree(expression), scope)
        fuel.weigh(made)
    except BadExpression:
        raise
    except (
        JMESPathError,
        TypeError,
        ValueError,
        ArithmeticError,
        LookupError,
        AttributeError,
        RecursionError,
    ) as error:
        words = " ".join(str(error).split())[:200]
        raise BadExpression(f"`{expression[:100]}` has no value: {words}") from None
    return made


def filled(template: Any, scope: Scope, fuel: Fuel) -> Any:
    """The template with the values of its expressions: of all its strings. Raises BadExpression."""
    if isinstance(template, str):
        return value_of(template, scope, fuel)
    if isinstance(template, dict):
        return {name: filled(each, scope, fuel) for name, each in template.items()}
    if isinstance(template, list):
        return [filled(each, scope, fuel) for each in template]
    return template


def is_true(value: Any) -> bool:
    """As JMESPath has it: everything but null, false and what is empty."""
    return value is not None and value is not False and value not in ("", [], {})


def expressions_in(template: Any, depth: int = MAX_DEPTH) -> Iterator[str]:
    """All strings of a template. Raises BadExpression: it is nested too deeply."""
    if isinstance(template, str):
        yield template
    elif isinstance(template, dict | list):
        if not depth:
            raise BadExpression(f"it is nested more than {MAX_DEPTH} levels deep")
        for each in template.values() if isinstance(template, dict) else template:
            yield from expressions_in(each, depth - 1)


def paths_in(expression: str) -> Iterator[tuple[str, ...]]:
    """What an expression reads of its scope: the names of each path, as far as they are names. Empty: everything.

    Raises BadExpression: it cannot be read, or calls a function that does not exist.
    """
    return iter(dict.fromkeys(_paths(_tree(expression), is_root=True)))


def _tree(expression: str) -> Any:
    if len(expression) > MAX_EXPRESSION:
        raise BadExpression(f"an expression has at most {MAX_EXPRESSION} characters")
    try:
        return jmespath.compile(expression).parsed
    except (JMESPathError, ValueError, TypeError, LookupError, AttributeError, RecursionError, Warning) as error:
        words = " ".join(str(error).split("\n")[0].split())[:200] or type(error).__name__
        raise BadExpression(f"`{expression[:100]}` cannot be read: {words}") from None


def _paths(node: Any, *, is_root: bool) -> Iterator[tuple[str, ...]]:
    """Within `a.b`, `a | b`, `a[?b]` and the like only the first part is evaluated against the scope."""
    kind, children = node["type"], node.get("children", [])
    if kind == "function_expression" and node["value"] not in Functions.FUNCTION_TABLE:
        raise BadExpression(f"there is no function {node['value'][:50]}()")
    if is_root and kind in ("field", "current", "identity", "subexpression"):
        yield _names(node)
    if kind in _FIRST_ONLY:
        yield from (path for number, child in enumerate(children) for path in _below(child, is_root, number, kind))
    elif kind not in ("field", "slice", "literal"):
        for child in children:
            yield from _paths(child, is_root=is_root and kind != "expref")


_FIRST_ONLY = frozenset({
    "subexpression", "pipe", "projection", "value_projection", "filter_projection", "index_expression", "flatten",
})  # fmt: skip


def _below(child: Any, is_root: bool, number: int, kind: str) -> Iterator[tuple[str, ...]]:
    """Names of a subexpression's beginning are told with it."""
    root = is_root and number == 0 and not (kind == "subexpression" and child["type"] in ("field", "subexpression"))
    return _paths(child, is_root=root)


def _names(node: Any) -> tuple[str, ...]:
    """The names with which a path begins."""
    if node["type"] == "field":
        return (node["value"],)
    if node["type"] != "subexpression":
        return _names(node["children"][0]) if node["type"] in _FIRST_ONLY else ()
    names: tuple[str, ...] = ()
    for child in node["children"]:
        more = _names(child)
        names += more
        if child["type"] not in ("field", "subexpression"):
            break
    return names
