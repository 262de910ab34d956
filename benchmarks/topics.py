"""What is measured, topic by topic; each function makes one table."""

import gc
import logging
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import models
import peers
import torch
import torch._dynamo
from jaxtyping import Float32
from peers import BEARTYPE, KEY, OURS, QUERY
from report import Row, Table, at_least, at_most, duration, exactly, percent, times
from timing import Samples, geometric_mean, interleave
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

import dtypeguard

MS = 1e6
PRE_HOOK, GUARD, REPAIR, CACHE = 1_190, 330, 2_000, 15_000  # ns
DECORATE, DECORATE_PEER, IMPORT, IMPORT_PEER = 200, 713, 15, 37  # ms
# ns on the machine that the absolute bars were set on
REFERENCE = {
    "`x.dtype`": 33,
    "`x.shape`": 67,
    "`x.device`": 42,
    "`linear.weight`": 401,
    "`next(linear.parameters())`": 1_384,
    "`torch.is_autocast_enabled`": 103,
    "a forward pre-hook": PRE_HOOK,
}


@dataclass
class Context:
    """What the topics share: the peers, and how slow this machine is against the reference."""

    peers: list[peers.Peer]
    absent: dict[str, str]
    slowness: float = 1.0

    def absolute(self, what: str, ns: float, limit: float, relative: str = "") -> list[Row]:
        """A time held to an absolute bar: as measured, and as it would be at the reference machine's pace."""
        bar, paced = at_most(limit, duration(limit)), ns / self.slowness
        return [
            Row(what, duration(ns), relative, bar, ns),
            Row(f"{what}, at the reference's pace", duration(paced), f"÷ {self.slowness:.2f}", bar, paced),
        ]


def pace(context: Context) -> Table:
    """How this machine compares with the one that the absolute bars were set on."""
    linear, x = nn.Linear(8, 8), torch.zeros(4, 8)

    def nothing(value: Any) -> Any:
        return value

    def dtype(x: Tensor) -> torch.dtype:
        return x.dtype

    def shape(x: Tensor) -> torch.Size:
        return x.shape

    def device(x: Tensor) -> torch.device:
        return x.device

    def weight(linear: nn.Linear) -> Tensor:
        return linear.weight

    def first(linear: nn.Linear) -> Tensor:
        return next(linear.parameters())

    def autocast(device: str) -> bool:
        return torch.is_autocast_enabled(device)

    bare, hooked = models.Pass(), models.hooked(models.Pass())
    calls: list[Any] = [(dtype, (x,)), (shape, (x,)), (device, (x,)), (weight, (linear,)), (first, (linear,))]
    calls += [(autocast, ("cpu",)), (hooked, (x,))]
    cases = {"nothing": (nothing, (x,)), "bare": (bare, (x,)), **dict(zip(REFERENCE, calls, strict=True))}
    samples = interleave(cases, 3)
    measured = {name: samples.extra(name, "bare" if "hook" in name else "nothing") for name in REFERENCE}
    context.slowness = geometric_mean([measured[name] / ns for name, ns in REFERENCE.items()])
    about = "Absolute bars were set on another machine. `here ÷ there` scales them: the geometric mean of these."
    table = Table("The machine", about, ("what", "here", "here ÷ there"))
    table.rows = [Row(name, duration(ns), times(ns / REFERENCE[name])) for name, ns in measured.items()]
    table.rows.append(Row("geometric mean", "", times(context.slowness)))
    return table


# ---------------------------------------------------------------- enforce


