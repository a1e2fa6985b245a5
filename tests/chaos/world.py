"""What all clients share: tenants, keys that come and go, and whose session is whose."""

import random
import sys
from dataclasses import dataclass, field

import anyio

from tests.chaos.history import Revoked, Writer
from tests.chaos.rig import Rig
from tests.chaos.wires import now
from tests.integration.gateway import NO_LIMITS, ROOT

IDLE_S = 60.0  # of each session: what no client knows of goes by itself
LONG_S = 0.7  # a call that has waited for so long waits for a node
TENANTS = {"north": 12, "south": 12, "narrow": 3}  # and how many sessions they may have


@dataclass(eq=False)
class Principal:
    """A key, and whether it was revoked."""

    name: str
    tenant: str
    key: str
    key_id: str
    revoked_at: float | None = None
    waiting_since: float | None = None


@dataclass
class Known:
    """A session as its client knows it, for those who would use another's."""

    session: str
    session_id: str
    principal: Principal
    path: str


@dataclass
class World:
    """What all clients share."""

    rig: Rig
    history: Writer
    chance: random.Random
    stopping: bool = False  # everybody ends what they have
    resting: bool = False  # nobody starts anything that goes on
    principals: list[Principal] = field(default_factory=list)
    known: list[Known] = field(default_factory=list)
    serial: int = 0

    def name(self, prefix: str) -> str:
        self.serial += 1
        return f"{prefix}{self.serial}"

    async def prepare(self) -> None:
        """Tenants and backends."""
        await anyio.to_thread.run_sync(self._register)  # in a thread: the lines are here

    def _register(self) -> None:
        node, argv = self.rig.running[0], ["-I", "-S", str(ROOT / "tests/servers/witness.py")]
        for tenant, sessions in TENANTS.items():
            limits = {**NO_LIMITS, "sessions": sessions}
            node.api("POST", "/tenants", {"name": tenant, "limits": limits})
            for recovery in ("respawn", "end"):
                timeouts = {"idle_s": IDLE_S}
                args = [*argv, str(self.history.journals)]
                node.add_backend(tenant, recovery, sys.executable, args, recovery=recovery, timeouts=timeouts)

    async def new_principal(self, tenant: str) -> Principal:
        name = self.name("key-")
        body = {"name": name, "scopes": ["mcp:connect"]}
        _, made = await self.rig.admin("POST", f"/tenants/{tenant}/keys", body, chance=self.chance)
        principal = Principal(name, tenant, made["key"], made["id"])
        self.principals.append(principal)
        return principal

    async def revoke(self, principal: Principal) -> None:
        asked = now()
        self.principals.remove(principal)
        path = f"/tenants/{principal.tenant}/keys/{principal.key_id}"
        with anyio.CancelScope(shield=True):  # whether it was done must be known
            place, _ = await self.rig.admin("DELETE", path, chance=self.chance)
        principal.revoked_at = now()
        self.history.add(Revoked(principal.name, place, asked, principal.revoked_at))

    async def revoke_some(self, every_s: float) -> None:
        """Now and then, until cancelled; rather one whose call waits for a node that is away."""
        while True:
            await anyio.sleep(self.chance.uniform(0.5, 1.5) * every_s)
            waiting = [each for each in self.principals if each.waiting_since is not None]
            longest = min(waiting, key=lambda each: each.waiting_since or 0.0, default=None)
            if longest is not None and now() - (longest.waiting_since or 0.0) > LONG_S:
                await self.revoke(longest)
            elif self.principals:
                await self.revoke(self.chance.choice(self.principals))
