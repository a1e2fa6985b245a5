"""The rules of deploy/prometheus over scrapes of real gateways: which alerts fire.

Two scrapes, one before the trouble and one in it, are laid out as Prometheus would have them: a quiet time, and then
either the trouble goes on at the pace that was seen (`lasting`), or what has happened has happened once (`once`).
"""

import json
import re
import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
import promql_parser
import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.gateway import Gateway
from tests.promql import NAME, Labels, Promql, Samples

ROOT = Path(__file__).resolve().parent.parent
RULES = ROOT / "deploy/prometheus/rules.yml"
STEP_S = 15.0  # scrape_interval and evaluation_interval of deploy/prometheus/prometheus.yml
QUIET_S = 900.0  # before the trouble: as long as the widest window of the rules
JOB = "trunkline"


@dataclass(frozen=True, slots=True)
class Scrape:
    """What one /metrics said, and when. Without an answer there is only `up`, and it is 0."""

    at: float
    samples: Mapping[Labels, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Alert:
    """A firing alert, with the labels that its summary may name."""

    name: str
    labels: Labels

    def label(self, name: str) -> str:
        return dict(self.labels)[name]


Judge = Callable[[Mapping[Labels, Samples]], set[Alert]]


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    """Which alerts fire over these series; promtool has the same opinion where it is installed."""
    promtool = shutil.which("promtool")

    def judge(series: Mapping[Labels, Samples]) -> set[Alert]:
        alerts = firing(series)
        for alert in alerts:
            assert labels_in_summary(alert.name) <= dict(alert.labels).keys(), alert
        if promtool is not None:
            promtool_agrees(promtool, tmp_path, series, alerts)
        return alerts

    return judge


def look(gateway: Gateway, instance: str = "node-1") -> Scrape:
    """What the gateway's metrics say now."""
    return scrape(gateway.url, instance, time.monotonic())


def scrape(url: str, instance: str, at: float) -> Scrape:
    """As Prometheus would have it, of the gateway at this URL."""
    target = {"job": JOB, "instance": instance}

    def labels(name: str, more: Mapping[str, str] = {}) -> Labels:
        return frozenset({NAME: name, **more, **target}.items())

    try:
        text = httpx2.get(url + "/metrics", timeout=30).raise_for_status().text
    except httpx2.HTTPError:
        return Scrape(at, {labels("up"): 0.0})
    found = {
        labels(sample.name, sample.labels): float(sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if family.type != "unknown" and not sample.name.endswith("_created")
    }
    return Scrape(at, {**found, labels("up"): 1.0})


# --- time series from two scrapes


def lasting(before: Scrape, after: Scrape, for_s: float) -> dict[Labels, Samples]:
    """Quiet as `before`, then for so long as it was between the two: counters grow at that pace, gauges are as seen."""
    pace = STEP_S / max(after.at - before.at, 0.001)
    steps = int(for_s / STEP_S)

    def value(labels: Labels, step: int) -> float:
        start, end = before.samples.get(labels, 0.0), after.samples[labels]
        return start + (end - start) * pace * step if _is_counter(labels) else end

    return _laid_out(before, after, [value] * steps)


def once(before: Scrape, after: Scrape, for_s: float) -> dict[Labels, Samples]:
    """Quiet as `before`, then for so long as `after`."""
    return _laid_out(before, after, [lambda labels, _: after.samples[labels]] * int(for_s / STEP_S))


def _laid_out(before: Scrape, after: Scrape, values: Sequence[Any]) -> dict[Labels, Samples]:
    """A series that was not there before begins in the trouble; one that is there no more ends."""
    quiet = int(QUIET_S / STEP_S)
    series: dict[Labels, list[tuple[float, float]]] = defaultdict(list)
    for labels, seen in before.samples.items():
        series[labels] += [(step * STEP_S, seen) for step in range(quiet + 1)]
    for step, value in enumerate(values, 1):
        for labels in after.samples:
            series[labels].append(((quiet + step) * STEP_S, value(labels, step)))
    return dict(series)


def _is_counter(labels: Labels) -> bool:
    return dict(labels)[NAME].endswith(("_total", "_count", "_sum", "_bucket"))


def together(*nodes: Mapping[Labels, Samples]) -> dict[Labels, Samples]:
    """The series of several nodes."""
    return {labels: samples for node in nodes for labels, samples in node.items()}


# --- evaluating


@cache
def rules() -> tuple[dict[str, Any], ...]:
    """The rules in the order in which they are evaluated."""
    return tuple(rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"])


def firing(series: Mapping[Labels, Samples]) -> set[Alert]:
    """The alerts that fire at the end of these series: those that were active for as long as they must be."""
    engine, end = Promql(series), max(samples[-1][0] for samples in series.values())
    longest = max(_for_s(rule["alert"]) for rule in rules() if "alert" in rule)
    active: dict[str, set[Labels]] = {}
    for step in range(int((end - longest) / STEP_S), int(end / STEP_S) + 1):
        at = step * STEP_S
        for rule in rules():
            if "alert" in rule and at < end - _for_s(rule["alert"]):
                continue
            found = engine.query(rule["expr"], at)
            assert isinstance(found, dict), rule
            nameless = {frozenset(pair for pair in labels if pair[0] != NAME): value for labels, value in found.items()}
            if "record" in rule:
                for labels, value in nameless.items():
                    engine.add(labels | {(NAME, rule["record"])}, at, value)
            else:
                active[rule["alert"]] = active.get(rule["alert"], set(nameless)) & set(nameless)
    return {Alert(name, labels) for name, found in active.items() for labels in found}


@cache
def _for_s(alert: str) -> float:
    (rule,) = (rule for rule in rules() if rule.get("alert") == alert)
    return float(promql_parser.parse_duration(rule["for"]).total_seconds()) if "for" in rule else 0.0


def labels_in_summary(alert: str) -> set[str]:
    """The labels that the alert's text names."""
    (rule,) = (rule for rule in rules() if rule.get("alert") == alert)
    return set(re.findall(r"\$labels\.([a-z_]+)", rule["annotations"]["summary"]))


def names(alerts: set[Alert]) -> set[str]:
    return {alert.name for alert in alerts}


# --- promtool, where it is installed


def promtool_agrees(promtool: str, directory: Path, series: Mapping[Labels, Samples], alerts: set[Alert]) -> None:
    """Has promtool evaluate the same rules over the same series; it must come to the same alerts."""
    end = max(samples[-1][0] for samples in series.values())
    severities = {rule["alert"]: rule["labels"]["severity"] for rule in rules() if "alert" in rule}
    expected = [
        {"labels": _selector({**dict(each.labels), NAME: "ALERTS", "alertname": each.name, "alertstate": "firing",
                              "severity": severities[each.name]}), "value": 1}
        for each in alerts
    ]  # fmt: skip
    test = {
        "rule_files": [str(RULES)],
        "evaluation_interval": f"{STEP_S:.0f}s",
        "tests": [
            {
                "interval": f"{STEP_S:.0f}s",
                "input_series": [
                    {"series": _selector(dict(labels)), "values": _values(samples, end)}
                    for labels, samples in series.items()
                ],
                "promql_expr_test": [
                    {"expr": 'ALERTS{alertstate="firing"}', "eval_time": f"{end:.0f}s", "exp_samples": expected}
                ],
            }
        ],
    }
    file = directory / "test.json"  # which is YAML too, and quicker to write
    file.write_text(json.dumps(test))
    done = subprocess.run(
        [promtool, "test", "rules", str(file)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _selector(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f"{name}={json.dumps(value)}" for name, value in sorted(labels.items()) if name != NAME)
    return f"{labels[NAME]}{{{pairs}}}"


def _values(samples: Samples, end: float) -> str:
    by_step = {round(at / STEP_S): value for at, value in samples}
    return " ".join(repr(by_step[step]) if step in by_step else "_" for step in range(int(end / STEP_S) + 1))
