"""What is examined."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Subject:
    """What the node on this machine would run with."""

    host: str
    port: int
    data_dir: Path
    database_url: str
    secret_key_is_set: bool
    max_processes: int
    redis_url: str | None = None
    node_url: str | None = None
    host_is_wildcard: bool = False
    host_is_loopback: bool = True
    secret_key: bytes = field(default=b"", repr=False)  # empty: there is none yet
    homes: Path | None = None
