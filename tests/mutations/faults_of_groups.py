"""Faults of control groups and user ids: limits of processes, their ends, a spawner that dies, whose files are whose."""

from tests.mutations.fault import Fault

GROUPS = ("tests/jail/spawner/test_cgroups.py",)
ROOTS = ("tests/jail/sandbox/test_cgroup_roots.py",)
RESTART = ("tests/jail/spawner/test_clean_up.py",)
UIDS = ("tests/jail/sandbox/test_uids.py",)
CALLERS = ("tests/processes/test_connection.py",)

FAULTS_OF_GROUPS = (
    Fault(
        "a process has no memory limit",
        "app/jail/spawner/cgroups.py",
        'if "memory_bytes" in self._cgroup:',
        'if "no_bytes" in self._cgroup:',
        GROUPS,
    ),
    Fault(
        "a process may fork without end",
        "app/jail/spawner/cgroups.py",
        'if "pids" in self._cgroup:',
        'if "no_pids" in self._cgroup:',
        GROUPS,
    ),
    Fault(
        "a process has every core",
        "app/jail/spawner/cgroups.py",
        'if "cpu" in self._cgroup:',
        'if "no_cpu" in self._cgroup:',
        GROUPS,
    ),
    Fault(
        "a tenant has no memory limit",
        "app/jail/spawner/cgroups.py",
        'self.limit_tenant(self._cgroup.get("tenant_memory_bytes"))',
        "self.limit_tenant(None)",
        GROUPS,
    ),
    Fault(
        "a process does not join its group",
        "app/jail/spawner/_server.py",
        "Prepared(group.joins if group is not None else (), ",
        "Prepared((), ",
        GROUPS,
    ),
    Fault(
        "what has left its tree is not killed with its group",
        "app/jail/spawner/_started_processes.py",
        "        return self.group is not None and self.group.kill()\n",
        "        return False\n",
        GROUPS,
    ),
    Fault(
        "groups are never removed",
        "app/jail/spawner/_started_processes.py",
        " and (self.group is None or self.group.remove())",
        "",
        GROUPS,
    ),
    Fault(
        "every SIGKILL is said to be a memory limit",
        "app/jail/spawner/cgroups.py",
        "        if not self.usage().oom_kills:\n",
        "        if False:\n",
        (*GROUPS, *CALLERS),
    ),
    Fault(
        "a process that was killed on purpose is said to have reached a limit",
        "app/jail/spawner/_server.py",
        '            if process.id not in self._ending:\n                report["limit"]',
        '            if True:\n                report["limit"]',
        GROUPS,
    ),
    Fault(
        "a tenant's memory limit is taken for the process's",
        "app/jail/spawner/cgroups.py",
        "        if self._was_full(self._directories[memory]):\n",
        "        if memory:\n",
        (*GROUPS, *CALLERS),
    ),
    Fault(
        "callers are not told which limit ended the process",
        "app/http/errors.py",
        '        data["limit"] = error.limit\n',
        "        pass\n",
        CALLERS,
    ),
    Fault(
        "a living node's groups are taken for a dead one's",
        "app/jail/sandbox/cgroup_roots.py",
        "        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "        pass\n",
        ROOTS,
    ),
    Fault(
        "what a dead node has left lives on",
        "app/jail/sandbox/cgroup_roots.py",
        "                        _end(str(directory))\n",
        "                        pass\n",
        ROOTS,
    ),
    Fault(
        "a node stays in the group whose controllers it needs",
        "app/jail/sandbox/cgroup_roots.py",
        "            if error.errno != errno.EBUSY or not _is_given_to_us(base):\n",
        "            if error.errno:\n",
        ROOTS,
    ),
    Fault(
        "a spawner that has died is not replaced",
        "app/jail/spawner/client.py",
        "        if self._restarting is None and not self._closed:\n",
        "        if False:\n",
        RESTART,
    ),
    Fault(
        "control groups of a dead spawner are left",
        "app/jail/spawner/_clean_up.py",
        "if group.kill() or not group.remove()]",
        "if False]",
        RESTART,
    ),
    Fault(
        "the end of a spawner ends processes of the next one",
        "app/jail/spawner/client.py",
        "startswith(self._prefix) and process_id not in self._processes:",
        "startswith(self._prefix):",
        RESTART,
    ),
    Fault(
        "the end of one spawner ends processes of another client",
        "app/jail/spawner/client.py",
        "if process_id.startswith(self._prefix) and",
        "if",
        RESTART,
    ),
    Fault(
        "two nodes read the table of user ids before either has written",
        "app/jail/sandbox/uids.py",
        "        fcntl.flock(table, fcntl.LOCK_EX)\n",
        "        pass\n",
        UIDS,
    ),
    Fault(
        "the user id of a home that is there is given to another tenant",
        "app/jail/sandbox/uids.py",
        " and not os.path.lexists(homes / names[uid])]",
        "]",
        UIDS,
    ),
    Fault(
        "a tenant gets the user id of an account",
        "app/jail/sandbox/uids.py",
        "if uid not in running and not _is_account(uid):",
        "if uid not in running:",
        UIDS,
    ),
    Fault(
        "a tenant gets the user id of somebody's processes",
        "app/jail/sandbox/uids.py",
        "if uid not in running and not _is_account(uid):",
        "if not _is_account(uid):",
        UIDS,
    ),
    Fault(
        "a file that is also outside of the home is given away with it",
        "app/jail/sandbox/uids.py",
        " and status.st_nlink == 1",
        "",
        UIDS,
    ),
    Fault(
        "a node that is stopped while it opens leaves control groups",
        "app/node/parts/sandboxing.py",
        "await asyncio.shield(opened)",
        "await opened",
        ("tests/node/parts/test_sandboxing.py",),
    ),
)
