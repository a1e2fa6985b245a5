"""The configuration that makes an MCP client use this gateway, and how it gets into the client's file."""

from app.admin.client_config._files import Written, put
from app.admin.client_config._merging import PASTE_HERE
from app.admin.client_config._snippets import (
    CLIENTS,
    DEFAULT_KEY_ENV,
    Client,
    ConfigFile,
    Target,
    endpoint,
    install_links,
    instructions,
    local_url,
)

__all__ = [
    "CLIENTS", "DEFAULT_KEY_ENV", "PASTE_HERE", "Client", "ConfigFile", "Target", "Written", "endpoint",
    "install_links", "instructions", "local_url", "put",
]  # fmt: skip
