"""Faults of toolsets, of what the catalogue knows, and of what is approved."""

from tests.mutations.fault import Fault

FAN_OUT = ("tests/protocol/toolset/test_fan_out.py",)
LISTING = ("tests/protocol/toolset/test_listing.py",)
CATALOG = ("tests/catalog/test_catalog.py",)
JUDGING = ("tests/catalog/test_judging.py",)
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
        "if own in member.withheld:",
        "if False:",
        LISTING,
    ),
    Fault(
        "what nobody has judged counts as approved",
        "app/catalog/judging.py",
        "status = Status.NEW if found is None",
        "status = Status.APPROVED if found is None",
        JUDGING,
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
        "app/catalog/catalog.py",
        "if decision.revision is not None and decision.revision != entry[0].revision:",
        "if False:",
        CATALOG,
    ),
    Fault(
        "an excluded tool is shown",
        "app/domain.py",
        "if any(fnmatchcase(tool, pattern) for pattern in self.exclude):",
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
)