def eager(context: Context) -> Table:
    """Two tensors of three named axes and a result."""
    functions = {peer.name: peers.checked(peer)[0] for peer in context.peers}
    passed = {name: peers.overlooked(function) for name, function in functions.items()}
    cases = {name: (call, (QUERY, KEY)) for name, call in functions.items()}
    cases = {"plain body": (peers.plain, (QUERY, KEY)), "asserts by hand": (peers.asserted, (QUERY, KEY)), **cases}
    samples = interleave(cases, 12)
    cost = {name: samples.extra(name, "plain body") for name in cases}
    asserts = cost["asserts by hand"]
    table = Table(
        "`enforce` on a function, eager",
        '`q: Float32[Tensor, "b t d"]`, `k: Float32[Tensor, "b s d"]`, result `Float32[Tensor, "b t s"]`; the body '
        "returns a tensor made before. Overhead is over the plain body; `÷ asserts` compares overheads.",
        ("candidate", "overhead", "÷ asserts"),
    )
    table.rows.append(Row("plain body (its whole time)", duration(samples.median("plain body"))))
    for name in list(cases)[1:]:
        faults = f" (lets a wrong {', '.join(passed[name])} pass)" if passed.get(name) else ""
        row = Row(name + faults, duration(cost[name]), times(cost[name] / asserts))
        if name == OURS:
            row = Row(name, row.value, row.relative, at_most(1, "1.00 ×"), cost[name] / asserts)
        table.rows.append(row)
    if BEARTYPE in cost:
        ratio = cost[BEARTYPE] / cost[OURS]
        table.rows.append(Row(f"{BEARTYPE} ÷ {OURS}", "", times(ratio), at_least(25, "25 ×"), ratio))
    table.rows += [Row(name, f"not measured: {why}") for name, why in context.absent.items()]
    return table


# ---------------------------------------------------------------- guard


def _module_cases(x: Tensor) -> dict[str, Any]:
    found = {
        "bare": models.Pass(),
        "guard": dtypeguard.guard(models.Pass()),
        "forward pre-hook": models.hooked(models.Pass()),
        "wrapper module": models.Wrapper(models.Pass()),
    }
    return {name: (module, (x,)) for name, module in found.items()}


def one_module(context: Context) -> Table:
    """A guard over a bare module."""
    x = torch.zeros(4, 8)
    table = Table(
        "`guard` over a bare module, one argument",
        "A module that owns a Linear and returns its input. The guard checks dtype and device, hook and wrapper only "
        "the dtype, of a parameter that they keep at hand.",
        ("candidate", "extra per call", "÷ pre-hook"),
    )

    def measured(where: str, value: Tensor) -> None:
        samples = interleave(_module_cases(value), 4)
        extra = {name: samples.extra(name, "bare") for name in samples.rounds}
        hook = extra["forward pre-hook"]
        table.rows.append(Row(f"bare call{where} (its whole time)", duration(samples.median("bare"))))
        table.rows.extend(context.absolute(f"guard{where}", extra["guard"], GUARD))
        ratio = extra["guard"] / hook
        bar = at_most(GUARD / PRE_HOOK, f"{GUARD / PRE_HOOK:.2f} ×")
        table.rows.append(Row(f"guard{where}, against the pre-hook", "", times(ratio), bar, ratio))
        for name in ("forward pre-hook", "wrapper module"):
            table.rows.append(Row(f"{name}{where}", duration(extra[name]), times(extra[name] / hook)))

    measured("", x)
    with torch.autocast("cpu", torch.bfloat16):
        measured(", bf16 autocast, float32 input", x)
        measured(", bf16 autocast, bfloat16 input", x.bfloat16())
    return table


def _batch(model: nn.Module) -> int:
    """The batch with which a pass takes about 1.5 ms."""
    took = {}
    for batch in (1, 2, 4, 8, 16, 32, 64, 128):
        samples = interleave({"pass": (model, (torch.zeros(batch, models.WIDTH),))}, 0.02)
        took[batch] = samples.median("pass")
        if took[batch] > 2 * MS:
            break
    return min(took, key=lambda batch: abs(took[batch] - 1.5 * MS))


