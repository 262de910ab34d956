"""What `compare` says of networks, against what real runs show; what it finds to keep, against the best and peers."""

import functools
import gc
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter, perf_counter_ns
from typing import Any

import networks
import torch
import transformers as hf
from bars import Context
from report import Row, Table, at_most, duration, exactly, times
from timing import Samples
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import dtypeguard
from dtypeguard._tools.compare.keep import Search

LOW: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": torch.bfloat16},
    "float16": {"dtype": torch.float16},
    "bfloat16 autocast": {"region": torch.bfloat16},
}
EXPLAINED = 0.05  # how far from all of the error
NEAR, FLAT, APART = 0.9, 0.1, 0.01  # of the best saving; the best saving below which a difference counts instead
TARGETS = 0.7, 0.5, 0.3, 0.1  # of the error
SEARCHED = 0.5, 0.2
SMALL = 12  # units of which all sets are tried
DEARER = 0.1  # of the parameters: how much more than the cheapest set one may hold
TIMES = (100, 8.0), (20, 12.0), (0, 40.0)  # milliseconds of a step, from which on a comparison takes at most as many
MEMORY, ROUNDS = 4.0, 5


@functools.cache
def network(name: str) -> networks.Case:
    return networks.drawn(name) if name in networks.RANDOM else networks.trained(name)[0]


def percent(share: float) -> str:
    """`57 %`, `0.76 %`."""
    return f"{100 * share:.0f} %" if abs(share) >= 0.0995 else f"{100 * share:.2g} %"


def shown(name: str) -> str:
    return f"`{name or 'the model'}`"


# ---------------------------------------------------------------- what layers save


@dataclass(frozen=True, slots=True)
class Found:
    """What a comparison expects keeping each unit to save of the error², and what it does save."""

    error: float
    explained: float
    expected: dict[str, float]
    real: dict[str, float]

    @property
    def first(self) -> str:
        return max(self.expected, key=lambda name: self.expected[name])

    @property
    def best(self) -> str:
        return max(self.real, key=lambda name: self.real[name])

    @property
    def near(self) -> bool:
        """Whether the first saves as much as the best, or nearly."""
        return self.real[self.first] >= NEAR * self.real[self.best]

    @property
    def flat(self) -> bool:
        """Whether all layers save little, and the first nearly as much as the best."""
        best = self.real[self.best]
        return best < FLAT and best - self.real[self.first] <= APART

    @property
    def correlation(self) -> float:
        """Of ranks."""
        ranks = []
        for values in (self.expected, self.real):
            order = sorted(self.real, key=lambda name: values[name])
            ranks.append([float(order.index(name)) for name in self.real])
        return statistics.correlation(*ranks) if len(self.real) > 2 else 1.0


def saving(case: networks.Case, low: dict[str, Any]) -> Found:
    model, batches, of = case
    result = dtypeguard.compare(model, batches, loss=of, **low)
    search = result._search
    saves = {layer.name: layer.saves for layer in result.layers}
    expected = {name: -math.inf if saves.get(name) is None else float(saves[name] or 0.0) for name in search.leaves}
    real = {name: 1 - (search.trial([name]) / result.error) ** 2 for name in search.leaves}
    return Found(result.error, result.explained if result.explained is not None else math.nan, expected, real)


