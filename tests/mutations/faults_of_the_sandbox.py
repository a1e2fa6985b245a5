"""Faults of what a process is started with in each tier, and of what is said of it."""

from tests.mutations.fault import Fault

PROBING = ("tests/jail/sandbox/probes/test_probing.py",)
SANDBOXES = ("tests/jail/sandbox/test_sandboxes.py",)
COMPOSER = ("tests/jail/sandbox/test_composer.py",)
_COMPOSER, _SANDBOXES, _BUBBLEWRAP = (
    "app/jail/sandbox/composer.py",
    "app/jail/sandbox/sandboxes.py",
    "app/jail/sandbox/_bubblewrap.py",
)
_PROBER = "app/jail/sandbox/probes/prober.py"
NEEDS = ("tests/jail/sandbox/test_needs.py",)
ENDINGS, _ENDINGS = ("tests/processes/test_endings.py",), "app/processes/endings.py"
CHECKS, _MISSED = ("tests/backends/checks/test_missed.py",), "app/backends/checks/_missed.py"

FAULTS_OF_THE_SANDBOX = (
    Fault("limits of descriptors and files are left out", _COMPOSER, "Confinement(limits=resource_limits(spec.limits))", "Confinement()", PROBING),
    Fault("a backend is in no control group", _COMPOSER, "        if self._machine.cgroups.directories:\n", "        if False:\n", PROBING),
    Fault("a backend of root has root's capabilities", _COMPOSER, '            confinement["capabilities"] = []\n', "            pass\n", PROBING),
    Fault(
        "Landlock is left out",
        _COMPOSER,
        '            confinement["landlock"] = self._landlock(spec.sandbox, profile.network, needs, place)\n',
        "",
        PROBING,
    ),
    Fault("seccomp is left out without namespaces", _COMPOSER, "list(_ON_THE_MACHINE)", "[]", PROBING),
    Fault("Unix sockets are left open without namespaces", _COMPOSER, '"base", "no_unix_sockets", ', '"base", ', PROBING),
    Fault("shared memory is left open without namespaces", _COMPOSER, '"no_shared_ipc", ', "", COMPOSER),
    Fault("other processes are left open without namespaces", _COMPOSER, ', "own_process_only")', ")", PROBING),
    Fault("datagrams are left open without namespaces", _COMPOSER, '            if profile.network == "none":\n', "            if False:\n", PROBING),
    Fault("every port is left open without namespaces", _COMPOSER, 'if network in ("web", "allow") and self._machine.has_ports:', "if False:", PROBING),
    Fault("signals are left open without namespaces", _COMPOSER, "scoped=self._machine.has_scopes", "scoped=False", PROBING),
    Fault("seccomp is left out with namespaces", _COMPOSER, '["template" if place.is_template else "base"]', "[]", PROBING),
    Fault("Landlock is left out with namespaces", _COMPOSER, 'confinement["landlock"] = Landlock(scoped=True)', "pass", COMPOSER),
    Fault("`web` is the machine's network", _COMPOSER, '            confinement["own_network"] = True\n', "            pass\n", PROBING),
    Fault("a tenant has no user of its own", _COMPOSER, "        if profile.tier >= Tier.ASSISTED:\n            assert", "        if False:\n            assert", COMPOSER),
    Fault("the size of a sandbox's files is left out", _COMPOSER, "None if spec.limits.disk_mb is None else spec.limits.disk_mb * MIB,\n            uid,", "None,\n            uid,", PROBING),
    Fault("a check gives a process without a network one", _COMPOSER, "NothingAllowed() if with_deaf_proxy else None", "None", COMPOSER),
    Fault("every process without a network has a proxy", _SANDBOXES, "spec.missed_log is not None and profile", "profile", SANDBOXES),
    Fault("`web` is proposed to who goes around its proxy", _MISSED, "(None, _GOES_AROUND) if goes_around else", "", CHECKS),
    Fault("a metadata address is proposed", _MISSED, "return is_metadata(ip_address", "return False and is_metadata(ip_address", CHECKS),
    Fault("who asks for localhost is sent to one of its addresses", _MISSED, "is_either = port in both and", "is_either = False and", CHECKS),
    Fault("what is never reached is proposed again", _MISSED, "return _NEVER_REACHED if is_allowed else None", "return None", CHECKS),
    Fault("an entry is proposed that every sandbox refuses", _MISSED, "if missed.uid is None and _are_forbidden(opens, besides.forbidden):", "if False:", CHECKS),
    Fault("a file that is not there is proposed", _MISSED, "return (None, _NOT_THERE) if is_new else", "return (None, _NOT_THERE) if False else", CHECKS),
    Fault("who makes directories is told the one of many programs", _MISSED, "        if end is not None:\n", "        if False:\n", CHECKS),
    Fault("who makes a directory may read it", _MISSED, 'kept.append(({**each, "access": "write"}, count))', "kept.append((each, count))", CHECKS),
    Fault("the start of an interpreter is what its server lacks", "app/jail/spawner/_missed.py", ' or os.path.basename(path) in _CUSTOMIZING', "", ("tests/jail/spawner/test_watcher.py",)),
    Fault("a path with more than a path in it is no secret", "app/processes/_stderr.py", "if not _is_plain_path(value) or not (", "if not (", ("tests/processes/test_stderr.py",)),
    Fault("nobody is told that nobody serves an address", _MISSED, 'None if each.get("is_heard", True) else _UNHEARD', "None", CHECKS),
    Fault("who dies of a fork that was refused names no limit", _ENDINGS, "    if counted.refused_forks and limits.pids is not None:\n", "    if False:\n", ENDINGS),
    Fault("the disk of the machine is taken for the process's", _ENDINGS, 'has_own_disk and spec.state == "none" and not spec.sandbox.write', "True", ENDINGS),
    Fault("who ended by itself is said to have been killed at a limit", _ENDINGS, "if end.limit and (end.reason, end.number) in _KILLED:", "if end.limit:", ENDINGS),
    Fault("what a process may write opens what is beside it", "app/jail/sandbox/needs.py", "if not _is_within(script, self._write):", "if True:", NEEDS),
    Fault("every argument of an interpreter opens what is beside it", "app/jail/sandbox/scripts.py", "argument == first and not is_code", "not is_code", NEEDS),
    Fault("a program opens all the programs beside it", "app/jail/sandbox/scripts.py", "os.path.basename(folder) not in _PROGRAMS", "folder", NEEDS),
    Fault("a module that is shown already is said to be missed", "app/backends/checks/_modules.py", "not _is_shown(path, spec)", "path", ("tests/backends/checks/test_modules.py",)),
    Fault(
        "a variable cannot name the home",
        "app/jail/sandbox/environment.py",
        "value.replace(HOME_WORD, home)",
        "value",
        ("tests/jail/sandbox/test_environment.py",),
    ),
    Fault(
        "forks share a variable that names the home",
        "app/processes/forking/_making.py",
        "(*_OWN, *of_home)",
        "_OWN",
        ("tests/processes/forking/test_forking.py::test_a_variable_that_names_the_home_is_of_each_fork",),
    ),
    Fault(
        "what is not there is not noted",
        "app/jail/sandbox/report.py",
        "if not os.path.exists(path)",
        "if False",
        ("tests/admin/resources/test_backends.py::test_what_the_sandbox_names_and_the_node_does_not_have_is_said_at_once_and_kept",),
    ),
    Fault("a browser that asks for all flags of memfd_create aborts", "app/jail/spawner/_seccomp.py", "_HUGE_FILE, _deny(errno.EINVAL)", "_HUGE_FILE, _deny(errno.ENOMEM)", ("tests/jail/spawner/test_seccomp.py",)),
    Fault("IPC is shared with the machine", _BUBBLEWRAP, '"--unshare-ipc", ', "", COMPOSER),
    Fault("host names are shared with the machine", _BUBBLEWRAP, '"--unshare-uts", ', "", COMPOSER),
    Fault("what was not tried counts as held", _PROBER, "return bool(tried) and all(", "return all(", SANDBOXES),
    Fault("one denied attempt counts for all", _PROBER, "bool(tried) and all(each.was_denied", "bool(tried) and any(each.was_denied", PROBING),
    Fault("a datagram that arrives is not noticed", _PROBER, "was_denied = not was_hit", "was_denied = True", PROBING),
    Fault("the probe without a network speaks for all", _PROBER, "if report.network == network and report.held()", 'if report.network == "none" and report.held()', SANDBOXES),
    Fault("`host` is said to be confined", "app/jail/sandbox/tiers.py", 'is_open = network == "host" or (', "is_open = (", SANDBOXES),
    Fault("a limit that did not hold is said to be enforced", _SANDBOXES, "            if why is not None:\n                return why\n        elif", "            return why\n        elif", SANDBOXES),
    Fault("weaker forms are not named", _SANDBOXES, "if report is None or not report.holds(name)]", "if report is None]", PROBING),
    Fault("what a backend requires is not asked for", _SANDBOXES, '        if sandbox.mode == "require":\n', "        if False:\n", SANDBOXES),
    Fault(
        "the report forgets the platform's rule",
        "app/jail/sandbox/report.py",
        "sandbox = effective(spec.sandbox, view.rule, tenant_exempt=spec.sandbox_exempt)",
        "sandbox = spec.sandbox",
        SANDBOXES,
    ),
)  # fmt: skip
