"""As much of PromQL as the rules in deploy/ use, evaluated over samples in memory. The grammar is promql-parser's.

What an expression asks for and is not here is an error, never an empty answer. Where promtool is installed, the tests
of alerts have it evaluate the same: see alerting.py.
"""

import itertools
import math
import operator
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import promql_parser as ast

LOOKBACK_S = 300.0
NAME = "__name__"

Labels = frozenset[tuple[str, str]]
Samples = Sequence[tuple[float, float]]  # time and value, oldest first
Vector = dict[Labels, float]
Value = Vector | float

_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda a, b: a / b if b else math.nan if not a or math.isnan(a) else math.copysign(math.inf, a),
}
_COMPARISON: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
_AGGREGATES: dict[str, Callable[[list[float]], float]] = {
    "sum": sum,
    "count": lambda values: float(len(values)),
    "max": max,
    "min": min,
}


def _time(sample: tuple[float, float]) -> float:
    return sample[0]


class Unknown(Exception):
    """The expression asks for something that this evaluator has not."""


class Promql:
    """Answers queries over these series, by their labels with the name."""

    def __init__(self, series: Mapping[Labels, Samples]) -> None:
        self._by_name: dict[str, dict[Labels, Samples]] = defaultdict(dict)
        for labels, samples in series.items():
            self._by_name[dict(labels)[NAME]][labels] = samples

    def add(self, labels: Labels, at: float, value: float) -> None:
        """One more sample, e.g. what a recording rule has found."""
        series = self._by_name[dict(labels)[NAME]]
        series[labels] = [*series.get(labels, ()), (at, value)]  # in the order of time

    def query(self, expression: str, at: float) -> Value:
        """The answer as of that time."""
        return self._value(ast.parse(expression), at)

    def _value(self, node: Any, at: float) -> Value:
        match node:
            case ast.NumberLiteral():
                return float(node.val)
            case ast.ParenExpr():
                return self._value(node.expr, at)
            case ast.VectorSelector():
                return self._instant(node, at)
            case ast.AggregateExpr():
                return self._aggregate(node, at)
            case ast.BinaryExpr():
                return self._binary(node, at)
            case ast.Call():
                return self._call(node, at)
        raise Unknown(type(node).__name__)

    # --- selecting

    def _select(self, selector: Any) -> dict[Labels, Samples]:
        if selector.offset is not None or selector.at is not None or selector.matchers.or_matchers:
            raise Unknown(str(selector))
        found = self._by_name.get(selector.name, {})
        return {
            labels: samples
            for labels, samples in found.items()
            if all(_fits(each, dict(labels)) for each in selector.matchers.matchers)
        }

    def _instant(self, selector: Any, at: float) -> Vector:
        found: Vector = {}
        for labels, samples in self._select(selector).items():
            last = bisect_right(samples, at, key=_time) - 1
            if last >= 0 and samples[last][0] > at - LOOKBACK_S:
                found[labels] = samples[last][1]
        return found

    # --- functions

    def _call(self, call: Any, at: float) -> Value:
        match call.func.name:
            case "time":
                return at
            case "rate":
                return self._increase(call.args[0], at, per_second=True)
            case "increase":
                return self._increase(call.args[0], at, per_second=False)
            case "histogram_quantile":
                share, buckets = (self._value(each, at) for each in call.args)
                if not isinstance(share, float) or not isinstance(buckets, dict):
                    raise Unknown(str(call))
                return _histogram_quantile(share, buckets)
        raise Unknown(call.func.name)

    def _increase(self, matrix: Any, at: float, *, per_second: bool) -> Vector:
        width = matrix.range.total_seconds()
        found: Vector = {}
        for labels, samples in self._select(matrix.vector_selector).items():
            window = samples[bisect_left(samples, at - width, key=_time) : bisect_right(samples, at, key=_time)]
            if len(window) >= 2:
                increase = _extrapolated(window, at - width, at)
                found[_without_name(labels)] = increase / width if per_second else increase
        return found

    # --- operators

    def _aggregate(self, node: Any, at: float) -> Vector:
        whole = self._value(node.expr, at)
        if not isinstance(whole, dict) or node.param is not None:
            raise Unknown(str(node))
        if node.modifier is not None and node.modifier.type != ast.AggModifierType.By:
            raise Unknown("without")
        names = set() if node.modifier is None else set(node.modifier.labels)
        groups: dict[Labels, list[float]] = defaultdict(list)
        for labels, value in whole.items():
            groups[frozenset(pair for pair in labels if pair[0] in names)].append(value)
        if str(node.op) not in _AGGREGATES:
            raise Unknown(str(node.op))
        return {labels: _AGGREGATES[str(node.op)](values) for labels, values in groups.items()}

    def _binary(self, node: Any, at: float) -> Value:
        left, right, word = self._value(node.lhs, at), self._value(node.rhs, at), str(node.op)
        if node.modifier is not None and (node.modifier.matching is not None or node.modifier.return_bool):
            raise Unknown(str(node))
        if word in ("and", "or", "unless"):
            return _set_operation(word, left, right)
        if isinstance(left, float) and isinstance(right, float):
            if word in _ARITHMETIC:
                return _ARITHMETIC[word](left, right)
            raise Unknown(str(node))
        return {
            (labels if word in _COMPARISON else _without_name(labels)): value
            for labels, a, b, shown in _pairs(left, right)
            if (value := _applied(word, a, b, shown)) is not None
        }


