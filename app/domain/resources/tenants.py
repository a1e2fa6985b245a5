"""Tenants: what each may use, and what else is decided for it."""

import re
from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from app.domain.resources.destinations import Place
from app.domain.resources.fields import DERIVED, UNSENT, Name, Reason, Unfit

RegistryMode = Literal["off", "keys", "public"]  # who may read what a tenant offers
InspectionMode = Literal["allowed", "metadata", "forbidden"]  # whether messages may be looked at; strictest last
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
_is_host_pattern = re.compile(r"(?:\*\.)?[a-z0-9](?:[a-z0-9.-]{0,250}[a-z0-9])?").fullmatch
_is_package = re.compile(r"(?:npm|pypi|oci):[\w@~./:*-]+", re.ASCII).fullmatch


def _package_pattern(text: str) -> str:
    if _is_package(text) is None:
        raise Unfit("package", "is npm:NAME, pypi:NAME or oci:NAME, in which `*` stands for any characters")
    return text


PackagePattern = Annotated[str, Meta(max_length=250), _package_pattern]


def _host_pattern(text: str) -> str:
    if _is_host_pattern(text) is None:
        raise Unfit("host", "is the name of a host, like claude.ai, or *.example.com for all names below one")
    return text


HostPattern = Annotated[str, Meta(max_length=253), _host_pattern]


@dataclass(frozen=True, slots=True)
class SignIn:
    """Who may connect by the address alone. Hosts are those of clients' metadata documents and redirect addresses."""

    registration: Annotated[bool, "Whether programs may register themselves (RFC 7591)."] = True
    documents: Annotated[bool, "Whether programs may be known by their metadata document, a URL."] = True
    allow_hosts: Annotated[
        tuple[HostPattern, ...],
        Meta(max_length=100),
        "Only clients of these hosts, and of people's own machines; without any, of all hosts.",
    ] = ()
    block_hosts: Annotated[tuple[HostPattern, ...], Meta(max_length=100), "No clients of these hosts."] = ()
    again_after_days: Annotated[
        int,
        Meta(ge=1, le=365),
        "After so many days people sign in again whose identity provider gives no refresh token.",
    ] = 7

    def accepts_host(self, host: str) -> bool:
        """Whether clients of this host may connect."""
        is_listed = not self.allow_hosts or any(_is_host(host, each) for each in self.allow_hosts)
        return is_listed and not any(_is_host(host, each) for each in self.block_hosts)


def _is_host(host: str, pattern: str) -> bool:
    return host == pattern or (pattern.startswith("*.") and host.endswith(pattern[1:]))


@dataclass(frozen=True, slots=True)
class Limits:
    """What one tenant may use at once; None is no limit. `parked_sessions`, `frozen_sessions`: on each node."""

    sessions: Count | None = 100
    sessions_per_principal: Count | None = None
    processes: Count | None = 50
    in_flight: Count | None = None
    requests_per_second: Annotated[float, Meta(ge=0, le=1_000_000)] | None = 50.0
    burst: Count | None = 100
    memory_mb: Count | None = None
    spawns_per_minute: Count | None = None
    parked_sessions: Count | None = 1000
    frozen_sessions: Count | None = 1000


@dataclass(frozen=True, slots=True)
class Tenant:
    """One customer of the platform. Backends, keys and sessions belong to exactly one. `reason` says why it is not
    `enabled`: its own callers are told."""

    name: Name
    limits: Limits = field(default_factory=Limits)
    enabled: bool = True
    reason: Reason = ""
    sandbox_exempt: Annotated[
        bool,
        "Its backends need not keep what the platform requires of sandboxes (`SANDBOX=require`).",
    ] = False
    registry: Annotated[
        RegistryMode,
        "Who may read the list of its servers under `/registry/{tenant}`: nobody, who has a credential of the tenant, "
        "or everybody.",
    ] = "off"
    inspections: Annotated[
        InspectionMode,
        "Whether the messages of its sessions may be inspected: with payloads, without, or not at all. Its "
        "administrators may only make it stricter.",
    ] = "allowed"
    network_allow: Annotated[
        tuple[Place, ...],
        Meta(max_length=100),
        "What its administrators may let its backends reach (`sandbox.network.allow`): these, or parts of them.",
    ] = ()
    packages_allow: Annotated[
        tuple[PackagePattern, ...],
        Meta(max_length=100),
        "Packages and images that its administrators may register themselves: `npm:NAME`, `pypi:NAME` or `oci:NAME`, "
        "in which `*` stands for any characters. Other ones that they ask for wait until a platform administrator "
        "switches them on.",
    ] = ()
    sign_in: Annotated[
        SignIn | None,
        "How people connect clients by the address alone: with it the tenant has an authorization server of its own, "
        "and everybody can see that it exists.",
    ] = None
    version: int = field(default=1, metadata=UNSENT)
    made: int = field(default=0, compare=False, metadata=DERIVED)  # when, in microseconds
