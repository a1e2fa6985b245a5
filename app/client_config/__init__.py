"""What to put into an MCP client so that it uses this gateway: its text, and how that gets into the client's file."""

from app.client_config.files import Written, put
from app.client_config.merging import PASTE_HERE, Merged, merged_json, merged_toml
from app.client_config.snippets import (
    CLIENTS,
    DEFAULT_KEY_ENV,
    Client,
    ConfigFile,
    Target,
    endpoint,
    instructions,
    local_url,
)

__all__ = [
    "CLIENTS", "DEFAULT_KEY_ENV", "PASTE_HERE", "Client", "ConfigFile", "Merged", "Target", "Written", "endpoint",
    "instructions", "local_url", "merged_json", "merged_toml", "put",
]  # fmt: skip
