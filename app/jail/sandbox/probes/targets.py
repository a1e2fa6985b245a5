"""What the settings of a node name that no backend may reach."""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from app.jail.sandbox.probes.range import Targets

_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
_PORTS = {"postgresql": 5432, "redis": 6379, "rediss": 6379}
_FILES = {"the passwords of this machine": "/etc/shadow"}


def targets_of(listening: tuple[str, int], data_dir: Path, urls: Mapping[str, str | None]) -> Targets:
    """`urls`: of the database, of Redis. Those that name a file count as files."""
    files = {**_FILES, "the gateway's data": str(data_dir)}
    addresses = {"the gateway": (_ANY.get(listening[0], listening[0]), listening[1])}
    for name, url in urls.items():
        if url is None:
            continue
        if url.startswith("sqlite:///"):
            files[name] = url.removeprefix("sqlite:///")
            continue
        parts = urlsplit(url)
        if parts.hostname and parts.scheme in _PORTS:
            addresses[name] = (parts.hostname, parts.port or _PORTS[parts.scheme])
    return Targets({name: path for name, path in files.items() if Path(path).exists()}, addresses)
