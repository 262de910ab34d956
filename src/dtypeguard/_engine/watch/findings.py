"""The findings and casts of one audit, one row for each place."""

import re
import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from ..._show.result import Row
from ..._show.text import human
from .rule import RULES, Finding, Rule, Severity
from .scope import Scope
from .selection import Selection
from .sites import Site, site_at
from .spots import births_of

_WORSE = [severity.value for severity in Severity]
_MEASURED = "DG9"  # the family that looks at values
_SAMPLE, _DISTINCT = 4096, 0.9  # values that are looked at, and the share that a cast must keep apart
_NOISE = 256  # steps of float64, by which what is computed in two ways differs


def _merges(source: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether a cast of float64 changes whole numbers, or makes equal what was not: ids, time stamps, large offsets."""
    if source.dtype is not torch.float64 or source.device.type != "cpu":
        return False
    some = source.detach().flatten()[:_SAMPLE]
    some = some[some.isfinite()]
    cast = some.to(dtype)
    if bool((some == some.round()).all()):
        return bool((cast != some).any())
    apart = some.view(torch.int64).add(_NOISE // 2).div(_NOISE, rounding_mode="floor")  # `sin(x)`, `sin(pi - x)`
    return len(torch.unique(cast)) < _DISTINCT * len(torch.unique(apart))


def _severity(finding: Finding) -> int:
    return _WORSE.index(finding.severity)


def _as_large(finding: Finding, size: int) -> Finding:
    """The finding of more bytes, in its texts too."""
    was = re.compile(rf"(?<=, ){human(finding.bytes)}(?=;|$)")  # as DG101 says it

    def said(text: str) -> str:
        return was.sub(human(size), text)

    spots = tuple(replace(spot, label=said(spot.label)) for spot in finding.spots)
    edit = finding.edit and replace(finding.edit, label=said(finding.edit.label))
    message, label = said(finding.message), said(finding.label)
    return replace(finding, message=message, label=label, spots=spots, edit=edit, bytes=size)


@dataclass(slots=True)
class Cast(Row):
    """Conversions of one kind at one line of one module.

    Attributes:
        kind: "explicit" (somebody wrote it), "promotion" (operands of several dtypes met), "autocast", "write" (into a
            tensor of another dtype), "device" or "backward".
        op: the operation.
        from_dtype: what came.
        to_dtype: what it became.
        from_device: where it was.
        to_device: where it went.
        site: `file:line, in function`; of a cast in backward the line in forward that caused it, where that is known.
        module_path: the module whose forward ran.
        count: how often.
        bytes: the size of all that was made, in bytes.
    """

    kind: str
    op: str
    from_dtype: torch.dtype
    to_dtype: torch.dtype
    from_device: str
    to_device: str
    site: str
    module_path: str | None
    count: int = 0
    bytes: int = 0


class Conversion(NamedTuple):
    """A conversion at a place in the text.

    Attributes:
        file: of the line.
        line: its number.
        kind: that of a `Cast`.
        given: the dtype that came.
        taken: what it became.
        calls: the name of what the line calls there.
        end: where the expression ends, line and column; None where that is not known.
    """

    file: str
    line: int
    kind: str
    given: torch.dtype
    taken: torch.dtype
    calls: str
    end: tuple[int, int] | None

    @property
    def place(self) -> tuple[str, int]:
        return self.file, self.line


def _code_of(finding: Finding) -> tuple[str, int, int, int]:
    """The expression that a finding points at."""
    spot = finding.spots[0]
    return spot.file, spot.line, spot.begin, spot.end


class Findings:
    """What was found so far."""

    def __init__(self, selection: Selection) -> None:
        asked = (RULES[rule].asks for rule in selection.rules)
        self.wanted: frozenset[str] = selection.rules.union(*asked)  # whose detectors are at work
        self.scope: Scope | None = selection.scope
        self._selection = selection
        self.least = selection.severity.value  # the lowest severity that is kept
        self._lock = threading.Lock()
        self._findings: dict[tuple[Any, ...], tuple[Finding, Site]] = {}
        self._casts: dict[tuple[Any, ...], tuple[Cast, Site]] = {}
        self.merged: set[tuple[str, int]] | None = None  # lines at which float32 has too few digits; None: unasked

    def rows(self) -> list[Finding]:
        """Worst first, then as they came; without those whose line to change is in a file that ignores their rule."""
        found = (finding for finding, _ in self._findings.values() if not self._is_silent(finding))
        return sorted(found, key=lambda row: -_severity(row))

    def _is_silent(self, finding: Finding) -> bool:
        edit = finding.edit
        return edit is not None and self._selection.ignores(finding.rule, edit.file)

    def slips(self) -> list[tuple[str, int, str]]:
        """What is wrong with the comments of files that have findings: file, line and text."""
        files = dict.fromkeys(finding.file for finding in self.rows() if finding.file)
        return [(file, line, slip) for file in files for line, slip in self._selection.slips(file).items()]

    def casts(self) -> list[tuple[Cast, Site]]:
        """By bytes."""
        return sorted(self._casts.values(), key=lambda row: -row[0].bytes)

    def conversions(self) -> list["Conversion"]:
        """The conversions, each with its place in the text; to be called while the files are what they were."""
        rows = [(cast, site, site.span) for cast, site in self._casts.values()]
        return [
            Conversion(site.file, site.line, cast.kind, cast.from_dtype, cast.to_dtype, site.calls, span and span[1:])
            for cast, site, span in rows
        ]  # fmt: skip

    def add(
        self,
        rule: Rule | str,
        site: Site,
        *,
        facts: dict[str, Any],
        severity: Severity | None = None,
        module: str | None = None,
        about: str | None = None,
        again: bool = False,
        parameters: Iterable[str] = (),
        **fields: Any,
    ) -> Finding | None:
        """Enter a finding, or count one more; None if nobody wants to hear of it.

        Findings are one if they are of one rule, line, module and pair of dtypes, and `about` the same. See `Finding`
        for the other fields; `facts` are what the rule's formats ask for.
        """
        rule = RULES[rule] if isinstance(rule, str) else rule
        severity = severity or rule.severity
        mine = site if self.scope is None else self.scope.place(site)
        if mine is None and self.scope is not None and rule.at_birth:  # the line to change may be there
            born = next((birth.file for birth, edit in births_of(fields.get("origin", ())) if edit), None)
            mine = site if born is not None and self.scope.mine(born) else None
        if mine is None or not self._selection.on(rule.id, mine.file, mine.line, severity):
            return None
        with self._lock:
            key = (rule.id, mine.key, site.key, module, about, fields.get("from_dtype"), fields.get("to_dtype"))
            known = self._findings.get(key)
            worse = known is None or _WORSE.index(severity.value) > _WORSE.index(known[0].severity)
            size = fields.pop("bytes", 0)
            if known is None or worse:
                so_far = (0, 0) if known is None else (known[0].count, known[0].bytes)
                finding = rule.finding(severity, str(mine), facts, parameters, module_path=module, **fields)
                finding.file, finding.line, finding.function = mine.file, mine.line, mine.function
                finding.source, (finding.count, finding.bytes) = mine.source, so_far
                finding.point(site, mine)
                self._findings[key] = known = (finding, site)
            if not again or not known[0].count:  # else it is the same event, seen worse
                known[0].count += 1
                known[0].bytes += size
            return known[0]

    def drop(self, finding: Finding) -> None:
        """What a finding tells is told by others."""
        with self._lock:
            self._findings = {key: known for key, known in self._findings.items() if known[0] is not finding}

    def merge(self, findings: Iterable[Finding], casts: Iterable[tuple[Cast, Site]], name: str | None = None) -> None:
        """Enter what another audit found: of the test or rank `name`, or of several that its findings name."""
        for found in findings:
            seen = (name,) if name is not None else found.seen_in
            key = (
                found.rule, found.file, found.line, found.function, found.module_path, found.op,
                *((spot.file, spot.line) for spot in found.spots[1:]),
            )  # fmt: skip
            known = self._findings.get(key)
            if known is None:
                site = site_at(found.file or "", found.line or 0, found.function or "")
                self._findings[key] = (replace(found, seen_in=seen), site)
                continue
            worse = max(known[0], found, key=_severity)
            every = tuple(dict.fromkeys([*known[0].seen_in, *seen]))
            whole = _as_large(worse, known[0].bytes + found.bytes)
            self._findings[key] = (replace(whole, count=known[0].count + found.count, seen_in=every), known[1])
        for cast, site in casts:
            place = (cast.kind, cast.op, cast.from_dtype, cast.to_dtype, site.key, cast.module_path, cast.to_device)
            row = self._casts.setdefault(place, (replace(cast, count=0, bytes=0), site))
            row[0].count += cast.count
            row[0].bytes += cast.bytes

    def acquit(self, guilty: Collection[tuple[str, int]]) -> None:
        """What was guessed of values is an info, but at the lines that did spoil some."""
        for finding, site in self._findings.values():
            if RULES[finding.rule].guesses and site.key not in guilty:
                finding.severity = Severity.INFO.value

    def confirm(self) -> None:
        """What was guessed of values and measured at the same line is one finding: the worse, or the measured one."""
        with self._lock:
            lines: dict[tuple[str, int], tuple[list[Any], list[Any]]] = {}  # keys of guesses, and of what was measured
            for key, (finding, site) in self._findings.items():
                guess = RULES[finding.rule].guesses
                if guess or finding.rule.startswith(_MEASURED):
                    lines.setdefault(site.key, ([], []))[not guess].append(key)
            for keys in lines.values():
                guesses, measured = ([self._findings[key][0] for key in some] for some in keys)
                if guesses and measured:
                    worse = max(map(_severity, guesses)) > max(map(_severity, measured))
                    for key in keys[worse]:
                        del self._findings[key]

    def unite(self) -> None:
        """Findings of one cause are one, or have one line to change."""
        with self._lock:
            self._explain()
            self._share_births()

    def _share_births(self) -> None:
        """What is refused for a dtype that another finding has changed where it is born is mended there too."""
        rows = [finding for finding, _ in self._findings.values()]
        births = {
            (spot.file, spot.line): finding for finding in rows
            if (spot := finding.edit) in finding.spots[1:] and finding.severity != Severity.INFO.value
        }  # fmt: skip
        for finding in rows:
            birth = next(iter(finding.spots[1:]), None)
            known = None if birth is None else births.get((birth.file, birth.line))
            refused = finding.severity == RULES[finding.rule].severity.value == Severity.ERROR.value
            if known is not None and refused and finding.edit is finding.spots[0]:
                finding.edit, finding.fix = birth, known.fix

    def _explain(self) -> None:
        """What is found at an expression of which another finding names the cause is told there, as severe."""
        causes = [finding for finding, _ in self._findings.values() if RULES[finding.rule].explains]
        for key, (finding, _) in list(self._findings.items()) if causes else ():
            code = _code_of(finding)
            told = [one for one in causes if _code_of(one) == code]
            cause = next((one for one in told if finding.rule.startswith(RULES[one.rule].explains)), None)
            if cause is not None:
                cause.severity = max(cause, finding, key=_severity).severity
                cause.course = cause.course or finding.course
                del self._findings[key]

    def cast(
        self, kind: str, op: str, source: torch.Tensor, dtype: torch.dtype, device: torch.device, size: int,
        site: Site, module: str | None,
    ) -> None:  # fmt: skip
        """Count a conversion of `source`."""
        mine = site if self.scope is None else self.scope.place(site)
        if mine is None:
            return
        site = mine
        if self.merged is not None and dtype is torch.float32 and _merges(source, dtype):
            self.merged.add((site.file, site.line))
        key = (kind, op, source.dtype, dtype, site, module, device)
        with self._lock:
            row = self._casts.get(key)
            if row is None:
                cast = Cast(kind, op, source.dtype, dtype, str(source.device), str(device), str(site), module)
                row = self._casts[key] = (cast, site)
            row[0].count += 1
            row[0].bytes += size


Cast.__module__ = "dtypeguard.results"
