"""Faults of `access`: who may use which tools of a backend or a toolset, and how often."""

from tests.mutations.fault import Fault

LISTING = "app/protocol/toolset/listing.py"
FAN_OUT = "app/protocol/toolset/fan_out.py"
ALLOWED = "app/protocol/toolset/allowed.py"
POLICY = "app/auth/policy.py"
LIMITS = "app/limits/caller_limits.py"
TOOLSETS = "app/backends/connections/toolsets.py"
SHOWN = ("tests/protocol/toolset/test_listing_access.py",)
FOUND = ("tests/protocol/toolset/test_fan_out_access.py",)
NAMED = ("tests/auth/test_policy.py",)
COUNTED = ("tests/limits/test_caller_limits.py",)
OPEN = ("tests/backends/connections/test_toolsets_access.py",)
SESSIONS = ("tests/sessions/test_registry.py",)

FAULTS_OF_ACCESS = (
    # --- what is shown
    Fault(
        "nobody looks at the list of a member",
        LISTING,
        "for allowed, name in ((self._all[index].allowed, own), (self.allowed, shown)):",
        "for allowed, name in ((self.allowed, shown),):",
        SHOWN,
    ),
    Fault(
        "nobody looks at the list of a toolset",
        LISTING,
        "for allowed, name in ((self._all[index].allowed, own), (self.allowed, shown)):",
        "for allowed, name in ((self._all[index].allowed, own),):",
        SHOWN,
    ),
    Fault(
        "the list of a toolset does not hold for its guides and recipes",
        LISTING,
        "self.own = every if allowed is None else every.narrowed(allowed)",
        "self.own = every",
        SHOWN,
    ),
    Fault(
        "a tool that is not listed leaves its name to another member",
        LISTING,
        "self._tools[shown] = Withheld(index, why) if why is not None and is_listed else Unlisted(index)",
        "if why is not None and is_listed:\n                        self._tools[shown] = Withheld(index, why)",
        SHOWN,
    ),
    Fault(
        "a withheld tool says so to whoever may not use it",
        LISTING,
        "self._tools[shown] = Withheld(index, why) if why is not None and is_listed else Unlisted(index)",
        "self._tools[shown] = Withheld(index, why) if why is not None else Unlisted(index)",
        SHOWN,
    ),
    Fault(
        "a withheld tool that is gone says so to whoever may not use it",
        LISTING,
        "Withheld(index, member.withheld[own]) if is_listed else Unlisted(index))",
        "Withheld(index, member.withheld[own]))",
        SHOWN,
    ),
    Fault(
        "a prompt that is not listed is shown",
        LISTING,
        'if not (yield from self._may("prompts", index, own, shown)):',
        'if False and not (yield from self._may("prompts", index, own, shown)):',
        SHOWN,
    ),
    Fault(
        "the interface of one member's tool opens a resource of another",
        LISTING,
        "is_listed = self._uris_of_apps.get(uri) == index or",
        "is_listed = uri in self._uris_of_apps or",
        SHOWN,
    ),
    Fault(
        "a template opens what its pattern does not list",
        LISTING,
        "return found if found is not None and self.may_read(found, uri) else None",
        "return found",
        SHOWN,
    ),
    Fault(
        "a recipe calls tools for whoever may not call them",
        LISTING,
        "if any(isinstance(self._tools.get(tool), Unlisted) for tool in tools):",
        "if False:",
        SHOWN,
    ),
    Fault(
        "an index is that of what others are shown",
        LISTING,
        "return found in self._definitions or found in self.own.guides",
        "return True",
        SHOWN,
    ),
    # --- what is asked
    Fault(
        "what is in no list is read of a member whose list does not have it",
        FAN_OUT,
        'self.listing.promise("resources") if self.listing.may_read(each, uri)]',
        'self.listing.promise("resources")]',
        FOUND,
    ),
    Fault(
        "whoever may not read a resource is told that it has changed",
        FAN_OUT,
        "if method == _UPDATED and not self.listing.may_read(",
        "if False and not self.listing.may_read(",
        FOUND,
    ),
    Fault(
        "calls of tools are not counted",
        FAN_OUT,
        'if (refused := self._count(message.id, "tools", place, name)) is not None:',
        'if (refused := uncounted(message.id, "tools", place, name)) is not None:',
        FOUND,
    ),
    Fault(
        "resources are read as often as one likes",
        FAN_OUT,
        'if message.method == "resources/read":\n            refused =',
        'if message.method == "resources/reads":\n            refused =',
        FOUND,
    ),
    # --- for whom
    Fault(
        "a group of another issuer is as good",
        POLICY,
        "if who.issuer is not None and who.issuer != principal.issuer:",
        "if False:",
        NAMED,
    ),
    Fault(
        "a key is somebody of its name",
        POLICY,
        "if principal.issuer in (KEY_ISSUER, CLIENT_ISSUER):",
        "if principal.issuer in (KEY_ISSUER, CLIENT_ISSUER) and who.person is None:",
        NAMED,
    ),
    Fault(
        "all groups of a token count",
        "app/auth/tokens.py",
        "() if each in known)",
        "())",
        ("tests/auth/test_tokens_groups.py",),
    ),
    Fault(
        "a connection keeps the groups that its person had",
        "app/auth/authorization/people.py",
        "return replace(connection, scopes=scopes, groups=person.groups)",
        "return replace(connection, scopes=scopes, groups=connection.groups or person.groups)",
        ("tests/auth/authorization/test_people.py",),
    ),
    Fault(
        "who signs in with an identity provider is in no groups",
        "app/console/signing.py",
        ', groups=frozenset(me["groups"]))',
        ")",
        ("tests/console/test_signing.py",),
    ),
    Fault(
        "callers share a listing who are shown different things",
        ALLOWED,
        "isinstance(other, Allowed) and self.patterns == other.patterns",
        "isinstance(other, Allowed) and len(self.patterns) == len(other.patterns)",
        ("tests/protocol/toolset/test_allowed.py",),
    ),
    Fault(
        "a session stays in the groups that it was opened with",
        "app/sessions/session.py",
        "if principal.groups != self.principal.groups:",
        "if False:",
        SESSIONS,
    ),
    Fault(
        "groups that come while a session waits for its process are not told",
        "app/sessions/session.py",
        "if self.principal is not asked_for:",
        "if False:",
        SESSIONS,
    ),
    Fault(
        "open sessions do not follow the list of their toolset",
        TOOLSETS,
        "if opened.spec.key == spec.key and opened.spec.access != spec.access:",
        "if False:",
        OPEN,
    ),
    Fault(
        "a session that opens while a list changes has the old one",
        TOOLSETS,
        "if changes == self._changes:\n                break",
        "break",
        OPEN,
    ),
    Fault(
        "sessions go on that were opened before their backend had a list",
        "app/cluster/node_status/change_effects.py",
        "        if spec.access:\n",
        "        if False:\n",
        ("tests/cluster/test_changes.py::test_sessions_end_that_were_opened_before_their_backend_had_a_list",),
    ),
    # --- how often
    Fault(
        "a caller who is at the limit is let through once more",
        LIMITS,
        "if count.used(now) >= allowed:",
        "if count.used(now) > allowed:",
        COUNTED,
    ),
    Fault(
        "other nodes hear nothing of calls",
        LIMITS,
        "untold, self._untold = self._untold, 0",
        "untold, self._untold = 0, self._untold",
        COUNTED,
    ),
    Fault(
        "what could not be told is forgotten",
        LIMITS,
        "self._changed = {each.name: each for each in changed} | self._changed",
        "pass",
        COUNTED,
    ),
    Fault(
        "a store that has lost its counts lets everybody begin anew",
        LIMITS,
        "self._before = max(self._before, total)",
        "self._before = total",
        COUNTED,
    ),
    Fault(
        "a change of limits lets everybody begin anew",
        LIMITS,
        "plain(entry.who), entry.tools,",
        "plain(entry), entry.tools,",
        COUNTED,
    ),
)
