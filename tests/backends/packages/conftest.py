"""What the tests of packages share."""

import os

import pytest


@pytest.fixture
def no_package_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of how this machine gets packages."""
    for name in list(os.environ):
        if name.lower().startswith(("npm_config_", "uv_", "pip_")):
            monkeypatch.delenv(name)