def comparing(context: Context) -> Table:
    """The shares, and the layers that are named first, against runs with each layer in float32."""
    table = Table(
        "`compare`",
        f"{len(networks.RANDOM)} networks with random weights and {len(networks.TRAINED)} that are trained here, "
        f"{networks.BATCHES} batches each. For each layer that can be kept, the model is run with it in float32: what "
        "that saves of the error² is compared with what `compare` expects of it. "
        f"Named right is a first layer that saves at least {NEAR} of what the best one does; where the best saves "
        f"less than {FLAT}, also one that saves at most {APART} less.",
        ("network", "error, and how much of it is explained", "the layer named first: saves, expected; the best"),
    )
    found: list[Found] = []
    for name in (*networks.RANDOM, *networks.TRAINED):
        for low, how in LOW.items():
            one = saving(network(name), how)
            found.append(one)
            told = f"{shown(one.first)}: {percent(one.real[one.first])}, {percent(one.expected[one.first])}"
            if one.first != one.best:
                told += f"; {shown(one.best)}: {percent(one.real[one.best])}"
            if not one.near:
                told += " (flat)" if one.flat else " (missed)"
            bar = at_most(EXPLAINED, f"{percent(EXPLAINED)} off")
            value = f"{percent(one.error)}, {100 * one.explained:.1f} %"
            table.rows.append(Row(f"{name}, {low}", value, told, bar, abs(one.explained - 1)))
    near, flat = sum(one.near for one in found), sum(one.near or one.flat for one in found)
    explained = sum(abs(one.explained - 1) <= EXPLAINED for one in found)
    all_of = exactly(len(found), str(len(found)))
    ranks = [one.correlation for one in found]
    table.rows += [
        Row("explained", f"{explained} of {len(found)}", "", all_of, explained),
        Row("the first layer saves at least 0.9 of the best", f"{near} of {len(found)}", "", all_of, near),
        Row("the same, or all layers save little", f"{flat} of {len(found)}", "", all_of, flat),
        Row("correlation of ranks, median and lowest", f"{statistics.median(ranks):.2f}, {min(ranks):.2f}"),
        *_known(),
    ]
    return table


# ---------------------------------------------------------------- known answers


class Routed(nn.Module):
    """One of four experts for each vector."""

    def __init__(self, width: int = 64, count: int = 4) -> None:
        super().__init__()
        self.into, self.router = nn.Linear(width, width), nn.Linear(width, count)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(count))
        self.head = nn.Linear(width, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.into(x))
        chosen = self.router(h).softmax(-1).argmax(-1)
        for number, expert in enumerate(self.experts):
            h = h + torch.where((chosen == number)[..., None], expert(h), torch.zeros_like(h))
        out: Tensor = self.head(h)
        return out


def overflowing() -> networks.Case:
    """T5 whose feed-forward layers become larger than float16, as those of the real one do."""
    model: nn.Module = hf.T5ForConditionalGeneration(networks.t5_config())
    model.eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("wo.weight"):
                parameter.mul_(1500)
            if "DenseReluDense.wi" in name:
                parameter.mul_(6)
    return model, {"input_ids": networks.ids(2, 24), "decoder_input_ids": networks.ids(2, 16)}, networks.logits


def cancelling() -> networks.Case:
    """An encoder of which one layer adds a large number that the next one takes off."""
    model = networks.encoder(3).eval()
    layer: Any = model.get_submodule("layers.1")
    with torch.no_grad():
        layer.linear1.bias.add_(20)
        layer.linear2.bias.sub_(layer.linear2.weight.sum(1) * 20)
    return model, torch.randn(4, 32, networks.WIDTH), None


def routing() -> networks.Case:
    """A router that is nearly undecided."""
    model = Routed().eval()
    with torch.no_grad():
        model.router.weight.mul_(0.05)
        model.router.bias.zero_()
    return model, torch.randn(512, 64), None


def _known() -> Iterator[Row]:
    """Rows of what the answer is known of."""
    yes = exactly(True, "found")
    torch.manual_seed(networks.SEED)
    model, batch, of = overflowing()
    kept = dtypeguard.compare(model, batch, dtype=torch.float16, loss=of).keep(0.1)
    right = all(name.endswith("wo") for name in kept.names)
    count = sum(name.endswith(".wo") for name, _ in model.named_modules())
    told = f"keeps {len(kept.names)} of {count} `wo`" if right else f"keeps {', '.join(map(shown, kept.names))}"
    yield Row("T5 whose `wo` overflow, float16", f"error {percent(kept.error)}", told, yes, right)
    for low, how in LOW.items():
        torch.manual_seed(networks.SEED)
        model, batch, of = cancelling()
        result = dtypeguard.compare(model, batch, loss=of, **how)
        names = result.keep(result.error / 2).names
        planted = "layers.1.linear1", "layers.1.linear2"
        right = result.layers[0].name in planted and all(name in planted for name in names)
        told = f"{shown(result.layers[0].name)} first; half of it: {', '.join(map(shown, names))}"
        yield Row(f"a planted cancellation, {low}", f"error {percent(result.error)}", told, yes, right)
    for low, how in LOW.items():
        torch.manual_seed(networks.SEED)
        model, batch, of = routing()
        result = dtypeguard.compare(model, batch, loss=of, **how)
        line, names = result.lines[0], result.keep(result.error / 2).names
        right = "argmax" in line.source and set(names) <= {"into", "router"}
        told = f"choices {percent(line.decisions)} of it; half of it: {', '.join(map(shown, names))}"
        yield Row(f"a router's argmax, {low}", f"error {percent(result.error)}", told, yes, right)


