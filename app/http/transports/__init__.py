"""The MCP endpoints: plain ASGI, no framework on the message path."""
