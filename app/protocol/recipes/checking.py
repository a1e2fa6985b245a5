"""Whether a recipe can work: against what its toolset shows now. To read an expression may take milliseconds, and a
recipe may have hundreds of them: so it is checked in pieces."""

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from app.domain.resources.recipes import MAX_AT_ONCE, MAX_STEPS, STEP_ID, Method, Recipe, Step
from app.protocol.recipes.expressions import BadExpression, expressions_in, paths_in
from app.protocol.search.work import Work
from app.text.memo import memo

MAX_EXPRESSIONS = 200
OF_A_STEP = ("result", "text", "answer", "skipped")  # what later steps see of it
_FIELDS = frozenset({"string", "number", "integer", "boolean", "array"})  # of a form

SchemaOf = Callable[[str], "dict[str, Any] | str"]

_is_id = re.compile(STEP_ID).search


class Problem(NamedTuple):
    """`where` is a path of the body, such as `steps/2/arguments`; `words` name the step."""

    where: str
    words: str


class Seen(NamedTuple):
    """What an expression may read: of the input these names (None: any), of these steps, and the answer to the question
    of this one."""

    inputs: frozenset[str] | None
    steps: tuple[str, ...]
    all_steps: frozenset[str]
    asked: str | None = None


def checking(recipe: Recipe, schema_of: SchemaOf, most: int | None = None) -> Work[list[Problem]]:
    """What is wrong with it, up to so many. `schema_of` gives the input schema of a tool that is shown, or says why
    there is none. In pieces: of one expression, or one schema."""
    found = list[Problem]()
    for each in _checks(recipe, memo(1)(schema_of)):
        if each is None:
            yield
            continue
        found.append(each)
        if len(found) == most:
            break
    return found


def _checks(recipe: Recipe, schema_of: SchemaOf) -> Iterator[Problem | None]:
    """None: a piece is done."""
    method = recipe.method
    ids = [step.id for step in method.steps]
    yield from _too_many(method)
    for step_id in {each for each in ids if ids.count(each) > 1}:
        yield Problem("steps", f"two steps have the id {step_id}")
    properties = recipe.input_schema.get("properties")
    inputs = frozenset(properties) if isinstance(properties, dict) and _is_closed(recipe.input_schema) else None
    done: tuple[str, ...] = ()
    for number, group in enumerate(method.groups):
        seen = Seen(inputs, done, frozenset(ids))
        for place, step in enumerate(group):
            where = f"steps/{number}" + (f"/{place}" if len(group) > 1 else "")
            yield from _problems_of_step(step, where, seen, schema_of)
        done += tuple(step.id for step in group)
    yield from _of_template(method.output, Seen(inputs, done, frozenset(ids)), "output", "output")


def _too_many(method: Method) -> Iterator[Problem]:
    count = sum(1 for _ in method.steps)
    if not 1 <= count <= MAX_STEPS or any(not 1 <= len(group) <= MAX_AT_ONCE for group in method.groups):
        words = f"a recipe has 1 to {MAX_STEPS} steps, at most {MAX_AT_ONCE} of them at once; this one has {count}"
        yield Problem("steps", words)
    try:
        expressions = sum(1 for step in method.steps for _ in expressions_in(step.arguments))
    except BadExpression:
        return  # which is told with its step
    if expressions > MAX_EXPRESSIONS:
        yield Problem("steps", f"a recipe has at most {MAX_EXPRESSIONS} expressions; this one has {expressions}")


def _problems_of_step(step: Step, where: str, seen: Seen, schema_of: SchemaOf) -> Iterator[Problem | None]:
    name = f"step {step.id[:50]}"
    if not _is_id(step.id):
        words = "an id begins with a letter or `_` and has up to 32 letters, digits and `_`"
        yield Problem(f"{where}/id", f"{name}: {words}")
    schema = schema_of(step.tool)
    yield None
    if isinstance(schema, str):
        yield Problem(f"{where}/tool", f"{name}: {schema}")
    else:
        for words in _of_arguments(step.arguments, schema):
            yield Problem(f"{where}/arguments", f"{name}: {words}")
    asked = None if step.question is None else step.id
    yield from _of_template(step.arguments, seen._replace(asked=asked), f"{where}/arguments", name)
    yield from _of_template(step.condition, seen, f"{where}/condition", name)
    if step.question is not None:
        yield from _of_template(step.question.message, seen, f"{where}/question/message", name)
        for words in _of_form(step.question.requested_schema):
            yield Problem(f"{where}/question/requested_schema", f"{name}: {words}")


def _of_arguments(arguments: dict[str, Any], schema: dict[str, Any]) -> Iterator[str]:
    """Names that the tool wants and does not get, and names that it does not know."""
    properties, required = schema.get("properties"), schema.get("required")
    known = properties if isinstance(properties, dict) else {}
    for name in required if isinstance(required, list) else ():
        if isinstance(name, str) and name not in arguments:
            yield f"its tool needs the argument {name[:100]}"
    if known and _is_closed(schema):
        for name in arguments:
            if name not in known:
                yield f"its tool has no argument {name[:100]}; it has {', '.join(map(str, known))[:300]}"


def _is_closed(schema: dict[str, Any]) -> bool:
    """Whether only the properties are meant. A schema that says nothing of others is more often short than open."""
    more = schema.get("additionalProperties")
    opens = any(name in schema for name in ("patternProperties", "anyOf", "oneOf", "allOf", "$ref", "if"))
    return not opens and (more is None or more is False)


def _of_template(template: Any, seen: Seen, where: str, name: str) -> Iterator[Problem | None]:
    try:
        for expression in expressions_in(template):
            for path in paths_in(expression):
                words = _of_path(path, seen)
                if words is not None:
                    yield Problem(where, f"{name}: {words}")
            yield None
    except BadExpression as error:
        yield Problem(where, f"{name}: {error}")


def _of_path(path: tuple[str, ...], seen: Seen) -> str | None:
    if not path:
        return None
    if path[0] == "input":
        if len(path) > 1 and seen.inputs is not None and path[1] not in seen.inputs:
            return f"the input has no {path[1][:100]}; it has {', '.join(sorted(seen.inputs))[:300] or 'nothing'}"
        return None
    if path[0] != "steps":
        return f"there is no `{path[0][:100]}`: an expression sees `input` and `steps`; a text is 'in quotes'"
    if len(path) > 1 and path[1] not in seen.all_steps:
        return f"there is no step {path[1][:100]}"
    if path[1:2] == (seen.asked,) and path[2:3] == ("answer",):
        return None
    if len(path) > 1 and path[1] not in seen.steps:
        return f"it needs the step {path[1][:100]}, which has not run by then"
    if len(path) > 2 and path[2] not in OF_A_STEP:
        return f"a step has no `{path[2][:100]}`; it has {', '.join(OF_A_STEP)}"
    return None


def _of_form(schema: dict[str, Any]) -> Iterator[str]:
    """A form is flat: clients show nothing else."""
    properties = schema.get("properties", {})
    if schema.get("type") != "object" or not isinstance(properties, dict):
        yield 'a form is `{"type": "object", "properties": {…}}`'
        return
    for name, field in properties.items():
        if not isinstance(field, dict) or field.get("type") not in _FIELDS:
            yield f"the field {name[:100]} of the form is no text, number, boolean or choice"
