"""What is paid once: decorating and importing."""

import gc
import os
import statistics
import subprocess
import sys
from time import perf_counter_ns

import peers
from bars import DECORATE, DECORATE_PEER, IMPORT, IMPORT_PEER, Context, against
from peers import BEARTYPE, OURS
from report import Row, Table, duration, times


def decorating(context: Context) -> Table:
    """Decorating 1,000 functions."""
    count = 1000
    found = [peer for peer in context.peers if not peer.top_level]
    took: dict[str, list[int]] = {peer.name: [] for peer in found}
    for _ in range(4):
        for peer in found:
            functions, decorate = peers.many(peer, count), peer.decorate
            gc.collect()
            start = perf_counter_ns()
            for function in functions:
                decorate(function)
            took[peer.name].append(perf_counter_ns() - start)
    median = {name: statistics.median(values) for name, values in took.items()}
    table = Table(
        f"Decorating {count:,} functions",
        "Two tensors and a result each, annotations in 100 spellings; the functions are made outside the timing. "
        "typeguard reads each function's source and is left out.",
        ("candidate", "all of them", f"÷ {BEARTYPE}"),
    )
    other = median.get(BEARTYPE)
    for name, ns in median.items():
        relative = "" if other is None else times(ns / other)
        table.rows += (
            context.absolute(name, ns, DECORATE, relative) if name == OURS else [Row(name, duration(ns), relative)]
        )
    if other is not None:
        table.rows.append(against(f"{OURS} ÷ {BEARTYPE}", median[OURS] / other, DECORATE, DECORATE_PEER))
    return table


_PROBE = """
import resource, time, torch

def memory():
    resident = 0
    try:
        with open("/proc/self/statm") as pages:
            resident = int(pages.read().split()[1]) * resource.getpagesize()
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, resident

peak, resident = memory()
start = time.perf_counter_ns()
import {what}
took = time.perf_counter_ns() - start
after = memory()
print(took, after[0] - peak, after[1] - resident)
"""
_ALONE = "dtypeguard, no name of it"
_RUSAGE_UNIT = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes
_MIB = 1024 * 1024


def _imported(what: str) -> tuple[int, int, int]:
    """ns, growth of the peak, growth of the resident set in bytes, in a fresh process that has torch."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", _PROBE.format(what=what)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    ns, peak, resident = done.stdout.split()
    return int(ns), int(peak) * _RUSAGE_UNIT, int(resident)


def importing(context: Context) -> Table:
    """Import time after torch."""
    present = {peer.name for peer in context.peers}
    used = "dtypeguard; dtypeguard.enforce, dtypeguard.guard"  # which are imported when they are asked for
    every = {OURS: used, BEARTYPE: "jaxtyping, beartype", "dltype": "dltype"}
    found = {name: what for name, what in every.items() if name in present} | {_ALONE: "dtypeguard"}
    took: dict[str, list[tuple[int, int, int]]] = {name: [] for name in found}
    _imported("dtypeguard")  # an editable install may lack its bytecode
    for _ in range(5):
        for name, what in found.items():
            took[name].append(_imported(what))
    table = Table(
        "Import after torch",
        "With `enforce` and `guard`. In five fresh processes each, in turn, bytecode cached. Memory is the growth of "
        "the peak (`ru_maxrss`; none where torch's own import peaked higher) and of what is resident.",
        ("candidate", "time, or memory", f"÷ {BEARTYPE}"),
    )
    median = {name: statistics.median(ns for ns, *_ in runs) for name, runs in took.items()}
    other = median.get(BEARTYPE)
    for name, ns in median.items():
        relative = "" if other is None else times(ns / other)
        table.rows += (
            context.absolute(name, ns, IMPORT, relative) if name == OURS else [Row(name, duration(ns), relative)]
        )
    if other is not None:
        table.rows.append(against(f"{OURS} ÷ {BEARTYPE}", median[OURS] / other, IMPORT, IMPORT_PEER))
    for name, runs in took.items():
        peak, resident = (statistics.median(run[n] for run in runs) / _MIB for n in (1, 2))
        table.rows.append(Row(f"{name}, memory: peak, resident", f"{peak:.1f}, {resident:.1f} MiB"))
    return table
