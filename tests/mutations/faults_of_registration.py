"""Faults of what is stored about a backend's sandbox, and of the rule of the platform."""

from tests.mutations.fault import Fault

BODIES = ("tests/admin/resources/test_backends_sandbox.py",)
IMPORTED = ("tests/admin/importing/test_importing.py",)
RULE = ("tests/jail/sandbox/test_sandboxes_rule.py",)
MIGRATIONS = ("tests/storage/test_migrate.py",)
TENANTS = ("tests/storage/test_tenants.py",)
DECLARED = "app/domain/resources/backends.py"
PATHS = "app/admin/schemas/_sandbox.py"

FAULTS_OF_REGISTRATION = (
    Fault(
        "a secret of a server's environment is filled into its arguments",
        "app/admin/importing/_clients.py",
        "own = env if isinstance(env, dict) else ()",
        "own = ()",
        IMPORTED,
    ),
    Fault(
        "an import lets in tools that the client does not",
        "app/admin/importing/_clients.py",
        'member, found = "exclude", ["*"]',
        "pass",
        IMPORTED,
    ),
    Fault(
        "a path of Windows is told to be split",
        "app/admin/schemas/_command.py",
        "if _is_of_windows(command):",
        "if False:",
        ("tests/admin/resources/test_backends.py",),
    ),
    Fault(
        "a client is connected to a backend that does not exist",
        "app/cli/connect.py",
        "if names is not None and each not in names:",
        "if False:",
        ("tests/cli/test_connect.py",),
    ),
    Fault(
        "a client gets the address of this machine's settings instead of the gateway's",
        "app/cli/connect.py",
        "return _over_rest(options) if is_remote(options) else _of_this_machine(options)",
        "return _of_this_machine(options)",
        ("tests/cli/test_connect.py",),
    ),
    Fault(
        "a check does not say that a command would have to download what it starts",
        "app/backends/checks/backend_check.py",
        "if failure is not None and download is not None and failure.step in _BEGINNING:",
        "if False:",
        ("tests/backends/checks/test_backend_check.py",),
    ),
    Fault(
        "a server whose file says in words that it is switched off is started",
        "app/admin/importing/_clients.py",
        "is_enabled = is_enabled and word in on",
        "is_enabled = is_enabled and value is not (on is _NO)",
        IMPORTED,
    ),
    Fault(
        "of two projects' servers of one name the second has no folder in its name",
        "app/admin/importing/_projects.py",
        "_apart(source, paths[0], taken)",
        "wanted",
        IMPORTED,
    ),
    Fault(
        "of a file with servers in two containers only those of one are imported",
        "app/admin/importing/_formats.py",
        "for servers in containers for name,",
        "for servers in containers[:1] for name,",
        IMPORTED,
    ),
    Fault(
        "a server gets a number that makes its name that of another one of the file",
        "app/admin/importing/_entry.py",
        "numbered(entry.name, taken) if entry.name and",
        "numbered(entry.name, given) if entry.name and",
        IMPORTED,
    ),
    Fault(
        "of two servers whose names become the same both get it",
        "app/admin/importing/_formats.py",
        "for entry in told_apart(entries)]",
        "for entry in entries]",
        IMPORTED,
    ),
    Fault(
        "a server is lost over a header that the gateway writes itself",
        "app/admin/schemas/imports.py",
        "    entry = _without_own_headers(entry)\n",
        "",
        IMPORTED,
    ),
    Fault(
        "a server is lost over a number in its environment",
        "app/admin/importing/_placeholders.py",
        "        return values.text(value)\n",
        "        return value\n",
        IMPORTED,
    ),
    Fault(
        "what a shell downloads is not looked for",
        "app/backends/checks/downloads.py",
        "if (commands := _of_shell(line)) is not None:",
        "if (commands := None) is not None:",
        ("tests/backends/checks/test_downloads.py",),
    ),
    Fault(
        "a header whose variable is empty is taken from a file",
        "app/cli/files/gateway_file.py",
        'may_be_empty=name == "env"',
        "may_be_empty=True",
        ("tests/cli/files/test_gateway_file.py",),
    ),
    Fault(
        "a path leads out of itself by its parent",
        PATHS,
        'if ".." in parts:',
        'if ".." == path:',
        BODIES,
    ),
    Fault(
        "the whole machine can be opened for a sandbox",
        PATHS,
        "if _is_within(never, plain):",
        "if False:",
        BODIES,
    ),
    Fault(
        "what no sandbox opens, or has of its own, can be named for one",
        PATHS,
        "if _is_within(plain, never):",
        "if plain == never:",
        BODIES,
    ),
    Fault(
        "a list of required guarantees without force is taken",
        DECLARED,
        'if sandbox.require and sandbox.mode != "require":',
        "if False:",
        BODIES,
    ),
    Fault(
        "a warm process has somebody's lasting home",
        DECLARED,
        'if spec.state == "keep" and spec.warm:',
        "if False:",
        BODIES,
    ),
    Fault(
        "several principals have one lasting home",
        DECLARED,
        'if spec.state == "keep" and spec.isolation == "shared":',
        "if False:",
        BODIES,
    ),
    Fault(
        "a change of nothing is a new version where the tenant is exempt",
        "app/admin/resources/backends.py",
        ", sandbox_exempt=spec.sandbox_exempt",
        "",
        BODIES,
    ),
    Fault(
        "a backend that is off is not under the platform's rule",
        "app/jail/sandbox/sandboxes.py",
        'or sandbox.mode == "require":',
        'or sandbox.mode != "auto":',
        RULE,
    ),
    Fault(
        "every tenant is exempt from the platform's rule",
        "app/jail/sandbox/sandboxes.py",
        "or tenant_exempt or",
        "or not tenant_exempt or",
        RULE,
    ),
    Fault(
        "a list without force narrows the platform's rule",
        "app/jail/sandbox/sandboxes.py",
        'mode="require", require=()',
        'mode="require"',
        RULE,
    ),
    Fault(
        "warm processes of before the end of an exemption serve on",
        "app/storage/tenants.py",
        "            if differs:\n",
        "            if False:\n",
        TENANTS,
    ),
    Fault(
        "a backend is written while it changes whether its tenant is exempt",
        "app/storage/_specs.py",
        "query.with_for_update(read=not is_new)",
        "query",
        ("tests/storage/test_backends_postgresql.py",),
    ),
    Fault(
        "a backend of before loses its network",
        "migrations/versions/0011_sandbox.py",
        '"network": "host"',
        '"network": "none"',
        MIGRATIONS,
    ),
    Fault(
        "an older version runs without a sandbox what requires one",
        "migrations/versions/0011_sandbox.py",
        "op.execute(backends.update().where(is_required).values(off))",
        "pass",
        MIGRATIONS,
    ),
)
