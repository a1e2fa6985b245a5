"""What is said of a change: the closed set of reasons why a person has to look at it."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Of a change. `HARMLESS`: only the wording differs, or a limit is tighter, and no rule objects."""

    SAME = "same"
    HARMLESS = "harmless"
    SUSPICIOUS = "suspicious"


class Reason(StrEnum):
    """Why a change is not harmless. Stable words; `SENTENCES` has them in English."""

    NEW_PARAMETER = "new_parameter"
    REMOVED_PARAMETER = "removed_parameter"
    LOOSENED = "loosened"
    REQUIRED = "required"
    VALUE = "value"
    SCHEMA = "schema"
    OUTPUT_SCHEMA = "output_schema"
    ANNOTATION = "annotation"
    MEMBER = "member"
    ADDRESS = "address"
    INSTRUCTION = "instruction"
    SENSITIVE = "sensitive"
    OTHER_TOOL = "other_tool"
    IMITATION = "imitation"
    HIDDEN = "hidden"
    LANGUAGE = "language"
    GROWTH = "growth"
    TOO_LARGE = "too_large"


SENTENCES = {
    Reason.NEW_PARAMETER: "it has a parameter that it did not have",
    Reason.REMOVED_PARAMETER: "a parameter is gone, or has another name",
    Reason.LOOSENED: "a parameter accepts more than it did",
    Reason.REQUIRED: "a parameter must be given that was optional",
    Reason.VALUE: "a default, constant, choice or example is another",
    Reason.SCHEMA: "its input schema differs in something else than wording",
    Reason.OUTPUT_SCHEMA: "its output schema differs in something else than wording",
    Reason.ANNOTATION: "it says something else of what it does to the world",
    Reason.MEMBER: "another member of the definition differs, such as icons or links to a user interface",
    Reason.ADDRESS: "its text has a new URL, host, e-mail address, IP address or path",
    Reason.INSTRUCTION: "its text tells the model what to do",
    Reason.SENSITIVE: "its text speaks of secrets, of the conversation or of commands, and did not before",
    Reason.OTHER_TOOL: "its text names another tool",
    Reason.IMITATION: "its title looks like another tool's",
    Reason.HIDDEN: "its text has characters or parts that people do not see, or cannot read",
    Reason.LANGUAGE: "its text has a sentence in another language or script, or in none",
    Reason.GROWTH: "it says more that is new than an edit of the wording does",
    Reason.TOO_LARGE: "it is too large, or nested too deeply, to be looked at",
}


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One thing that a person should look at: where (a JSON Pointer into the offered definition, or into the approved
    one where it is gone), and the piece of text or the values that it is about, with hidden characters made visible."""

    reason: Reason
    path: str
    what: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """What differs between the approved definition and the offered one. At most `MAX_FINDINGS` are kept."""

    kind: Kind
    findings: tuple[Finding, ...] = ()

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Each once, in the order of `Reason`."""
        found = {each.reason for each in self.findings}
        return tuple(each for each in Reason if each in found)

    def sentence(self) -> str:
        """For people: all reasons, separated by semicolons."""
        return "; ".join(SENTENCES[each] for each in self.reasons)


MAX_FINDINGS = 50
SAME = Change(Kind.SAME)
