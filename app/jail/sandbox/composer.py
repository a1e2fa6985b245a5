"""Composes what the spawner is told: the command, what it may see, and what it gives up."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import anyio.to_thread

from app.domain import BackendSpec, Network, ProcessLimits, Sandbox
from app.domain.resources.backends import PROXY_PORT
from app.domain.resources.destinations import port_of
from app.jail.egress.allowed import Allowed
from app.jail.egress.egress import Egress, EgressLine
from app.jail.egress.outgoing import NothingAllowed
from app.jail.sandbox import _handed_in as handed_in
from app.jail.sandbox._bubblewrap import CAPABILITIES, HOME, HOSTNAME, TEMPORARY, Room, below_temporary, sizes, wrap
from app.jail.sandbox.environment import authorities_environment, environment_of, proxy_environment
from app.jail.sandbox.machine import Machine
from app.jail.sandbox.needs import DEVICES, Needs, NeedsFinder, Wanted
from app.jail.sandbox.tiers import Profile, Tier
from app.jail.sandbox.uids import give
from app.jail.spawner import wire
from app.jail.spawner.client import Command
from app.jail.spawner.wire import (
    INNER_GROUP_FD,
    INNER_HOSTS_FD,
    INNER_PASSWD_FD,
    INNER_VARIABLES_FD,
    Confinement,
    Forwarded,
    Landlock,
)

MIB = 1 << 20
WEB_PORTS = (80, 443)
_OF_THE_NODE = ("web", "allow")  # networks with which the certificate authorities of the node count
_PROC = "/proc"
# Without namespaces other processes are in view: these keep a process from what its user may do to them.
_ON_THE_MACHINE = ("base", "no_unix_sockets", "no_shared_ipc", "own_process_only")

# git refuses repositories of others, whose settings could name programs. In a sandbox they gain nothing by that, and
# what it shows is often another user's. The settings of the machine are not shown, so git should not ask for them.
_OF_OTHERS = {
    "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """The directories of one process outside its sandbox. `lasts`: they are not the process's alone.

    A process with namespaces of its own gets others, in memory, unless its home lasts. `is_template`: it will have
    forks; `forks`: in which their homes are.
    """

    home: str
    tmpdir: str
    lasts: bool = False
    forks: str | None = None
    is_template: bool = False


@dataclass(frozen=True, slots=True)
class Confined:
    """How to start a process, and how it is confined then. `close` after its end, or if it is not started. `handed`:
    more descriptors for the start, which stay the caller's. `forbidden`: paths that no sandbox opens. `on_close`: who
    hears of the end, perhaps more than once."""

    command: Command
    profile: Profile
    line: EgressLine | None = None
    handed: tuple[int, ...] = ()
    forbidden: tuple[str, ...] = ()
    on_close: Callable[[], None] | None = None

    def take_channels(self) -> tuple[int, ...]:
        """Descriptors for the start, besides stdin, stdout and stderr; they are the caller's from now on."""
        line = () if self.line is None else (self.line.take_channel(),)
        return (*line, *map(os.dup, self.handed))

    def started(self, process_id: str, on_denied: Callable[[str], None] = lambda destination: None) -> None:
        """The name of the process, for the log of its connections. `on_denied`: as `EgressLine.started`."""
        if self.line is not None:
            self.line.started(process_id, on_denied)

    def close(self) -> None:
        """Ends its connections through the egress proxy. Idempotent."""
        if self.line is not None:
            self.line.close()
        if self.on_close is not None:
            self.on_close()


@dataclass(frozen=True, slots=True)
class _Listeners:
    """Those in a network of a process's own, which the node serves."""

    has_proxy: bool
    allowed: Allowed | None

    @property
    def are_any(self) -> bool:
        return self.has_proxy or self.allowed is not None

    def open_in(self, confinement: Confinement | wire.Room) -> None:
        """Orders the listeners."""
        if self.has_proxy:
            confinement["proxy_port"] = PROXY_PORT
        if self.allowed is not None:
            confinement["forwarded"] = Forwarded(networks=self.allowed.networks, ports=self.allowed.ports)


