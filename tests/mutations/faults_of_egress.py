"""Faults of what a backend with a network of its own reaches."""

from tests.mutations.fault import Fault

PROXY = ("tests/jail/egress/test_egress.py",)
NETWORK = ("tests/jail/spawner/test_network.py",)
PROBES = ("tests/jail/egress/test_allowed_probes.py",)
DESTINATIONS, _DESTINATIONS = ("tests/domain/resources/test_destinations.py",), "app/domain/resources/destinations.py"
_DIALLING = "app/jail/egress/dialling.py"
ADDRESSES = ("tests/text/test_public_addresses.py",)

FAULTS_OF_EGRESS = (
    Fault(
        "pieces of a request to the proxy have no limit",
        "app/jail/egress/_incoming.py",
        "if self._pieces > MAX_PIECES:",
        "if False:",
        ("tests/jail/egress/test_egress.py",),
    ),
    Fault(
        "a process with a network of its own keeps the machine's",
        "app/jail/spawner/_network.py",
        "    if not _has_left(_CLONE_NEWNET):\n        _enter_user_namespace()\n",
        "",
        NETWORK,
    ),
    Fault(
        "without the right to make one, a process keeps the machine's network",
        "app/jail/spawner/_network.py",
        "    _has_left(_CLONE_NEWUSER | _CLONE_NEWNET)\n",
        "    _has_left(_CLONE_NEWUSER)\n",
        NETWORK,
    ),
    Fault(
        "an address that is not public is connected to",
        "app/jail/egress/dialling.py",
        "return is_public(address) and address",
        "return address",
        PROXY,
    ),
    Fault(
        "the gateway's own hosts are connected to by their addresses",
        "app/jail/egress/dialling.py",
        "address not in self._own_addresses and",
        "",
        PROXY,
    ),
    Fault(
        "the gateway's own machine is connected to",
        "app/jail/egress/dialling.py",
        " and not _is_of_this_machine(address, port)",
        "",
        PROXY,
    ),
    Fault(
        "only the first address of a name is checked",
        "app/jail/egress/dialling.py",
        "        for address in addresses:\n",
        "        for address in addresses[:1]:\n",
        PROXY,
    ),
    Fault(
        "a name is resolved again after the check",
        "app/jail/egress/dialling.py",
        "        return addresses\n",
        "        return addresses if not isinstance(host, str) else [\n"
        "            ip_address(each) for each in await self._names.resolve(outgoing.tenant, host)\n"
        "        ]\n",
        PROXY,
    ),
    Fault(
        "every port is connected to",
        "app/jail/egress/outgoing.py",
        "if outgoing.port not in self._ports:",
        "if outgoing.port == 0:",
        PROXY,
    ),
    Fault(
        "the rule of a backend is not asked",
        "app/jail/egress/_connection.py",
        "            entries = await self._rule.permit(outgoing)\n",
        "            entries = ()\n",
        PROXY,
    ),
    Fault(
        "a second request of plain HTTP reaches the first one's host",
        "app/jail/egress/_connection.py",
        "            await self._send_body(self._body_bytes)\n            return\n",
        "            pass\n",
        PROXY,
    ),
    Fault(
        "a body that is cut off looks whole to its destination",
        "app/jail/egress/_connection.py",
        "                _reset(each)\n",
        "                pass\n",
        PROXY,
    ),
    Fault(
        "a request may take for ever to arrive",
        "app/jail/egress/_connection.py",
        "                async with asyncio.timeout(HEAD_S):\n",
        "                async with asyncio.timeout(None):\n",
        PROXY,
    ),
    Fault(
        "a head has no limit",
        "app/jail/egress/_incoming.py",
        "if len(self._read) >= MAX_HEAD_BYTES:",
        "if False:",
        PROXY,
    ),
    Fault(
        "a process has as many connections as it likes",
        "app/jail/egress/egress.py",
        "if of_process > self._options.max_of_process:",
        "if False:",
        PROXY,
    ),
    Fault(
        "connections over the limit of a process are accepted without a bound",
        "app/jail/egress/egress.py",
        "            of_process < self._options.max_of_process + _ROOM_FOR_REFUSALS\n            and ",
        "            ",
        PROXY,
    ),
    Fault(
        "connections over the limit of a tenant are accepted without a bound",
        "app/jail/egress/egress.py",
        "            and self._of_tenant[tenant] < self._options.max_of_tenant + _ROOM_FOR_REFUSALS\n",
        "",
        PROXY,
    ),
    Fault(
        "connections over the limit of the node are accepted without a bound",
        "app/jail/egress/egress.py",
        "            and self._count < self._options.max_of_node + _ROOM_FOR_REFUSALS\n",
        "",
        PROXY,
    ),
    Fault(
        "a look-up that nobody waits for any more does not count",
        "app/jail/egress/names.py",
        "            if not started:\n                self._forget(tenant)\n",
        "            self._of_tenant[tenant] = 0\n",
        PROXY,
    ),
    Fault(
        "the end of a process leaves its connections open",
        "app/jail/egress/egress.py",
        "        for scope in list(self._connections.values()):\n            scope.cancel()\n",
        "",
        PROXY,
    ),
    Fault(
        "NAT64 of a local network counts as public",
        "app/text/public_addresses.py",
        "    return address in _PUBLIC_V6 and (int",
        "    return (int",
        ADDRESSES,
    ),
    Fault(
        "a network that is allowed leads to the gateway itself",
        "app/jail/egress/dialling.py",
        "if port in self._own_ports and (real in self._own_addresses or _is_here(real, port)):",
        "if False:",
        ("tests/backends/upstreams/test_connecting.py",),
    ),
    Fault(
        "any name leads to loopback",
        _DESTINATIONS,
        "        if address.is_loopback:\n",
        "        if False:\n",
        DESTINATIONS,
    ),
    Fault(
        "a network leads to metadata in it",
        _DESTINATIONS,
        "return is_within and self.is_exact",
        "return is_within",
        DESTINATIONS,
    ),
    Fault(
        "a public name leads into a private network",
        _DESTINATIONS,
        "return self.is_private_name or (is_public and not is_here)",
        "return True",
        DESTINATIONS,
    ),
    Fault("an entry covers others' ports", _DESTINATIONS, "self.port != other.port or ", "", DESTINATIONS),
    Fault("an entry leads to the gateway", _DIALLING, "if self._is_part(address, outgoing.port):", "if False:", PROBES),
    Fault(
        "the gateway has one address only",
        _DIALLING,
        " or (any(_is_here(each, port) for each in found) and _is_here(real, port))",
        "",
        PROBES,
    ),
    Fault("an entry leads to another backend", _DIALLING, "if is_here and await", "if False and await", PROBES),
    Fault(
        "where an entry leads is not asked",
        _DIALLING,
        "if not any(each.leads_to(",
        "if False and any(each.leads_to(",
        PROBES,
    ),
    Fault(
        "what a name stands for is not known outside",
        "app/jail/egress/allowed.py",
        "return self._name_of.get(real, real)",
        "return real",
        PROBES,
    ),
    Fault(
        "an administrator of a tenant allows anything",
        "app/admin/resources/backends.py",
        "more = set(new.allow) - set(old.allow)",
        "more = set[str]()",
        ("tests/admin/resources/test_backends_sandbox.py",),
    ),
)
