"""What a rule is: a row of the registry."""

import dataclasses
import enum

DOCS = "https://github.com/dtypeguard/dtypeguard/blob/main/docs"
AMP = "https://docs.pytorch.org/docs/stable/amp.html"
AMP_EXAMPLES = "https://docs.pytorch.org/docs/stable/notes/amp_examples.html"
GITHUB = "https://github.com"


class Severity(enum.Enum):
    """How bad a finding is; `info` is intended or harmless, and never warns or raises."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """One row: `says` and `fix` are formats over the facts of a finding, `why` is prose for the rule's page."""

    id: str
    name: str
    severity: Severity
    says: str
    fix: str
    why: str
    source: str

    @property
    def docs(self) -> str:
        return f"{DOCS}/rules/{self.id}.md"
