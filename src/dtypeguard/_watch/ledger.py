"""Where findings are kept, said once, or raised."""

import dataclasses
import logging
import sys
from collections.abc import Iterable
from typing import Any

from .._base.config import Mode, current_mode
from .._base.errors import AmpError, AmpWarning, render
from .._base.frames import place, user, warn_at
from .rule import RULES, Finding, Report, Rule, Severity

logger = logging.getLogger("dtypeguard")
_SHOWN = 3


def listed(names: Iterable[str]) -> str:
    """The first few names: `` `a`, `b`, `c` and 4 more``."""
    every = list(names)
    shown = ", ".join(f"`{name}`" for name in every[:_SHOWN])
    return shown if len(every) <= _SHOWN else f"{shown} and {len(every) - _SHOWN} more"


class Ledger:
    """The findings of one watch. Strict mode raises at the first, the others warn once for each rule and place."""

    def __init__(
        self,
        mode: Mode | None,
        ignore: frozenset[str] = frozenset(),
        file: str | None = None,
        found: Iterable[Finding] = (),
    ) -> None:
        self._mode, self._ignore, self._file = mode, ignore, file  # the file whose code watches
        self._findings: dict[tuple[Any, ...], Finding] = {(number,): finding for number, finding in enumerate(found)}

    @property
    def findings(self) -> Report:
        return Report(dataclasses.replace(finding) for finding in self._findings.values())

    def add(
        self,
        rule: Rule | str,
        where: tuple[Any, ...],
        subject: str,
        facts: dict[str, Any],
        *,
        parameters: Iterable[str] = (),
        severity: Severity | None = None,
        **fields: Any,
    ) -> None:
        """Enter a finding.

        Args:
            rule: that found it.
            where: with the rule, what makes a finding the same as an earlier one.
            subject: what it is about, as the message's second line.
            facts: what the rule's formats ask for; `names` come from `parameters`.
            parameters: names of parameters.
            severity: where it is not the rule's own.
            fields: further fields of `Finding`.

        Raises:
            AmpError: in strict mode, for what is no mere information.
        """
        __tracebackhide__ = True
        mode = current_mode(self._mode, self._file)
        rule = RULES[rule] if isinstance(rule, str) else rule
        if rule.id in self._ignore or mode is Mode.OFF:
            return
        names, frame = tuple(parameters), user(sys._getframe(1))
        severity = severity or rule.severity
        facts = {"names": listed(names), **facts}
        finding = Finding(rule.id, severity.value, rule.says.format(**facts), place(frame), **fields)
        finding.fix, finding.parameters = rule.fix.format(**facts), names
        key = (rule.id, *where)
        known = self._findings.setdefault(key, finding)
        quiet = severity is Severity.INFO
        if known is not finding:
            finding.count = known.count = known.count + 1
            if known.severity == Severity.INFO.value and not quiet:
                self._findings[key] = finding  # worse than before: the report shows what is said now
            else:
                quiet |= mode is not Mode.STRICT
        if quiet:
            return
        context = {"about": subject, "seen at": finding.site or "", "fix": finding.fix, "rule": rule.docs}
        text = render(str(finding), ((key, text) for key, text in context.items() if text))
        if mode is Mode.STRICT:
            error = AmpError(text)
            error.rule, error.function, error.call_site = rule.id, finding.op, finding.site
            error.argument = names[0] if names else None
            error.actual, error.expected = finding.from_dtype, finding.to_dtype
            error.violations = (finding.message,)
            raise error
        logger.warning(text)
        warn_at(frame, text, AmpWarning)
