"""Named faults, each with the tests that must notice it. `scripts/mutate` puts them in, one at a time.

The list holds what has gone wrong, or would hurt most if it did: guards left out, limits off by one, what is not given
back, checks the wrong way round. After a change of the code here named, change the entry with it: a text that is not
found exactly once is an error.
"""

from tests.mutations.fault import Fault
from tests.mutations.faults_of_access import FAULTS_OF_ACCESS
from tests.mutations.faults_of_administration import FAULTS_OF_ADMINISTRATION
from tests.mutations.faults_of_backends import FAULTS_OF_BACKENDS
from tests.mutations.faults_of_changes import FAULTS_OF_CHANGES
from tests.mutations.faults_of_dialogues import FAULTS_OF_DIALOGUES
from tests.mutations.faults_of_egress import FAULTS_OF_EGRESS
from tests.mutations.faults_of_groups import FAULTS_OF_GROUPS
from tests.mutations.faults_of_images import FAULTS_OF_IMAGES
from tests.mutations.faults_of_inspections import FAULTS_OF_INSPECTIONS
from tests.mutations.faults_of_limits import FAULTS_OF_LIMITS
from tests.mutations.faults_of_namespaces import FAULTS_OF_NAMESPACES
from tests.mutations.faults_of_nodes import FAULTS_OF_NODES
from tests.mutations.faults_of_odd_messages import FAULTS_OF_ODD_MESSAGES
from tests.mutations.faults_of_openapi import FAULTS_OF_OPENAPI
from tests.mutations.faults_of_packages import FAULTS_OF_PACKAGES
from tests.mutations.faults_of_registration import FAULTS_OF_REGISTRATION
from tests.mutations.faults_of_sign_in import FAULTS_OF_SIGN_IN
from tests.mutations.faults_of_streams import FAULTS_OF_STREAMS
from tests.mutations.faults_of_switches import FAULTS_OF_SWITCHES
from tests.mutations.faults_of_the_edge import FAULTS_OF_THE_EDGE
from tests.mutations.faults_of_the_eras import FAULTS_OF_THE_ERAS
from tests.mutations.faults_of_the_home import FAULTS_OF_THE_HOME
from tests.mutations.faults_of_the_kernel import FAULTS_OF_THE_KERNEL
from tests.mutations.faults_of_the_log import FAULTS_OF_THE_LOG
from tests.mutations.faults_of_the_sandbox import FAULTS_OF_THE_SANDBOX
from tests.mutations.faults_of_toolsets import FAULTS_OF_TOOLSETS
from tests.mutations.faults_of_upstreams import FAULTS_OF_UPSTREAMS

PROTOCOL = ("tests/protocol/test_exchange.py",)
TOKENS = ("tests/auth/test_tokens.py", "tests/auth/test_tokens_refused.py")
PLATFORM = ("tests/auth/test_tokens_of_the_platform.py",)
PLATFORM_STORED = ("tests/storage/access/test_issuers_of_the_platform.py",)
KEYS = ("tests/auth/test_api_keys.py",)
POLICY = ("tests/auth/test_policy.py",)
GATES = ("tests/limits/test_tenant_limits.py", "tests/limits/test_bucket.py")
PLAN = ("tests/backends/test_plan.py",)
WAITS = ("tests/http/transports/test_front_still_allowed.py",)
POOL = ("tests/backends/test_pool.py", "tests/backends/test_pool_breaker.py")

