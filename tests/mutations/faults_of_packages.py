"""Faults of packages: what a hostile one, or a registry, could do with them."""

from tests.mutations.fault import Fault

PACKAGES, LOCK = ("tests/backends/packages/test_packages.py",), ("tests/backends/packages/test_lock.py",)
REGISTRIES = ("tests/backends/packages/test_registries.py",)
BY_PROXY = ("tests/backends/packages/test_workshop.py",)
UPDATES = ("tests/admin/resources/test_package_updates.py",)
PERMITTED, ASKED = ("tests/backends/packages/test_permitted.py",), ("tests/admin/resources/test_backends_packages.py",)
_PERMITTED, _RIGHTS = "app/backends/packages/permitted.py", "app/admin/_backend_rights.py"
_PYPI, _LOCK = "app/backends/packages/_pypi.py", "app/backends/packages/_lock.py"
_REGISTRIES, _STORE = "app/backends/packages/registries.py", "app/backends/packages/store.py"

FAULTS_OF_PACKAGES = (
    Fault("paths in the arguments of a tenant's package are opened", _PERMITTED, 'path.startswith("/") or', "", PERMITTED),
    Fault("so are those that lead out of its home", _PERMITTED, 'or ".." in path.split("/")', "", PERMITTED),
    Fault("source distributions are built", _PYPI, '_ONLY_BUILT = ("--only-binary", ":all:")', "_ONLY_BUILT = ()", PACKAGES),
    Fault(
        "a wheel brings the environment that it runs in",
        "app/backends/packages/packages.py",
        "links = await anyio.to_thread.run_sync(tool.furnish, lock, building)",
        "links = {}",
        PACKAGES,
    ),
    Fault(
        "path files of a package open directories",
        "app/jail/sandbox/needs.py",
        "for place in () if _is_within(root, self._installed) else _editable(root):",
        "for place in _editable(root):",
        PACKAGES,
    ),
    Fault(
        "another lock is taken for the one that is named",
        _LOCK,
        "if hashlib.sha256(text.encode()).hexdigest() != expected:",
        "if not text:",
        LOCK,
    ),
    Fault("a package of npm needs no hash", _LOCK, 'if not each.get("inBundle") and', "if False and", LOCK),
    Fault("any host is a registry", _REGISTRIES, "if len(self._others | {host}) > MAX_OTHER_HOSTS:", "if False:", REGISTRIES),
    Fault(
        "registries are reached past the node's proxy",
        "app/backends/packages/workshop.py",
        "rule=rule, proxy=proxy, is_counted=False",
        "rule=rule, is_counted=False",
        BY_PROXY,
    ),
    Fault(
        "one tenant has all places for installations",
        "app/backends/packages/packages.py",
        "async with own, self._places:",
        "async with self._places:",
        PACKAGES,
    ),
    Fault(
        "a registry that is silent ends the list of what is outdated",
        "app/backends/packages/packages.py",
        "return _Problem(str(error))",
        "raise",
        PACKAGES,
    ),
    Fault(
        "a version that does not start is stored",
        "app/admin/resources/package_updates.py",
        'return _answer(spec, changed, failure=FailureAnswer(**asdict(failure_of("tools", error))))',
        "offer = (await access.admin.catalog.entries(access.tenant, [spec.name]))[spec.name].offer",
        UPDATES,
    ),
    Fault(
        "changed tools of an update are called until the catalogue asks",
        "app/admin/resources/package_updates.py",
        "await access.admin.catalog.note(stored, offer)",
        "access.admin.catalog.used(stored)",
        UPDATES,
    ),
    Fault(
        "who may read a tenant sees what is wrong with the platform's registries",
        "app/admin/resources/package_updates.py",
        "problem = found.problem if in_full or found.problem is None else _NOT_KNOWN",
        "problem = found.problem",
        UPDATES,
    ),
    Fault(
        "nodes hear of no update",
        "app/cluster/_affected.py",
        '"change" | "update" | "delete"] |',
        '"change" | "delete"] |',
        UPDATES,
    ),
    Fault("one listed package brings others along", _PERMITTED, "and all(any(fnmatchcase", "and any(any(fnmatchcase", PERMITTED),
    Fault("what a tenant registers may have paths of the node", _PERMITTED, 'replace(sandbox, network="none") == usual.sandbox', "True", PERMITTED),
    Fault("what a tenant registers may have a volume", _PERMITTED, "return () if image.mounts else", "return", PERMITTED),
    Fault("what a tenant starts tells the secrets of the platform", _RIGHTS, "if spec.env.keys() - given:", "if False:", ASKED),
    Fault("who has asked for a package switches it on", "app/admin/resources/backends.py", "reason=reason, off_by_platform=True", "reason=reason", ASKED),
    Fault("a check starts what the platform has not granted", _RIGHTS, "if spec.off_by_platform and not", "if False and not", ASKED),
    Fault("a list that was shortened meanwhile counts", "app/admin/resources/backends.py", "return _as_request(access, spec) if await is_only_asked_for(access, spec) else spec", "return spec", ASKED),
    Fault("what is half installed stays", _STORE, "if name.startswith(_BUILDING) and", "if False and", PACKAGES),
)  # fmt: skip
