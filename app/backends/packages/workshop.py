"""Runs npm and uv in the gateway's own sandbox: they read what a registry sends, which nobody trusts.

They may write one folder, which is theirs alone, and reach the registries that the node is configured to use. Nothing
of a package runs there. Without namespaces the network is the machine's (`web`: by ports, with Landlock).
"""

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from app.auth.outbound_proxy import NodeProxy
from app.auth.outbound_urls import parse_url
from app.backends.packages.registries import Place, RegistryRule, Source, addresses_of
from app.domain import BackendSpec, ProcessLimits, Sandbox
from app.domain.resources.backends import NetworkMode
from app.jail.egress.egress import Egress, EgressOptions
from app.jail.egress.outgoing import NothingAllowed, Rule
from app.jail.egress.refusals import DENIALS
from app.jail.sandbox import composer
from app.jail.sandbox.composer import WEB_PORTS, Composer, Confined
from app.jail.sandbox.environment import AUTHORITIES, BUNDLES, authorities_environment, write_authorities
from app.jail.sandbox.needs import NeedsFinder
from app.jail.sandbox.sandboxes import Sandboxes, SandboxUnavailable, refuse_without
from app.jail.sandbox.tiers import Tier
from app.jail.sandbox.uids import give
from app.jail.spawner.client import End, SpawnerClient, SpawnFailed
from app.processes import directories
from app.telemetry.metrics import Metrics
from app.text.redaction import without_credentials
from app.text.terminal.text import printable

HOME = "packages.0"  # whose user they are where each tenant has one: no tenant's home has this name
MAX_BYTES = 2 << 30  # of one package with all that it needs, and of what is downloaded for it
MAX_OUTPUT = 1 << 20
TOLD = 1200  # characters of what a tool has said that are passed on
_AUTHORITIES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS")  # of the node, beside those of the machine
_DENIED = frozenset(each.label for each in DENIALS)
LOOK_S, LOOKING_SHARE = 0.25, 5  # how soon the folder is measured again, and how many times as long as that took
LIMITS = ProcessLimits(memory_mb=2048, pids=512, cpu=2.0, files=8192, disk_mb=MAX_BYTES >> 20)


class InstallFailed(Exception):
    """A package could not be resolved or installed. The message is for people."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a program in a folder, which it may change. `read`: what else it needs; `env`: its variables, with
    `{folder}` for that folder. `source`: the registries that it may ask; None: no network."""

    argv: tuple[str, ...]
    folder: Path
    seconds: float
    source: Source | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    read: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WayOut:
    """How the node's settings have it reach what is outside: by a proxy; and authorities, in PEM form, that it believes
    there besides those of the machine."""

    proxy: NodeProxy | None = None
    ca: str | None = None


_DIRECT = WayOut()


class Workshop:
    """Starts one spawner for each run, which ends everything with it. `finder` looks up what programs need."""

    def __init__(self, sandboxes: Sandboxes, finder: NeedsFinder, metrics: Metrics, way_out: WayOut = _DIRECT) -> None:
        self._sandboxes, self._finder, self._metrics, self._way_out = sandboxes, finder, metrics, way_out

    async def run(self, run: Run) -> str:
        """What it has said.

        Raises:
            InstallFailed: it could not run, has failed, or was stopped at a limit.
        """
        places = frozenset[Place]() if run.source is None else run.source.places
        allowed = await anyio.to_thread.run_sync(addresses_of, places)
        rule, proxy = RegistryRule(places), self._way_out.proxy
        options = EgressOptions(allow=allowed, rule=rule, proxy=proxy, is_counted=False)
        return (await self._run(run, options))[0]

    async def asks_for(self, run: Run) -> list[str]:
        """Which destination it asks for first, where nothing is let through: HOST:PORT. None without namespaces."""
        try:
            return (await self._run(run, EgressOptions(rule=NothingAllowed(), is_counted=False), is_asked=True))[1]
        except InstallFailed:
            return []

    async def _run(self, run: Run, options: EgressOptions, *, is_asked: bool = False) -> tuple[str, list[str]]:
        try:
            async with AsyncExitStack() as stack:
                egress = await stack.enter_async_context(Egress(self._metrics, options))
                spawner = SpawnerClient()
                stack.push_async_callback(_closed, spawner)
                confined = await self._confined(run, egress, options.rule)
                stack.callback(confined.close)
                output = os.memfd_create("output")
                stack.callback(os.close, output)
                end = await _until_its_end(run, spawner, confined, output)
                said = _said(output, run.folder)
                refused = [] if confined.line is None else list(confined.line.refused)
        except (SpawnFailed, OSError, SandboxUnavailable) as error:
            raise InstallFailed(f"`{_name(run)}` could not be started: {error}") from error
        if (end.number or end.reason != "exited") and not is_asked:
            raise InstallFailed(_words(run, end, said, refused))
        return said, [where for where, _ in refused]

    async def _confined(self, run: Run, egress: Egress, rule: Rule) -> Confined:
        has_network = run.source is not None
        spec = self._spec(run, "web" if has_network else "none")
        if has_network and self._sandboxes.profile(spec).tier < Tier.NAMESPACES:
            assert run.source is not None
            ports = {port for _, port in run.source.places} | self._ports_of_proxy()
            spec = self._spec(run, "web" if ports <= set(WEB_PORTS) else "host", is_direct=True)
        profile = self._sandboxes.profile(spec)
        if self._sandboxes.rule == "require":
            refuse_without(("files", "network", "processes"), profile)
        await anyio.to_thread.run_sync(_furnish, run, self._sandboxes, profile.tier, self._way_out.ca)
        place = composer.Place(str(run.folder / "home"), str(run.folder / "tmp"))
        made = Composer(self._sandboxes.machine, self._finder, egress)
        return await made.compose(spec, place, profile)

    def _ports_of_proxy(self) -> set[int]:
        proxy = self._way_out.proxy
        return set() if proxy is None else {parse_url(proxy.url).port}

    def _spec(self, run: Run, network: NetworkMode, *, is_direct: bool = False) -> BackendSpec:
        """`is_direct`: the node does not serve its connections, so it asks the node's proxy itself."""
        folder, source = str(run.folder), run.source or Source(frozenset())
        files = str(run.folder / "files")
        env = {name: value.replace("{files}", files) for name, value in source.env.items()}
        env |= {name: value.replace("{folder}", folder) for name, value in run.env.items()}
        own = {name: os.environ[name] for name in _AUTHORITIES if os.path.exists(os.environ.get(name, ""))}
        believed, ours = own, f"{files}/{AUTHORITIES}"
        if self._way_out.ca is not None:  # npm believes nothing else where its configuration has a `cafile`
            believed = {**authorities_environment(ours), "npm_config_cafile": ours}
        env |= {**believed, "NO_PROXY": "", "no_proxy": ""}
        if is_direct and self._way_out.proxy is not None:
            env |= self._way_out.proxy.environment()
        sandbox = Sandbox(read=(*run.read, *source.read, *own.values()), write=(folder,), network=network)
        return BackendSpec(
            "packages", "packages", run.argv[0], args=run.argv[1:], env=env, cwd=folder, sandbox=sandbox,
            limits=LIMITS, home=HOME, installed=folder,
        )  # fmt: skip


