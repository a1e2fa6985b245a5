"""Which checks there are, and their order."""

from app.doctor import machine, network, sandbox, storage
from app.doctor.findings import Check, State
from app.doctor.subject import Subject


def examine(subject: Subject | None, settings_problem: str = "") -> list[Check]:
    """Every check, in the order in which a person would repair things."""
    checks = [machine.python()]
    if subject is None:
        checks.append(Check("settings", State.MISSING, settings_problem, "Correct it: docs/settings.md has the list."))
    else:
        checks += [
            Check("settings", State.OK, f"serves on {subject.host}:{subject.port}"),
            storage.data_dir(subject.data_dir),
            *([storage.homes(subject.homes)] if subject.homes else []),
            storage.secret_key(subject),
            storage.database(subject.database_url),
            *([network.redis(subject.redis_url), network.node_url(subject)] if subject.redis_url else []),
            network.port(subject.host, subject.port),
            machine.open_files(subject.max_processes),
            machine.memory(subject.max_processes),
        ]
    checks += machine.spawner()
    checks += [machine.runtime(name) for name in ("node", "npx", "uvx", "git")]
    return [
        *checks,
        sandbox.landlock(),
        sandbox.seccomp(),
        sandbox.namespaces(),
        sandbox.bubblewrap(),
        sandbox.cgroups(),
    ]