def _applied(word: str, a: float, b: float, shown: float) -> float | None:
    """The value of one pair; None where a comparison leaves it out."""
    if word in _ARITHMETIC:
        return _ARITHMETIC[word](a, b)
    if word in _COMPARISON:
        return shown if _COMPARISON[word](a, b) else None
    raise Unknown(word)


def _pairs(left: Value, right: Value) -> list[tuple[Labels, float, float, float]]:
    """Which values meet, under which labels, and the one that a comparison lets through."""
    if isinstance(right, float):
        assert isinstance(left, dict)
        return [(labels, value, right, value) for labels, value in left.items()]
    if isinstance(left, float):
        return [(labels, left, value, value) for labels, value in right.items()]
    others = {_without_name(labels): value for labels, value in right.items()}
    if len(others) != len(right) or len({_without_name(labels) for labels in left}) != len(left):
        raise Unknown("several on one side")
    return [
        (labels, value, others[_without_name(labels)], value)
        for labels, value in left.items()
        if _without_name(labels) in others
    ]


def _set_operation(word: str, left: Value, right: Value) -> Vector:
    if isinstance(left, float) or isinstance(right, float):
        raise Unknown(f"{word} of a scalar")
    theirs, ours = ({_without_name(labels) for labels in each} for each in (right, left))
    if word == "or":
        return {**left, **{labels: value for labels, value in right.items() if _without_name(labels) not in ours}}
    return {labels: value for labels, value in left.items() if (_without_name(labels) in theirs) == (word == "and")}


def _fits(matcher: Any, labels: dict[str, str]) -> bool:
    value = labels.get(matcher.name, "")
    match matcher.op:
        case ast.MatchOp.Equal:
            return value == str(matcher.value)
        case ast.MatchOp.NotEqual:
            return value != str(matcher.value)
    matches = re.fullmatch(matcher.value, value) is not None
    return matches == (matcher.op == ast.MatchOp.Re)


def _without_name(labels: Labels) -> Labels:
    return frozenset(pair for pair in labels if pair[0] != NAME)


def _extrapolated(window: Samples, start: float, end: float) -> float:
    """As Prometheus does it: resets are added up; the ends of the window are reached where a sample may be missing
    there, but a counter does not go below 0."""
    (first_at, first), (last_at, last) = window[0], window[-1]
    resets = sum(before for (_, before), (_, after) in itertools.pairwise(window) if after < before)
    increase = last - first + resets
    sampled = last_at - first_at
    spacing = sampled / (len(window) - 1)
    before, after = first_at - start, end - last_at
    if increase > 0 and first >= 0:
        before = min(before, sampled * (first / increase))
    reach = spacing * 1.1
    to_start = before if before < reach else spacing / 2
    to_end = after if after < reach else spacing / 2
    return increase * (sampled + to_start + to_end) / sampled


def _histogram_quantile(share: float, buckets: Vector) -> Vector:
    histograms: dict[Labels, list[tuple[float, float]]] = defaultdict(list)
    for labels, count in buckets.items():
        rest = frozenset(pair for pair in _without_name(labels) if pair[0] != "le")
        histograms[rest].append((float(dict(labels)["le"]), count))
    return {labels: _quantile(share, sorted(found)) for labels, found in histograms.items()}


def _quantile(share: float, buckets: list[tuple[float, float]]) -> float:
    if len(buckets) < 2 or buckets[-1][0] != math.inf or not buckets[-1][1]:
        return math.nan
    rank = share * buckets[-1][1]
    place = next(number for number, (_, count) in enumerate(buckets) if count >= rank)
    if place == len(buckets) - 1:
        return buckets[-2][0]
    bound, count = buckets[place]
    lower, under = buckets[place - 1] if place else (0.0, 0.0)
    if not place and bound <= 0:
        return bound
    return lower + (bound - lower) * (rank - under) / (count - under)
