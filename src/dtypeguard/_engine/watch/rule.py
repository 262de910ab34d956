"""What a rule is, what it finds, and the table of all rules."""

import dataclasses
import enum
import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import torch

from ..._core.base.codes import page_of
from ..._core.base.options import several
from ..._core.base.pyproject import no_rule
from ..._show.result import Row
from .called import called
from .sites import Site
from .spots import Spot, births_of, spot_of

AMP = "https://docs.pytorch.org/docs/stable/amp.html"
AMP_EXAMPLES = "https://docs.pytorch.org/docs/stable/notes/amp_examples.html"
GITHUB = "https://github.com"
_SHOWN = 3  # names
_SUBJECT = "`{what}`"  # with which most messages begin: the code that they are about


SeverityName = Literal["info", "warning", "error"]


class Severity(enum.Enum):
    """How bad a finding is; `info` is intended or harmless, and never warns or raises."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """What a rule is called, and its texts.

    Attributes:
        id: `DG103`.
        name: `discarded-cast`.
        severity: of its findings, where nothing else is known of them.
        summary: one sentence without numbers, for lists and pages.
        says: the message, a format over the facts of a finding.
        fix: what to write instead, a format too.
        why: prose for the rule's page.
        sources: addresses of what it rests on.
        guesses: whether it tells from the code what becomes of values; an audit that follows values knows better.
        explains: ids or families of rules: it names the cause of what these find at the same expression.
        asks: ids of rules whose detectors see whether it does harm: they are at work where it is selected without them.
        follows: ids of rules whose faults do what it tells; it is listed behind the others, and one edit mends both.
        at_birth: whether the line to edit is the one where the dtype was born, not the one that is named.
        converts: whether `from_dtype` and `to_dtype` are a conversion that the program made; else the second is one
            that the values fit in, or that was wanted.
        sampled: whether it is looked for at some of the steps or operations only, so that its count is one of looks.
        safe: the edits that change no right result, by the names of moves (`_tools.fix`), the best first.
        unsafe: those that change numbers or memory on purpose.
    """

    id: str
    name: str
    severity: Severity
    summary: str
    says: str
    fix: str
    why: str
    sources: tuple[str, ...]
    guesses: bool = False
    explains: tuple[str, ...] = ()
    at_birth: bool = False
    converts: bool = True
    asks: tuple[str, ...] = ()
    follows: tuple[str, ...] = ()
    sampled: bool = False
    safe: tuple[str, ...] = ()
    unsafe: tuple[str, ...] = ()

    @property
    def docs(self) -> str:
        return page_of(self.id)

    def finding(
        self, severity: Severity, site: str | None, facts: dict[str, Any], parameters: Iterable[str], **fields: Any
    ) -> "Finding":
        """One of this rule, its texts filled with facts; `names` among them come from `parameters`."""
        names = tuple(parameters)
        facts = {"names": listed(names), **called(self.fix, facts.get("held")), **facts}
        message, fix = self.says.format(**facts), self.fix.format(**facts)
        finding = Finding(self.id, severity.value, message, site, fix=fix, parameters=names, **fields)
        # Beside the code its text need not be repeated, nor the line of a birth that is shown too.
        rest = self.says.removeprefix(_SUBJECT).format(**{**facts, "rounded": ""})
        finding.label = rest.lstrip(" ,:")
        return finding


def listed(names: Iterable[str]) -> str:
    """The first few names: `` `a`, `b`, `c` and 4 more``."""
    every = list(names)
    shown = ", ".join(f"`{name}`" for name in every[:_SHOWN])
    return shown if len(every) <= _SHOWN else f"{shown} and {len(every) - _SHOWN} more"


class _Table(Mapping[str, Rule]):
    """All rules by id: each module of `_rules` that has a `RULE`. They are looked for when first asked for."""

    def __init__(self) -> None:
        self._rules: dict[str, Rule] = {}

    def _all_rules(self) -> dict[str, Rule]:
        if not self._rules:
            found = [module.RULE for module in rule_modules()]
            self._rules = {rule.id: rule for rule in sorted(found, key=lambda rule: rule.id)}
        return self._rules

    def __getitem__(self, rule: str) -> Rule:
        return self._all_rules()[rule]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all_rules())

    def __len__(self) -> int:
        return len(self._all_rules())


def rule_modules() -> list[Any]:
    """The modules of the rules; importing them registers what they listen to."""
    root = __name__.rpartition("._engine.watch")[0] + "._rules"
    path = importlib.import_module(root).__path__
    names = sorted(module.name for module in pkgutil.walk_packages(path, f"{root}."))
    return [module for name in names if hasattr(module := importlib.import_module(name), "RULE")]


RULES: Mapping[str, Rule] = _Table()


@dataclasses.dataclass(slots=True)
class Finding(Row):
    """What a rule found at one place.

    Attributes:
        rule: the id of the rule, `DG301`.
        severity: "info", "warning" or "error".
        message: one line, with numbers.
        site: the line of the user's code, as `file:line, in function`; outside of installed packages if possible.
        module_path: the module that the finding is about, or None.
        op: the operation (`Adam.step`, `GradScaler.unscale_`).
        from_dtype: the dtype that was found.
        to_dtype: the dtype that it conflicts with.
        count: how often it was seen. `amp.watch` and audits do not look for everything each time; the text has no count
            then.
        bytes: the size of the tensors, in bytes.
        fix: what to write instead.
        parameters: the names of the parameters in the model.
        origin: the lines that the dtype comes from, oldest first (audit only).
        file: the file of the site (audit only, like the following).
        line: the line number of the site.
        function: the function of the site.
        source: the text of the line.
        label: the message without the code that it is about, to stand beside the code.
        spots: the code that the finding points at: the fault, and the line where its dtype was born.
        edit: the one of these to change.
        course: of a total that stalls, how it went: the write, how far its values had moved from where they began, and
            how far they would have in a wider dtype.
        seen_in: where it was seen, of a report that joins several: ids of tests, or `rank 1`; empty for all ranks.
    """

    rule: str
    severity: SeverityName
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
    label: str = ""
    spots: tuple[Spot, ...] = ()
    edit: Spot | None = None
    course: tuple[tuple[int, float, float], ...] = ()
    seen_in: tuple[str, ...] = ()

    def point(self, site: Site, mine: Site | None = None) -> None:
        """Say which code is meant; `mine` is the user's line that led to it, where it is another one."""
        fault, births = spot_of(site, self.label), births_of(self.origin)
        if mine is not None and mine is not site:
            led = spot_of(mine, f"leads to {fault.path}:{fault.line}")
            born = births[0][0] if RULES[self.rule].at_birth and births and births[0][1] else None
            self.spots = (led, fault) if born is None else (led, fault, born)
            self.edit = born if born is not None and born.mine else led
            if self.edit is led:  # of another one, the line is told
                place = born or fault
                self.fix = f"at {place.path}:{place.line}: {self.fix}"
            return
        births = [one for one in births if (one[0].file, one[0].line) != (fault.file, fault.line)]
        self.spots = (fault, *(birth for birth, _ in births))
        at_birth = RULES[self.rule].at_birth and births and births[0][1] and births[0][0].mine
        self.edit = births[0][0] if at_birth else fault

    @property
    def name(self) -> str:
        """The name of the rule, `discarded-cast`."""
        return RULES[self.rule].name

    @property
    def docs(self) -> str:
        """The address of the rule's page."""
        return RULES[self.rule].docs

    def __str__(self) -> str:
        return f"{self.rule} {self.name}: {self.message}"


Finding.__module__ = "dtypeguard.results"


def select(ids: Any, what: str = "ignore") -> frozenset[str]:
    """The rule ids named by `ids`: ids, names, or families (`DG3`).

    Raises:
        TypeError: for what is no string or collection of strings.
        ValueError: for a name that no rule has; it lists the families.
    """
    chosen: set[str] = set()
    for name in several(what, ids, str, "rule ids such as 'DG301'"):
        family = len(name) == 3
        found = {r.id for r in RULES.values() if name in (r.id, r.name) or (family and r.id.startswith(name))}
        if not found:
            raise ValueError(f"{what}={name!r} {no_rule(name)}")
        chosen |= found
    return frozenset(chosen)
