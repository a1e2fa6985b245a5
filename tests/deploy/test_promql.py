"""The evaluator of tests/promql.py. The tests of alerts compare it with promtool, where that is installed."""

import math

import pytest

from tests.promql import NAME, Labels, Promql, Unknown


def labels(name: str, **more: str) -> Labels:
    return frozenset({NAME: name, **more}.items())


def counting(step: float, count: int = 21) -> list[tuple[float, float]]:
    return [(15.0 * number, step * number) for number in range(count)]


def test_a_rate_is_what_a_second_adds():
    engine = Promql({labels("x_total", a="b"): counting(30)})
    assert dict(engine.query("rate(x_total[5m])", 300)) == {frozenset({("a", "b")}): pytest.approx(2.0)}  # type: ignore[arg-type, comparison-overlap]


def test_a_counter_that_begins_high_has_not_increased_yet():
    engine = Promql({labels("x_total"): [(600.0, 7.0), (615.0, 7.0)]})
    assert engine.query("increase(x_total[10m])", 615) == {frozenset(): 0.0}


def test_a_reset_is_no_decrease():
    engine = Promql({labels("x_total"): [(0.0, 10.0), (15.0, 12.0), (30.0, 3.0)]})
    ((_, increase),) = engine.query("increase(x_total[30s])", 30).items()  # type: ignore[union-attr]
    assert increase == pytest.approx(5.0)


def test_sums_keep_the_labels_that_are_asked_for():
    engine = Promql({labels("x", a="1", b="1"): [(0, 1)], labels("x", a="1", b="2"): [(0, 2)]})
    assert engine.query("sum by (a) (x)", 10) == {frozenset({("a", "1")}): 3}
    assert engine.query("sum(x) < 2 and count(x) > 1", 10) == {}
    assert engine.query("sum(x) < 4 and count(x) > 1", 10) == {frozenset(): 3}
    assert engine.query("count(count by (b) (x)) > 1", 10) == {frozenset(): 2}


@pytest.mark.parametrize(
    ("matcher", "found"), [('a=~"1|2"', 2), ('a!~"1|2"', 1), ('a="3"', 1), ('a!="3"', 2), ('z=""', 3), ('a=~"1"', 1)]
)
def test_matchers_match_whole_values(matcher: str, found: int):
    engine = Promql({labels("x", a=value): [(0, 1)] for value in ("1", "2", "3")})
    assert len(engine.query(f"x{{{matcher}}}", 10)) == found  # type: ignore[arg-type]


def test_what_is_divided_by_nothing_is_not_there():
    engine = Promql({labels("x"): [(0, 1)], labels("y"): [(0, 0)]})
    assert engine.query("x / (y > 0)", 10) == {}
    assert engine.query("x / y", 10) == {frozenset(): math.inf}


def test_a_sample_of_more_than_five_minutes_ago_is_gone():
    engine = Promql({labels("x"): [(0, 1)]})
    assert engine.query("x", 299) == {labels("x"): 1}
    assert engine.query("x", 301) == {}


def test_a_quantile_is_found_inside_its_bucket():
    counts = {"5.0": 0.0, "10.0": 10.0, "+Inf": 10.0}
    engine = Promql({labels("x_bucket", le=bound): [(0, count)] for bound, count in counts.items()})
    assert engine.query("histogram_quantile(0.5, sum by (le) (x_bucket))", 10) == {frozenset(): 7.5}


@pytest.mark.parametrize("expression", ["avg_over_time(x[5m])", "x offset 5m", "sum without (a) (x)", "stddev(x)"])
def test_what_it_does_not_know_is_an_error(expression: str):
    with pytest.raises(Unknown):
        Promql({labels("x"): [(0, 1)]}).query(expression, 10)
