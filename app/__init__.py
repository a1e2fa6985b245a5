"""Trunkline: a multi-tenant remote MCP gateway."""