def many_layers(context: Context) -> Table:
    """48 guarded layers."""
    found = models.stacks()
    table = Table(
        f"{models.LAYERS} guarded layers",
        f'`Linear({models.WIDTH}, {models.WIDTH})` and ReLU in turn, `depth="all"`, no gradients. Under autocast the '
        "layers after the first get bfloat16.",
        ("candidate", "a pass", "against unguarded"),
    )

    def measured(where: str, limit: float) -> None:
        x = torch.zeros(_batch(found["unguarded"]), models.WIDTH)
        samples = interleave({name: (model, (x,)) for name, model in found.items()}, 6)
        for name in found:
            ratio = samples.ratio(name, "unguarded")
            value = duration(samples.median(name))
            bar = at_most(1 + limit, f"+{100 * limit:.0f} %") if name == "guard" else None
            relative = "" if name == "unguarded" else percent(ratio)
            table.rows.append(Row(f"{name}{where}, batch {len(x)}", value, relative, bar, ratio))

    with torch.no_grad():
        measured("", 0.04)
        with torch.autocast("cpu", torch.bfloat16):
            measured(", bf16 autocast", 0.07)
    return table


# ---------------------------------------------------------------- the compiler


class _Counter(CompileCounter):
    """Counts graphs, and the operations whose results are used."""

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graph.graph.eliminate_dead_code()
        return super().__call__(graph, inputs)


def _graphs(function: Callable[..., Any], *calls: tuple[Any, ...], fullgraph: bool = True) -> tuple[int, int]:
    """Graphs and operations after some calls of the compiled function."""
    torch._dynamo.reset()
    counter = _Counter()
    compiled = torch.compile(function, backend=counter, fullgraph=fullgraph)
    for args in calls:
        compiled(*args)
    return counter.frame_count, counter.op_count


def _outcome(function: Callable[..., Any], fullgraph: bool) -> str:
    """What becomes of a checked function in the compiler."""
    try:
        graphs, _ = _graphs(function, (QUERY, KEY), fullgraph=fullgraph)
    except Exception as error:
        return f"{type(error).__name__} on right input"
    torch._dynamo.reset()
    passed = peers.overlooked(torch.compile(function, backend="eager", fullgraph=fullgraph))
    return (
        f"{graphs} graph{'s' * (graphs != 1)}{', a wrong ' + ', '.join(passed) + ' passes' if passed else ', checks'}"
    )


def compiled(context: Context) -> Table:
    """Inductor's steady state, graphs, and the peers."""
    width, x = 256, torch.randn(16, 256)
    source = models.Net(width)

    def twin(cls: type[models.Net]) -> models.Net:
        net = cls(width)
        for mine, theirs in zip(net.modules(), source.modules(), strict=True):
            mine._parameters = theirs._parameters  # the same memory, so that caches treat them alike
        return net

    nets = {
        "plain": twin(models.Net),
        "guard": dtypeguard.guard(twin(models.Net)),
        'guard, depth="all"': dtypeguard.guard(twin(models.Net), depth="all"),
        "enforce": twin(models.EnforcedNet),
    }
    table = Table(
        "`torch.compile(fullgraph=True)`",
        f"Two feed-forward blocks of width {width}, batch {len(x)}; no gradients. The four batches are 16, 16, 8 and "
        "24: the plain model recompiles once, for any size. Last, what becomes of a function that each library checks, "
        "with `fullgraph=True` and `else` without, on right input and on three wrong ones.",
        ("candidate", "a pass (inductor)", "against plain"),
    )
    calls = tuple((torch.randn(batch, width),) for batch in (16, 16, 8, 24))
    torch._logging.set_logs(all=logging.CRITICAL)  # peers make Dynamo talk
    with torch.no_grad():
        once = {name: _graphs(net, calls[0]) for name, net in nets.items()}
        counts = {name: _graphs(net, *calls) for name, net in nets.items()}
        torch._dynamo.reset()
        steady = {name: torch.compile(net, fullgraph=True) for name, net in nets.items()}
        for model in steady.values():
            model(x)
        samples = interleave({name: (model, (x,)) for name, model in steady.items()}, 8)
    for name in nets:
        ratio = samples.ratio(name, "plain")
        bar = None if name == "plain" else at_most(1.03, "1.03 ×")
        table.rows.append(
            Row(name, duration(samples.median(name)), "" if bar is None else f"{ratio:.3f} ×", bar, ratio)
        )
    for name in nets:
        (graphs, ops), (all_graphs, _) = once[name], counts[name]
        plain = counts["plain"][0]
        table.rows.append(
            Row(f"{name}: graphs of one call", f"{graphs} of {ops} operations", "", exactly(1, "1"), graphs)
        )
        if name != "plain":
            bar = exactly(plain, str(plain))
            table.rows.append(
                Row(f"{name}: graphs over four batches", str(all_graphs), f"plain {plain}", bar, all_graphs)
            )
    for peer in context.peers:
        work = peers.checked(peer)[1]
        table.rows.append(
            Row(f"function checked by {peer.name}", _outcome(work, True), f"else {_outcome(work, False)}")
        )
    torch._dynamo.reset()
    return table


