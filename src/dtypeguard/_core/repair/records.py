"""The registry of repairs: what was repaired, how often, and which warnings were given."""

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from ..._show.result import Result, Row
from ..._show.text import human, number
from ..base.errors import plain
from ..base.frames import caller, warn_at


@dataclass(slots=True)
class CastRecord(Row):
    """One repair, and how often it was made.

    Attributes:
        argument: the repaired value, `x` or `batch[57]`.
        function: the function whose contract required the repair.
        from_dtype, to_dtype, from_device, to_device: dtype and device before and after.
        site: the line that called, as `file:line, in function`.
        count: how often it was made.
        bytes: the size of all copies together, in bytes.
        error: the largest relative error of a narrowing repair that was verified.
        modules: the paths of modules inside a guarded model whose forward it was, `VisionTransformer.blocks.0.mlp.fc2`.
    """

    argument: str
    function: str
    from_dtype: torch.dtype | None
    to_dtype: torch.dtype | None
    from_device: torch.device | None
    to_device: torch.device | None
    site: str | None
    count: int = 0
    bytes: int = 0
    error: float | None = None
    modules: tuple[str, ...] = ()

    @property
    def what(self) -> str:
        """What was made of it: `float64 -> float32, cpu -> cuda:0`; `NumPy -> cpu` of an array."""
        pairs = ((self.from_dtype, self.to_dtype), (self.from_device or "NumPy", self.to_device))
        return ", ".join(f"{plain(old)} -> {plain(new)}" for old, new in pairs if old != new and new is not None)

    def __str__(self) -> str:
        at = f", at {self.site}" if self.site else ""
        more = f" and {len(self.modules) - 1} more" if len(self.modules) > 1 else ""
        inside = f" in {self.modules[0]}{more}" if self.modules else ""
        return f"{self.count:,} x {self.function}{inside} `{self.argument}`: {self.what}, {human(self.bytes)}{at}"


class Casts(list[CastRecord], Result):
    """A list of repairs, with a readable print."""

    kind = "casts"

    def __str__(self) -> str:
        return "\n".join(map(str, sorted(self, key=lambda record: -record.count))) or "no repairs"

    def _data(self) -> dict[str, Any]:
        return {"casts": list(self)}

    def _cell(self) -> tuple[Any, ...]:
        from ..._show.fragment import badge, joined, table, where

        rows = [
            (record.count, joined(f"{record.function}", f"`{record.argument}`"), record.what, human(record.bytes),
             f"{record.error:.1e}" if record.error else "", where(record.site))
            for record in sorted(self, key=lambda record: -record.count)
        ]  # fmt: skip
        head = ("times", "argument", "repair", "bytes", "error", "called at")
        title = f"repairs: {number(sum(record.count for record in self), 'cast')} at {number(len(self), 'place')}"
        return title, table("", head, rows, "place") or badge("no repairs", "good")


CastRecord.__module__ = Casts.__module__ = "dtypeguard.results"
Key = tuple[Any, ...]
record_lock = threading.Lock()


class Registry:
    """Repairs that are counted together.

    Attributes:
        records: by what makes two repairs the same.
        warned: what was said already.
        generation: another object after each reset; plans that were made before it are void.
    """

    def __init__(self) -> None:
        self.records: dict[Key, CastRecord] = {}
        self.warned: set[Key] = set()
        self.generation = object()

    def reset(self) -> None:
        with record_lock:
            self.records.clear()
            self.warned.clear()
            self.generation = object()


_PROCESS = Registry()
# Of what a tool runs by itself, in its thread; None: that of the process.
_apart: ContextVar[Registry | None] = ContextVar("dtypeguard.registry", default=None)


def registry() -> Registry:
    """Where repairs are counted, here."""
    return _apart.get() or _PROCESS


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """In here, in this thread, repairs are counted by themselves."""
    token = _apart.set(Registry())
    try:
        yield
    finally:
        _apart.reset(token)


def casts() -> Casts:
    """All repairs so far: one record for each function, argument, pair of dtypes and devices, and line that called.

    The items of a list share one record, which has the name of the first that was repaired. So do items of a dict whose
    keys differ only in a number at the end (`image1`, `image2`), or are no words; what other keys name has its own.

    Returns:
        A list of `CastRecord`. `print` shows one line for each, and a notebook a table.

    >>> import torch, warnings, dtypeguard
    >>> dtypeguard.reset_casts()
    >>> model = dtypeguard.guard(torch.nn.Linear(3, 1), mode="lenient")
    >>> with warnings.catch_warnings(action="ignore"):  # each repair warns once for each line
    ...     out = model(torch.ones(2, 3, dtype=torch.float64))
    >>> [(record.argument, record.what, record.count) for record in dtypeguard.casts()]
    [('input', 'float64 -> float32', 1)]
    """
    return since(None)


Mark = dict[Key, tuple[CastRecord, int, int]]  # with count and bytes as they were


def mark() -> Mark:
    """Where the registry stands, for `since`."""
    with record_lock:
        return {key: (record, record.count, record.bytes) for key, record in registry().records.items()}


def since(begin: Mark | None) -> Casts:
    """The repairs after a mark, and after a reset that came later; all of them for None.

    Two functions on one line (lambdas in a row) have records of their own, and are one place to a reader.
    """
    fresh = Casts()
    places: dict[Key, CastRecord] = {}
    with record_lock:
        for key, record in registry().records.items():
            before, count, nbytes = (begin or {}).get(key, (record, 0, 0))
            if before is not record:  # it was forgotten meanwhile, and begun anew
                count = nbytes = 0
            if record.count > count:
                new = dataclasses.replace(record, count=record.count - count, bytes=record.bytes - nbytes)
                place = (new.function, new.argument, new.what, new.from_device, new.to_device, new.site)
                if (known := places.setdefault(place, new)) is new:
                    fresh.append(new)
                else:
                    known.count, known.bytes = known.count + new.count, known.bytes + new.bytes
                    known.error = max((e for e in (known.error, new.error) if e is not None), default=None)
                    known.modules = tuple(dict.fromkeys([*known.modules, *new.modules]))
    return fresh


def reset_casts() -> None:
    """Clear all records. Each repair then warns again, and each narrowing repair is verified again.

    >>> import dtypeguard
    >>> dtypeguard.reset_casts()
    >>> len(dtypeguard.casts())
    0
    """
    registry().reset()


def warn_once(key: Key, warning: Warning, frame: FrameType | None = None) -> None:
    """Warn at the caller's own line, or at another frame's, once; the registry of Python's warnings is not used."""
    warned = registry().warned
    with record_lock:
        if key in warned:
            return
        warned.add(key)
    try:
        warn_at(frame or caller(), warning)
    except Warning:  # -W error: nothing was shown, so the next call warns again
        warned.discard(key)
        raise