# ---------------------------------------------------------------- what to keep


class Few(nn.Module):
    """A language model of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.body, self.head = nn.Embedding(50, 64), networks.encoder(1, 64), nn.Linear(64, 50)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(self.words(x)))
        return out


def few() -> networks.Case:
    torch.manual_seed(networks.SEED)
    return Few().eval(), [torch.randint(0, 50, (8, 32)) for _ in range(2)], None


def held(names: Sequence[str], leaves: list[str]) -> int:
    """How many units several modules hold."""
    return sum(any(leaf == name or not name or leaf.startswith(f"{name}.") for name in names) for leaf in leaves)


def cheapest(trial: Callable[[list[str]], float], units: Any) -> Callable[[float], float]:
    """Gives the share of the parameters of the cheapest set of modules that reaches an error; 1 if none does."""
    leaves = units.leaves
    sets = [list(some) for size in range(1, len(leaves) + 1) for some in itertools.combinations(leaves, size)]
    sets.sort(key=units.share)
    tried: dict[int, float] = {}

    def share_for(target: float) -> float:
        for number, names in enumerate(sets):
            if number not in tried:
                tried[number] = trial(names)
            if tried[number] <= target:
                return float(units.share(names))
        return 1.0

    return share_for


def keeping(context: Context) -> Table:
    """`keep` against the best of all sets."""
    table = Table(
        "`keep` against the best of all sets",
        f"Networks of at most {SMALL} units. For each target, as a share of the error: the share of the parameters "
        "that `keep` holds, and that of the cheapest set that reaches it, of all sets, which have been run in "
        "the order of what they hold.",
        ("network", "units, sets run", f"kept / cheapest, for {', '.join(map(str, TARGETS))} of the error"),
    )
    cases: dict[str, Callable[[], networks.Case]] = {
        "one layer": few,
        **{name: functools.partial(network, name) for name in ("perceptron", "LSTM")},
        **{name: functools.partial(network, name) for name in ("digits classifier", "autoencoder")},
    }
    good = count = 0
    for name, made in cases.items():
        for low, how in LOW.items():
            model, batches, of = made()
            result = dtypeguard.compare(model, batches[:2], loss=of, **how)
            search = Search(result._subject, result._found)  # another, or `keep` would know these runs
            runs = itertools.count()

            def trial(names: list[str], search: Any = search, runs: Any = runs) -> float:
                next(runs)
                found: float = search._error(search.units.closed(names), as_given=True)
                return found

            share_for, more, told = cheapest(trial, search.units), 0.0, []
            for target in TARGETS:
                kept, best = result.keep(target * result.error).parameters, share_for(target * result.error)
                told.append(f"{percent(kept)} / {percent(best)}")
                more = max(more, kept - best)
                good, count = good + (kept - best <= DEARER), count + 1
            value = f"{len(search.leaves)}, {next(runs):,}"
            bar = at_most(DEARER, f"{percent(DEARER)} more")
            table.rows.append(Row(f"{name}, {low}", value, ", ".join(told), bar, more))
    table.rows.append(
        Row(f"at most {percent(DEARER)} more", f"{good} of {count}", "", exactly(count, str(count)), good)
    )
    return table


# ---------------------------------------------------------------- against other ways to search


@dataclass(slots=True)
class Way:
    """What a way to search has cost, and what it has found."""

    runs: int
    seconds: float
    kept: int
    error: float  # of the target's


def _until(order: list[str], search: Any, target: float, known: float | None = None) -> tuple[int, list[str], float]:
    """Keep one module more until the error is reached: the runs, the modules, the error."""
    runs, error = 0, math.inf
    for number in range(1, len(order) + 1):
        if number > 1 or known is None:
            runs += 1
            error = search.trial(order[:number])
        else:
            error = known
        if error <= target:
            return runs, order[:number], error
    return runs + 1, [""], search.trial([""])


def ratios(model: nn.Module, low: nn.Module, search: Any) -> dict[str, float]:
    """The square of noise over signal in the output of each unit, of a run in each dtype."""
    noise: dict[str, float] = {}
    outputs: dict[str, Tensor] = {}
    subject = search._subject

    def logged(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, out: Any) -> None:
            tensor = (out[0] if isinstance(out, tuple) else out).detach().double()
            if name in outputs:
                exact = outputs[name]
                noise[name] = float((tensor - exact).square().sum() / exact.square().sum())
            else:
                outputs[name] = tensor

        return hook

    for one, is_low in ((model, False), (low, True)):
        handles = [one.get_submodule(name).register_forward_hook(logged(name)) for name in search.leaves]
        batch = subject.batches[0] if not is_low else subject.batches[0].to(subject.dtype)
        with torch.no_grad():
            subject.run(one, 0, batch, low=is_low)
        for handle in handles:
            handle.remove()
    return noise


def ways(case: networks.Case, low: dict[str, Any], share: float) -> dict[str, Way]:
    """Three ways to search for what to keep for a share of the error, with one batch."""
    model, batches, of = case
    found: dict[str, Way] = {}

    start = perf_counter()
    result = dtypeguard.compare(model, batches[0], loss=of, **low)
    target = share * result.error
    kept = result.keep(target)
    seconds = perf_counter() - start
    search, subject = result._search, result._subject
    units = search.leaves
    found["compare, keep"] = Way(subject.runs, seconds, held(kept.names, units), kept.error / target)

    start = perf_counter()
    error = search.trial([])
    with torch.no_grad():  # its reference
        subject.run(subject.copy().double(), 0, subject.batches[0].to(torch.float64), low=False)
    single = {name: search.trial([name]) for name in units}
    order = sorted(units, key=lambda name: single[name])
    runs, names, reached = _until(order, search, target, single[order[0]])
    seconds = perf_counter() - start
    found["one at a time"] = Way(2 + len(units) + runs, seconds, held(names, units), reached / target)
    assert math.isclose(error, result.error, rel_tol=0.05), (error, result.error)

    start = perf_counter()
    noise = ratios(subject.copy(), subject.lowered(), search)
    order = sorted(units, key=lambda name: -noise.get(name, 0.0))
    runs, names, reached = _until(order, search, target)
    seconds = perf_counter() - start
    found["signal to noise"] = Way(2 + runs, seconds, held(names, units), reached / target)
    return found


AGAINST = ("TransformerEncoder", "GPT-2", "T5", "ViT", "ConvNeXt", "residual net")


def searching(context: Context) -> Table:
    """`compare` and `keep` against other ways to find what to keep."""
    table = Table(
        "`compare` and `keep` against other ways to search",
        "One batch. One at a time: a run with each unit in float32, then the units that save most, one more at a time "
        "until the error is reached. Signal to noise: the outputs of all units are compared in a run in each dtype, "
        "then the worst are kept, one more at a time. All use the same casts at the borders; a run of `compare` with "
        "shadows counts as one, but takes longer. Medians over the networks with random weights "
        f"{', '.join(AGAINST)}, and the trained ones.",
        ("target, and way", "runs, time", "units kept; error, of the target"),
    )
    for low in ("bfloat16", "float16"):
        for share in SEARCHED:
            each = [ways(network(name), LOW[low], share) for name in (*AGAINST, *networks.TRAINED)]
            least = [min(one.kept for one in found.values()) for found in each]
            for way in each[0]:
                own = [found[way] for found in each]
                runs, kept = (statistics.median(getattr(one, key) for one in own) for key in ("runs", "kept"))
                seconds = statistics.median(one.seconds for one in own)
                wins = sum(one.kept == best for one, best in zip(own, least, strict=True))
                reached = statistics.median(one.error for one in own)
                table.rows.append(
                    Row(
                        f"{share} of the error, {low}: {way}",
                        f"{runs:g}, {duration(seconds * 1e9)}",
                        f"{kept:g}, the fewest in {wins} of {len(own)}; {reached:.2f}",
                    )
                )
    return table


# ---------------------------------------------------------------- costs


def _loaded(name: str) -> networks.Case:
    torch.manual_seed(networks.SEED)
    if name == "GPT-2":
        model, _, of = networks.gpt2()
        return model.eval(), {"input_ids": networks.ids(8, 64)}, of
    if name == "Llama":
        sizes: dict[str, Any] = {"hidden_size": 512, "intermediate_size": 1365, "num_hidden_layers": 4}
        heads = {"num_attention_heads": 8, "num_key_value_heads": 4}
        model = hf.LlamaModel(hf.LlamaConfig(vocab_size=1000, use_cache=False, **sizes, **heads))
        return model.eval(), {"input_ids": torch.randint(1000, (2, 256))}, networks.hidden
    if name == "ResNet":
        widths = {"embedding_size": 32, "hidden_sizes": [32, 64, 128, 128], "depths": [2, 2, 2, 2]}
        return (
            hf.ResNetModel(hf.ResNetConfig(**widths)).eval(),
            {"pixel_values": torch.randn(2, 3, 96, 96)},
            networks.hidden,
        )
    return networks.encoder(6, 256).eval(), torch.randn(8, 64, 256), None


def output(case: networks.Case) -> Tensor:
    model, batch, of = case
    out = model(**batch) if isinstance(batch, dict) else model(batch)
    found: Tensor = out if of is None else of(out)
    return found


def step(case: networks.Case) -> None:
    """One forward and backward of the model as it is."""
    case[0].zero_grad(set_to_none=True)
    output(case).square().mean().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped


def activations(case: networks.Case) -> int:
    """Bytes that a forward of the model as it is saves for its backward, parameters not included."""
    own = {tensor.untyped_storage()._cdata for tensor in case[0].parameters()}
    sizes: dict[int, int] = {}
    alive: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            sizes[storage._cdata] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output(case)
    return sum(sizes.values())


def peak(call: Callable[[], Any]) -> tuple[int, int]:
    """The most bytes that tensors take at a time during a call, and after it, while its result is alive."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as told:
        result = call()
        gc.collect()
    profiler: Any = told.profiler
    events = sorted(
        (event for event in profiler.kineto_results.events() if event.name() == "[memory]"),
        key=lambda event: event.start_ns(),
    )
    now = most = 0
    for event in events:
        now += event.nbytes()
        most = max(most, now)
    del result
    return most, now


