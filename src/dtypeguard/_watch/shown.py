"""Findings as the output of a notebook's cell."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .._show.fragment import badge, fragment, joined, lines, link, table, where
from .._show.text import number

if TYPE_CHECKING:
    from markupsafe import Markup


def cell(findings: list[Any], title: str, *facts: Any) -> str:
    """The output of a cell that shows findings."""
    head = badges(findings) or [badge("nothing found", "good")]
    return fragment(title, joined(*head, *facts), findings_table(findings))


def findings_table(findings: Iterable[Any]) -> "Markup | None":
    """A row for each finding: what was found, what to write, and where."""
    return table("", ("", "rule", "what, and what to write", "where"), (_row(one) for one in findings), "finding")


def _row(finding: Any) -> tuple[Any, ...]:
    often = f"{finding.message} (x{finding.count:,})" if finding.count > 1 else finding.message
    fix = f"fix: {finding.fix}" if finding.fix else None
    return (
        badge(finding.severity, finding.severity),
        joined(link(finding.rule, finding.docs), finding.name),
        lines(often, fix),
        lines(where(finding.site), finding.module_path),
    )


def badges(findings: Iterable[Any]) -> list[Any]:
    """How many findings there are of each severity, as labels."""
    found = [finding.severity for finding in findings]
    return [badge(number(found.count(one), one), one) for one in ("error", "warning", "info") if one in found]
