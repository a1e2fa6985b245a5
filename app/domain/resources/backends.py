"""Backends: what is registered, declared once. To everything but administration a toolset is a backend too."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from app.domain.resources.access import Access, fits
from app.domain.resources.destinations import MAX_DESTINATIONS, Place, parse
from app.domain.resources.fields import DERIVED, INLINE, UNSENT, Name, Reason, Title, Unfit, no_nul

HOME_WORD = "${home}"  # in a value of a backend's `env`: the home of the process
HIDDEN = "***"  # shown instead of a secret; in a PATCH it means "unchanged"
MAX_ARGS_BYTES = MAX_ENV_BYTES = 64 * 1024  # of all together
MAX_HEADERS_BYTES = 16 << 10
MAX_PEM_BYTES = 64 << 10  # of one member
MAX_MEMBERS, MAX_ENTRIES = 100, 500
MAX_DOCUMENT = 16 << 20  # characters of a document of OpenAPI
MAX_TOOL_NAME = 64  # clients refuse longer names of tools, or cut them
FEW_TOOLS = 20  # with which a list is better than a search
_MONTH = 31 * 86400

_is_tool_name = re.compile(r"[A-Za-z0-9_-]{1,64}").fullmatch

Seconds = Annotated[float, Meta(gt=0, le=_MONTH)]
Text = Annotated[str, Meta(max_length=MAX_ARGS_BYTES), no_nul]
EnvName = Annotated[
    str,
    Meta(
        max_length=128,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        extra={"spelling": "letters, digits, `_`, no digit first"},
    ),
]
Rest = Literal["parked", "frozen"]  # an idle session has given its process back; or it stands still
Guarantee = Literal["files", "network", "memory", "pids", "processes"]  # what a sandbox can promise
NetworkMode = Literal["none", "web", "host"]
Network = Literal["none", "web", "host", "allow"]  # `allow`: an `AllowList`
PROXY_PORT = 3128  # of `web`; in a network of the process's own every other port is free
Transport = Literal["auto", "streamable-http", "sse"]  # of a server that is reached by URL


def _directory(path: str) -> str:
    """Refuses what is neither absolute nor below the home."""
    if path.startswith("~"):
        raise Unfit("cwd", "is relative to the home of the process: leave out `~`")
    if not path.startswith("/") and ".." in path.split("/"):
        raise Unfit("cwd", "leads out of the home of the process: write an absolute path")
    return path


def _each_once(words: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(words)) < len(words):
        raise Unfit("unique", "must name each only once")
    return words


def is_accepted(name: str) -> bool:
    """Whether clients accept a tool of this name."""
    return _is_tool_name(name) is not None


def _accepted(name: str) -> str:
    if not is_accepted(name):
        words = "a name that clients accept has at most {most} characters of A-Z, a-z, 0-9, `_` and `-`"
        raise Unfit("tool_name", words, most=MAX_TOOL_NAME)
    return name


def _different(renamed: Mapping[str, str]) -> Mapping[str, str]:
    if len(set(renamed.values())) < len(renamed):
        raise Unfit("clash", "two tools would have the same name")
    return renamed


ToolName = Annotated[str, Meta(min_length=1, max_length=256), no_nul]
Patterns = Annotated[
    tuple[ToolName, ...],
    Meta(max_length=MAX_ENTRIES),
    "Names of tools, as the backend has them, with `*`, `?` and `[…]`. Only tools that match one of `include` are "
    "shown, all if it is empty, and none that match one of `exclude`.",
]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a backend and its sessions may take. `park_s`: see `BackendSpec.rests_as`."""

    initialize_s: Annotated[float, Meta(gt=0, le=600)] = 30.0
    call_s: Annotated[float, Meta(gt=0, le=86400)] = 60.0
    idle_s: Seconds = 1800.0
    absolute_s: Seconds = 86400.0
    reclaim_idle_s: Annotated[
        float,
        Meta(gt=0, le=_MONTH),
        "A session that has been idle for so long is ended if somebody waits for its process, or would be refused "
        "because of a limit. A session with a call, an open question, a running task or an open stream is not idle. "
        "Never, if this is `idle_s` or more.",
    ] = 300.0
    park_s: (
        Annotated[
            float,
            Meta(ge=1, le=_MONTH),
            "A session that has been idle for so long rests and stays valid until the next message. With `recovery: "
            "respawn` it is parked: it gives its process back, and the next message takes another one, with which the "
            "handshake is repeated. With `recovery: end` it is frozen: its process stands still and keeps its state. "
            "null: never. Nor does a session rest that has a call, an open question, a running task or a subscription.",
        ]
        | None
    ) = None


