"""Findings by cause: what a change of one line mends is one."""

import dataclasses
from collections import Counter
from collections.abc import Iterable
from typing import Any

from ..._engine.watch.rule import RULES, Finding, Severity
from ..._engine.watch.selection import reaches
from ..._engine.watch.spots import Spot
from ..text import number

_ROUNDS = frozenset(["DG501"])  # the rules about values that are rounded, beside those that guess or measure it
_ORDER = [severity.value for severity in reversed(Severity)]


@dataclasses.dataclass(frozen=True)
class Cause:
    """Findings of one rule that have one line to change: a line of many layers, or lines that one birth reaches."""

    findings: tuple[Finding, ...]  # the worst first, and else in the order in which they were found

    @property
    def first(self) -> Finding:
        """The finding that stands for all."""
        return self.findings[0]

    @property
    def rule(self) -> str:
        """The id of the rule."""
        return self.first.rule

    @property
    def severity(self) -> str:
        """The worst of the findings."""
        return self.first.severity

    @property
    def pointed(self) -> bool:
        """Whether its code can be shown, with what is wrong there beside it."""
        return bool(self.first.spots and self.first.spots[0].source)

    @property
    def title(self) -> str:
        """What is wrong, in a sentence: of the rule where the code is shown, else with the numbers of the finding."""
        return RULES[self.rule].summary.rstrip(".") if self.pointed else self.first.message

    @property
    def advice(self) -> str:
        """What to write, and where, if that is another line than the first that is shown."""
        edit, spots = self.edit, self.spots
        if edit is None or not spots or edit.line == spots[0].line:
            return self.first.fix
        where = f"line {edit.line}" if edit.file == spots[0].file else f"{edit.path}:{edit.line}"
        return f"{where}: {self.first.fix}"

    @property
    def edit(self) -> Spot | None:
        """The line to change."""
        return self.first.edit

    @property
    def count(self) -> int:
        """How often it was seen."""
        return sum(finding.count for finding in self.findings)

    @property
    def often(self) -> str:
        """How often it was seen, in words; nothing for once, and where the count is one of looks."""
        return "" if self.count < 2 or RULES[self.rule].sampled else f"{self.count:,} times"

    @property
    def where(self) -> str:
        """The modules that it was found in, in a few words: `Net.blocks.* (24 modules)`."""
        return where(finding.module_path for finding in self.findings if finding.module_path)

    @property
    def seen(self) -> str:
        """The tests or ranks that have it, as `on rank 1`, `in 12 tests`; empty where there is one program."""
        names = list(dict.fromkeys(name for finding in self.findings for name in finding.seen_in))
        ranks = [name.removeprefix("rank ") for name in names if name.startswith("rank ")]
        if ranks:
            return f"on rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}"
        return f"in {names[0]}" if len(names) == 1 else f"in {len(names)} tests" if names else ""

    @property
    def spots(self) -> tuple[Spot, ...]:
        """The lines to show: each fault, and the births; each line once, the first fault first."""
        faults = [finding.spots[0] for finding in self.findings if finding.spots]
        births = [spot for finding in self.findings for spot in finding.spots[1:]]
        return tuple({(spot.file, spot.line): spot for spot in reversed([*faults, *births])}.values())[::-1]


@dataclasses.dataclass(frozen=True)
class Change:
    """A line of the program to change; an edit, which is one as text, may be known or not."""

    spot: Spot | None  # the line to change, where it is known
    fix: str  # what to write
    causes: tuple[Cause, ...]  # what it removes

    @property
    def place(self) -> str:
        """`train.py:7`."""
        if self.spot is None:
            return (self.causes[0].first.site or "").partition(", in ")[0]
        return f"{self.spot.path}:{self.spot.line}"

    @property
    def removes(self) -> str:
        """`3 warnings and 1 error`."""
        return counted(self.causes)


def causes_of(findings: Iterable[Finding]) -> list[Cause]:
    """Findings by cause: the worst first, and else as the lines of the program stand."""
    groups: dict[object, list[Finding]] = {}
    for finding in findings:
        spot = finding.edit
        if spot is None:
            place: tuple[object, ...] = (finding.site, finding.op)
        else:
            born = spot is not finding.spots[0]
            place = (spot.file, spot.line, born or (finding.from_dtype, finding.to_dtype))
        groups.setdefault((finding.rule, *place), []).append(finding)
    causes = [Cause(tuple(sorted(group, key=_rank))) for group in groups.values()]
    files = list(dict.fromkeys(cause.first.file for cause in causes))  # as the program came to them

    def order(cause: Cause) -> tuple[Any, ...]:
        place = cause.edit or cause.first
        follows = bool(RULES[cause.rule].follows)
        return _rank(cause.first), follows, files.index(cause.first.file), place.line or 0

    return sorted(causes, key=order)


