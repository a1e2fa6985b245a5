"""The settings that a command works with: the environment, with what its options say instead."""

import argparse
import os
import tempfile
from dataclasses import replace
from pathlib import Path

from app.settings import PREFIX, Settings


def settings_from(options: argparse.Namespace, **overrides: object) -> Settings:
    """The settings of a node here; its data directory and its key are made if need be."""
    return Settings.from_env(os.environ, data_dir=options.data_dir, **overrides)


def settings_only_read(options: argparse.Namespace) -> Settings:
    """The settings of a node here, without its data directory or key being made."""
    with tempfile.TemporaryDirectory() as aside:
        settings = Settings.from_env(os.environ, data_dir=aside)
    named = options.data_dir or os.environ.get(PREFIX + "DATA_DIR", "").strip() or "trunkline-data"
    data_dir = Path(named).expanduser().absolute()
    return replace(settings, data_dir=data_dir, database_url=settings.database_url.replace(aside, str(data_dir)))
