"""`compare(format=)`: one run against one layer at a time, choices against all choices, and what it costs."""

import itertools
import statistics
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import networks
import torch
from bars import Context
from comparing import activations, peak
from report import Row, Table, at_least, at_most, duration, times
from torch import Tensor, nn

import dtypeguard
from dtypeguard._tools.compare.by_format import error_with
from dtypeguard.results import FormatComparison

RANKED, FIRST, NEAR = 0.9, 0.93, 0.9  # the rank correlation; networks whose first layer is nearly the best
BEST = 1.03  # of the error of the best of all choices
COST, MEMORY, ROUNDS = 1.5, 4.0, 5
ALL = 10  # layers of which all choices are tried
MANY = 2500  # choices
FORMATS = ("mxfp8", "nvfp4", "int8")
DRAWN = ("GPT-2", "Llama", "Qwen3", "BERT", "ViT", "T5", "Whisper", "Swin", "TransformerEncoder", "Mixtral")
COSTED = ("TransformerEncoder", "GPT-2", "Llama", "BERT", "ViT", "T5", "residual net")

Made = tuple[nn.Module, Any]


# ---------------------------------------------------------------- trained


def _hidden(depth: int) -> nn.Module:
    return nn.Sequential(*(part for _ in range(depth) for part in (nn.Linear(128, 128), nn.ReLU())))


class Waves(nn.Module):
    """Coordinates through sines and cosines, and a network of width 128."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", 2.0 ** torch.arange(32).div(8) * torch.pi)
        self.body = _hidden(4)
        self.head = nn.Linear(128, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = x[..., None] * self.steps
        out: Tensor = self.head(self.body(torch.cat([h.sin(), h.cos()], -1).flatten(-2)))
        return out


class Experts(nn.Module):
    """Eight experts, of which two are chosen for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate, self.head = nn.Linear(64, 128), nn.Linear(128, 16), nn.Linear(128, 16)
        self.experts = nn.ModuleList(nn.Linear(128, 128) for _ in range(16))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        shares, chosen = self.gate(h).softmax(-1).topk(2)
        mixed = sum(
            expert(h) * torch.where(chosen == n, shares, 0).sum(-1, keepdim=True)
            for n, expert in enumerate(self.experts)
        )
        out: Tensor = self.head(h + torch.relu(mixed))
        return out