# ---------------------------------------------------------------- once, not per call


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
        if name == OURS:
            table.rows += context.absolute(name, ns, DECORATE * MS, relative)
        else:
            table.rows.append(Row(name, duration(ns), relative))
    if other is not None:
        limit = DECORATE / DECORATE_PEER
        ratio = median[OURS] / other
        table.rows.append(Row(f"{OURS} ÷ {BEARTYPE}", "", times(ratio), at_most(limit, f"{limit:.2f} ×"), ratio))
    return table


_PROBE = """
import resource, time, torch
def memory():
    resident = 0
    try:
        with open("/proc/self/statm") as pages: resident = int(pages.read().split()[1]) * resource.getpagesize()
    except OSError: pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, resident
peak, resident = memory()
start = time.perf_counter_ns()
import {what}
took = time.perf_counter_ns() - start
after = memory()
print(took, after[0] - peak, after[1] - resident)
"""
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
    found = {OURS: "dtypeguard", BEARTYPE: "jaxtyping, beartype", "dltype": "dltype"}
    found = {name: what for name, what in found.items() if name in present}
    took: dict[str, list[tuple[int, int, int]]] = {name: [] for name in found}
    _imported("dtypeguard")  # an editable install may lack its bytecode
    for _ in range(5):
        for name, what in found.items():
            took[name].append(_imported(what))
    median = {
        name: [statistics.median(values) for values in zip(*rounds, strict=True)] for name, rounds in took.items()
    }
    table = Table(
        "Import after torch",
        "Each in five fresh processes, in turn, with bytecode cached. Memory is the growth of the peak (`ru_maxrss`, "
        "often none, as torch's own import peaks higher) and of what is resident.",
        ("candidate", "time; peak, resident", f"÷ {BEARTYPE}"),
    )
    other = median[BEARTYPE][0] if BEARTYPE in median else None
    for name, (ns, peak, resident) in median.items():
        bar = at_most(IMPORT * MS, f"{IMPORT} ms") if name == OURS else None
        relative = "" if other is None else times(ns / other)
        value = f"{duration(ns)}; {peak / _MIB:.1f}, {resident / _MIB:.1f} MiB"
        table.rows.append(Row(name, value, relative, bar, ns))
    if other is not None:
        limit, ratio = IMPORT / IMPORT_PEER, median[OURS][0] / other
        table.rows.append(Row(f"{OURS} ÷ {BEARTYPE}", "", times(ratio), at_most(limit, f"{limit:.2f} ×"), ratio))
    return table


# ---------------------------------------------------------------- repairs


def _single(x: Float32[Tensor, "batch width"]) -> None: ...
def _expanded(x: Float32[Tensor, "..."]) -> None: ...