@dataclass(frozen=True, slots=True)
class AllowList:
    """A network in which a process reaches certain places, and nothing else."""

    allow: Annotated[
        tuple[Place, ...],
        _each_once,
        Meta(min_length=1, max_length=MAX_DESTINATIONS),
        "By TCP, without a proxy: `HOST:PORT`, with a name, an address, or a network like 10.20.0.0/16. A name leads "
        "to public addresses only, unless it ends in `.internal` or another name of private networks, or its network "
        "is given: `db.example.com:5432@10.20.0.0/16`. 127.0.0.1 is the node.",
    ] = ()
    web: Annotated[bool, "Whether the proxy of `web` is there besides."] = False


@dataclass(frozen=True, slots=True)
class Sandbox:
    """How processes of a backend are confined."""

    mode: Annotated[
        Literal["auto", "require", "off"],
        "`auto`: everything that works on the node. `require`: processes start only where each of the guarantees in "
        "`require` is enforced. `off`: no sandbox, processes run with the gateway's rights.",
    ] = "auto"
    require: Annotated[
        tuple[Guarantee, ...],
        _each_once,
        Meta(max_length=5),
        "With `mode: require`: which guarantees. Empty: all of them.",
    ] = ()
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    network: Annotated[
        NetworkMode | AllowList,
        "`none`: no network. `web`: public addresses on ports 80 and 443. `host`: everything that the node reaches. Or "
        "an object: `allow` lists what is reached, as HOST:PORT.",
    ] = "none"

    @property
    def network_kind(self) -> Network:
        """In one word."""
        return "allow" if isinstance(self.network, AllowList) else self.network

    @property
    def allow(self) -> tuple[str, ...]:
        """What is reached without a proxy."""
        return self.network.allow if isinstance(self.network, AllowList) else ()

    @property
    def has_web(self) -> bool:
        """Whether public addresses are reached on the ports of `web`."""
        return self.network.web if isinstance(self.network, AllowList) else self.network == "web"


def can_be_kept(sandbox: Sandbox) -> None:
    """Raises Unfit: it demands what it gives up."""
    if sandbox.require and sandbox.mode != "require":
        raise Unfit("require", "a list in `require` goes with `mode: require`")
    if sandbox.mode == "require" and sandbox.network == "host" and "network" in (sandbox.require or ["network"]):
        raise Unfit("require", "`network: host` confines no network: leave `network` out of what `require` names")


def leaves_the_proxy_its_port(sandbox: Sandbox) -> None:
    """Raises Unfit: two listeners would have the same one."""
    if sandbox.allow and sandbox.has_web and any(parse(each).port == PROXY_PORT for each in sandbox.allow):
        raise Unfit("port", "with `web`, port {port} is that of its proxy", port=PROXY_PORT)


@dataclass(frozen=True, slots=True)
class Package:
    """What a `command` such as `npx` or `uvx` stands for: installed once, from a lock, and started directly.

    `lock`: the SHA-256 of the lock, which is stored beside the backends. It changes only by an act. `scripts`: the
    first packages in it that have scripts for their installation, which were not run.

    `oci`: what `docker run` stands for, an image; `lock` is its id, and `version` its tag or digest.
    """

    registry: Literal["npm", "pypi", "oci"]
    name: str
    version: str
    program: str
    lock: str
    scripts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """What a process and all it starts may use; None: no limit."""

    memory_mb: Annotated[int, Meta(ge=16, le=1_048_576), "MiB."] | None = 1024
    pids: Annotated[int, Meta(ge=1, le=1_000_000), "Processes and threads."] | None = 512
    cpu: Annotated[float, Meta(ge=0.01, le=1024), "Cores."] | None = 1.0
    files: Annotated[int, Meta(ge=16, le=1_000_000), "Open files of each process."] | None = 4096
    disk_mb: Annotated[int, Meta(ge=1, le=1_048_576), "MiB of its home and temporary files together."] | None = 256


