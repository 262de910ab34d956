"""What a guard and an audit cost on a GPU: deep transformers, some at batch 1, where a step only launches kernels.

Usage: python benchmarks/gpu.py [eager] [compiled] [auditing] [small_operations]

Not called `cuda`: torch itself imports a package of that name, and would find this file.
"""

import contextlib
import copy
import functools
import logging
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
from real import BETWEEN, MODELS, WAYS, Case, first, steps, timed
from report import Row, Table, at_most, duration, machine, times
from timing import interleave
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import dtypeguard

LAYERS, COMPILED_LAYERS = 24, 6
WIDTH, HEAD, LENGTH = 1024, 64, 128
PASSES = 4  # before the GPU is waited for
BARE, COLUMNS = "unguarded", ("candidate", "a pass", "÷ unguarded")


class Block(nn.Module):
    """A transformer's layer of six modules with parameters; `nn.TransformerEncoderLayer` would be one fused call."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.before(x)).view(batch, length, 3, -1, HEAD).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        out: Tensor = x + self.down(nn.functional.gelu(self.up(self.between(x))))
        return out


def candidates(layers: int) -> dict[str, nn.Module]:
    """The model unguarded and guarded, over the same weights."""
    model = nn.Sequential(*(Block() for _ in range(layers))).cuda().eval()

    def twin() -> nn.Module:
        return copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})

    return {
        BARE: model,
        'guard, depth="auto"': dtypeguard.guard(twin()),
        'guard, depth="all"': dtypeguard.guard(twin(), depth="all"),
    }


def synchronised(call: Callable[[Tensor], Any]) -> Callable[[Tensor], None]:
    """Some passes, and the wait for what they launched."""

    def run(x: Tensor) -> None:
        for _ in range(PASSES):
            call(x)
        torch.cuda.synchronize()

    return run


def under_autocast(call: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """Each pass in a region of its own, as in a training step."""

    def run(x: Tensor) -> Any:
        with torch.autocast("cuda", torch.bfloat16):
            return call(x)

    return run


def compare(table: Table, calls: dict[str, Callable[[Tensor], Any]], where: str, seconds: float) -> None:
    """Add the rows of all candidates under one condition."""
    x = torch.randn(1, LENGTH, WIDTH, device="cuda")
    for _ in range(3):  # compiled code compiles, records its graph, replays it
        first, *others = (call(x).clone() for call in calls.values())
        for other in others:
            torch.testing.assert_close(other, first, rtol=1e-3, atol=1e-3)
    samples = interleave({name: (synchronised(call), (x,)) for name, call in calls.items()}, seconds)
    for name in calls:
        ratio = samples.ratio(name, BARE)
        bar, relative = (None, "") if name == BARE else (at_most(1.01, times(1.01)), times(ratio))
        table.rows.append(Row(f"{name}, {where}", duration(samples.median(name) / PASSES), relative, bar, ratio))


def eager() -> Table:
    """Kernel after kernel, in float32 and under autocast."""
    table = Table(
        f"{LAYERS} layers, eager",
        f"Width {WIDTH}, heads of {HEAD}, batch 1, {LENGTH} tokens, no gradients; {PASSES} passes, then a wait for the "
        f'GPU. `depth="all"` checks {6 * LAYERS + 1} calls a pass.',
        COLUMNS,
    )
    models: dict[str, Any] = candidates(LAYERS)
    compare(table, models, "float32", 10)
    compare(table, {name: under_autocast(model) for name, model in models.items()}, "bf16 autocast", 10)
    return table


def compiled() -> Table:
    """The steady state of compiled code, with and without CUDA graphs."""
    table = Table(
        f"{COMPILED_LAYERS} layers under `torch.compile(fullgraph=True)`",
        f"The same layers and input; {PASSES} passes, then a wait for the GPU.",
        COLUMNS,
    )
    models = candidates(COMPILED_LAYERS)
    for mode in ("default", "reduce-overhead"):
        torch._dynamo.reset()
        calls: dict[str, Any] = {name: torch.compile(m, fullgraph=True, mode=mode) for name, m in models.items()}
        compare(table, calls, mode, 10)
    return table


def training(
    half: torch.dtype | None, width: int, layers: int, tokens: int, words: int
) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    """A model that predicts the next word, and its training step, under autocast where a dtype is named."""
    blocks = [Block(width) for _ in range(layers)]
    model = nn.Sequential(nn.Embedding(words, width), *blocks, nn.LayerNorm(width), nn.Linear(width, words)).cuda()
    optimizer, ids = torch.optim.AdamW(model.parameters(), 3e-4), torch.randint(words, (8, tokens), device="cuda")

    def step() -> None:
        with torch.autocast("cuda", dtype=half, enabled=half is not None):
            loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(5):
        step()
    return model, optimizer, step


class Nothing(TorchDispatchMode):
    """What seeing each operation costs, without looking at it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def auditing() -> Table:
    """Training steps in an audit: the first ones, in which every line is new, and later ones."""
    table = Table(
        "A training step in an audit",
        "GPTs with AdamW and clipping, 8 sequences: the mean of steps 1 to 8, of steps 21 to 30, and peak memory.",
        ("what", "a step", "÷ bare"),
    )
    sizes = {
        "6 layers of width 384, 256 tokens": (384, 6, 256, 4096),
        "12 of 768, 1,024 tokens": (768, 12, 1024, 50304),
    }
    for size, numbers in sizes.items():
        for half in (None, torch.bfloat16):
            model, optimizer, step = training(half, *numbers)
            ways: dict[str, Any] = {"bare": contextlib.nullcontext, "a mode that does nothing": Nothing}
            for name, values in {"audit": None, '`values="range"`': "range", "`values=True`": True}.items():
                ways[name] = functools.partial(dtypeguard.audit, model, optimizer, values=values)
            first: list[float] = []
            for name, way in ways.items():
                torch.cuda.reset_peak_memory_stats()
                with way():
                    early, _, late = (wait_for(step, count) for count in (8, 12, 10))
                here = [early, late, torch.cuda.max_memory_allocated()]
                first = first or here
                ratios = [times(one / other) for one, other in zip(here, first, strict=True)]
                what = f"{size}, {'float32' if half is None else 'bf16 autocast'}, {name}"
                table.rows += [
                    Row(f"{what}, first steps", duration(early), ratios[0]),
                    Row(f"{what}, later steps", duration(late), ratios[1]),
                ]
            table.rows.append(Row(f"{what}, memory", f"{here[2] / 2**20:.0f} MiB", ratios[2]))
    return table


