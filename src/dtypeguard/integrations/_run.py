"""What the callbacks share: a guard and a watch for the length of a run, and a report of what they met."""

import sys
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypedDict

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from .._core.base.config import Mode, ModeName, written_in
from .._core.base.errors import AmpError, plain
from .._core.base.log import logger
from .._core.base.options import misspelt
from .._core.doors.guard import guard, is_held, move_guards, unguard
from .._core.doors.options import GuardOptions, read_options
from .._core.repair.records import Casts, Mark, mark, since
from .._show.report.findings import Report
from .._show.report.report import AuditReport
from .._show.text import human, number
from .._tools.audit.audit import Audit, audit
from ..amp._arguments import read
from ..amp._metrics import Metrics
from ..amp._watch import Watch, watch_from


class WatchOptions(TypedDict, total=False):
    """The options of `dtypeguard.amp.watch`."""

    mode: ModeName | Mode | None
    every: int
    averaged: Any
    metrics: int | None
    ignore: str | Iterable[str]


class AuditOptions(TypedDict, total=False):
    """The options of `dtypeguard.audit`."""

    select: str | Iterable[str] | None
    ignore: str | Iterable[str]
    values: bool | Literal["range"] | None
    every: Literal["2^k"] | int | None
    source: str | Iterable[str] | None
    omit: str | Iterable[str] | None


_NAME = "DtypeGuardCallback"
_FORMS = {
    "watch": "True, False or a dict of options of dtypeguard.amp.watch",
    "audit": "True, False or a dict of options of dtypeguard.audit",
}


class Run:
    """Guards models, watches their optimizers and audits them until it is closed; knows what was repaired and found."""

    def __init__(self, watching: bool | WatchOptions, options: GuardOptions, auditing: bool | AuditOptions) -> None:
        _check(watching, options, auditing)
        self._audit_options: AuditOptions = {} if isinstance(auditing, bool) else auditing
        self._auditing = auditing is not False
        self._audit: Audit | None = None  # that runs
        self.audited: AuditReport | None = None
        self._watch_options = {"mode": options.get("mode"), **(watching if isinstance(watching, dict) else {})}
        self.options = options
        self._watching = watching is not False
        self._watch: Watch | None = None
        self._file = written_in(sys._getframe(1))  # of the callback: guard and watch are called by the framework
        self._before: Mark | None = None
        self._guarded: list[nn.Module] = []

    def open(self, models: Iterable[nn.Module]) -> None:
        """Guard what is not guarded yet."""
        if not self._guarded:
            if self._watch is not None and self._watch.closed:
                self._watch = None
            self._before = mark()
        for model in models:
            if not is_held(model):
                self._guarded.append(guard(model, **self.options))
                move_guards(model, self._file, f"{_NAME}({{}})")

    def watch(self, model: nn.Module, optimizers: Any, scaler: Any = None) -> None:
        """Watch the optimizers; those that are not PyTorch's at all (DeepSpeed's) are left alone."""
        if not self._watching or self._watch is not None:
            return
        try:
            self._watch = watch_from(self._file, model, optimizers, scaler, **self._watch_options)
        except AmpError:
            raise
        except (TypeError, ValueError) as error:
            logger.info("dtypeguard: this run is not watched: %s", error)

    def audit(self, model: nn.Module, optimizers: Any, scaler: Any = None) -> None:
        """Begin an audit, where one was asked for."""
        if not self._auditing or self._audit is not None:
            return
        several = optimizers if isinstance(optimizers, Iterable) else [optimizers]
        bare = [getattr(one, "optimizer", one) for one in several]  # in the wrapper of a framework
        own = [one for one in bare if isinstance(one, Optimizer)]
        self._audit = new = audit(model, own, scaler, **self._audit_options)
        self.audited = new.__enter__()

    def findings(self) -> Report:
        return Report() if self._watch is None else self._watch.report()

    def metrics(self) -> Metrics:
        """Those of the watch, over all ranks; none without a watch."""
        ranks = dist.group.WORLD if dist.is_available() else None
        return Metrics() if self._watch is None else self._watch.metrics(ranks)

    def close(self, speak: bool) -> None:
        """Take the guards off that `open` put on, end the watch, and log what was repaired."""
        if self._watch is not None:
            self._watch.remove()
        if self._audit is not None:
            self._audit.__exit__(None, None, None)
            self._audit = None
            if speak and self.audited is not None and self.audited.findings:
                logger.warning("dtypeguard: the audit of this run found:\n%s", self.audited.findings)
        if not self._guarded:
            return
        for model in self._guarded:
            unguard(model)
        self._guarded.clear()
        records = self.report()
        if speak and records:
            logger.warning("%s", _log_text(records))
        elif speak:
            logger.info("dtypeguard: nothing was repaired in this run")

    def report(self) -> Casts:
        """The repairs since the last `open`, with their own counts and bytes."""
        return since(self._before)


def _check(watching: Any, options: Any, auditing: Any) -> None:
    """Check all options before the framework calls, which is later; what it raises names the callback."""
    tables = (
        ("", options, (*GuardOptions.__annotations__, *_FORMS), read_options),
        ("watch", {} if isinstance(watching, bool) else watching, (*WatchOptions.__annotations__,), read),
        ("audit", {} if isinstance(auditing, bool) else auditing, (*AuditOptions.__annotations__,), audit),
    )
    check: Any
    for option, given, known, check in tables:
        part = f"{option}: " if option else ""
        if not isinstance(given, Mapping):
            raise TypeError(f"{_NAME}: {option}={given!r} is not {_FORMS[option]}")
        unknown = next((name for name in given if name not in known), None)
        if unknown is not None:
            raise TypeError(f"{_NAME}: {part}{misspelt(unknown, known)}")
        try:
            check(**given)
        except (TypeError, ValueError) as error:
            raise (TypeError if isinstance(error, TypeError) else ValueError)(f"{_NAME}: {part}{error}") from None


def _log_text(records: Casts) -> str:
    count, nbytes = (sum(getattr(record, name) for record in records) for name in ("count", "bytes"))
    lines = [f"dtypeguard: {number(count, 'repair')} in this run, {human(nbytes)} copied"]
    for record in sorted(records, key=lambda record: -record.count):
        old, new = (plain(fact) for fact in (record.from_dtype, record.to_dtype))
        if record.from_device != record.to_device:
            old, new = f"{old} on {record.from_device}", f"{new} on {record.to_device}"
        lines.append(f"  {record.count} x {record.function} `{record.argument}`: {old} -> {new}, at {record.site}")
    return "\n".join(lines)
