"""docs/settings.md names every setting, every limit and every metric, and nothing that is not there."""

import re
from dataclasses import fields
from pathlib import Path

from app.domain import Limits
from app.settings.settings import NAMES
from app.telemetry.metrics import Metrics

TEXT = (Path(__file__).parents[2] / "docs/settings.md").read_text()


def table_after(heading: str) -> set[str]:
    """The first cells of the table below a heading."""
    section = TEXT.split(heading, 1)[1].split("\n## ", 1)[0]
    return set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE))


def test_every_setting_is_documented() -> None:
    assert table_after("# Settings and metrics") == set(NAMES)


def test_every_metric_is_documented_with_its_labels() -> None:
    metrics = Metrics("test")
    families = {family.name + ("_total" if family.type == "counter" else "") for family in metrics.registry.collect()}
    assert table_after("## Metrics") == families


def test_every_limit_of_a_tenant_is_documented_with_its_default() -> None:
    section = TEXT.split("## Limits of a tenant", 1)[1].split("\n## ", 1)[0]
    documented = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", section, re.MULTILINE))
    defaults = {limit.name: getattr(Limits(), limit.name) for limit in fields(Limits)}
    assert documented == {name: "null" if each is None else f"{each:g}" for name, each in defaults.items()}