def small_operations() -> Table:
    """The models of `real.py`, which only launch kernels."""
    table = Table(
        "Models of many small operations, on a GPU",
        "Forward, backward and AdamW as on a CPU, medians of 3: at a step with looks, and at one between. A unit is "
        "what a dispatch mode costs that does nothing. `compare` against a forward and backward.",
        ("what", "units", "÷ bare"),
    )
    for name in MODELS:
        table.rows += rows_of(name, Case.of(name, "cuda"))
    return table


def rows_of(name: str, case: Case) -> list[Row]:
    """What an audit and `compare` cost for one model."""
    seconds, _, operations = steps(case, 3)
    bare, unit = seconds["bare"], seconds["mode"] - seconds["bare"]
    rows = [Row(f"{name}, {operations:,} operations", duration(bare * 1e9), times(seconds["mode"] / bare))]
    for way in WAYS:
        took = [seconds[way], seconds[way + BETWEEN]]
        units = "; ".join(f"{(one - bare) / unit:.1f}" for one in took)
        rows.append(Row(f"{name}, {way}", units, "; ".join(times(one / bare) for one in took)))

    def passes() -> None:
        first(case.model(**case.batch)).square().mean().backward()  # type: ignore[no-untyped-call]  # torch's
        case.model.zero_grad()

    both = min(timed(passes) for _ in range(3))
    run = functools.partial(dtypeguard.compare, case.model, case.batch, dtype="bf16")
    try:
        rows.append(Row(f"{name}, compare bf16", "", times(min(timed(run) for _ in range(2)) / both)))
    except dtypeguard.CompareError as error:
        rows.append(Row(f"{name}, compare bf16", f"refused: {str(error).splitlines()[0][:60]}"))
    return rows


def wait_for(step: Callable[[], None], count: int) -> float:
    """ns of a step, with all that it launched."""
    torch.cuda.synchronize()
    start = time.perf_counter_ns()
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter_ns() - start) / count


def main() -> int:
    """Print the tables and the name of the GPU."""
    if not torch.cuda.is_available():
        print(f"benchmarks/gpu.py needs an NVIDIA GPU, and torch {torch.__version__} sees none", file=sys.stderr)
        return 1
    torch._logging.set_logs(all=logging.CRITICAL)  # type: ignore[attr-defined]
    warnings.simplefilter("ignore")
    warnings.simplefilter("error", dtypeguard.DtypeGuardWarning)  # nothing here is to be repaired
    dtypeguard.set_mode("lenient")
    print(machine(["torch", "triton", "dtypeguard"]))
    print(f"| GPU | {torch.cuda.get_device_name()}, CUDA {torch.version.cuda} |", flush=True)
    topics = {topic.__name__: topic for topic in (eager, compiled, auditing, small_operations)}
    for topic in [topics[name] for name in sys.argv[1:]] or topics.values():
        start = time.perf_counter()
        with torch.set_grad_enabled(topic in (auditing, small_operations)):
            print(f"\n{topic().markdown()}", flush=True)
        print(f"{topic.__name__}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