@contextmanager
def _allocations() -> Iterator[list[int]]:
    """Peak of what is allocated inside, in bytes, as its one item."""
    found: list[int] = []
    with _quiet(), torch.profiler.profile(profile_memory=True) as profile:
        yield found
    sizes, held, peak = _sizes(profile), 0, 0
    for size in sizes:
        held += size
        peak = max(peak, held)
    found.append(peak)


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


def _sizes(profile: Any) -> list[int]:
    """Allocations and, negative, what was freed, in order."""
    events, waiting = [], list(profile.profiler.kineto_results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting += event.children
        if str(event.tag).endswith("Allocation"):
            events.append((event.start_time_ns, event.typed[1].alloc_size))
    return [size for _, size in sorted(events, key=lambda event: event[0])]


def repairs(context: Context) -> Table:
    """What a repair costs over the cast itself."""
    x = torch.randn(32, 784, dtype=torch.float64)
    bare = models.Pass()
    enforced, guarded = dtypeguard.enforce(_single), dtypeguard.guard(models.Pass())

    def cast_function(x: Tensor) -> None:
        _single(x.to(torch.float32))

    def cast_module(x: Tensor) -> Tensor:
        out: Tensor = bare(x.to(torch.float32))
        return out

    found = {
        "cast, function": (cast_function, (x,)),
        "enforce": (enforced, (x,)),
        "cast, module": (cast_module, (x,)),
        "guard": (guarded, (x,)),
    }
    samples = interleave(found, 6)
    table = Table(
        "Repairs",
        "float64 input of 32 × 784 for float32, against `.to(torch.float32)` and the plain call. Memory is the peak of "
        "what a call allocates, in copies of the float32 storage.",
        ("candidate", "extra", "whole call"),
    )
    for name, base in (("enforce", "cast, function"), ("guard", "cast, module")):
        table.rows.append(Row(base, "", duration(samples.median(base))))
        table.rows += context.absolute(name, samples.extra(name, base), REPAIR, duration(samples.median(name)))
    table.rows += _repair_memory()
    return table


def _repair_memory() -> list[Row]:
    """Peak allocation of the usual repair and of the first, dense and expanded."""
    dense = torch.randn(512, 512, dtype=torch.float64)
    copy = dense.numel() * 4
    inputs = {"dense 512 × 512": dense, "512 × 512 expanded 32-fold": dense.expand(32, 512, 512)}
    rows = []
    for kind, x in inputs.items():
        dtypeguard.reset_casts()  # each kind's first repair is verified
        for name, function in (("enforce", dtypeguard.enforce(_expanded)), ("guard", dtypeguard.guard(models.Pass()))):
            copies = {}
            for call in ("first", "second", "later"):
                with _allocations() as peak:
                    function(x)
                copies[call] = peak[0] / copy
            row = Row(
                f"memory, {name}, {kind}", f"{copies['later']:.2f} copies", "", exactly(1, "1 copy"), copies["later"]
            )
            rows += [row, Row(f"memory, {name}, {kind}, the first repair (verified)", f"{copies['first']:.2f} copies")]
    return rows


def cached_tuples(context: Context) -> Table:
    """A key/value cache as an argument."""
    x = torch.zeros(4, 8)
    past = tuple((torch.zeros(1, 4, 2, 8), torch.zeros(1, 4, 2, 8)) for _ in range(48))
    bare, guarded = models.Cached(), dtypeguard.guard(models.Cached())
    samples: Samples = interleave({"bare": (bare, (x, past)), "guard": (guarded, (x, past))}, 2)
    table = Table(
        "A key/value cache as an argument",
        "48 tuples of two tensors, not annotated; every tensor's dtype and device is checked.",
        ("candidate", "extra per call", ""),
    )
    table.rows = context.absolute("guard", samples.extra("guard", "bare"), CACHE)
    return table


TOPICS = (pace, eager, one_module, many_layers, compiled, decorating, importing, repairs, cached_tuples)
