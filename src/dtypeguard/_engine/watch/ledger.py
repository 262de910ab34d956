"""Where findings are kept, said once, or raised."""

import dataclasses
import sys
from collections.abc import Callable, Iterable
from typing import Any

from ..._core.base.config import Mode, current_mode
from ..._core.base.errors import AmpError, AmpWarning, render
from ..._core.base.frames import place, user, warn_at
from .rule import Finding, Rule, Severity
from .sites import Site, site_of

Add = Callable[..., None]  # `Ledger.add`, or what an audit has in its place


class Ledger:
    """The findings of one watch. Strict mode raises at the first, the others warn once for each rule and place."""

    def __init__(
        self,
        mode: Mode | None,
        ignore: frozenset[str] = frozenset(),
        file: str | None = None,
        found: Iterable[Finding] = (),
        said: Iterable[tuple[str, str]] = (),
    ) -> None:
        self._said = frozenset(said)  # rules and messages of other ledgers about the same: they are not said again
        self._mode, self._ignore, self._file = mode, ignore, file  # the file whose code watches
        self._findings: dict[tuple[Any, ...], Finding] = {(number,): finding for number, finding in enumerate(found)}

    @property
    def findings(self) -> list[Finding]:
        return [dataclasses.replace(finding) for finding in self._findings.values()]

    def add(
        self,
        rule: Rule,
        where: tuple[Any, ...],
        subject: str,
        facts: dict[str, Any],
        *,
        site: Site | None = None,
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
            site: of the fault, where an audit saw it; a watch names the line that runs.
            parameters: names of parameters.
            severity: where it is not the rule's own.
            fields: further fields of `Finding`.

        Raises:
            AmpError: in strict mode, for what is no mere information.
        """
        __tracebackhide__ = True
        mode = current_mode(self._mode, self._file)
        if rule.id in self._ignore or mode is Mode.OFF:
            return
        frame, severity = user(sys._getframe(1)), severity or rule.severity
        finding = rule.finding(severity, place(frame), facts, parameters, **fields)
        key = (rule.id, *where)
        known = self._findings.setdefault(key, finding)
        if known is finding and frame is not None:
            finding.point(site_of(frame))
        quiet = severity is Severity.INFO
        if known is finding and (rule.id, finding.message) in self._said:
            quiet |= mode is not Mode.STRICT
        if known is not finding:
            finding.count = known.count = known.count + 1
            if known.severity == Severity.INFO.value and not quiet:
                finding.spots, finding.edit = known.spots, known.edit
                self._findings[key] = finding  # worse than before: the report shows what is said now
            else:
                quiet |= mode is not Mode.STRICT
        if quiet:
            return
        line = finding.site if mode is Mode.STRICT else None  # Python prints that of a warning
        context = {"about": subject, "seen at": line, "fix": finding.fix}
        text = render(str(finding), ((key, text) for key, text in context.items() if text))
        if mode is Mode.STRICT:
            error = AmpError(text)
            error.code, error.fix = rule.id, finding.fix
            error.rule, error.function, error.call_site = rule.id, finding.op, finding.site
            error.argument = next(iter(finding.parameters), None)
            error.actual, error.expected = finding.from_dtype, finding.to_dtype
            error.violations = (finding.message,)
            raise error
        warning = AmpWarning(text)
        warning.code, warning.fix = rule.id, finding.fix
        warn_at(frame, warning)
