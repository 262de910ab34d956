"""What the callbacks share: a guard for the length of a run, and a report of its repairs.

Floor 5.
"""

import inspect
import logging
from collections.abc import Iterable
from typing import Any

from torch import nn

from .._cast import CastRecord, casts
from .._errors import plain
from .._guard import guard, is_guarded, unguard

logger = logging.getLogger("dtypeguard")


class Run:
    """Guards models until it is closed; knows which repairs were made meanwhile."""

    def __init__(self, options: dict[str, Any]) -> None:
        inspect.signature(guard).bind(nn.Identity(), **options)  # an unknown option is a TypeError here, not later
        self.options = options
        self._before: dict[Any, tuple[int, int]] = {}
        self._guarded: list[nn.Module] = []

    def open(self, models: Iterable[nn.Module]) -> None:
        """Guard what is not guarded yet."""
        if not self._guarded:
            self._before = {_key(record): (record.count, record.bytes) for record in casts()}
        for model in models:
            if not is_guarded(model):
                self._guarded.append(guard(model, **self.options))

    def close(self, speak: bool) -> None:
        """Take the guards off that `open` put on, and log what was repaired."""
        if not self._guarded:
            return
        for model in self._guarded:
            unguard(model)
        self._guarded.clear()
        records = self.report()
        if speak and records:
            logger.warning("%s", _text(records))
        elif speak:
            logger.info("dtypeguard: nothing was repaired in this run")

    def report(self) -> list[CastRecord]:
        """The repairs since the last `open`, with their own counts and bytes."""
        fresh = []
        for record in casts():
            count, nbytes = self._before.get(_key(record), (0, 0))
            if record.count > count:
                record.count, record.bytes = record.count - count, record.bytes - nbytes
                fresh.append(record)
        return fresh


def _key(record: CastRecord) -> tuple[Any, ...]:
    facts = (record.from_dtype, record.to_dtype, record.from_device, record.to_device)
    return (record.function, record.argument, record.site, *facts)


def _text(records: list[CastRecord]) -> str:
    count, nbytes = (sum(getattr(record, name) for record in records) for name in ("count", "bytes"))
    lines = [f"dtypeguard: {count} repairs in this run, {nbytes:,} bytes copied"]
    for record in sorted(records, key=lambda record: -record.count):
        old, new = (plain(fact) for fact in (record.from_dtype, record.to_dtype))
        if record.from_device != record.to_device:
            old, new = f"{old} on {record.from_device}", f"{new} on {record.to_device}"
        lines.append(f"  {record.count} x {record.function} `{record.argument}`: {old} -> {new}, at {record.site}")
    return "\n".join(lines)
