"""The one registry of rules: what can be found in a program, how bad it is, and what to write instead.

A rule is a row here; whoever detects it names its id and gives the numbers. Every row has a page in the
documentation, made from it, and cases that must and must not trigger it in the tests.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch

from ._rule import Rule as Rule
from ._rule import Severity as Severity
from ._rules_amp import AMP_RULES
from ._rules_audit import AUDIT_RULES


@dataclasses.dataclass(slots=True)
class Finding:
    """What a rule found, at one place.

    Attributes:
        rule: its id, `DG301`.
        severity: "info", "warning" or "error".
        message: one line, with numbers.
        site: `file:line, in function` of the user's code, outside of installed packages where there is such a line.
        module_path: the module it is about, if one is.
        op: what was running (`Adam.step`, `GradScaler.unscale_`).
        from_dtype: the dtype that was found.
        to_dtype: the dtype that stands against it.
        count: in how many looks it was seen; not every step is looked at.
        bytes: of the tensors it is about.
        fix: what to write instead.
        parameters: names of the parameters, as the model has them.
        origin: where the dtype came from, line by line, the oldest first (of an audit).
        file: of the site (of an audit, as the next ones).
        line: of the site.
        function: of the site.
        source: the text of the line.
    """

    rule: str
    severity: str
    message: str
    site: str | None = None
    module_path: str | None = None
    op: str | None = None
    from_dtype: torch.dtype | None = None
    to_dtype: torch.dtype | None = None
    count: int = 1
    bytes: int = 0
    fix: str = ""
    parameters: tuple[str, ...] = ()
    origin: tuple[str, ...] = ()
    file: str | None = None
    line: int | None = None
    function: str | None = None
    source: str | None = None

    def __str__(self) -> str:
        return f"{self.rule} {RULES[self.rule].name}: {self.message}"


Finding.__module__ = "dtypeguard.amp"


class Report(list[Finding]):
    """Findings, in the order in which they were made; it prints as a list to read."""

    def __str__(self) -> str:
        return "\n".join(map(_paragraph, self)) or "nothing found"

    __repr__ = __str__


Report.__module__ = "dtypeguard.amp"


_LINES = 3  # of an origin, the newest


def _paragraph(finding: Finding) -> str:
    often = f" x{finding.count}" if finding.count > 1 else ""
    title = f"{finding.severity:<8}{finding.rule} {RULES[finding.rule].name}{often}  {finding.site or ''}".rstrip()
    lines = "".join(f"\n        from: {line}" for line in finding.origin[-_LINES:])
    return f"{title}\n        {finding.message}{lines}\n        fix: {finding.fix}"


_TABLE = sorted((*AMP_RULES, *AUDIT_RULES), key=lambda rule: rule.id)
RULES: dict[str, Rule] = {rule.id: rule for rule in _TABLE}


def select(ids: Any, what: str = "ignore") -> frozenset[str]:
    """The rule ids named by `ids`: ids, names, or families (`DG3`).

    Raises:
        TypeError: for what is no string or collection of strings.
        ValueError: for a name that no rule has; it lists the families.
    """
    names = [ids] if isinstance(ids, str) or not isinstance(ids, Iterable) else list(ids)
    chosen: set[str] = set()
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{what} takes rule ids such as 'DG301', not {name!r} ({type(name).__name__})")
        family = len(name) == 3
        found = {r.id for r in _TABLE if name in (r.id, r.name) or (family and r.id.startswith(name))}
        if not found:
            families = ", ".join(sorted({rule[:3] for rule in RULES}))
            raise ValueError(f"{what}={name!r} is no rule: use ids or names, as in [{min(RULES)!r}], or {families}")
        chosen |= found
    return frozenset(chosen)
