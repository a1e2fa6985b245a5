"""Faults of toolsets, of what the catalogue knows, and of what is approved."""

from tests.mutations.fault import Fault

FAN_OUT = ("tests/protocol/toolset/test_fan_out.py",)
LISTING = ("tests/protocol/toolset/test_listing.py",)
CATALOG = ("tests/catalog/test_catalog.py",)
DECIDING = ("tests/catalog/test_deciding.py",)
JUDGING = ("tests/catalog/test_judging.py",)
PATTERNS = ("tests/search/test_patterns.py",)
RUNS = ("tests/protocol/toolset/test_recipe_runs.py",)
STORED = ("tests/storage/tools/test_toolsets.py",)

FAULTS_OF_TOOLSETS = (
    Fault(
        "a member answers the call of another one",
        "app/protocol/toolset/member_calls.py",
        "return call if call is not None and call.member == member else None",
        "return call",
        FAN_OUT,
    ),
    Fault(
        "a member asks without end",
        "app/protocol/toolset/fan_out.py",
        "if not self._questions.may_open(member, message.id):",
        "if False:",
        FAN_OUT,
    ),
    Fault(
        "a withheld tool is listed and called",
        "app/protocol/toolset/listing.py",
        "if why is not None:\n                    self._tools[shown]",
        "if False:\n                    self._tools[shown]",
        LISTING,
    ),
    Fault(
        "a refused tool is called at another member that has one of this name",
        "app/protocol/toolset/listing.py",
        "return self._tools.get(name)",
        "return next((Place(i, name) for i, m in enumerate(self.members) if m.offer and name in _by_name("
        "m.offer.items(TOOLS))), None) or self._tools.get(name)",
        FAN_OUT,
    ),
    Fault(
        "a tool that was approved and is gone leaves its name to other members",
        "app/catalog/judging.py",
        "dict.fromkeys([*names_of(offer), *pins])",
        "dict.fromkeys(names_of(offer))",
        ("tests/catalog/test_catalog.py",),
    ),
    Fault(
        "what nobody has judged counts as approved",
        "app/catalog/judging.py",
        "status = Status.NEW if found is None",
        "status = Status.APPROVED if found is None",
        JUDGING,
    ),
    Fault(
        "a rejection is obeyed only once somebody has judged by it",
        "app/catalog/judging.py",
        'if not pins or (tool in pins and pins[tool]["fingerprint"] == no):',
        "if False:",
        DECIDING,
    ),
    Fault(
        "what was judged by what is no longer said is stored",
        "app/storage/tools/approvals.py",
        "if (found.pin, found.pin_minor) != (said.policy, said.minor) or {tuple(row) for row in rows} != before:",
        "if False:",
        ("tests/storage/tools/test_approvals.py",),
    ),
    Fault(
        "what is approved is what is offered only since it was looked at",
        "app/catalog/deciding.py",
        "looked_at = row.revision  # not what it offers only since",
        "pass",
        DECIDING,
    ),
    Fault(
        "the policy of a backend withholds nothing",
        "app/catalog/judging.py",
        "if not is_passed(status, followed):",
        "if False:",
        CATALOG,
    ),
    Fault(
        "another revision than the one that was looked at is approved",
        "app/catalog/deciding.py",
        "if looked_at is not None and looked_at != row.revision:",
        "if False:",
        CATALOG,
    ),
    Fault(
        "an excluded tool is shown",
        "app/protocol/toolset/member_tools.py",
        "if (yield from self._exclude.matching(tool)):",
        "if False:",
        ("tests/protocol/toolset/test_names.py",),
    ),
    Fault(
        "a backend takes the name of a toolset",
        "app/storage/backends.py",
        "await require_free_name(connection, tenant, spec.name)",
        "pass",
        STORED,
    ),
    Fault(
        "a member takes the place of a guide",
        "app/protocol/toolset/listing.py",
        "for index in (len(self.members), *range(len(self.members))):",
        "for index in (*range(len(self.members)), len(self.members)):",
        ("tests/protocol/toolset/test_own.py",),
    ),
    Fault(
        "a guide that is gone is asked of a member",
        "app/protocol/toolset/fan_out.py",
        "if found is not None or self.listing.refuses(uri):",
        "if found is not None:",
        ("tests/protocol/toolset/test_own.py",),
    ),
    Fault(
        "a recipe calls a recipe",
        "app/protocol/toolset/fan_out.py",
        "if type(place) is not Place or (is_inner and self.listing.is_own(place.member)):",
        "if type(place) is not Place:",
        RUNS,
    ),
    Fault(
        "the expressions of a step work without end",
        "app/protocol/recipes/expressions.py",
        "        if self._left < 0:",
        "        if False:",
        ("tests/protocol/recipes/test_expressions.py::test_what_burns_as_much_as_there_is_works",),
    ),
    Fault(
        "after a step that has failed the next one begins",
        "app/protocol/recipes/run.py",
        "            if not self._why:\n                started",
        "            if True:\n                started",
        ("tests/protocol/recipes/test_run.py",),
    ),
    Fault(
        "a recipe goes on without the question that it was to ask",
        "app/protocol/toolset/recipe_runs.py",
        'if not _takes_forms(object_in(self._fan_out.hello, "capabilities")):',
        "if False:",
        RUNS,
    ),
    Fault(
        "a recipe that is cancelled leaves its calls running",
        "app/protocol/toolset/recipe_runs.py",
        "outs += [*self._fan_out.from_session(line), InnerCallOver(ours)]",
        "outs += [InnerCallOver(ours)]",
        RUNS,
    ),
    Fault(
        "calls of recipes do not count",
        "app/links/linked_recipes.py",
        "self._gate.step_begins(inner.call)",
        "pass",
        ("tests/links/test_linked_recipes.py",),
    ),
    Fault(
        "each search makes what it searches anew",
        "app/links/toolsets.py",
        "                listing = self._kept(key, plan)\n",
        "                listing = None\n",
        ("tests/links/test_toolsets.py",),
    ),
    Fault(
        "each toolset has its own copy of its members' definitions",
        "app/links/toolsets.py",
        "        return member._replace(tools=known)\n",
        "        return member\n",
        ("tests/links/test_toolsets.py",),
    ),
    Fault(
        "what nobody searches any more is kept",
        "app/links/toolsets.py",
        "                self._forget((tenant, EVERYTHING))\n",
        "                pass\n",
        ("tests/links/test_toolsets.py",),
    ),
    Fault(
        "weights of words are remembered without a limit",
        "app/search/index.py",
        "if self._weighed + len(impacts) > MAX_WEIGHED:",
        "if False:",
        ("tests/search/test_index.py",),
    ),
    Fault(
        "a recipe does all its work in one piece",
        "app/protocol/recipes/run.py",
        "if self._rested_at - self._fuel.left >= FUEL_OF_PIECE:",
        "if False:",
        ("tests/protocol/recipes/test_run.py",),
    ),
    Fault(
        "a recipe that was stopped in its pause goes on",
        "app/protocol/recipes/run.py",
        "        if self._is_over:\n            return []\n        self._rested_at",
        "        self._rested_at",
        ("tests/protocol/recipes/test_run.py",),
    ),
    Fault(
        "requests of a tenant over its share of the loop do not wait for a turn",
        "app/transports/front.py",
        "await self._shares.enter(request.tenant)",
        "pass",
        ("tests/transports/test_front_shares.py",),
    ),
    Fault(
        "a large body is read out of turn",
        "app/transports/large_bodies.py",
        "await shares.turn(request.tenant)",
        "pass",
        ("tests/transports/test_front_shares.py",),
    ),
    Fault(
        "a large body of HTTP+SSE is read out of turn",
        "app/transports/http_sse.py",
        "        await turn_for(request, body, self._shares)\n",
        "",
        ("tests/transports/test_front_shares.py",),
    ),
    Fault(
        "a thousand patterns are matched in one piece",
        "app/search/patterns.py",
        "at_once = AT_ONCE if len(name) <= _LONG else 1",
        "at_once = 1 << 20",
        PATTERNS,
    ),
    Fault(
        "the characters of a long name are matched in one piece",
        "app/search/patterns.py",
        "for start in range(0, len(name), AT_ONCE):\n            for char in name[start : start + AT_ONCE]:",
        "for start in (0,):\n            for char in name:",
        PATTERNS,
    ),
    Fault(
        "a pattern is compiled to a regular expression",
        "app/search/patterns.py",
        "if _has_in_order(name, parts):",
        'if __import__("fnmatch").fnmatchcase(name, "*".join(parts)):',
        PATTERNS,
    ),
    Fault(
        "a range of a pattern that is empty matches",
        "app/search/patterns.py",
        "if chunks[number - 1][-1] > chunks[number][0]:",
        "if False:",
        PATTERNS,
    ),
)