FAULTS = (
    # --- whose answer is whose
    Fault(
        "an answer is matched by the client's own id",
        "app/protocol/exchange.py",
        "line = dump_request(gateway_id, message.method, params)",
        "line = dump_request(message.id, message.method, params)",
        PROTOCOL,
    ),
    Fault(
        "a second request with an id in flight replaces the first",
        "app/protocol/exchange.py",
        "if message.id in self._by_client_id:",
        "if False and message.id in self._by_client_id:",
        PROTOCOL,
    ),
    Fault(
        "an answered call stays in the table",
        "app/protocol/exchange.py",
        "call = self.calls.pop(message.id, None)",
        "call = self.calls.get(message.id, None)",
        PROTOCOL,
    ),
    Fault(
        "the client's id of an answered call stays taken",
        "app/protocol/exchange.py",
        "            del self._by_client_id[call.id]\n            if call.about_task",
        "            if call.about_task",
        PROTOCOL,
    ),
    Fault(
        "progress goes out with our own token",
        "app/protocol/exchange.py",
        'params["progressToken"] = msgspec.Raw(call.progress_token)',
        'params["progressToken"] = msgspec.Raw(call.gateway_id)',
        PROTOCOL,
    ),
    Fault(
        "progress of a cancelled call is passed on",
        "app/protocol/exchange.py",
        "if call is None or call.progress_token is None or call.cancelled:",
        "if call is None or call.progress_token is None:",
        PROTOCOL,
    ),
    Fault(
        "one call more than may be is with the backend",
        "app/protocol/exchange.py",
        "if len(self.calls) >= limit and",
        "if len(self.calls) > limit and",
        PROTOCOL,
    ),
    Fault(
        "one call more than may wait waits",
        "app/protocol/exchange.py",
        "if would_wait > self.max_waiting or",
        "if would_wait > self.max_waiting + 1 or",
        PROTOCOL,
    ),
    Fault(
        "the clock of a call starts while it waits",
        "app/protocol/commands.py",
        "self.waited_s, self.deadline = now - self.started, now + patience_s",
        "self.waited_s = now - self.started",
        PROTOCOL,
    ),
    Fault(
        "a call that was cancelled keeps its turn",
        "app/protocol/exchange.py",
        "        self.waiting.take(call.gateway_id)\n        del self._by_client_id[call.id]",
        "        del self._by_client_id[call.id]",
        PROTOCOL,
    ),
    Fault(
        "a question is answered twice",
        "app/protocol/questions.py",
        "question = self.open.pop(our_id, None)\n        if question is None:\n            return None\n        del self",
        "question = self.open.get(our_id)\n        if question is None:\n            return None\n        del self",
        PROTOCOL,
    ),
    Fault(
        "initialize can be cancelled",
        "app/protocol/exchange.py",
        'if call is None or call.method == "initialize":',
        "if call is None:",
        PROTOCOL,
    ),
    Fault(
        "an overdue call is not told to the backend",
        "app/protocol/exchange.py",
        'if call.method != "initialize":\n        yield',
        'if call.method == "initialize":\n        yield',
        PROTOCOL,
    ),
    Fault(
        "progress extends a handshake",
        "app/protocol/exchange.py",
        'if call.method != "initialize":  # until',
        "if True:  # until",
        PROTOCOL,
    ),
    # --- one process, several principals
    Fault(
        "a task is anybody's",
        "app/protocol/shared/_task_owners.py",
        "return known is not None and known.principal == principal",
        "return known is not None",
        ("tests/protocol/shared/test_multiplex.py",),
    ),
    Fault(
        "a task that two were given stays the second's",
        "app/protocol/shared/_task_owners.py",
        "            if known.principal != principal:\n                return\n",
        "",
        ("tests/protocol/shared/test_multiplex.py",),
    ),
    Fault(
        "a cursor of the process is told to the client",
        "app/protocol/shared/_task_owners.py",
        "= encoded(cursor)",
        '= members_of(result)["nextCursor"]',
        ("tests/protocol/shared/test_multiplex.py",),
    ),
    Fault(
        "what names no call goes to all unasked",
        "app/protocol/shared/multiplex.py",
        "if not self._broadcast:",
        "if False:",
        ("tests/protocol/shared/test_multiplex.py",),
    ),
    Fault(
        "all hear the lowest log level",
        "app/protocol/shared/_log_levels.py",
        "return level in LEVELS and LEVELS.index(level) >= self._wanted.get(who, USUAL)",
        "return True",
        ("tests/protocol/shared/test_multiplex.py",),
    ),
    Fault(
        "a subscription matches the beginning of a path element",
        "app/protocol/shared/subscriptions.py",
        "return uri == subscribed or (uri.startswith(subscribed) and subscribed in _above(uri))",
        "return uri.startswith(subscribed)",
        ("tests/protocol/shared/test_multiplex.py",),
    ),
    # --- lines of backends
    Fault(
        "a line one byte over the limit is kept",
        "app/protocol/framing.py",
        "elif len(self._partial) + len(data) <= self._limit:",
        "elif len(self._partial) + len(data) <= self._limit + 1:",
        ("tests/protocol/test_framing.py",),
    ),
    Fault(
        "what follows an overlong line is lost",
        "app/protocol/framing.py",
        "[-END_BYTES:]))\n            return self.feed(data[end + 1 :])",
        "[-END_BYTES:]))\n            return []",
        ("tests/protocol/test_framing.py",),
    ),
    Fault(
        "the end of an overlong line is not looked at",
        "app/protocol/tolerant.py",
        "named = _ends_with_id(end)",
        "pass",
        (
            "tests/protocol/test_exchange.py",
            "tests/protocol/shared/test_multiplex.py",
            "tests/protocol/test_tolerant.py",
        ),
    ),
    Fault(
        "an overlong question ends the call of the same id",
        "app/protocol/tolerant.py",
        'rb"\\{\\s*%b%b\\s*,\\s*%b%b" % (_VERSION_FIRST, _ID, _VERSION_FIRST, _OUTCOME)',
        'rb"\\{\\s*%b%b\\s*," % (_VERSION_FIRST, _ID)',
        (
            "tests/protocol/test_exchange.py",
            "tests/protocol/shared/test_multiplex.py",
            "tests/protocol/test_tolerant.py",
        ),
    ),
    Fault(
        "a broken question ends the call of the same id",
        "app/protocol/tolerant.py",
        "return Broken(asks=request_id)",
        "return Broken(answers=request_id)",
        ("tests/protocol/test_exchange.py", "tests/protocol/shared/test_multiplex.py"),
    ),
    Fault(
        "a progress token in what cannot be read passes as it came",
        "app/protocol/exchange.py",
        'meta = readable_members_of(params["_meta"])',
        'meta = members_of(params["_meta"])',
        ("tests/protocol/test_exchange.py",),
    ),
    Fault(
        "each message of a line may take as many steps as a line",
        "app/protocol/tolerant.py",
        "children = _Children(_STRICT, line, at, steps + 1)",
        "children = _Children(_STRICT, line, at)",
        ("tests/protocol/test_tolerant.py",),
    ),
    Fault(
        "JSON that msgspec refuses may say a key twice",
        "app/protocol/jsonrpc.py",
        "    members = tolerant.members(body)\n    _require_unique(members)\n",
        "    members = tolerant.members(body)\n",
        ("tests/protocol/test_jsonrpc.py",),
    ),
    # --- who is let in
    Fault(
        "the algorithm of a token is the token's choice",
        "app/auth/token_rules.py",
        "is_right = isinstance(name, str) and name in known",
        "is_right = isinstance(name, str)",
        TOKENS,
    ),
    Fault(
        "a public key is a secret for HS256",
        "app/auth/_ciphers.py",
        "(name == HMAC) != isinstance(key, bytes)",
        "False",
        TOKENS,
    ),
    Fault(
        "a token is good for any audience",
        "app/auth/token_rules.py",
        "and not set(accepted).isdisjoint(listed)",
        "and listed",
        TOKENS,
    ),
    Fault(
        "a token that has expired is let in",
        "app/auth/token_rules.py",
        "if now >= exp + LEEWAY_S:",
        "if now >= exp + 10 * LEEWAY_S:",
        TOKENS,
    ),
    Fault(
        "a token lives as long as it says",
        "app/auth/token_rules.py",
        "is_right = 0 < exp - iat <= MAX_LIFE_S",
        "is_right = 0 < exp - iat",
        TOKENS,
    ),
    Fault(
        "headers that name keys are taken",
        "app/auth/token_rules.py",
        "    if refused:\n",
        "    if False:\n",
        TOKENS,
    ),
    Fault(
        "the tenant claim of a token is not compared",
        "app/auth/token_rules.py",
        "None if named == case.tenant else",
        "None if named else",
        TOKENS,
    ),
    Fault(
        "a token of the platform's issuer opens every tenant of its list",
        "app/auth/token_rules.py",
        "claim(case.sent.claims, served.claim), served.within(case.tenant).map",
        "claim(case.sent.claims, served.claim), served.map",
        PLATFORM,
    ),
    Fault(
        "what a value confers in its tenant it confers in all",
        "app/auth/tokens.py",
        "here = case.issuer.tenants.within(case.tenant)",
        "here = case.issuer.tenants",
        PLATFORM,
    ),
    Fault(
        "a tenant that the token does not name is open to it",
        "app/auth/token_rules.py",
        "if here.keys().isdisjoint(named):",
        "if not named:",
        PLATFORM,
    ),
    Fault(
        "a tenant's own issuer goes before the platform's",
        "app/storage/access/issuers.py",
        "query.order_by(issuers.c.tenants_claim.is_(None))",
        "query.order_by(issuers.c.tenants_claim.is_not(None))",
        PLATFORM_STORED,
    ),
    Fault(
        "an issuer of the platform opens the tenant that it stands in",
        "app/storage/access/issuers.py",
        "own = and_(issuers.c.tenant == tenant, issuers.c.tenants_claim.is_(None))",
        "own = issuers.c.tenant == tenant",
        PLATFORM_STORED,
    ),
    Fault(
        "a token confers what its issuer may not",
        "app/auth/tokens.py",
        "return capped(asked, case.tenant, case.issuer.max_scopes)",
        "return frozenset(asked)",
        TOKENS,
    ),
    Fault(
        "names that stand twice in a token are taken",
        "app/auth/_token_form.py",
        "if len(members) != len(pairs):",
        "if len(members) > len(pairs):",
        TOKENS,
    ),
    Fault(
        "the secret of a key is not compared",
        "app/auth/api_keys.py",
        "        if not right:\n",
        "        if not right and False:\n",
        KEYS,
    ),
    Fault(
        "a revoked key is let in",
        "app/auth/api_keys.py",
        "if record.revoked_at is not None:",
        "if record.revoked_at is not None and record.revoked_at > now:",
        KEYS,
    ),
    Fault(
        "a key is let in at the moment when it expires",
        "app/auth/api_keys.py",
        "record.expires_at <= now:",
        "record.expires_at < now:",
        KEYS,
    ),
    Fault(
        "uses of keys are lost when the store is away",
        "app/auth/api_keys.py",
        "self._used = {**used, **self._used}",
        "self._used = {**self._used}",
        KEYS,
    ),
    Fault(
        "a platform administrator of any tenant is one",
        "app/auth/policy.py",
        "return Scope.PLATFORM_ADMIN in principal.scopes and principal.tenant == DEFAULT_TENANT",
        "return Scope.PLATFORM_ADMIN in principal.scopes",
        POLICY,
    ),
    Fault(
        "scopes count in every tenant",
        "app/auth/policy.py",
        "if principal.tenant != tenant or is_platform_scope(scope):",
        "if is_platform_scope(scope):",
        POLICY,
    ),
    Fault(
        "who administers a tenant grants what they do not hold",
        "app/auth/policy.py",
        "        and has_scope(principal, tenant, scope)\n        and (tenant",
        "        and (tenant",
        POLICY,
    ),
    Fault(
        "whoever may connect to one backend may connect to all",
        "app/auth/policy.py",
        "return has_scope(principal, tenant, CONNECT_ONE + backend)",
        "return principal.tenant == tenant",
        POLICY,
    ),
    # --- limits
    Fault(
        "a tenant has one session more than it may",
        "app/limits/tenant_limits.py",
        "if limits.sessions is not None and self.sessions >= limits.sessions:",
        "if limits.sessions is not None and self.sessions > limits.sessions:",
        GATES,
    ),
    Fault(
        "the calls of a closed session stay counted",
        "app/limits/tenant_limits.py",
        "        self.begun -= begun",
        "        self.begun -= 0",
        GATES,
    ),
    Fault(
        "a closed session stays counted",
        "app/limits/tenant_limits.py",
        "self.sessions -= 1\n        self.begun -= begun",
        "self.sessions -= 0\n        self.begun -= begun",
        GATES,
    ),
    Fault(
        "an ended call stays counted",
        "app/limits/tenant_limits.py",
        '"""Undoes `begin_call`."""\n        self.in_flight -= 1',
        '"""Undoes `begin_call`."""\n        self.in_flight -= 0',
        GATES,
    ),
    Fault(
        "calls on other nodes do not count",
        "app/limits/tenant_limits.py",
        "self.in_flight + self.remote_in_flight >= limit",
        "self.in_flight >= limit",
        ("tests/limits/test_tenant_limits.py", "tests/cluster/test_cluster_use.py"),
    ),
    Fault(
        "a refused request costs a token",
        "app/limits/bucket.py",
        "        self._tokens = tokens\n        return (1.0 - tokens) / self.rate",
        "        self._tokens = tokens - 1.0\n        return (1.0 - tokens) / self.rate",
        GATES,
    ),
    Fault(
        "a bucket fills beyond its burst",
        "app/limits/bucket.py",
        "tokens = min(self.burst, self._tokens + (now - self._at) * self.rate)",
        "tokens = self._tokens + (now - self._at) * self.rate",
        GATES,
    ),
    # --- processes
    Fault(
        "a tenant takes one process more than it may",
        "app/backends/_plan.py",
        "if tenant.limit is not None and tenant.used + self._taken[key[0]] >= tenant.limit:",
        "if tenant.limit is not None and tenant.used + self._taken[key[0]] > tenant.limit:",
        PLAN,
    ),
    Fault(
        "the first tenant in the queue is always served first",
        "app/backends/_waiting_callers.py",
        "            self._queues.move_to_end(waiter.tenant)",
        "            pass",
        ("tests/backends/test_waiting_callers.py",),
    ),
    Fault(
        "a node starts one process more than it may",
        "app/backends/_plan.py",
        "is_full = self._view.node.alive + self._new.total() >= self._view.node.limit",
        "is_full = self._view.node.alive + self._new.total() > self._view.node.limit",
        PLAN,
    ),
    Fault(
        "the breaker never opens",
        "app/backends/_breaker.py",
        "was_open, self.is_open = self.is_open, self._in_a_row >= OPENING_DEATHS",
        "was_open, self.is_open = self.is_open, self._in_a_row > 99",
        ("tests/backends/test_breaker.py", *POOL),
    ),
    Fault(
        "callers wait for a start that is later than they may wait",
        "app/backends/_early_deaths.py",
        "breaker.retry_after_s(now) > patience_s or (breaker.is_open and stock.allowance(now) == 0)",
        "breaker.is_open and stock.allowance(now) == 0",
        POOL,
    ),
    Fault(
        "who waits goes on waiting when the next start gets too late",
        "app/backends/_early_deaths.py",
        "next_at = math.inf if stock.breaker.is_open else now + stock.breaker.retry_after_s(now)",
        "next_at = math.inf if stock.breaker.is_open else now",
        POOL,
    ),
    Fault(
        "who has waited for a backend that keeps dying is told that it is busy",
        "app/backends/pool.py",
        "return self._deaths.held_back(stock) or self._limits",
        "return self._limits",
        POOL,
    ),
    Fault(
        "callers wait for a rate that lets none start for longer than they may wait",
        "app/backends/pool.py",
        "            self._limits.refuse_for_rate(spec.tenant, patience_s)\n",
        "            pass\n",
        ("tests/backends/test_pool_budgets.py",),
    ),
    Fault(
        "a check gives no start longer than it may take by default",
        "app/backends/checks/backend_check.py",
        "return max(0.0, timeouts.initialize_s - Timeouts().initialize_s)",
        "return 0.0",
        ("tests/backends/checks/test_backend_check.py", "tests/backends/catalog/test_catalog.py"),
    ),
    Fault(
        "a session that gives its dead process back makes it no early death",
        "app/backends/inventory.py",
        "return self.lease is None or not self.lease.has_shaken_hands",
        "return self.lease is None",
        ("tests/integration/test_breaker.py",),
    ),
    Fault(
        "the back-off does not grow",
        "app/backends/_breaker.py",
        "FIRST_DELAY_S * 2 ** min(self._in_a_row - 1, 16)",
        "FIRST_DELAY_S",
        ("tests/backends/test_breaker.py",),
    ),
    # --- after a wait, and after the end
    Fault(
        "who has waited is not asked again",
        "app/http/transports/request.py",
        "            if count == since:\n",
        "            if True or count == since:\n",
        WAITS,
    ),
    Fault(
        "a session that is made in the moment of a revocation stays",
        "app/sessions/registry.py",
        "            await still_allowed()\n",
        "",
        WAITS,
    ),
    Fault(
        "a session that is taken over while its key is revoked stays",
        "app/http/remote/remote_sessions.py",
        '                session.close("key_revoked")\n',
        "                pass\n",
        ("tests/http/remote/test_remote_sessions.py",),
    ),
    Fault(
        "streams outlive their credential",
        "app/auth/authenticator.py",
        "due = [hold for hold in self._holds if hold.expires_at <= now]",
        "due: list[_Hold] = []",
        ("tests/auth/test_authenticator_credential_expiry.py",),
    ),
    Fault(
        "a call that was sent is refused as if it had not been",
        "app/sessions/endings.py",
        "return NodeLost() if cause in GOES_ON else call_under_way(cause)",
        "return ShuttingDown() if cause in GOES_ON else call_under_way(cause)",
        ("tests/sessions/test_session_outcomes.py",),
    ),
    Fault(
        "a call has its turn before the session is proved to be ours",
        "app/sessions/_calls.py",
        "if self._is_giving_turns or self._standstill.is_detected():",
        "if self._is_giving_turns:",
        ("tests/sessions/test_calls.py",),
    ),
    Fault(
        "a call has its turn after its credential has expired",
        "app/sessions/_calls.py",
        "if call.stream is not Listen.STREAM and is_past(call.stream.expires_at):",
        "if False:",
        ("tests/sessions/test_calls.py",),
    ),
    Fault(
        "a batch is begun that does not fit whole",
        "app/http/transports/streamable_http.py",
        "session.calls.require_room(counted, len(requests), size)",
        "pass",
        ("tests/integration/test_calls_at_once.py",),
    ),
    Fault(
        "a refusal of a later round counts as one of the call",
        "app/backends/connections/_bridged.py",
        "if is_refusal(error) else error",
        "if False and is_refusal(error) else error",
        ("tests/backends/connections/test_bridged.py",),
    ),
    *FAULTS_OF_THE_HOME,
    *FAULTS_OF_THE_KERNEL,
    *FAULTS_OF_THE_LOG,
    *FAULTS_OF_THE_SANDBOX,
    *FAULTS_OF_TOOLSETS,
    *FAULTS_OF_UPSTREAMS,
    *FAULTS_OF_THE_ERAS,
    *FAULTS_OF_ODD_MESSAGES,
    *FAULTS_OF_THE_EDGE,
    *FAULTS_OF_EGRESS,
    *FAULTS_OF_LIMITS,
    *FAULTS_OF_NAMESPACES,
    *FAULTS_OF_NODES,
    *FAULTS_OF_IMAGES,
    *FAULTS_OF_PACKAGES,
    *FAULTS_OF_ACCESS,
    *FAULTS_OF_ADMINISTRATION,
    *FAULTS_OF_BACKENDS,
    *FAULTS_OF_GROUPS,
    *FAULTS_OF_OPENAPI,
    *FAULTS_OF_REGISTRATION,
    *FAULTS_OF_CHANGES,
    *FAULTS_OF_DIALOGUES,
    *FAULTS_OF_SIGN_IN,
    *FAULTS_OF_STREAMS,
    *FAULTS_OF_INSPECTIONS,
    *FAULTS_OF_SWITCHES,
)
