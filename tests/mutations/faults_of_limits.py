"""Faults of what refusals say, and of who makes room for whom."""

from tests.mutations.fault import Fault

RECLAIMING = ("tests/sessions/test_reclaiming.py",)
PLAN = ("tests/backends/test_plan.py",)
POOL = ("tests/backends/test_pool.py",)
MEASURING = ("tests/processes/test_measuring.py",)
BUDGETS = ("tests/backends/test_pool_budgets.py", "tests/limits/test_tenant_budgets.py")
TASKS = ("tests/protocol/test_running_tasks.py",)

FAULTS_OF_LIMITS = (
    Fault(
        "a session with a call in flight makes room",
        "app/sessions/reclaiming.py",
        "    if exchange.in_flight or exchange.has_questions or session.streams.listen.attached:\n",
        "    if exchange.has_questions or session.streams.listen.attached:\n",
        RECLAIMING,
    ),
    Fault(
        "a session whose server waits for an answer makes room",
        "app/sessions/reclaiming.py",
        "exchange.in_flight or exchange.has_questions or session.streams.listen.attached",
        "exchange.in_flight or session.streams.listen.attached",
        RECLAIMING,
    ),
    Fault(
        "a session with a running task makes room",
        "app/sessions/reclaiming.py",
        " or exchange.running_tasks.is_any(now)",
        "",
        RECLAIMING,
    ),
    Fault(
        "a session that waits for its process makes room",
        "app/sessions/reclaiming.py",
        "if session.state in (SessionState.CONNECTING, SessionState.CLOSED) or",
        "if session.state is SessionState.CLOSED or",
        RECLAIMING,
    ),
    Fault(
        "the session that was idle last makes room",
        "app/sessions/reclaiming.py",
        "longest = nsmallest(count + 1, since)",
        "longest = sorted(since, reverse=True)[: count + 1]",
        RECLAIMING,
    ),
    Fault(
        "sessions make room however short they were idle",
        "app/sessions/reclaiming.py",
        "if now - at >= idle_s][:count]",
        "][:count]",
        RECLAIMING,
    ),
    Fault(
        "sessions of any backend make room",
        "app/sessions/reclaiming.py",
        "if session.spec.key == spec.key and (whose is None",
        "if (whose is None",
        RECLAIMING,
    ),
    Fault(
        "others make room for a principal that has all it may have",
        "app/sessions/reclaiming.py",
        'principal if limit == "sessions_per_principal" else None',
        "None",
        RECLAIMING,
    ),
    Fault(
        "a node that stood still ends what may be another's",
        "app/sessions/reclaiming.py",
        "if self._sessions.draining or self._standstill.is_detected():  # some may be",
        "if self._sessions.draining:  # some may be",
        RECLAIMING,
    ),
    Fault(
        "a caller ends a session though a process stops already",
        "app/backends/plan.py",
        "            if comes_free[limited] > 0:\n                comes_free[limited] -= 1\n            else:",
        "            if True:",
        PLAN,
    ),
    Fault(
        "nobody looks again when a session has been idle for long enough",
        "app/backends/pool.py",
        "        self._planning.at(stock.reclaim_at)\n",
        "",
        POOL,
    ),
    Fault(
        "a changed backend is not asked for idle sessions",
        "app/backends/backend_stock.py",
        "self.spec, self.is_forgotten, self.reclaim_at = spec, False, 0.0",
        "self.spec, self.is_forgotten = spec, False",
        POOL,
    ),
    Fault(
        "a task that has ended keeps its session for ever",
        "app/protocol/running_tasks.py",
        '        if string_of(members.get("status")) in _OVER:\n            self._until.pop(task, None)\n        elif',
        "        if",
        TASKS,
    ),
    Fault(
        "sessions of other nodes are left out of how full a tenant is",
        "app/limits/use_metrics.py",
        "gate.sessions + gate.remote_sessions",
        "gate.sessions",
        ("tests/limits/test_use_metrics.py",),
    ),
    Fault(
        "what is used changes the entity tag of a tenant",
        "app/admin/conditions.py",
        ', "use"}',
        "}",
        ("tests/admin/resources/test_tenants.py",),
    ),
    Fault(
        "who has waited in vain for a process hears of the backend's limit, whoever's it was",
        "app/backends/pool_limits.py",
        "        if most is not None and used >= most:\n            return LimitReached",
        "        if False and most is not None:\n            return LimitReached",
        POOL,
    ),
    Fault(
        "the memory of what has left its process's session and its parents is not counted",
        "app/processes/measuring.py",
        "self._by_mark.get(tree.mark_of(pid) or 0, 0)",
        "0",
        MEASURING,
    ),
    Fault(
        "what is below a process is not counted as its",
        "app/processes/measuring.py",
        "            pid = self._rows[pid].parent\n",
        "            break\n",
        MEASURING,
    ),
    Fault(
        "a tenant starts as many processes a minute as it wants",
        "app/backends/plan.py",
        "        if tenant.starts_left is None or self._new_of_tenants[name] < tenant.starts_left:\n",
        "        if True:\n",
        (*PLAN, *BUDGETS),
    ),
    Fault(
        "several starts of one plan count as one",
        "app/backends/plan.py",
        "        self._new_of_tenants[key[0]] += 1\n",
        "",
        PLAN,
    ),
    Fault(
        "starts are not counted",
        "app/backends/pool.py",
        "                    self._budgets.started(key[0])\n",
        "",
        BUDGETS,
    ),
    Fault(
        "who waits for the rate is told to come again at once",
        "app/backends/pool_limits.py",
        ".at(reached).again_after(again_after_s)",
        ".at(reached)",
        BUDGETS,
    ),
    Fault(
        "a tenant that has used up its memory may start more",
        "app/limits/tenant_budgets.py",
        "        return limit is not None and self.memory_of(tenant).total >= limit\n",
        "        return False\n",
        BUDGETS,
    ),
    Fault(
        "memory on other nodes does not count",
        "app/limits/tenant_budgets.py",
        "return self._own.get(tenant, NO_MEMORY) + self._remote.get(tenant, NO_MEMORY)",
        "return self._own.get(tenant, NO_MEMORY)",
        BUDGETS,
    ),
    Fault(
        "warm processes are started before it is known whether the tenant may",
        "app/limits/tenant_budgets.py",
        "            return NOTHING_YET\n        if self.is_over",
        "            return Allowance()\n        if self.is_over",
        BUDGETS,
    ),
    Fault(
        "each node has a rate of starts of its own",
        "app/node/gateway.py",
        "ClusterRates([gates, budgets], ",
        "ClusterRates([gates], ",
        ("tests/integration/test_process_limits.py",),
    ),
)