@dataclass(frozen=True, slots=True)
class Connect:
    """How a server is connected to that is reached by URL. `key` and `proxy_auth` are sealed where they are stored
    (`upstreams.upstream_secrets`). `proxy_is_granted`: a platform administrator has given the proxy for this URL, which
    lifts the rules for addresses of tenants."""

    proxy: (
        Annotated[
            str,
            Meta(max_length=2048),
            "An HTTP proxy through which the server is reached, as `http://HOST:PORT` or `https://HOST:PORT`. It "
            "resolves the server's name. Its own address is to be allowed as that of a server is, or given by a "
            "platform administrator.",
        ]
        | None
    ) = None
    proxy_auth: (
        Annotated[
            str,
            Meta(max_length=1024),
            f"User name and password for `proxy`, as `NAME:PASSWORD`. Write-only: shown as `{HIDDEN}`.",
        ]
        | None
    ) = field(default=None, repr=False)
    ca: (
        Annotated[
            str,
            Meta(max_length=MAX_PEM_BYTES),
            "Certificates of authorities in PEM form: the server's must be of one of them, and those that the "
            "gateway's machine trusts count no longer. null: those of the machine.",
        ]
        | None
    ) = None
    certificate: (
        Annotated[
            str,
            Meta(max_length=MAX_PEM_BYTES),
            "The certificate that the gateway shows to the server, and behind it those between it and its authority, "
            "in PEM form.",
        ]
        | None
    ) = None
    key: (
        Annotated[
            str,
            Meta(max_length=MAX_PEM_BYTES),
            f"The key of `certificate` in PEM form, not encrypted. Write-only: shown as `{HIDDEN}`.",
        ]
        | None
    ) = field(default=None, repr=False)
    proxy_is_granted: bool = field(default=False, metadata=UNSENT)