def _furnish(run: Run, sandboxes: Sandboxes, tier: Tier, ca: str | None) -> None:
    """The folder with what the tool finds there, as the user's that it becomes."""
    for name in ("home", "tmp", "files", "cache"):
        (run.folder / name).mkdir(exist_ok=True)
    for name, text in (run.source.files if run.source is not None else {}).items():
        (run.folder / "files" / name).write_text(text, encoding="utf-8")
    if ca is not None:
        write_authorities(run.folder / "files", ca, (os.environ.get("SSL_CERT_FILE", ""), *BUNDLES))
    if tier >= Tier.ASSISTED and sandboxes.machine.uid_of is not None:
        give_all(run.folder, sandboxes.machine.uid_of(HOME))


def give_all(folder: Path, uid: int) -> None:
    """As `give`, also where the folder is that user's and what is in it is not."""
    for each in sorted(folder.iterdir()):
        if each.is_dir() and not each.is_symlink():
            give(each, uid)
        elif not each.is_symlink():
            os.chown(each, uid, uid, follow_symlinks=False)
    os.chown(folder, uid, uid)


async def _closed(spawner: SpawnerClient) -> None:
    with anyio.CancelScope(shield=True):  # bounded by the client's own time-out
        await spawner.aclose()


async def _until_its_end(run: Run, spawner: SpawnerClient, confined: Confined, output: int) -> End:
    """Raises InstallFailed: a limit was reached."""
    ended: asyncio.Future[End] = asyncio.get_running_loop().create_future()
    stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    given = (stdin, os.dup(output), os.dup(output), *confined.take_channels())
    spawned = await spawner.spawn(confined.command, given, partial(_once, ended))
    confined.started(spawned.id)
    try:
        with anyio.fail_after(run.seconds):
            took = 0.0
            while not ended.done():
                await asyncio.wait([ended], timeout=max(LOOK_S, LOOKING_SHARE * took))
                began = time.monotonic()
                used = await anyio.to_thread.run_sync(directories.size, run.folder)
                took = time.monotonic() - began
                if used > MAX_BYTES:
                    raise InstallFailed(f"it is more than {MAX_BYTES >> 20} MiB, with all that it needs")
                if os.fstat(output).st_size > MAX_OUTPUT:
                    raise InstallFailed(f"`{_name(run)}` says more than {MAX_OUTPUT >> 10} KiB")
        return ended.result()
    except TimeoutError:
        raise InstallFailed(f"`{_name(run)}` has not ended after {run.seconds:g} s") from None
    finally:
        spawner.kill(spawned.id)


def _once(ended: "asyncio.Future[End]", end: End) -> None:
    if not ended.done():
        ended.set_result(end)


def _said(output: int, folder: Path) -> str:
    size = os.fstat(output).st_size
    text = os.pread(output, 16 << 10, max(0, size - (16 << 10))).decode(errors="replace")
    return text.replace(f"{folder}/", "").replace(str(folder), ".")


def _words(run: Run, end: End, said: str, refused: Sequence[tuple[str, str]]) -> str:
    lines = [printable(line.strip()) for line in without_credentials(said).splitlines() if line.strip()]
    how = f"exit status {end.number}" if end.reason == "exited" else f"signal {end.number}"
    if end.limit:
        how = f"at its limit of memory, {LIMITS.memory_mb} MiB"
    words = f"`{_name(run)}` failed ({how}): {' | '.join(lines)[-TOLD:]}"
    for what, places in (
        ("not let through, as no configured registry", {where for where, why in refused if why in _DENIED}),
        ("not reached", {f"{where} ({why})" for where, why in refused if why not in _DENIED}),
    ):
        words += f" | {what}: {', '.join(sorted(places)[:5])}" if places else ""
    return words


def _name(run: Run) -> str:
    return " ".join((os.path.basename(run.argv[0]), *run.argv[1:3]))