class Composer:
    """Looks up what a command needs, in a thread, and opens its line to the egress proxy. `authorities`: a file with
    the certificate authorities that processes with `web` or `allow` are to believe."""

    def __init__(self, machine: Machine, finder: NeedsFinder, egress: Egress, authorities: str | None = None) -> None:
        self._machine, self._finder, self._egress, self._authorities = machine, finder, egress, authorities

    async def compose(
        self,
        spec: BackendSpec,
        place: Place,
        profile: Profile,
        tenant_memory_mb: int | None = None,
        *,
        with_deaf_proxy: bool = False,
    ) -> Confined:
        """A process of this backend, confined by the profile's tier and network. `with_deaf_proxy`: where there is no
        network, with the proxy of `web`, which refuses everything: who asks it would be served by that of `web`.

        Raises:
            SpawnFailed: the command, or something that it needs, is not there or must not be opened.
            OSError: there is no descriptor for its line to the egress proxy.
        """
        if profile.tier is Tier.NONE:
            return Confined(await unconfined(spec, place), profile)
        confinement = self._base(spec, tenant_memory_mb)
        if profile.tier < Tier.NAMESPACES:
            command = await self._on_the_machine(spec, place, profile, confinement)
            return Confined(command, profile, forbidden=self._finder.forbidden)
        allowed = Allowed(spec.sandbox.allow) if profile.network == "allow" else None
        listeners = _Listeners(_has_web(spec.sandbox, profile.network) or with_deaf_proxy, allowed)
        command = await self._in_namespaces(spec, place, profile, confinement, listeners)
        line: EgressLine | None = None
        if wire.has_listeners(command.confinement):
            rule = NothingAllowed() if with_deaf_proxy else None
            line = self._egress.open(spec.tenant, spec.name, rule, listeners.allowed, has_proxy=listeners.has_proxy)
        return Confined(command, profile, line, forbidden=self._finder.forbidden)

    def _base(self, spec: BackendSpec, tenant_memory_mb: int | None) -> Confinement:
        confinement = Confinement(limits=resource_limits(spec.limits))
        if self._machine.cgroups.directories:
            confinement["cgroup"] = self._machine.cgroups.cgroup(group_name(spec), spec.limits, tenant_memory_mb)
        if self._machine.is_root:
            confinement["capabilities"] = []
        return confinement

    async def _on_the_machine(
        self, spec: BackendSpec, place: Place, profile: Profile, confinement: Confinement
    ) -> Command:
        if place.lasts and self._machine.is_root:  # it may be from when it was the tenant's user's
            await anyio.to_thread.run_sync(give, Path(place.home), os.geteuid())
        own = await _environment(spec, place.home, place.tmpdir)
        environment = {**_memory_of(spec), **self._believed(profile.network), **own}
        if profile.tier >= Tier.KERNEL:
            environment = {**_OF_OTHERS, **environment}
            needs = await self._needs(spec, profile.network, environment["PATH"])
            confinement["landlock"] = self._landlock(spec.sandbox, profile.network, needs, place)
            confinement["seccomp"] = list(_ON_THE_MACHINE)
            if profile.network == "none":
                confinement["seccomp"].append("no_internet")
        return Command([spec.command, *spec.args], environment, cwd_of(spec, place.home), confinement=confinement)

    def _landlock(self, sandbox: Sandbox, network: Network, needs: Needs, place: Place) -> Landlock:
        # Without namespaces /proc is the machine's; the kernel still refuses the memory and environment of others.
        read, write = [*needs.read, _PROC], [*needs.write, *DEVICES, place.home, place.tmpdir]
        write += [] if place.forks is None else [place.forks]
        rules = Landlock(read=read, write=write, scoped=self._machine.has_scopes)
        if network in ("web", "allow") and self._machine.has_ports:
            ports = {*WEB_PORTS} if _has_web(sandbox, network) else set[int]()
            rules["connect"], rules["bind"] = sorted(ports.union(map(port_of, sandbox.allow))), []
        return rules

    async def _in_namespaces(
        self, spec: BackendSpec, place: Place, profile: Profile, confinement: Confinement, listeners: "_Listeners"
    ) -> Command:
        home = place.home if place.lasts else HOME
        own = await _environment(spec, home, TEMPORARY)
        environment = {**_OF_OTHERS, **_memory_of(spec), **self._believed(profile.network), **own}
        room = await self._room(spec, home, place.lasts, profile, environment["PATH"])
        room = replace(
            room, has_network=listeners.are_any or profile.network == "host", has_hosts=listeners.allowed is not None
        )
        environment, late = handed_in.split(environment)
        confinement["inner_texts"] = _texts(room, late, listeners.allowed)
        room = replace(room, has_accounts=True, has_variables=bool(late), has_rooms=place.is_template)
        confinement["is_wrapped"] = True
        confinement["inner_seccomp"] = ["template" if place.is_template else "base"]
        confinement["room"] = _for_fork(room, profile.network, late)
        listeners.open_in(confinement)
        listeners.open_in(confinement["room"])
        if self._machine.is_root:
            confinement["capabilities"] = list(CAPABILITIES)
        if self._machine.has_scopes:
            confinement["landlock"] = Landlock(scoped=True)  # rules for files would forbid the mounts
        if listeners.are_any:
            confinement["own_network"] = True
        if listeners.has_proxy:
            environment = {**proxy_environment(), **environment}
        assert self._machine.bubblewrap is not None
        program = [spec.command, *spec.args]
        argv = wrap(self._machine.bubblewrap, room, program)
        return Command(argv, environment, confinement=confinement, program_at=len(argv) - len(program))

    async def _room(self, spec: BackendSpec, home: str, home_lasts: bool, profile: Profile, path: str) -> Room:
        uid: int | None = None
        if profile.tier >= Tier.ASSISTED:
            assert self._machine.uid_of is not None
            uid = await anyio.to_thread.run_sync(self._machine.uid_of, spec.home or spec.tenant)
            if home_lasts:
                await anyio.to_thread.run_sync(give, Path(home), uid)
        return Room(
            await self._needs(spec, profile.network, path),
            cwd_of(spec, home),
            home,
            home_lasts,
            None if spec.limits.disk_mb is None else spec.limits.disk_mb * MIB,
            None if spec.limits.memory_mb is None else spec.limits.memory_mb * MIB,
            uid,
            is_filtered=True,
        )

    def _believed(self, network: Network) -> dict[str, str]:
        """Variables that name the authorities."""
        if self._authorities is None or network not in _OF_THE_NODE:
            return {}
        return authorities_environment(self._authorities)

    async def _needs(self, spec: BackendSpec, network: Network, path: str) -> Needs:
        sandbox = spec.sandbox
        cwd = spec.cwd if spec.cwd and os.path.isabs(spec.cwd) else None  # what is below the home is in view
        wanted = Wanted((spec.command, *spec.args), path, cwd, sandbox.read, sandbox.write, spec.installed)
        needs = await anyio.to_thread.run_sync(self._finder.find, wanted)
        if self._authorities is None or network not in _OF_THE_NODE:
            return needs
        return replace(needs, read=(*needs.read, self._authorities))