def changes_of(causes: Iterable[Cause]) -> list[Change]:
    """What to change, what ends an error first, then what removes most; not for mere information. A line once."""
    groups: dict[object, list[Cause]] = {}
    for cause in sorted(causes, key=lambda cause: (bool(RULES[cause.rule].follows), cause.rule not in _ROUNDS)):
        if cause.severity != Severity.INFO.value:
            spot = cause.edit
            place: object = (None, cause.first.site) if spot is None else (spot.file, spot.line)
            place = next((at for at, group in groups.items() if _mends(group, cause)), place)
            groups.setdefault(place, []).append(cause)
    changes = []
    for group in groups.values():
        fixes = [cause.first.fix for cause in group if cause is group[0] or not _mends(group, cause)]
        changes.append(Change(group[0].edit, "; ".join(dict.fromkeys(fixes)), tuple(group)))
    every = [cause for change in changes for cause in change.causes]

    def order(change: Change) -> tuple[bool, bool, int]:
        waits = all(any(settles(other, cause) for other in every) for cause in change.causes)
        mild = all(cause.severity != Severity.ERROR.value for cause in change.causes)
        return waits, mild, -sum(len(cause.findings) for cause in change.causes)

    return sorted(changes, key=order)


def loses(cause: Cause) -> bool:
    """Whether it is about values that lose digits, which can be measured."""
    rule = RULES[cause.rule]
    return rule.guesses or rule.id in _ROUNDS or rule.id.startswith("DG9")


def settles(root: Cause, cause: Cause) -> bool:
    """Whether what keeps the digits of a line, and may be to widen it, comes before what settles its dtypes."""
    places = [{(finding.file, finding.line) for finding in one.findings} for one in (root, cause)]
    return cause.rule == "DG102" and loses(root) and not places[0].isdisjoint(places[1])


def names(root: Cause, cause: Cause) -> bool:
    """Whether a finding tells that its harm is done at the line of another one."""
    return f"{(cause.first.site or '').partition(', in ')[0]}," in f"{root.first.message},"


def _mends(group: list[Cause], cause: Cause) -> bool:
    """Whether what mends these faults mends what comes of them."""
    spoils = loses(cause) and cause.rule not in _ROUNDS
    follows = RULES[cause.rule].follows
    return any(other.rule in follows or (spoils and other.rule in _ROUNDS and names(other, cause)) for other in group)


def verdict(changes: list[Change], causes: Iterable[Cause] = (), least: str = Severity.WARNING.value) -> str:
    """`FAIL: 11 warnings, 3 lines to change; 2 info`, or `Clean`; `least` is the lowest severity that fails."""
    mere = counted(cause for cause in causes if cause.severity == Severity.INFO.value)
    rest = f"; {mere}" if mere else ""
    if not changes:
        return f"FAIL: {mere}" if mere and least == Severity.INFO.value else f"Clean{rest}"
    shown = [cause for change in changes for cause in change.causes]
    fails = "FAIL: " * (least != "never" and any(reaches(cause.severity, least) for cause in shown))
    return f"{fails}{counted(shown)}, {number(len(changes), 'line')} to change{rest}"


def tone(said: str) -> str:
    """How a verdict is coloured: where nothing was looked at it is neither good nor bad."""
    return "error" if said.startswith("FAIL") else "good" if said.startswith("Clean") else "info"


def counted(causes: Iterable[Cause]) -> str:
    """`1 error and 2 warnings`: a cause counts once, in however many places it was found."""
    counts = Counter(cause.severity for cause in causes)
    parts = [number(counts[severity], severity) for severity in _ORDER if counts[severity]]
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def where(paths: Iterable[str]) -> str:
    """Modules in a few words: `Net.blocks.* (24 modules)`; nothing for none."""
    every = list(dict.fromkeys(paths))
    if len(every) < 2:
        return "".join(every)
    common, several = pattern(every), f"{len(every)} modules"
    return f"{common} ({several})" if common.strip("*.") else several


def pattern(paths: list[str]) -> str:
    """What paths of modules have in common: `Net.blocks.*.norm`."""
    split = [path.split(".") for path in paths]
    if len({len(parts) for parts in split}) == 1:
        columns = [set(column) for column in zip(*split, strict=True)]
        return ".".join(column.pop() if len(column) == 1 else "*" for column in columns)
    common = []
    for column in zip(*split, strict=False):
        if len(set(column)) > 1:
            break
        common.append(column[0])
    return ".".join([*common, "*"])


def _rank(finding: Finding) -> int:
    return _ORDER.index(finding.severity)
