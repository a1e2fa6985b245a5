"""What docs/performance.md and docs/sizing.md show is made of bench/capacity.json and bench/goals.json, and the charts
can be read."""

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]
KEPT = json.loads((ROOT / "bench/capacity.json").read_text())
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ModuleType]]:
    """Those of bench/capacity, which is a folder of a script."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "bench")
        found = {name: importlib.import_module(f"capacity.{name}") for name in ("plots", "report")}
        yield {**found, "goals": importlib.import_module("goals")}
    for name in [each for each in sys.modules if each.partition(".")[0] in ("capacity", "goals", "run_peers")]:
        del sys.modules[name]


@pytest.fixture
def report(modules: dict[str, ModuleType]) -> ModuleType:
    return modules["report"]


@pytest.fixture
def plots(modules: dict[str, ModuleType]) -> ModuleType:
    return modules["plots"]


# --- what is shown is what was measured: `scripts/bench --capacity --keep --draw` makes it anew


def test_the_table_is_that_of_the_run(report):
    page = (ROOT / report.PAGE).read_text()
    shown = page.partition(report.BEGIN)[2].partition(report.END)[0].strip()
    assert shown == report.table(KEPT).strip()
    assert KEPT["date"] in page


def test_the_charts_are_those_of_the_run_and_stand_in_the_page(report):
    page = (ROOT / report.PAGE).read_text()
    charts = report.charts(KEPT)
    kept = {each.name for each in (ROOT / report.PICTURES).glob("capacity-*.svg")}
    assert set(charts) == kept
    for name, svg in charts.items():
        assert (ROOT / report.PICTURES / name).read_text() == svg
        assert f"(pictures/{name})" in page


def test_the_costs_that_sizes_are_computed_with_are_those_of_the_run(report):
    page = (ROOT / report.SIZING).read_text()
    assert page.partition(report.BEGIN)[2].partition(report.END)[0].strip() == report.costs(KEPT).strip()
    assert f" {report.session_kib(KEPT)} KiB " in page


def test_the_run_has_two_servers_of_each_language_in_each_way_and_the_peers():
    assert not KEPT["quick"]
    modes: dict[str, set[str]] = {}
    for row in KEPT["rows"]:
        modes.setdefault(row["server"], set()).add(row["mode"])
    languages = [each["language"] for each in KEPT["servers"].values()]
    assert languages.count("Python") >= 2
    assert languages.count("Node") >= 2
    for name, about in KEPT["servers"].items():
        assert modes[name] >= {"exec", "parked", "shared"} | ({"fork"} if about["language"] == "Python" else set())
    assert any({"bridge", "supergateway"} <= each for each in modes.values())
    assert {each["system"] for each in KEPT["curves"]} == {
        "trunkline", "trunkline, shared", "bridge", "supergateway",
    }  # fmt: skip


def test_the_table_of_goals_is_that_of_the_run(modules):
    goals = modules["goals"]
    shown = goals.PAGE.read_text().partition(goals.BEGIN)[2].partition(goals.END)[0].strip()
    assert shown == goals.table(goals.kept())
    assert list(goals.kept()) == [part.name for part in goals.PARTS]


def test_what_a_part_prints_otherwise_is_an_error_and_no_empty_row(modules):
    for part in modules["goals"].PARTS[1:]:
        with pytest.raises(ValueError, match="nothing looks like"):
            part.read("other words\n")


def test_a_row_holds_up_to_its_target(modules):
    row = modules["goals"].Row
    assert row("CPU", 1.4, "x", 1.4).holds
    assert not row("CPU", 1.41, "x", 1.4).holds
    assert row("calls/s", 0.75, "x", 0.75, is_least=True).holds
    assert not row("calls/s", 0.7, "x", 0.75, is_least=True).holds


# --- arithmetic


def row(mode="exec", **memory):
    phase = {"calls": 10, "gateway_cpu_ms_per_call": 0.5, "backend_cpu_ms_per_call": 1.5, "mib": 760.0, "p50_ms": 7.0}
    return {
        "server": "time", "mode": mode, "sessions": 10, "tier": "assisted", "start_cpu_s": 0.9,
        "memory": {
            "backend_mib_per_session": 50.0, "gateway_kib_per_session": 1024.0, "node_mib": 130.0, "fixed_mib": 20.0,
            **memory,
        },
        "idle": {"gateway_cpu_s_per_hour": 0.2, "backend_cpu_s_per_hour": 0.04},
        "chatting": phase, "bursting": phase, "opening": {"p50_ms": 400.0}, "opening_warm": {"p50_ms": 4.0},
    }  # fmt: skip


def test_what_a_session_adds_is_the_slope_and_when_busy_at_least_that(report):
    assert report.session_mib(row()) == 51
    assert report.session_mib(row(), "bursting") == pytest.approx((760 - 130 - 20) / 10)
    assert report.session_mib(row(node_mib=700.0), "bursting") == 51
    assert report.per_gib(row()) == pytest.approx(1024 / 51)


def test_sessions_of_a_core_are_those_whose_calls_and_idle_hours_fill_it(report):
    assert report.per_core(row()) == pytest.approx(3600 / (0.24 + 180 * 0.002))
    assert report.calls_per_core(row()) == pytest.approx(500)


def test_an_idle_parked_session_has_no_process(report):
    assert report.session_mib(row("parked")) < 0.02
    assert report.opening_ms(row("parked")) == 7


# --- charts


def texts(svg: str) -> list[str]:
    return ["".join(each.itertext()) for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_bars_have_their_values_and_names(plots):
    svg = plots.bars("Memory <of> one", "MiB", {"time": {"exec": 52.84, "fork": 13.9}, "git": {"exec": 61.0}})
    assert {"Memory <of> one", "MiB", "time", "git", "exec", "fork", "53", "14", "61"} <= set(texts(svg))
    widths = {
        float(each.get("width", "0"))
        for each in ElementTree.fromstring(svg).iter(f"{SVG}rect")
        if each.get("x") == "190"
    }
    assert max(widths) / min(widths) == pytest.approx(61 / 13.9, rel=0.01)


@pytest.mark.parametrize("is_log", [False, True])
def test_lines_rise_with_their_values(plots, is_log):
    axes = plots.Axes("sessions", "calls/s", is_log=is_log)
    svg = plots.lines("Calls", axes, {"ours": [(1, 10.0), (16, 100.0), (64, 90.0)]}, {"ours": [(1, 10.0), (64, 20.0)]})
    line, other = ElementTree.fromstring(svg).iter(f"{SVG}polyline")
    xs, ys = zip(*[map(float, point.split(",")) for point in line.get("points", "").split()], strict=True)
    assert list(xs) == sorted(xs)
    assert ys[0] > ys[2] > ys[1]  # downwards on a screen
    assert (line.get("stroke-dasharray"), other.get("stroke")) == (None, line.get("stroke"))
    assert {"1", "16", "64", "sessions", "calls/s", "ours"} <= set(texts(svg))


def test_text_is_readable_on_a_dark_page_too(plots):
    style = plots.lines("a", plots.Axes("b", "c"), {"d": [(1, 1.0)]}).partition("<style>")[2].partition("</style>")[0]
    light, _, dark = style.partition("@media (prefers-color-scheme: dark)")
    colours = [re.findall(r"text \{[^}]*fill: (#\w{6})", part)[0] for part in (light, dark)]
    brightness = [sum(int(colour[at : at + 2], 16) for at in (1, 3, 5)) / 3 for colour in colours]
    assert brightness[0] < 60
    assert brightness[1] > 200


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.01234, "0.012"), (1.26, "1.3"), (52.84, "53"), (1234.5, "1,234"), (0.5, "0.5")]
)
def test_numbers_have_two_digits_that_count(plots, value, text):
    assert plots.number(value) == text
