"""An engine that is none, and containers that are processes (`tests/servers/engine.py`)."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.backends.images.containers import Containers
from app.domain import BackendSpec, Package
from app.jail.sandbox.composer import Confined, Place
from app.jail.sandbox.tiers import Profile, Tier

SERVERS = Path(__file__).resolve().parents[2] / "servers"
STATE = "CONTAINERS_STORAGE_CONF"  # names the folder of the stand-in


class StandIn:
    """`name`: what CONTAINER_ENGINE is set to."""

    def __init__(self, folder: Path) -> None:
        self.state = folder
        for each in ("images", "registry", "containers"):
            (folder / each).mkdir(parents=True)
        program = folder / "podman"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {SERVERS / "engine.py"} "$@"\n')
        program.chmod(0o755)
        self.name = str(program)

    def add(self, name: str, *command: str, volumes: Mapping[str, Any] | None = None, here: bool = True) -> str:
        """An image that starts this command; returns its id. With `here=False` it has to be pulled."""
        identity = f"{abs(hash((name, command))):064x}"[-64:]
        content = {"name": name, "id": identity, "volumes": volumes, "command": [*command]}
        file = f"{name.replace('/', '_')}.json"
        (self.state / ("images" if here else "registry") / file).write_text(json.dumps(content))
        return identity

    @property
    def containers(self) -> list[dict[str, Any]]:
        """Those that it has, running or not."""
        found = sorted((self.state / "containers").iterdir())
        return [json.loads(each.read_text()) for each in found if each.suffix != ".new"]


def python(server: str) -> tuple[str, ...]:
    """What an image of one of tests/servers starts."""
    return sys.executable, "-I", "-S", str(SERVERS / f"{server}.py")


def spec_of(identity: str, *args: str, **fields: Any) -> BackendSpec:
    """A backend that was registered with this image."""
    package = Package("oci", "localhost/echo", "latest", "", identity)
    words = ("run", "-i", "--rm", *args, "localhost/echo")
    return BackendSpec("acme", "echo", "docker", args=words, package=package, **fields)


class Contained:
    """Fulfils Confiner, of images only."""

    def __init__(self, containers: Containers) -> None:
        self._containers = containers

    def profile(self, spec: BackendSpec) -> Profile:
        return Profile(Tier.NONE, spec.sandbox.network_kind)

    async def confine(self, spec: BackendSpec, place: Place) -> Confined:
        return await self._containers.contain(spec, self.profile(spec))
