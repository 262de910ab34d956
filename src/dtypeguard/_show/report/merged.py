"""One report of several audits: of the tests of a suite, of the ranks of a program."""

import pickle
from collections.abc import Iterable

from ..._engine.watch.findings import Findings
from ..._engine.watch.rule import Finding
from ..._engine.watch.selection import Selection
from ..._engine.watch.sites import site_at
from .report import AuditReport, Ended


class Merged:
    """What several audits found; it can be sent to another process."""

    def __init__(self) -> None:
        self.names: list[str] = []  # the tests or ranks whose audits were added
        self._findings, self._operations, self._seconds = Findings(Selection()), 0, 0.0
        self._broken: list[BaseException] = []

    def add(self, name: str, report: AuditReport, findings: Iterable[Finding], casts: bool = True) -> None:
        """Add these findings of a report; its casts, too, or not."""
        self.names.append(name)
        ended = report._recorder
        self._operations += ended.operations
        self._seconds += report.seconds
        self._broken += report.faults
        self._findings.merge(findings, ended.findings.casts() if casts else (), name)

    def packed(self) -> bytes:
        """For `unpack`, of the same version of dtypeguard."""
        casts = [(cast, (site.file, site.line, site.function)) for cast, site in self._findings.casts()]
        broken = [f"{type(error).__name__}: {error}" for error in self._broken]  # not each exception can be pickled
        return pickle.dumps((self._findings.rows(), casts, self.names, self._operations, self._seconds, broken))

    def unpack(self, data: bytes) -> None:
        """Add what another process packed."""
        findings, casts, names, operations, seconds, broken = pickle.loads(data)
        self.names += names
        self._operations += operations
        self._seconds += seconds
        self._broken += map(RuntimeError, broken)
        self._findings.merge(findings, [(cast, site_at(*place)) for cast, place in casts])

    def report(self, every: Iterable[str] = ()) -> AuditReport:
        """All of it as one report; what was seen in all of `every` is not said to be of some."""
        whole = set(every)
        for finding in self._findings.rows():
            if whole and whole <= set(finding.seen_in):
                finding.seen_in = ()
        report = AuditReport(Ended(self._findings, self._operations, self._broken))
        report._modules, report.seconds = [], self._seconds
        return report
