"""Which checks there are, and their order."""

import argparse
from collections.abc import Callable, Sequence
from functools import partial

from app.cli.database import settings_only_read
from app.cli.doctor import machine, network, storage
from app.cli.doctor.certificate import certificate
from app.cli.doctor.findings import Check, State, as_json, as_table, is_well
from app.cli.doctor.sandbox import sandbox
from app.cli.doctor.tracing import tracing
from app.errors import SettingsError
from app.jail.sandbox.available import Layer, layers
from app.settings.settings import Settings
from app.text.terminal.progress import Progress

_LAYERS_ADVICE = "The sandbox of backends goes without it: docs/security.md says what that costs."


Step = tuple[str, Callable[[], Check | Sequence[Check]]]  # a subject, and what is found of it


def examine_machine(options: argparse.Namespace) -> int:
    """`trunkline doctor`: a table, or JSON."""
    settings: Settings | SettingsError
    try:
        settings = settings_only_read(options)
    except SettingsError as error:
        settings = error
    with Progress() as progress:
        checks = examine(settings, progress.begin)
    print(as_json(checks) if options.json else as_table(checks))
    return 0 if is_well(checks) else 1


def examine(settings: Settings | SettingsError, begin: Callable[[str], None] = lambda _: None) -> list[Check]:
    """Every check, in the order in which a person would repair things. With an error, only those without settings.

    `begin` is told what is checked next.
    """
    steps, found = [*_of_settings(settings), *_of_machine(settings)], [machine.python()]
    for number, (subject, check) in enumerate(steps, 1):
        begin(f"checking {number} of {len(steps)}: {subject}")
        checks = check()
        found += [checks] if isinstance(checks, Check) else checks
    return found


def _of_settings(settings: Settings | SettingsError) -> list[Step]:
    if isinstance(settings, SettingsError):
        wrong = Check("settings", State.MISSING, str(settings), "Correct it: docs/settings.md has the list.")
        return [("settings", lambda: wrong)]
    url, right = settings.redis_url, Check("settings", State.OK, f"serves on {settings.host}:{settings.port}")
    of_several: list[Step] = [
        ("redis", partial(network.redis, url or "")),
        ("the address for other nodes", partial(network.node_url, settings.host, settings.node_url)),
    ]
    return [
        ("settings", lambda: right),
        ("data directory", partial(storage.data_dir, settings.data_dir)),
        ("homes", partial(storage.homes, settings.homes)),
        ("secret key", partial(storage.secret_key, settings)),
        ("database", partial(storage.database, settings.database_url)),
        *(of_several if url else []),
        ("certificate", partial(certificate, settings.tls_cert, settings.tls_key)),
        ("port", partial(network.port, settings.host, settings.port, is_tls=settings.tls_cert is not None)),
        ("traces", partial(tracing, settings.otlp_endpoint, settings.otlp_headers)),
        (machine.ENGINE, partial(machine.engine, settings.container_engine)),
        ("open files", partial(machine.open_files, settings.max_processes)),
        ("memory", partial(machine.memory, settings.max_processes)),
    ]


def _of_machine(settings: Settings | SettingsError) -> list[Step]:
    readable = None if isinstance(settings, SettingsError) else settings
    return [
        ("spawner", machine.spawner),
        ("programs", machine.programs),
        ("layers of the sandbox", lambda: [_of_layer(layer) for layer in layers()]),
        ("what gets out of the sandbox", partial(sandbox, readable)),
    ]


def _of_layer(layer: Layer) -> Check:
    if layer.is_available:
        return Check(layer.name, State.OK, layer.detail)
    return Check(layer.name, State.OPTIONAL, layer.detail, _LAYERS_ADVICE)
