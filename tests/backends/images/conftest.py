"""A stand-in for the engine."""

from pathlib import Path

import pytest

from tests.backends.images.rig import STATE, StandIn
from tests.processes.rig import metrics

__all__ = ["metrics"]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    found = StandIn(tmp_path / "engine")
    monkeypatch.setenv(STATE, str(found.state))
    return found
