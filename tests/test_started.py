"""That the count of started programs knows what is what, and who is to be asked when there are more."""

import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from tests import started


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["trunkline", "serve", "--port", "0"], "gateways"),
        ([sys.executable, "-m", "app", "serve"], "gateways"),
        (["/somewhere/bin/trunkline", "keys", "list"], "other programs"),
        (["/lib/redis-server", "--port", "1"], "Redis servers"),
        (["/lib/bin/postgres", "-D", "data"], "PostgreSQL servers"),
        (["/lib/bin/initdb"], "other programs"),
    ],
)
def test_each_program_is_of_a_kind(words: list[str], kind: str) -> None:
    assert started._kind_of(words) == kind


@pytest.mark.real
def test_what_a_test_starts_is_counted_with_its_file(request: pytest.FixtureRequest) -> None:
    file = request.node.nodeid.partition("::")[0]
    before = started._started[file]["other programs"]
    subprocess.run(["true"], check=True)
    assert started._started[file]["other programs"] == before + 1


def figures(workers: int = 4, bubblewrap: bool = False, **gateways: int) -> started.Figures:
    files = {file: Counter(gateways=count) for file, count in gateways.items()}
    return {"workers": workers, "bubblewrap": bubblewrap, "files": files}


def test_a_tenth_more_is_told_with_the_files_that_added_it() -> None:
    kept = figures(a=30, b=10)
    assert started.compared(kept, figures(a=30, b=14)) == []
    (wrong,) = started.compared(kept, figures(a=28, b=14, c=3))
    assert wrong == "45 gateways instead of 40: b (+4), c (+3); `--keep-started` keeps that"


@pytest.mark.parametrize("other", [{"workers": 3}, {"bubblewrap": True}])
def test_runs_that_start_more_by_their_machine_are_not_compared(other: dict[str, Any]) -> None:
    assert started.compared(figures(a=30), figures(a=60)) != []
    assert started.compared(figures(a=30), figures(a=60, **other)) == []