class Pixels(nn.Module):
    """A transformer over the rows of a digit."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.body, self.head = nn.Linear(16, 128), networks.encoder(3, 128), nn.Linear(128, 16)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(self.inward(x.view(-1, 4, 16))).mean(1))
        return out


class Pictures(nn.Module):
    """Convolutions with skips, down and up again."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.deep = nn.Conv2d(64, 64, 3, padding=1)
        self.up, self.join = nn.ConvTranspose2d(64, 32, 2, stride=2), nn.Conv2d(64, 32, 3, padding=1)
        self.last = nn.Conv2d(32, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.first(x.view(-1, 1, 8, 8)).relu()
        two = self.deep(self.down(one).relu()).relu()
        joined = self.join(torch.cat([one, self.up(two).relu()], 1)).relu()
        out: Tensor = self.last(joined).mean((-1, -2))
        return out


class Twins(nn.Module):
    """Two halves of a picture through one network."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = _hidden(3), nn.Linear(128, 16)
        self.inward = nn.Linear(32, 128)

    def forward(self, x: Tensor) -> Tensor:
        one, two = (self.body(self.inward(half)) for half in x.chunk(2, -1))
        out: Tensor = self.head((one - two).square() + one * two)
        return out


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), _hidden(5), nn.Linear(128, 16))


def _on_digits(make: Callable[[], nn.Module]) -> Made:
    """A network that tells digits, trained for 300 steps."""
    torch.manual_seed(networks.SEED)
    images, kinds = networks._digits()
    model = make()
    if isinstance(model, Waves):
        images = images[:, [26, 36]]  # in the middle: those at the border are empty in nearly all

    def loss() -> Tensor:
        chosen = torch.randint(0, 1500, (64,))
        return nn.functional.cross_entropy(model(images[chosen]), kinds[chosen])

    networks._trained(model, 300, 2e-3, loss)
    return model.eval(), networks._unseen(images)


def _trained(name: str) -> Made:
    (model, batches, _), _ = networks.trained(name)
    return model.requires_grad_(), batches


TRAINED: dict[str, Callable[[], Made]] = {
    **{name: lambda name=name: _trained(name) for name in networks.TRAINED},  # type: ignore[misc]
    "perceptron": lambda: _on_digits(_perceptron),
    "waves": lambda: _on_digits(Waves),
    "experts": lambda: _on_digits(Experts),
    "row transformer": lambda: _on_digits(Pixels),
    "U-Net": lambda: _on_digits(Pictures),
    "twins": lambda: _on_digits(Twins),
}


# ---------------------------------------------------------------- ranks


def _ranks(values: Sequence[float]) -> Tensor:
    tensor = torch.tensor(values, dtype=torch.float64)
    ranks = torch.empty_like(tensor)
    ranks[tensor.argsort()] = torch.arange(len(tensor), dtype=torch.float64)
    return ranks


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    return float(torch.corrcoef(torch.stack([_ranks(one), _ranks(other)]))[0, 1])


def _with(result: FormatComparison, names: Sequence[str]) -> float:
    """The error with these layers in the format, and no others."""
    rows = result._subject.assigned(result._subject.formats[0])
    return error_with(result._subject, {name: rows[name] for name in names})


def _ranked(case: Made, format: str) -> tuple[float, bool, float, int]:
    """The rank correlation with one at a time, whether the first layer is nearly the best, and the sum of shares."""
    result = dtypeguard.compare(*case, format=format)
    names = [*result._subject.assigned(result._subject.formats[0])]
    told = {layer.name: layer.alone or 0.0 for layer in result.layers}
    alone = [_with(result, [name]) for name in names]
    saves = {name: 1 - (_with(result, [n for n in names if n != name]) / result.error) ** 2 for name in names}
    first = next(layer.name for layer in result.layers if layer.name in saves)
    return (
        spearman([told[name] for name in names], alone), saves[first] >= NEAR * max(saves.values()),
        result.explained or 0.0, len(names),
    )  # fmt: skip


def formats_ranking(context: Context) -> Table:
    """What one run says of layers, against runs with each of them alone."""
    table = Table(
        "`compare(format=)`: layers",
        "Networks that are trained here, and transformers with random weights. Rank correlation (Spearman) of `alone` "
        "with the error of a run in which only this layer is in the format; the first layer is right if keeping it "
        f"saves at least {NEAR} of what keeping the best one saves. Layers that are nearly equal have chance ranks.",
        ("network, layers", " · ".join(FORMATS), "explained; first right"),
    )
    right, every = 0, 0
    for name, make in {**TRAINED, **{name: lambda name=name: networks.drawn(name)[:2] for name in DRAWN}}.items():
        case = make()
        if name in DRAWN:
            case = case[0], case[1][:1]
        found = [_ranked(case, format) for format in FORMATS]
        right, every = right + sum(one[1] for one in found), every + len(found)
        told = " · ".join(f"{one[0]:.2f}" for one in found)
        explained, firsts = [one[2] for one in found], sum(one[1] for one in found)
        said = f"{min(explained):.3f} to {max(explained):.3f}; {firsts} of {len(found)}"
        worst = min(one[0] for one in found)
        table.rows.append(Row(f"{name}, {found[0][3]}", told, said, at_least(RANKED - 1e-9, f"{RANKED}"), worst))
    share = right / every
    table.rows.append(Row("first layer right", f"{right} of {every}", "", at_least(FIRST, f"{FIRST}"), share))
    return table


# ---------------------------------------------------------------- choices


def formats_choices(context: Context) -> Table:
    """`keep(bits=)` against all choices."""
    table = Table(
        "`keep(bits=)` against all choices",
        f"Networks of at most {ALL} layers, NVFP4 or MXFP8 for each, or float32 too where "
        "all choices are few: the error of what is chosen, against that of the "
        "best of all choices with as many bits, over seven averages.",
        ("network, choices", "median", "worst"),
    )
    for name, make in TRAINED.items():
        model, batches = make()
        result = dtypeguard.compare(model, batches, format=("nvfp4", "mxfp8"))
        names = [name for name in result._subject.weights if name not in result.stays]
        if not 2 < len(names) <= ALL:
            continue
        low, high = (result.by_format[key]._subject.formats[0] for key in ("nvfp4", "mxfp8"))
        sizes = [result._subject.weights[one].count for one in names]
        errors = {}
        own = (None,) if 3 ** len(names) <= MANY else ()  # the model's own dtype
        for chosen in itertools.product((low, high, *own), repeat=len(names)):
            widths = [result._subject.width if to is None else to.bits for to in chosen]
            cost = sum(bits * size for bits, size in zip(widths, sizes, strict=True)) / sum(sizes)
            rows = {name: to for name, to in zip(names, chosen, strict=True) if to is not None}
            errors[chosen] = cost, error_with(result._subject, rows)
        ratios = []
        for bits in torch.linspace(low.bits + 0.4, high.bits - 0.4, 7).tolist():
            best = min(error for cost, error in errors.values() if cost <= bits)
            rest = sum(held.count for key, held in result._subject.weights.items() if key not in names)
            average = (bits * sum(sizes) + result._subject.width * rest) / (sum(sizes) + rest)
            ratios.append(result.keep(bits=average).error / best)
        worst = max(ratios)
        table.rows.append(
            Row(
                f"{name}, {len(errors)}",
                times(statistics.median(ratios)),
                times(worst),
                at_most(BEST, times(BEST)),
                worst,
            )
        )
    return table


# ---------------------------------------------------------------- costs


def formats_costs(context: Context) -> Table:
    """Time against a comparison with bfloat16, and memory."""
    table = Table(
        "What `compare(format=)` costs",
        f"In turn with `compare(dtype=torch.bfloat16)`, {ROUNDS} times. Memory: the most that tensors take, of what a "
        "forward in float32 saves for its backward.",
        ("network", "mxfp8 · nvfp4 · int8", "÷ bfloat16; memory"),
    )
    ways: dict[str, dict[str, Any]] = {
        "bf16": {"dtype": torch.bfloat16},
        **{name: {"format": name} for name in FORMATS},
    }
    for name in COSTED:
        model, batches, _ = networks.drawn(name)
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(ROUNDS):
            for way, options in ways.items():
                start = perf_counter()
                dtypeguard.compare(model, batches[0], **options)
                seconds[way].append(perf_counter() - start)
        ratios = {
            way: statistics.median(a / b for a, b in zip(seconds[way], seconds["bf16"], strict=True)) for way in FORMATS
        }
        own = " · ".join(duration(1e9 * statistics.median(seconds[way])) for way in FORMATS)
        most, _ = peak(lambda: dtypeguard.compare(model, batches[0], format="nvfp4"))  # noqa: B023  # called at once
        saved = activations((model, batches[0], _output))
        told = " · ".join(times(ratios[way]) for way in FORMATS)
        worst = max(ratios.values())
        table.rows.append(Row(name, own, f"{told}; {most / saved:.1f}", at_most(COST, times(COST)), worst))
    return table


def _output(out: Any) -> Tensor:
    found: Tensor = out if isinstance(out, Tensor) else out[0]
    return found
