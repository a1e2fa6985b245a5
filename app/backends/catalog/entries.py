"""What the catalogue knows of a backend, and what persons say of it."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime

import msgspec

from app.backends.catalog.judging import Found
from app.domain import BackendSpec
from app.domain.resources.backends import Connect
from app.protocol.toolset.offer import Known, Offer
from app.text.credentials import hidden, hidden_in


@dataclass(frozen=True, slots=True)
class Entry:
    """What a backend offers. `definition`: of which version of it; see `definition_of`. `known`: what toolsets need of
    it. `read_as`: of two entries the one with the higher number was asked for later."""

    definition: str
    revision: int
    offer: Offer
    looked_at: datetime
    changed_at: datetime
    pins: Mapping[str, Found] = field(default_factory=dict)
    known: Known | None = None
    read_as: int = 0


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a backend did not say what it offers."""

    words: str
    until: float  # it is not asked again before
    is_slow: bool = False  # nobody waits for it again: it is asked in the background


@dataclass(frozen=True, slots=True)
class Decision:
    """What a person says of tools as they are offered; None: of those that wait. With a `revision` only of that."""

    approves: bool
    tools: Sequence[str] | None
    revision: int | None
    by: str


def definition_of(spec: BackendSpec) -> str:
    """The same for versions of a backend that start the same program in the same way, ask the same server, or have the
    same made of their document. Secrets are in it as they are sealed: it is stored, and nobody is to try them on it."""
    secret: tuple[object, ...] = (
        (spec.sealed.hex(),) if spec.sealed else (spec.args, sorted(spec.env.items()), spec.url)
    )
    parts: tuple[object, ...] = (
        spec.command, hidden(spec.args), *secret, spec.cwd, asdict(spec.sandbox), spec.state,
    )  # fmt: skip
    if spec.url is not None:
        parts = (hidden_in(spec.url), *secret, spec.transport, sorted(spec.headers.items()))
        parts += (asdict(spec.connect),) if spec.connect != Connect() else ()
    if spec.openapi is not None:
        parts = (spec.openapi_made,)
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()
