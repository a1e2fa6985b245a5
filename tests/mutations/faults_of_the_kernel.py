"""Faults of what a child gives up between fork and exec: each restriction, taken out or weakened."""

from tests.mutations.fault import Fault

_ATTEMPTS = "tests/spawner/test_confinement_attempts.py"
_EACH = f"{_ATTEMPTS}::test_a_restriction_denies_by_itself_what_succeeds_without_it"
LANDLOCK = ("tests/spawner/test_landlock.py",)
SECCOMP = ("tests/spawner/test_seccomp.py",)
RIGHTS = ("tests/spawner/test_confinement.py",)
FILES = (f"{_EACH}[user-files]",)
CONNECT = (f"{_EACH}[user-connect]",)
BIND = (f"{_EACH}[user-bind]",)
SCOPED = (f"{_EACH}[user-scoped]",)
DOMAIN = (f"{_EACH}[user-a domain of its own]",)
BASE = (f"{_EACH}[user-base]",)
NO_UNIX = (f"{_EACH}[user-no_unix_sockets]",)
NO_INTERNET = (f"{_EACH}[user-no_internet]",)
NO_IPC = (f"{_EACH}[user-no_shared_ipc]",)
OWN_PROCESS = (f"{_EACH}[user-own_process_only]",)

FAULTS_OF_THE_KERNEL = (
    Fault(
        "files can be read though no rule allows it",
        "app/spawner/landlock.py",
        'wanted = (_READ if "read" in rules else 0)',
        'wanted = (0 if "read" in rules else 0)',
        FILES,
    ),
    Fault(
        "files can be written though no rule allows it",
        "app/spawner/landlock.py",
        '(_WRITE if "write" in rules else 0)',
        '(0 if "write" in rules else 0)',
        FILES,
    ),
    Fault(
        "files can be truncated though no rule allows it",
        "app/spawner/landlock.py",
        "_TRUNCATE: 3,",
        "_TRUNCATE: 99,",
        FILES,
    ),
    Fault(
        "files that may be read may be written",
        "app/spawner/landlock.py",
        "_allow_path(ruleset, path, files & _READ)",
        "_allow_path(ruleset, path, files)",
        LANDLOCK,
    ),
    Fault(
        "any TCP port can be reached",
        "app/spawner/landlock.py",
        '(_CONNECT_TCP if "connect" in rules else 0)',
        '(0 if "connect" in rules else 0)',
        CONNECT,
    ),
    Fault(
        "any TCP port can be listened on",
        "app/spawner/landlock.py",
        '(_BIND_TCP if "bind" in rules else 0)',
        '(0 if "bind" in rules else 0)',
        BIND,
    ),
    Fault(
        "abstract sockets outside can be reached",
        "app/spawner/landlock.py",
        "return files, ports, _ABSTRACT_SOCKETS | _SIGNALS if",
        "return files, ports, _SIGNALS if",
        SCOPED,
    ),
    Fault(
        "processes outside can be signalled",
        "app/spawner/landlock.py",
        "return files, ports, _ABSTRACT_SOCKETS | _SIGNALS if",
        "return files, ports, _ABSTRACT_SOCKETS if",
        SCOPED,
    ),
    Fault(
        "rules that this kernel lacks are left out in silence",
        "app/spawner/landlock.py",
        "if rules != within(rules, version):",
        "if False:",
        LANDLOCK,
    ),
    Fault(
        "a process of the same user can be looked into",
        "app/spawner/child.py",
        "    yield from confinement.without_rights(confined)",
        '    yield from [each for each in confinement.without_rights(confined) if each.stage != "landlock"]',
        DOMAIN,
    ),
    Fault(
        "system calls are not filtered",
        "app/spawner/confinement.py",
        "lambda: syscalls.filter_system_calls(seccomp.program(names)))",
        "lambda: None)",
        BASE,
    ),
    Fault(
        "other processes can be traced",
        "app/spawner/seccomp.py",
        "    ptrace process_vm_readv",
        "    process_vm_readv",
        SECCOMP,
    ),
    Fault(
        "file systems can be mounted",
        "app/spawner/seccomp.py",
        "    mount umount2",
        "    umount2",
        SECCOMP,
    ),
    Fault(
        "namespaces can be made",
        "app/spawner/seccomp.py",
        "    unshare setns",
        "    setns",
        SECCOMP,
    ),
    Fault(
        "the kernel's keys can be used",
        "app/spawner/seccomp.py",
        "request_key keyctl",
        "request_key",
        SECCOMP,
    ),
    Fault(
        "io_uring can be used",
        "app/spawner/seccomp.py",
        "userfaultfd io_uring_setup",
        "userfaultfd",
        SECCOMP,
    ),
    Fault(
        "page faults can be handled",
        "app/spawner/seccomp.py",
        "perf_event_open userfaultfd",
        "perf_event_open",
        SECCOMP,
    ),
    Fault(
        "programs can be loaded into the kernel",
        "app/spawner/seccomp.py",
        "    bpf perf_event_open",
        "    perf_event_open",
        SECCOMP,
    ),
    Fault(
        "files can be opened by handle",
        "app/spawner/seccomp.py",
        "name_to_handle_at open_by_handle_at",
        "name_to_handle_at",
        SECCOMP,
    ),
    Fault(
        "x32 has other numbers for the system calls",
        "app/spawner/seccomp.py",
        "_Step(_JUMP_NOT_LESS, 0, 1, _X32)",
        "_Step(_JUMP_NOT_LESS, 1, 1, _X32)",
        SECCOMP,
    ),
    Fault(
        "a system call of another architecture is read as one of ours",
        "app/spawner/seccomp.py",
        "_unless(_ARCHITECTURE, [_AUDIT_ARCHITECTURE[machine]], nothing)",
        "_unless(_ARCHITECTURE, [_AUDIT_ARCHITECTURE[machine], 0x40000003], nothing)",
        SECCOMP,
    ),
    Fault(
        "namespaces can be made by clone",
        "app/spawner/seccomp.py",
        "_NEW_NAMESPACES = 0x7E020000",
        "_NEW_NAMESPACES = 0x6E020000",
        SECCOMP,
    ),
    Fault(
        "clone3 is denied instead of missing",
        "app/spawner/seccomp.py",
        '*self.calls("clone3", _deny(errno.ENOSYS))',
        '*self.calls("clone3", _deny(errno.EPERM))',
        SECCOMP,
    ),
    Fault(
        "what a terminal's shell reads can be written",
        "app/spawner/seccomp.py",
        "_INPUT_IOCTLS = (0x5412, 0x541C)",
        "_INPUT_IOCTLS = (0x541C,)",
        SECCOMP,
    ),
    Fault(
        "the machine's huge pages can be had",
        "app/spawner/seccomp.py",
        "_HUGE_MAPPING, _HUGE_FILE, _HUGE_SEGMENT = 0x40000, 0x4, 0x800",
        "_HUGE_MAPPING, _HUGE_FILE, _HUGE_SEGMENT = 0x40000, 0, 0x800",
        SECCOMP,
    ),
    Fault(
        "any personality can be had",
        "app/spawner/seccomp.py",
        "_HARMLESS_PERSONALITIES = (0,",
        "_HARMLESS_PERSONALITIES = (0x0040000, 0x0400000, 0,",
        SECCOMP,
    ),
    Fault(
        "multipath TCP passes by the rules for ports",
        "app/spawner/seccomp.py",
        "_IP_PROTOCOLS = (0, 1, 6, 17, 58)",
        "_IP_PROTOCOLS = (0, 1, 6, 17, 58, 262)",
        SECCOMP,
    ),
    Fault(
        "machines can be reached by VSOCK",
        "app/spawner/seccomp.py",
        "[_UNIX, _INET, _INET6, _NETLINK], _deny(errno.EAFNOSUPPORT)",
        "[_UNIX, _INET, _INET6, _NETLINK, 40], _deny(errno.EAFNOSUPPORT)",
        SECCOMP,
    ),
    Fault(
        "the connections of the machine can be listed",
        "app/spawner/seccomp.py",
        "_unless(_argument(2), [_NETLINK_ROUTE]",
        "_unless(_argument(2), [_NETLINK_ROUTE, 4]",
        SECCOMP,
    ),
    Fault(
        "Unix sockets outside can be reached",
        "app/spawner/seccomp.py",
        '*self.calls("socket", _when(_argument(0), [_UNIX], _deny(errno.EACCES))),',
        "",
        NO_UNIX,
    ),
    Fault(
        "a pair of datagram sockets reaches Unix sockets outside",
        "app/spawner/seccomp.py",
        "[_STREAM, _SEQPACKET], _deny(errno.EACCES)",
        "[_STREAM, _DATAGRAM, _SEQPACKET], _deny(errno.EACCES)",
        NO_UNIX,
    ),
    Fault(
        "datagrams can be sent without a network",
        "app/spawner/seccomp.py",
        "_unless(_argument(0), [_UNIX, _NETLINK], _deny",
        "_unless(_argument(0), [_UNIX, _NETLINK, _INET], _deny",
        NO_INTERNET,
    ),
    Fault(
        "shared memory of the same user can be found",
        "app/spawner/seccomp.py",
        "return self.calls(_SHARED_IPC, _deny(errno.EPERM))",
        "return []",
        NO_IPC,
    ),
    Fault(
        "limits of other processes can be set",
        "app/spawner/seccomp.py",
        '_OF_PROCESSES = "prlimit64 ',
        '_OF_PROCESSES = "',
        OWN_PROCESS,
    ),
    Fault(
        "priorities of other processes can be set",
        "app/spawner/seccomp.py",
        '*self.calls("setpriority ioprio_set", ',
        '*self.calls("ioprio_set", ',
        OWN_PROCESS,
    ),
    Fault(
        "root keeps its capabilities",
        "app/spawner/confinement.py",
        'yield Step("capabilities", lambda: syscalls.keep_capabilities(_kept(confinement)))',
        "pass",
        RIGHTS,
    ),
    Fault(
        "a program can get capabilities back",
        "app/spawner/syscalls.py",
        "if not kept >> capability & 1 and",
        "if False and",
        RIGHTS,
    ),
    Fault(
        "another uid comes with the groups of root",
        "app/spawner/confinement.py",
        "    os.setgroups([])\n",
        "",
        RIGHTS,
    ),
    Fault(
        "the uid stays",
        "app/spawner/confinement.py",
        "    os.setresuid(uid, uid, uid)\n",
        "",
        RIGHTS,
    ),
    Fault(
        "set-uid programs work",
        "app/spawner/child.py",
        '    yield Step("no_new_privs", syscalls.renounce_privileges)\n',
        "",
        RIGHTS,
    ),
    Fault(
        "resource limits are not set",
        "app/spawner/confinement.py",
        "        resource.setrlimit(kind, (least, least))\n",
        "        pass\n",
        RIGHTS,
    ),
    Fault(
        "a child inherits the spawner's descriptors",
        "app/spawner/confinement.py",
        "    syscalls.close_all_but(*kept)\n",
        "",
        RIGHTS,
    ),
    Fault(
        "children outlive the spawner",
        "app/spawner/child.py",
        '    yield Step("death signal", lambda: _die_with(spawner))  # a change of uid would clear it\n',
        "",
        RIGHTS,
    ),
    Fault(
        "a child runs outside of its control group",
        "app/spawner/confinement.py",
        '        os.write(descriptor, b"0")  # whoever writes\n',
        "",
        RIGHTS,
    ),
    Fault(
        "a wrapper finds no filter for what it executes",
        "app/spawner/confinement.py",
        "            kept.append(INNER_SECCOMP_FD)\n",
        "",
        RIGHTS,
    ),
)
