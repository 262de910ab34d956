"""What a guard costs on a GPU: a deep transformer at batch 1, where the time goes into launching kernels.

Usage: python benchmarks/gpu.py

Not called `cuda`: torch itself imports a package of that name, and would find this file.
"""

import copy
import logging
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
from report import Row, Table, at_most, duration, machine, times
from timing import interleave
from torch import Tensor, nn

import dtypeguard

LAYERS, COMPILED_LAYERS = 24, 6
WIDTH, HEADS, LENGTH = 1024, 16, 128
PASSES = 4  # before the GPU is waited for
BARE, COLUMNS = "unguarded", ("candidate", "a pass", "÷ unguarded")


class Block(nn.Module):
    """A transformer's layer of six modules with parameters; `nn.TransformerEncoderLayer` would be one fused call."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.before(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH))
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
        f"Width {WIDTH}, {HEADS} heads, batch 1, {LENGTH} tokens, no gradients; {PASSES} passes, then a wait for the "
        f'GPU. `depth="all"` checks {6 * LAYERS + 1} calls a pass.',
        COLUMNS,
    )
    models: dict[str, Any] = candidates(LAYERS)
    compare(table, models, "float32", 20)
    compare(table, {name: under_autocast(model) for name, model in models.items()}, "bf16 autocast", 20)
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
    for topic in (eager, compiled):
        start = time.perf_counter()
        with torch.no_grad():
            print(f"\n{topic().markdown()}", flush=True)
        print(f"{topic.__name__}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
