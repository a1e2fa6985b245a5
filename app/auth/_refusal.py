"""Why a credential is refused: for metrics, for the log and for administrators. The caller is told nothing of it."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one rule. `failure` is a label of the metric `auth_failures`; None: the credential passes."""

    rule: str
    expected: object
    actual: object
    failure: str | None = None
    hint: str | None = None


class CredentialRefused(Exception):
    """The credential is not valid. `facts` are members of the log line: the finding, and which credential it is."""

    def __init__(self, finding: Finding, more: Mapping[str, object] | None = None) -> None:
        super().__init__(finding.failure)
        self.finding = finding
        known = {"failure": finding.failure, "rule": finding.rule, "expected": finding.expected}
        self.facts: Mapping[str, object] = {**known, "actual": finding.actual, **(more or {})}
