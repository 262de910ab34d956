"""Models as people train them, of many small operations: what each tool costs there."""

import itertools
import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
import transformers as hf
from bars import Context
from report import Row, Table, at_most, duration, times
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

import dtypeguard

ROUNDS, MANY = 5, 1000
UNITS = {"audit": 1.2, "range": 1.6, "True": 5.0}  # of what a bare dispatch mode costs
READS = {"audit": 0.01, "range": 0.1, "True": 0.25}  # of the device by the host, an operation
FIRST, SAMPLED, CELL = 2.0, 1.2, 1.0
TIMES = (100, 8.0), (20, 12.0), (0, 40.0)  # ms of a step, from which on `compare` takes at most as many
WAYS: dict[str, dict[str, Any]] = {"audit": {}, "range": {"values": "range"}, "True": {"values": True}}
BETWEEN = ", between looks"
SOME = "Llama", "BERT", "ResNet"  # of which a long training is timed
TEXT: dict[str, Any] = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 8}


def ids(vocabulary: int = 1000, length: int = 64) -> Tensor:
    return torch.randint(0, vocabulary, (2, length))


def llama(width: int = 128, length: int = 64) -> tuple[nn.Module, dict[str, Any]]:
    sizes: dict[str, Any] = TEXT | {"hidden_size": width, "intermediate_size": width * 8 // 3}
    config = hf.LlamaConfig(vocab_size=1000, num_key_value_heads=4, use_cache=False, **sizes)
    return hf.LlamaModel(config), {"input_ids": ids(length=length)}


def mixtral() -> tuple[nn.Module, dict[str, Any]]:
    sizes: dict[str, Any] = TEXT | {"num_hidden_layers": 3, "intermediate_size": 256}
    config = hf.MixtralConfig(vocab_size=1000, num_key_value_heads=4, num_local_experts=4, use_cache=False, **sizes)
    return hf.MixtralModel(config), {"input_ids": ids()}


def t5() -> tuple[nn.Module, dict[str, Any]]:
    config = hf.T5Config(vocab_size=100, d_model=128, d_kv=32, d_ff=256, num_layers=3, num_heads=4, use_cache=False)
    return hf.T5Model(config), {"input_ids": ids(100), "decoder_input_ids": ids(100)}


def resnet() -> tuple[nn.Module, dict[str, Any]]:
    sizes: dict[str, Any] = {"embedding_size": 32, "hidden_sizes": [32, 64, 128, 128], "depths": [2, 2, 2, 2]}
    return hf.ResNetModel(hf.ResNetConfig(**sizes)), {"pixel_values": torch.randn(2, 3, 96, 96)}


def whisper() -> tuple[nn.Module, dict[str, Any]]:
    sizes: dict[str, Any] = {"encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256}
    heads: dict[str, Any] = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_source_positions": 50}
    tokens: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = hf.WhisperConfig(
        vocab_size=1000, **tokens, d_model=128, num_mel_bins=16, use_cache=False, **sizes, **heads
    )
    return hf.WhisperModel(config), {"input_features": torch.randn(2, 16, 100), "decoder_input_ids": ids(1000, 24)}


def mamba2() -> tuple[nn.Module, dict[str, Any]]:
    sizes: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 3, "state_size": 16}
    config = hf.Mamba2Config(vocab_size=100, num_heads=8, head_dim=16, n_groups=1, **sizes)
    return hf.Mamba2Model(config), {"input_ids": ids(100, 32), "use_cache": False}


class UNet(nn.Module):
    """Two levels, with what was before beside what comes back."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()

        def block(into: int, out: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(into, out, 3, padding=1), nn.GroupNorm(4, out), nn.SiLU(),
                                 nn.Conv2d(out, out, 3, padding=1), nn.GroupNorm(4, out), nn.SiLU())  # fmt: skip

        self.down, self.middle, self.up = block(3, width), block(width, 2 * width), block(3 * width, width)
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, pixel_values: Tensor) -> Tensor:
        first = self.down(pixel_values)
        low = self.middle(nn.functional.avg_pool2d(first, 2))
        out: Tensor = self.out(self.up(torch.cat([first, nn.functional.interpolate(low, scale_factor=2)], 1)))
        return out


class Graph(nn.Module):
    """Three rounds in which each node gets the mean of its neighbours'."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(3))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        for layer in self.layers:
            total = torch.zeros_like(x).index_add_(0, edges[1], x[edges[0]])
            count = x.new_zeros(len(x), 1).index_add_(0, edges[1], x.new_ones(edges.shape[1], 1)).clamp(min=1)
            x = layer(torch.cat([x, total / count], 1)).relu()
        return x


MODELS: dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]] = {
    "ResNet": resnet,
    "Mamba": lambda: (
        hf.MambaModel(hf.MambaConfig(vocab_size=100, hidden_size=64, num_hidden_layers=3, state_size=8)),
        {"input_ids": ids(100, 32), "use_cache": False},
    ),
    "Mixtral": mixtral,
    "Llama, width 512": lambda: llama(512, 256),
    "BERT": lambda: (
        hf.BertModel(hf.BertConfig(vocab_size=1000, intermediate_size=512, **TEXT)),
        {"input_ids": ids()},
    ),
    "GPT-2": lambda: (
        hf.GPT2Model(hf.GPT2Config(vocab_size=1000, n_embd=128, n_layer=4, n_head=8, n_positions=64)),
        {"input_ids": ids(), "use_cache": False},
    ),
    "Llama": llama,
    "T5": t5,
    "ViT": lambda: (
        hf.ViTModel(hf.ViTConfig(intermediate_size=512, image_size=64, patch_size=8, **TEXT)),
        {"pixel_values": torch.randn(2, 3, 64, 64)},
    ),
    "Whisper": whisper,
    "Mamba2": mamba2,
    "U-Net": lambda: (UNet(), {"pixel_values": torch.randn(2, 3, 32, 32)}),
    "GNN": lambda: (Graph(), {"x": torch.randn(100, 64), "edges": torch.randint(0, 100, (2, 400))}),
}