def comparing_costs(context: Context) -> Table:
    """Time and memory of a comparison."""
    table = Table(
        "What `compare` costs",
        "A `TransformerEncoder` (6 layers, width 256, batch 8 x 64), GPT-2 (4 layers, width 128, batch 8 x 64), Llama "
        "(4 layers, width 512, batch 2 x 256) and a ResNet (8 blocks, width 32 to 128, batch 2 x 96 x 96). "
        f"Time: in turn with one forward and backward of the model in float32, {ROUNDS} times. Memory: the most that "
        "tensors take during the call, and what is held after it while the result is alive, of what a forward in "
        "float32 saves for its backward.",
        ("what", "here", "against float32"),
    )
    for name in ("encoder", "GPT-2", "Llama", "ResNet"):
        case = _loaded(name)
        model, batch, of = case
        saved = activations(case)
        for low, how in LOW.items():
            compared: Callable[[], Any] = functools.partial(dtypeguard.compare, model, batch, loss=of, **how)
            rounds: dict[str, list[float]] = {"step": [], "compare": []}
            step(case)
            compared()
            for _ in range(ROUNDS):
                for key, call in (("step", functools.partial(step, case)), ("compare", compared)):
                    start = perf_counter_ns()
                    call()
                    rounds[key].append(perf_counter_ns() - start)
            samples = Samples(rounds)
            bar = next(bar for least, bar in TIMES if samples.median("step") >= least * 1e6)
            ratio = samples.ratio("compare", "step")
            model.zero_grad(set_to_none=True)
            most, left = peak(compared)
            size, least = f"{most / 2**20:.1f} MiB", f"{left / 2**20:.1f} MiB"
            table.rows += [
                Row(f"{name}, {low}: time", duration(samples.median("compare")), times(ratio),
                    at_most(bar, times(bar)), ratio),
                Row(f"{name}, {low}: memory", size, times(most / saved), at_most(MEMORY, times(MEMORY)), most / saved),
                Row(f"{name}, {low}: held after it", least, times(left / saved)),
            ]  # fmt: skip
    return table
