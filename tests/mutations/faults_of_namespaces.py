"""Faults of what a process sees in bubblewrap, and of its home."""

from tests.mutations.fault import Fault

BUBBLEWRAP = ("tests/jail/sandbox/test_bubblewrap.py",)
NEEDS = ("tests/jail/sandbox/test_needs.py",)
INNER = ("tests/jail/spawner/test_wrapped_process.py",)
WATCHER = ("tests/jail/spawner/test_watcher.py",)
HOMES = ("tests/processes/test_own_homes.py",)
DISK, RUNNING = ("tests/processes/test_disk.py",), ("tests/processes/test_supervisor.py",)
COMPOSER = ("tests/jail/sandbox/test_composer.py",)
KEEPERS = ("tests/backends/test_pool_keepers.py",)
_BUBBLEWRAP, _NEEDS = "app/jail/sandbox/_bubblewrap.py", "app/jail/sandbox/needs.py"
_INNER, _HOMES, _STOCK = (
    "app/jail/spawner/_wrapped_process.py",
    "app/processes/own_homes.py",
    "app/backends/inventory.py",
)
_CONFINEMENT = "app/jail/spawner/_confinement.py"
_DISK, _DIRECTORIES = "app/processes/_disk.py", "app/processes/_home_directories.py"

FAULTS_OF_NAMESPACES = (
    Fault("other processes are seen", _BUBBLEWRAP, '"--unshare-pid", ', "", BUBBLEWRAP),
    Fault("the machine's network is reached", _BUBBLEWRAP, 'options.append("--unshare-net")', "pass", BUBBLEWRAP),
    Fault(
        "an ordinary user makes further user namespaces",
        _BUBBLEWRAP,
        'options.append("--disable-userns")',
        "pass",
        BUBBLEWRAP,
    ),
    Fault("root stays root", _BUBBLEWRAP, '["--reuid", str(uid), "--regid", str(uid), "--clear-groups"]', "[]", BUBBLEWRAP),
    Fault("capabilities stay in the bounding set", _BUBBLEWRAP, '"--bounding-set=-all", ', "", BUBBLEWRAP),
    Fault(
        "what is read can be written",
        _BUBBLEWRAP,
        '{path: ("--ro-bind", path, path) for path in needs.read}',
        '{path: ("--bind", path, path) for path in needs.read}',
        BUBBLEWRAP,
    ),
    Fault("the root directory can be written", _BUBBLEWRAP, '("/proc", "/dev", "/")', '("/proc", "/dev")', BUBBLEWRAP),
    Fault("devices can be added", _BUBBLEWRAP, '("/proc", "/dev", "/")', '("/proc", "/")', BUBBLEWRAP),
    Fault("root sets the kernel's variables", _BUBBLEWRAP, '("/proc", "/dev", "/")', '("/dev", "/")', BUBBLEWRAP),
    Fault(
        "temporary files have no limit",
        _BUBBLEWRAP,
        'TEMPORARY: ("--perms", "1777", *size, "--tmpfs", TEMPORARY)',
        'TEMPORARY: ("--perms", "1777", "--tmpfs", TEMPORARY)',
        BUBBLEWRAP,
    ),
    Fault(
        "shared memory has no limit",
        _BUBBLEWRAP,
        '("--perms", "1777", *shared, "--tmpfs", "/dev/shm")',
        '("--perms", "1777", "--tmpfs", "/dev/shm")',
        BUBBLEWRAP,
    ),
    Fault(
        "the filter of system calls is left out inside",
        _BUBBLEWRAP,
        'command += ["--seccomp", str(INNER_SECCOMP_FD)]',
        "pass",
        INNER,
    ),
    Fault("the wrapper holds the program's pipes", _CONFINEMENT, "os.dup2(nothing, own)", "pass", INNER),
    Fault("what prepares the program counts as it", _INNER, "return bool(arguments) and not arguments.startswith(_SHELL)", "return True", INNER),
    Fault("modes that keep a tenant's user out are not named", "app/jail/spawner/_missed.py", "missed = missed or self._closed_to_user", "_ = missed or self._closed_to_user", WATCHER),
    Fault("what an access control list grants counts as closed", "app/jail/spawner/_paths_inside.py", "return bool(os.getxattr(", "return not bool(os.getxattr(", WATCHER),
    Fault("the wrapper's death leaves the program", _BUBBLEWRAP, '"--new-session", "--die-with-parent"', '"--new-session"', INNER),
    Fault("a signal ends the wrapper with the program", _BUBBLEWRAP, '"--new-session", "--die-with-parent"', '"--die-with-parent"', INNER),
    Fault("what is forbidden is opened", _NEEDS, "if _is_within(real, (each,)):", "if False:", NEEDS),
    Fault("what contains the forbidden is opened", _NEEDS, "not is_broad(directory) and not any(", "not is_broad(directory) or not any(", NEEDS),
    Fault("a home is opened for a prefix in it", _NEEDS, "if not os.path.isdir(path) or self._may_infer(path):", "if True:", NEEDS),
    Fault(
        "a failed sandbox counts as started",
        _INNER,
        "return self._code is not None and self._code not in _REASONS",
        "return True",
        INNER,
    ),
    Fault("death by a signal is told as an exit", _INNER, "if signum in signal.valid_signals() and", "if False and", INNER),
    Fault("the home of a running process is a leftover", _HOMES, "return False  # in use, or", "pass  # in use, or", HOMES),
    Fault(
        "clients read paths of the node in why a sandbox could not be made",
        "app/processes/_start_failures.py",
        "if error.stage in _OF_THE_SANDBOX:",
        "if False:",
        RUNNING,
    ),
    Fault(
        "why a sandbox could not be made is lost",
        "app/processes/process.py",
        "[error.message, *self.stderr.last_lines(1)]",
        "[error.message]",
        RUNNING,
    ),
    Fault(
        "a home that lasts has no quota",
        _HOMES,
        "(why := disk.over([str(home)], quota_bytes)) is not None",
        "(why := '')",
        HOMES,
    ),
    Fault("a refused start leaves a directory", _HOMES, "if private is not None:", "if False:", HOMES),
    Fault(
        "variables of the loader reach what confines",
        "app/jail/sandbox/composer.py",
        "environment, late = handed_in.split(environment)",
        "late: dict[str, str] = {}",
        COMPOSER,
    ),
    Fault("a process has the machine's accounts", _BUBBLEWRAP, "if room.has_accounts else []", "if False else []", COMPOSER),
    Fault("empty files count for nothing", _DISK, "max(ENTRY_BYTES, status", "max(0, status", DISK),
    Fault("deep directories are measured", _DISK, "if len(stack) >= MAX_DEPTH:", "if False:", DISK),
    Fault("the files of a running process have no limit", _DISK, 'process.kill(seen.found, limit="disk")', "pass", RUNNING),
    Fault("slow looks give time to fill the disk", _DISK, "due.free_bytes - free <= most << 20", "True", RUNNING),
    Fault("anybody's home is taken", _DIRECTORIES, " and is_of_tenant(status.st_uid)):", "):", HOMES),
    Fault("a principal gets another's process", _STOCK, "return identity if self.spec.homes_per_principal else None", "return None", KEEPERS),
)  # fmt: skip
