"""The settings that a command works with: the environment, with what its options say instead."""

import argparse
import os

from app.config.data_directory import is_in_working_directory
from app.config.environment import PREFIX
from app.config.settings import Settings


def settings_from(options: argparse.Namespace, *, host: str | None = None, port: str | None = None) -> Settings:
    """The settings of a node here; its data directory and its key are made if need be: for `serve` and `migrate`."""
    return Settings.from_env(os.environ, data_dir=options.data_dir, host=host, port=port)


def settings_only_read(options: argparse.Namespace) -> Settings:
    """The settings of a node here, without its data directory or key being made: `secret_key` is empty if there is
    none."""
    return Settings.from_env(os.environ, make=False, data_dir=options.data_dir)


def why_this_data_dir(options: argparse.Namespace, settings: Settings) -> str:
    """Who has chosen the data directory, where nobody has named it."""
    if options.data_dir or os.environ.get(PREFIX + "DATA_DIR", "").strip():
        return ""
    if is_in_working_directory(settings.data_dir):
        return "in the working directory, which goes before the default"
    return "the default"
