"""Which checks there are, and their order."""

from app.config.settings import Settings
from app.doctor import machine, network, storage
from app.doctor.findings import Check, State
from app.doctor.sandbox import sandbox
from app.doctor.tracing import tracing
from app.errors import SettingsError
from app.sandbox.available import Layer, layers

_LAYERS_ADVICE = "The sandbox of backends goes without it: docs/security.md says what that costs."


def examine(settings: Settings | SettingsError) -> list[Check]:
    """Every check, in the order in which a person would repair things. With an error, only those without settings."""
    checks = [machine.python()]
    if isinstance(settings, SettingsError):
        checks.append(Check("settings", State.MISSING, str(settings), "Correct it: docs/settings.md has the list."))
    else:
        url = settings.redis_url
        checks += [
            Check("settings", State.OK, f"serves on {settings.host}:{settings.port}"),
            storage.data_dir(settings.data_dir),
            storage.homes(settings.homes),
            storage.secret_key(settings),
            storage.database(settings.database_url),
            *([network.redis(url), network.node_url(settings.host, settings.node_url)] if url else []),
            network.port(settings.host, settings.port),
            tracing(settings.otlp_endpoint, settings.otlp_headers),
            machine.open_files(settings.max_processes),
            machine.memory(settings.max_processes),
        ]
    checks += machine.spawner()
    checks += [machine.runtime(name) for name in ("node", "npx", "uvx", "git")]
    readable = None if isinstance(settings, SettingsError) else settings
    return [*checks, *map(_of_layer, layers()), *sandbox(readable)]


def _of_layer(layer: Layer) -> Check:
    if layer.is_available:
        return Check(layer.name, State.OK, layer.detail)
    return Check(layer.name, State.OPTIONAL, layer.detail, _LAYERS_ADVICE)