def _has_web(sandbox: Sandbox, network: Network) -> bool:
    return network == "web" or (network == "allow" and sandbox.has_web)


def group_name(spec: BackendSpec) -> str:
    """What the control group of this backend's tenant is called: a tenant that is registered anew gets another one."""
    return spec.home or spec.tenant


def _for_fork(room: Room, network: Network, late: Mapping[str, str]) -> wire.Room:
    """What a fork gets of its own in the place of a wrapper."""
    shown, links = below_temporary(room)
    own, shared = sizes(room)
    directories = [each for each in (room.home, room.cwd) if each.startswith(TEMPORARY + "/")]
    made = wire.Room(
        own_network=network != "host", hostname=HOSTNAME,
        shm_bytes=shared, directories=directories, shown=shown, links=links, cwd=room.cwd,
        variables={**late, "PWD": room.cwd},
    )  # fmt: skip
    if own is not None:
        made["tmp_bytes"] = own
    if room.uid is not None:
        made["uid"] = room.uid
    return made


def _texts(room: Room, variables: Mapping[str, str], allowed: Allowed | None) -> dict[str, str]:
    uid, gid = (os.geteuid(), os.getegid()) if room.uid is None else (room.uid, room.uid)
    texts = {INNER_PASSWD_FD: handed_in.passwd(uid, gid, room.home), INNER_GROUP_FD: handed_in.group(gid)}
    if allowed is not None:
        texts[INNER_HOSTS_FD] = allowed.hosts
    if variables:
        texts[INNER_VARIABLES_FD] = handed_in.exports(variables)
    return {str(number): text for number, text in texts.items()}


def resource_limits(limits: ProcessLimits) -> dict[str, int]:
    """Limits that every process gets, of itself, whatever else confines it. `disk_mb` is that of a single file."""
    found = {"CORE": 0}
    if limits.files is not None:
        found["NOFILE"] = limits.files
    if limits.disk_mb is not None:
        found["FSIZE"] = limits.disk_mb * MIB
    return found


def cwd_of(spec: BackendSpec, home: str) -> str:
    """Without one a process starts in its home: there it may write, so relative paths work."""
    return os.path.join(home, spec.cwd) if spec.cwd else home


async def _environment(spec: BackendSpec, home: str, tmpdir: str) -> dict[str, str]:
    return await anyio.to_thread.run_sync(environment_of, spec, home, tmpdir)


def _memory_of(spec: BackendSpec) -> dict[str, str]:
    """What tells Java how much memory there is: it sees that of the machine, collects nothing until it has used much of
    that, and would be killed before."""
    return {} if spec.limits.memory_mb is None else {"JAVA_TOOL_OPTIONS": f"-XX:MaxRAM={spec.limits.memory_mb}m"}


async def unconfined(spec: BackendSpec, place: Place) -> Command:
    """Not confined at all, but for what the spawner does for every process."""
    environment = await _environment(spec, place.home, place.tmpdir)
    return Command([spec.command, *spec.args], environment, cwd_of(spec, place.home))
