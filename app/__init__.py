"""Trunkline: a multi-tenant remote MCP gateway."""

__version__ = "0.1.0"