@dataclass
class Case:
    """A model, its batch, and a training step."""

    model: nn.Module
    batch: dict[str, Any]
    step: Callable[[], None]

    @classmethod
    def of(cls, name: str, device: str = "cpu") -> "Case":
        torch.manual_seed(0)
        model, batch = MODELS[name]()
        model.to(device)
        batch = {key: value.to(device) if isinstance(value, Tensor) else value for key, value in batch.items()}
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

        def step() -> None:
            first(model(**batch)).square().mean().backward()  # type: ignore[no-untyped-call]  # torch's
            optimizer.step()
            optimizer.zero_grad()

        for _ in range(2):
            step()
        return cls(model, batch, step)


def first(out: Any) -> Tensor:
    """The first tensor that a model returns."""
    found: Tensor = out if isinstance(out, Tensor) else out[0]
    return found


class Bare(TorchDispatchMode):
    """It counts operations, and does nothing else."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def timed(call: Callable[[], Any]) -> float:
    """Seconds of a call, with what it launched on a GPU."""
    start = perf_counter()
    call()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return perf_counter() - start


def steps(case: Case, rounds_of: int = ROUNDS) -> tuple[dict[str, float], dict[str, float], int]:
    """Seconds of a step bare, under a bare mode, and in each kind of audit; of its first step; and its operations.

    Of an audit it is the fourth step, at which lines are looked at, and "between" is the sixth, at which they are not.
    """
    rounds: dict[str, list[float]] = {"bare": [], "mode": []}
    rounds |= {f"{name}{more}": [] for name in WAYS for more in ("", BETWEEN)}
    begins: dict[str, float] = {}
    count = 0
    for _ in range(rounds_of):
        rounds["bare"].append(timed(case.step))
        with Bare() as mode:  # type: ignore[no-untyped-call]  # torch's
            rounds["mode"].append(timed(case.step))
            count = mode.count
        for name, how in WAYS.items():
            with dtypeguard.audit(case.model, **how):
                begins.setdefault(name, timed(case.step))
                for _ in range(2):
                    case.step()
                rounds[name].append(timed(case.step))
                case.step()
                rounds[name + BETWEEN].append(timed(case.step))
    return {name: statistics.median(times) for name, times in rounds.items()}, begins, count


def reads(case: Case, how: dict[str, Any] | None) -> int:
    """How often the host waits for a number of the device in a step."""

    def look() -> int:
        with profile(activities=[ProfilerActivity.CPU]) as told:
            case.step()
        names = "aten::_local_scalar_dense", "aten::nonzero"
        return sum(event.count for event in told.key_averages() if event.key in names)

    if how is None:
        return look()
    with dtypeguard.audit(case.model, **how):
        for _ in range(3):
            case.step()
        return look()


def rows_of(name: str) -> list[Row]:
    """What each tool costs for one model."""
    case = Case.of(name)
    seconds, begins, operations = steps(case)
    bare, unit = seconds["bare"], seconds["mode"] - seconds["bare"]
    rows = [Row(name, duration(bare * 1e9), f"{operations:,} operations")]
    own = reads(case, None)
    for way, limit in UNITS.items():
        price, ratio = (seconds[way] - bare) / unit, seconds[way] / bare
        bar = at_most(limit, f"{limit:g} units")
        rows.append(Row(f"{name}, {way}", f"{price:.1f} units", times(ratio), bar, price))
        later = seconds[way + BETWEEN]
        price = (later - bare) / unit
        rows.append(Row(f"{name}, {way}{BETWEEN}", f"{price:.1f} units", times(later / bare), bar, price))
        looked = (reads(case, WAYS[way]) - own) / operations
        text = at_most(READS[way], f"{READS[way]:g}")
        rows.append(Row(f"{name}, {way}, host reads an operation", f"{looked:.3f}", "", text, looked))
    again = begins["True"] / seconds["True"]
    rows.append(
        Row(f"{name}, True, its first step", times(begins["True"] / bare), "", at_most(FIRST, "2 later"), again)
    )
    model, batch = case.model.eval(), case.batch

    def passes() -> None:
        first(model(**batch)).square().mean().backward()  # type: ignore[no-untyped-call]  # torch's
        model.zero_grad()

    both = statistics.median(timed(passes) for _ in range(ROUNDS))
    limit = next(most for least, most in TIMES if both * 1e3 >= least)
    for low in ("bfloat16", "float16"):
        try:
            ratio = min(timed(lambda low=low: dtypeguard.compare(model, batch, dtype=low)) for _ in range(2)) / both
        except dtypeguard.CompareError as error:
            rows.append(Row(f"{name}, compare {low}", f"refused: {str(error).splitlines()[0][:60]}"))
            continue
        rows.append(Row(f"{name}, compare {low}", times(ratio), "", at_most(limit, times(limit)), ratio))
    with torch.no_grad():
        forward = statistics.median(timed(lambda: model(**batch)) for _ in range(ROUNDS))
    table: list[Any] = []
    took = timed(lambda: table.append(dtypeguard.dryrun(model, batch, device="cpu")))
    ratio = took / len(list(table[0])) / forward
    rows.append(Row(f"{name}, dryrun, a cell", times(ratio), "of a forward", at_most(CELL, times(CELL)), ratio))
    return rows


def sampled(name: str) -> list[Row]:
    """A long training, of which steps 1, 2, 4, 8 ... are looked at."""
    case = Case.of(name)
    bare = timed(lambda: [case.step() for _ in range(MANY)])
    rows = []
    for values in ("range", True):
        with dtypeguard.audit(case.model, values=values, every="2^k"):  # type: ignore[call-overload]
            ratio = timed(lambda: [case.step() for _ in range(MANY)]) / bare
        bar = at_most(SAMPLED, times(SAMPLED))
        rows.append(Row(f"{name}, {values}, every 2^k", times(ratio), f"{MANY:,} steps", bar, ratio))
    return rows


def real_models(context: Context) -> Table:
    """Models of many small operations."""
    table = Table(
        "Models of many small operations",
        "Forward, backward and AdamW, weights drawn at random, width 128 and 3 to 4 layers where nothing else is said, "
        f"batches of 2; medians of {ROUNDS}. Of an audit it is the fourth step, at which lines are looked at as at all "
        "powers of two; the sixth is one between. A unit is what a dispatch mode costs that does nothing. `compare` "
        "against a forward and backward, a cell of `dryrun` against a forward. Host reads: `item` and `nonzero`, "
        f"besides the program's own. Every 2^k: steps 1, 2, 4, 8 ... of {MANY:,} are looked at.",
        ("what", "here", "against the step alone"),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table.rows += itertools.chain.from_iterable(map(rows_of, MODELS))
        table.rows += itertools.chain.from_iterable(map(sampled, SOME))
    return table