SECRETS_OF_CONNECT = ("proxy_auth", "key")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which tools of a backend are shown, and how."""

    include: Patterns = ()
    exclude: Patterns = ()
    rename: Annotated[
        Mapping[ToolName, Annotated[str, _accepted]],
        Meta(max_length=MAX_ENTRIES),
        "Other names of tools, by the backend's own.",
        _different,
    ] = field(default_factory=dict, hash=False)
    describe: Annotated[
        Mapping[ToolName, Annotated[str, Meta(max_length=8192)]],
        Meta(max_length=MAX_ENTRIES),
        "Other descriptions of tools, by the backend's own names.",
    ] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Member:
    """A backend of the same tenant in a toolset, and which of its tools are shown there."""

    backend: Name
    prefix: Annotated[
        str,
        Meta(max_length=32, pattern=r"^[A-Za-z0-9_-]*$", extra={"spelling": "letters, digits, `_` and `-`"}),
        "Before the names of its tools and prompts, so that those of two members differ.",
    ]
    selection: Selection = field(default_factory=Selection, metadata=INLINE)


@dataclass(frozen=True, slots=True)
class Toolset:
    """What a toolset has besides what every backend has."""

    title: Title = ""
    instructions: Annotated[
        str,
        Meta(max_length=16 << 10),
        "What clients are told to tell their model. Empty: the instructions of all members.",
        no_nul,
    ] = ""
    members: Annotated[tuple[Member, ...], Meta(max_length=MAX_MEMBERS)] = ()
    mode: Annotated[
        Literal["list", "search", "auto"],
        "`list`: clients see all tools. `search`: they see `find_tools`, `call_tool` and the tools of `always`. "
        f"`auto`: search where there are more than {FEW_TOOLS} tools, but not for clients that search in the whole "
        "list themselves.",
    ] = "list"
    always: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=MAX_TOOL_NAME)], ...],
        Meta(max_length=100),
        "Patterns of the shown names of tools that are listed in any mode.",
    ] = ()
    learns: Annotated[
        bool,
        "Whether what callers searched for before they called a tool helps later searches in this toolset. Kept in "
        "the memory of each node.",
    ] = True
    guides: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=63)], ...],
        Meta(max_length=100),
        "Names of guides that it shows, or patterns of names with `*`, `?` and `[…]`.",
    ] = ()


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """A registered server: what to start, how many, and for how long; or where it is.

    `version` grows with every change; a process started for another `edition` serves no new session. With
    `off_by_platform` only the platform can switch it on again. `headers` are sent with each request to `url`; sealed
    (`upstreams.upstream_secrets`). `openapi`: the address of a document, or what its text is known by; what is at `url`
    is then an HTTP API. `openapi_made`: the digest of what was made of it, which is stored; `api`: that itself, on the
    way to the database only. `toolset`: it starts nothing itself, but stands for other backends. `command` is empty
    where there is a `url` or a `toolset`.
    Set when the spec is read from the database: `made`, when the backend was, in microseconds; `home`, the name of the
    tenant's home (`home_of`); `sandbox_exempt`, that of the tenant. Set when a process is started: `keeper`, the
    identity of the principal whose home it gets (`homes_per_principal`); in a check `missed_log`, the descriptor of a
    file for what the sandbox keeps from it; `installed`, the folder of its package, of which `command` and `args` are
    then a program. `package`: what `command` and `args` name, if that is one. `sealed`, the secrets of its
    definition as they are stored, which change only with them.
    """

    tenant: str = field(metadata=UNSENT)
    name: Name
    command: str
    url: str | None = field(default=None, kw_only=True)
    transport: Annotated[Transport, "`auto`: Streamable HTTP, and HTTP+SSE if the server does not know that."] = field(
        default="auto", kw_only=True
    )
    headers: Mapping[str, str] = field(default_factory=dict, hash=False, kw_only=True)
    connect: Connect = field(default_factory=Connect, kw_only=True)
    openapi: (
        Annotated[
            str,
            Meta(max_length=MAX_DOCUMENT),
            "Of an HTTP API, whose operations become tools: the address of its document of OpenAPI 3 or Swagger 2.0, "
            "or the document itself in JSON or YAML, also with gzip and Base64 as `data:;base64,…`. It is read once, "
            "in this act. `url` is then the base address of the API; without it, the first absolute one of the "
            "document. Shown as the address, or as `sha256:` and the hash of the text.",
            no_nul,
        ]
        | None
    ) = field(default=None, kw_only=True)
    args: Annotated[
        tuple[Text, ...],
        Meta(max_length=256),
        f"At most 64 KiB in all. Credentials that are recognised in them are write-only: shown as `{HIDDEN}`.",
    ] = ()
    env: Annotated[
        Mapping[EnvName, Text],
        Meta(max_length=128),
        f"Write-only: shown as `{HIDDEN}`. `{HOME_WORD}` in it: the process's home.",
    ] = field(default_factory=dict, hash=False)
    cwd: (
        Annotated[
            str,
            Meta(min_length=1, max_length=4096),
            "Working directory of the processes: an absolute path, which must exist on each node, or one below the "
            "process's home. null: the home, so that relative paths name files in it.",
            no_nul,
            _directory,
        ]
        | None
    ) = None
    isolation: Annotated[
        Literal["session", "shared"],
        "`session`: one process for each session. `shared`: the sessions of the tenant share as few processes as they "
        "need, up to `max_processes`. It is only for servers without state; their requests (sampling, elicitation, "
        "roots) are refused.",
    ] = "session"
    recovery: Annotated[
        Literal["end", "respawn"],
        "When a process ends by itself, `end` ends its sessions. `respawn` gives them a new process, to which "
        "handshake, log level and subscriptions are sent again; calls in flight fail and are not repeated. It is only "
        "for servers without state.",
    ] = "end"
    broadcast: Annotated[
        bool,
        "For a `shared` server: whether messages that belong to no call (log messages, other notifications, "
        "`notifications/tasks/status` of an unknown task) are sent to all sessions, of all principals. Otherwise they "
        "are dropped.",
    ] = False
    warm: int | Literal["auto"] = 0
    max_processes: Annotated[int, Meta(ge=1, le=10_000)] = 10
    calls_per_session: Annotated[
        int,
        Meta(ge=1, le=1024),
        "Calls of one session that its process handles at once. As many again, but at least 8, wait, with at most 4 "
        "MiB in all; further ones get 429.",
    ] = 128
    timeouts: Timeouts = field(default_factory=Timeouts)
    sandbox: Sandbox = field(default_factory=Sandbox)
    limits: ProcessLimits = field(default_factory=ProcessLimits)
    state: Annotated[
        Literal["none", "keep"],
        "`none`: each process has a home of its own, which is removed with it. `keep`: each principal has one that "
        "lasts.",
    ] = "none"
    start: Annotated[
        Literal["exec", "fork", "auto"],
        Meta(extra={"stored": 8}),
        "`exec`: its command is executed for each process. `fork`: its processes are forks of one that has imported "
        "what the program needs and serves nobody, if it is in Python; where that cannot be done they are executed, "
        "and `start_reason` of a process says why. `auto`: they are forks only if these answer alike.",
    ] = "exec"
    selection: Selection = field(default_factory=Selection, metadata=INLINE)
    pin: Annotated[
        Literal["off", "warn", "block"],
        Meta(extra={"stored": 8}),
        "Tools that nobody has approved as they are offered now: `off` shows them, `block` neither shows nor calls "
        "them; `warn` withholds only what was rejected.",
    ] = "off"
    pin_minor: Annotated[
        Literal["accept", "ask"],
        Meta(extra={"stored": 8}),
        "Whether a harmless edit of an approved definition counts as approved.",
    ] = "ask"
    access: Access = ()
    toolset: Toolset | None = field(default=None, metadata=DERIVED)
    package: Package | None = field(default=None, metadata=UNSENT)
    enabled: bool = True
    reason: Reason = ""
    off_by_platform: bool = field(default=False, metadata=UNSENT)
    version: int = field(default=1, metadata=UNSENT)
    home: str = field(default="", metadata=DERIVED)
    keeper: tuple[str, ...] | None = field(default=None, metadata=DERIVED)
    sandbox_exempt: bool = field(default=False, metadata=DERIVED)
    missed_log: int | None = field(default=None, metadata=DERIVED)
    installed: str = field(default="", metadata=DERIVED)
    made: int = field(default=0, compare=False, metadata=DERIVED)
    openapi_made: Annotated[str, Meta(extra={"stored": 64})] = field(default="", metadata=UNSENT)
    api: bytes | None = field(default=None, compare=False, repr=False, metadata=DERIVED)
    sealed: bytes = field(default=b"", compare=False, repr=False, metadata=DERIVED)

    @property
    def lacks_secrets(self) -> bool:
        """Whether marks stand where its secrets should: they were not given, or do not open with this secret key."""
        return any(HIDDEN in each for each in (*self.env.values(), *self.args, self.url or ""))

    @property
    def edition(self) -> tuple[int, int]:
        """Greater for a later definition, also where the backend was removed and made again: versions begin anew."""
        return (self.made, self.version)

    @property
    def key(self) -> tuple[str, str]:
        """Identifies the backend on a node: (tenant, name)."""
        return (self.tenant, self.name)

    @property
    def is_image(self) -> bool:
        """Whether a container engine starts its processes."""
        return self.package is not None and self.package.registry == "oci"

    @property
    def keeps_state(self) -> bool:
        """Whether later calls may depend on earlier ones. Assumed, unless an administrator has said otherwise; but an
        API has no sessions."""
        return self.isolation != "shared" and not self.is_respawned

    @property
    def is_respawned(self) -> bool:
        """Whether sessions go on with another process, or another connection."""
        return self.recovery == "respawn" or self.openapi is not None

    @property
    def homes_per_principal(self) -> bool:
        """Whether a process is started for one principal, whose home it gets. A shared one serves many."""
        return self.state == "keep" and self.isolation != "shared"

    @property
    def is_toolset(self) -> bool:
        """Whether its sessions have members, instead of a process."""
        return self.toolset is not None or self.selection != Selection() or self.pin != "off" or bool(self.access)

    @property
    def rests_as(self) -> Rest | None:
        """What becomes of idle sessions. Where the next process could not know what the present one does, that is kept;
        but not while others share it."""
        if self.timeouts.park_s is None or (self.recovery == "end" and self.isolation == "shared"):
            return None
        return "parked" if self.recovery == "respawn" else "frozen"

    @property
    def has_kept_home(self) -> bool:
        """Whether a process that is started for this spec has a home that lasts. That of a check has not."""
        return self.state == "keep" and not (self.homes_per_principal and self.keeper is None)


# What only a process has, and what only a server has that is reached by URL.
_OF_PROCESSES = ("args", "env", "cwd", "isolation", "broadcast", "warm", "max_processes", "state", "start")
_OF_URLS = ("transport", "headers", "connect")


def reason_of_what_is_off(spec: BackendSpec) -> None:
    """Raises Unfit: it has a reason to be off, and is not."""
    if spec.reason and spec.enabled:
        raise Unfit("reason", "a reason goes with `enabled: false`")


def access_fits(spec: BackendSpec) -> None:
    """Raises Unfit."""
    fits(spec.access)


def _of_one_kind(spec: BackendSpec) -> None:
    is_elsewhere = spec.url is not None or spec.openapi is not None
    if (spec.command == "") != is_elsewhere:
        words = "give either `command`, which the gateway starts, or `url`, where a server runs already, or `openapi`"
        raise Unfit("kind", words)
    if spec.openapi is not None and spec.transport != "auto":
        raise Unfit("kind", "`transport` is that of a server of MCP: with `openapi` there is none")
    usual, own = BackendSpec("", "", ""), _OF_PROCESSES if is_elsewhere else _OF_URLS
    wrong = [name for name in own if getattr(spec, name) != getattr(usual, name)]
    if not is_elsewhere:
        why = "`url`"
    else:
        is_confined = (spec.sandbox, spec.limits) != (usual.sandbox, usual.limits)
        wrong += ["sandbox, limits"] if is_confined else []
        why = "`command`: nothing is started for a `url`"
    if wrong:
        raise Unfit("kind", "{words}", words=f"{', '.join(wrong)} can only be given with {why}")
    _require_few_headers(spec.headers)


def _require_few_headers(headers: Mapping[str, str]) -> None:
    if sum(len(name) + len(value) for name, value in headers.items()) > 2 * MAX_HEADERS_BYTES:
        raise Unfit("too_long", "the headers are more than 16 KiB in all")
    if len({name.lower() for name in headers}) < len(headers):
        raise Unfit("header", "a header is given twice: names of headers have no case")


def _connects_as_one_can(spec: BackendSpec) -> None:
    if spec.connect.proxy_auth is not None and spec.connect.proxy is None:
        raise Unfit("connect", "`connect.proxy_auth` goes with `connect.proxy`, to which it is sent")
    if (spec.connect.certificate is None) != (spec.connect.key is None):
        words = "`connect.certificate` and `connect.key` go together: the server asks for a proof with the key"
        raise Unfit("connect", words)


def _knows_whose_home(spec: BackendSpec) -> None:
    if spec.state == "keep" and spec.isolation == "shared":
        words = "`state: keep` is a home for each principal, and with `isolation: shared` a process has several"
        raise Unfit("state", words)
    if spec.state == "keep" and spec.warm:
        raise Unfit("state", "`state: keep` needs `warm: 0`: a process is started in the home of its principal")


def _parks_what_can_be_parked(spec: BackendSpec) -> None:
    if spec.timeouts.park_s is None:
        return
    if spec.url is not None or spec.openapi is not None:
        raise Unfit("park_s", "`timeouts.park_s` needs a `command`: a `url` has no process")
    if spec.recovery == "end" and spec.isolation == "shared":
        words = "with `isolation: shared`, `timeouts.park_s` needs `recovery: respawn`: others use the process"
        raise Unfit("park_s", words)


def _bounded_in_all(spec: BackendSpec) -> None:
    if sum(len(each.encode()) for each in spec.args) > MAX_ARGS_BYTES:
        raise Unfit("too_long", "the args are more than 64 KiB in all")
    if sum(len(each.encode()) for pair in spec.env.items() for each in pair) > MAX_ENV_BYTES:
        raise Unfit("too_long", "the env is more than 64 KiB in all")
    of_connect = {name: getattr(spec.connect, name) for name in SECRETS_OF_CONNECT}
    for name, secrets in (("a header's", spec.headers), ("an env", spec.env), ("a `connect`", of_connect)):
        if HIDDEN in secrets.values():
            raise Unfit("hidden", "`***` stands for {whose} value that is already set, but none is", whose=name)


def _starts_in_a_shell(spec: BackendSpec) -> None:
    if not spec.env.get("OPTIND", "1").isdecimal():
        raise Unfit("optind", "the variable OPTIND has to be a number: the shell in the sandbox would not start")


RULES = (
    reason_of_what_is_off,
    access_fits,
    _of_one_kind,
    _connects_as_one_can,
    _knows_whose_home,
    _parks_what_can_be_parked,
    _bounded_in_all,
    _starts_in_a_shell,
)
