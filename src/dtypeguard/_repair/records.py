"""The registry of repairs: what was repaired, how often, and which warnings were given."""

import dataclasses
import threading
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from .._base.frames import caller, warn_at


@dataclass(slots=True)
class CastRecord:
    """One repair, and how often it was made.

    Attributes:
        argument: the repaired value, `x` or `batch[57]`.
        function: the function whose contract required the repair.
        from_dtype, to_dtype, from_device, to_device: dtype and device before and after.
        site: the line that called, as `file:line, in function`.
        count: how often it was made.
        bytes: the size of all copies together.
        error: the largest relative error of a narrowing repair that was verified.
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


CastRecord.__module__ = "dtypeguard"
Key = tuple[Any, ...]
record_lock = threading.Lock()
records: dict[Key, CastRecord] = {}
warned: set[Key] = set()
generation = 0  # of the registry: plans made before `reset_casts` are void


def casts() -> list[CastRecord]:
    """All repairs so far: one record for each function, argument, pair of dtypes and devices, and line that called.

    The elements of a list share one record, which has the name of the first that was repaired.

    >>> import dtypeguard
    >>> dtypeguard.reset_casts()
    >>> dtypeguard.casts()
    []
    """
    return since(None)


Mark = dict[Key, tuple[CastRecord, int, int]]  # with count and bytes as they were


def mark() -> Mark:
    """Where the registry stands, for `since`."""
    with record_lock:
        return {key: (record, record.count, record.bytes) for key, record in records.items()}


def since(begin: Mark | None) -> list[CastRecord]:
    """The repairs after a mark, and after a reset that came later; all of them for None."""
    fresh = []
    with record_lock:
        for key, record in records.items():
            before, count, nbytes = (begin or {}).get(key, (record, 0, 0))
            if before is not record:  # it was forgotten meanwhile, and begun anew
                count = nbytes = 0
            if record.count > count:
                fresh.append(dataclasses.replace(record, count=record.count - count, bytes=record.bytes - nbytes))
    return fresh


def reset_casts() -> None:
    """Clear all records. Each repair then warns again, and each narrowing repair is verified again."""
    global generation
    with record_lock:
        records.clear()
        warned.clear()
        generation += 1


def warn_once(key: Key, warning: Warning, frame: FrameType | None = None) -> None:
    """Warn at the caller's own line, or at another frame's, once; the registry of Python's warnings is not used."""
    with record_lock:
        if key in warned:
            return
        warned.add(key)
    try:
        warn_at(frame or caller(), warning)
    except Warning:  # -W error: nothing was shown, so the next call warns again
        warned.discard(key)
        raise
