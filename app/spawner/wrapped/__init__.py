"""Processes inside a wrapper that gives them namespaces of their own, as the spawner sees them."""
