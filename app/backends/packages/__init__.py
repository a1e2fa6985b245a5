"""Packages of npm and PyPI that a backend's command names: recognised, resolved to a lock, installed once from it in a
sandbox, and started directly."""
