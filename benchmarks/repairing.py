"""What a repair costs over the cast that the caller could have written."""

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import models
import torch
from bars import REPAIR, Context
from jaxtyping import Float32
from report import Row, Table, duration, exactly
from timing import Case, interleave
from torch import Tensor

import dtypeguard


def _matrix(x: Float32[Tensor, "batch width"]) -> None: ...
def _anything(x: Float32[Tensor, "..."]) -> None: ...


def repairs(context: Context) -> Table:
    """float64 input where float32 is wanted."""
    _keep_freed_memory()
    x = torch.randn(32, 784, dtype=torch.float64)
    module = models.Pass()

    def cast_function(x: Tensor) -> None:
        _matrix(x.to(torch.float32))

    def cast_module(x: Tensor) -> Tensor:
        out: Tensor = module(x.to(torch.float32))
        return out

    pairs: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
        "enforce": (dtypeguard.enforce(_matrix), cast_function),
        "guard": (dtypeguard.guard(models.Pass()), cast_module),
    }
    cases: dict[str, Case] = {}
    for name, (checked, by_hand) in pairs.items():
        cases |= {name: (checked, (x,)), f"cast by hand, for {name}": (by_hand, (x,))}
    samples = interleave(cases, 8)
    table = Table(
        "Repairs",
        "float64 input of 32 by 784 for float32, against `.to(torch.float32)` and the plain call. Memory is the peak "
        "of what a call allocates, in copies of the float32 storage.",
        ("candidate", "extra, or memory", "whole call"),
    )
    for name in pairs:
        base = f"cast by hand, for {name}"
        table.rows.append(Row(base, "", duration(samples.median(base))))
        table.rows += context.absolute(name, samples.extra(name, base), REPAIR, duration(samples.median(name)))
    table.rows += _memory()
    return table


def _keep_freed_memory() -> None:
    """Have glibc keep what is freed: else a call's time depends on where in the heap its copy happens to lie."""
    trim_threshold, mmap_threshold, much = -1, -3, 1 << 30
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(trim_threshold, much)
        mallopt(mmap_threshold, much)


def _memory() -> list[Row]:
    """Peak allocation of the first and the usual repair, dense and expanded."""
    dense = torch.randn(512, 512, dtype=torch.float64)
    copy = dense.numel() * 4
    rows = []
    for kind, x in {"512 by 512": dense, "512 by 512 expanded 32-fold": dense.expand(32, 512, 512)}.items():
        dtypeguard.reset_casts()  # so that each kind has a first repair, which is verified
        for name, function in (
            ("enforce", dtypeguard.enforce(_anything)),
            ("guard", dtypeguard.guard(models.Pass())),
        ):
            copies = []
            for _ in range(3):
                with _peak() as peak:
                    function(x)
                copies.append(peak[0] / copy)
            what = f"memory, {name}, {kind}"
            rows.append(Row(what, _copies(copies[-1]), "", exactly(1, "1 copy"), copies[-1]))
            rows.append(Row(f"{what}, first repair (looks for overflow)", _copies(copies[0])))
    return rows


def _copies(number: float) -> str:
    return "1 copy" if number == 1 else f"{number:.1f} copies"


@contextmanager
def _peak() -> Iterator[list[int]]:
    """The peak of what is allocated inside, in bytes, as its one item."""
    found: list[int] = []
    with _quiet(), torch.profiler.profile(profile_memory=True) as profile:
        yield found
    held = peak = 0
    for size in _sizes(profile):
        held += size
        peak = max(peak, held)
    found.append(peak)


def _sizes(profile: Any) -> list[int]:
    """What was allocated and, negative, what was freed, in order."""
    events, waiting = [], list(profile.profiler.kineto_results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting += event.children
        if str(event.tag).endswith("Allocation"):
            events.append((event.start_time_ns, event.typed[1].alloc_size))
    return [size for _, size in sorted(events, key=lambda event: event[0])]


@contextmanager
def _quiet() -> Iterator[None]:
    """Nothing of what the profiler's library writes to stderr."""
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
