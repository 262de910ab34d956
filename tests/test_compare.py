"""`compare`: the shares explain the error, what is kept has been run, and nothing of the caller's changes."""

import copy
import itertools
import json
import math
import pickle
import re
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from support import BF16, F16, F32, F64, same
from torch import nn
from torch.utils.checkpoint import checkpoint

import dtypeguard
from dtypeguard import CompareError, DeviceError, compare, diff
from dtypeguard._show.text import percent
from dtypeguard._tools.compare.text import bars, of_whole
from dtypeguard.results import Kept

INPUTS = "(inputs)"
LOW = {
    "bfloat16": {"dtype": BF16}, "float16": {"dtype": F16}, "bf16 autocast": {"region": BF16},
    "fp16 autocast": {"region": F16},
}  # fmt: skip


# ---------------------------------------------------------------- models


def encoder(layers=2, dropout=0.0, width=32):
    layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=dropout, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x * x).sin()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * (x * x).cos() * gradient


class Mixed(nn.Module):
    """A function of its own, writes in place, a checkpoint, a buffer, a frozen parameter, and a table of positions."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 8)
        self.frozen = nn.Parameter(torch.randn(16), requires_grad=False)
        self.register_buffer("steps", torch.linspace(0.1, 1, 16))

    def forward(self, x):
        table = (self.steps * 3).cos()
        h = checkpoint(lambda t: torch.tanh(self.first(t)), x, use_reentrant=False) * table
        h[:, ::2] *= 1.7
        h = h.view(-1, 16).add_(self.frozen).clone()
        h[0].mul_(0.3)
        return {"out": self.second(Square.apply(h)), "none": None, "several": [h.mean(1)]}


def network():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(8 * 36, 10)
    )


MODELS = {
    "an encoder": (lambda: encoder().eval(), lambda: torch.randn(4, 16, 32)),
    "an encoder in training": (lambda: encoder(dropout=0.2).train(), lambda: torch.randn(4, 16, 32)),
    "convolution and batch norm in training": (lambda: network().train(), lambda: torch.randn(4, 3, 8, 8)),
    "convolution and batch norm": (lambda: network().eval(), lambda: (torch.randn(4, 3, 8, 8),)),
    "autograd's special cases": (Mixed, lambda: {"x": torch.randn(12, 16)}),
    "attention that drops out": (
        lambda: nn.MultiheadAttention(16, 2, dropout=0.2, batch_first=True).train(),
        lambda: (torch.randn(3, 9, 16),) * 3,
    ),
    "several batches": (
        lambda: nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)),
        lambda: [torch.randn(8, 16), (torch.randn(5, 16) * 3,), {"input": torch.randn(2, 16)}],
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def made(name):
    torch.manual_seed(0)
    model, batch = MODELS[name]
    return model(), batch()


def planted():
    """A large offset that the next layer takes away again: bfloat16 has no digits left for what is between."""
    model = encoder(3).eval()
    with torch.no_grad():
        layer = model.layers[1]
        layer.linear1.bias += 20
        layer.linear2.bias -= 20 * layer.linear2.weight.sum(1)
    return model, torch.randn(4, 16, 32)


# ---------------------------------------------------------------- shares


@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("name", MODELS)
def test_shares_explain_the_error(name, low):
    result = compare(*made(name), **LOW[low])
    assert 0 < result.error < 0.05
    assert result.linear
    assert result.reference is F64
    assert result.explained == pytest.approx(1, abs=0.03)
    for rows in (result.layers, result.lines):
        for row in rows:
            assert row.share == pytest.approx(row.weights + row.arithmetic + row.decisions)
    assert sum(layer.share for layer in result.layers) == pytest.approx(result.explained)
    assert [note for note in result.notes if "fast path" not in note] == []
    assert result.born == ()


def test_the_error_is_that_of_the_model_in_the_dtype():
    model, x = made("an encoder")
    with torch.no_grad(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            exact, low = copy.deepcopy(model).to(F64)(x.to(F64)), copy.deepcopy(model).to(BF16)(x.to(BF16))
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
    assert compare(model, x, dtype=BF16).error == pytest.approx(float((low - exact).norm() / exact.norm()), rel=0.2)


def test_storage_and_arithmetic_are_told_apart():
    model = nn.Sequential(nn.Linear(16, 16, bias=False), nn.Linear(16, 4, bias=False))
    x = torch.randint(-4, 4, (32, 16)).float()
    with torch.no_grad():  # whole numbers that bfloat16 has: the first layer makes no error at all
        model[0].weight.copy_(torch.randint(-1, 2, (16, 16)))
    stored = compare(model, x, dtype=BF16)
    layers = {layer.name: layer for layer in stored.layers}
    assert layers["0"].share == 0
    assert layers["(inputs)"].share == 0
    assert layers["1"].weights > 0.3
    assert list(stored.parameters) == ["0.weight", "1.weight"][::-1]
    with torch.no_grad():
        model[1].weight.copy_(model[1].weight.to(BF16))
    computed = compare(model, x, dtype=BF16)
    assert {layer.name: layer.weights for layer in computed.layers}["1"] == 0
    assert computed.linear


def test_what_autocast_casts_of_a_parameter_is_storage():
    model, x = nn.Linear(16, 4, bias=False), torch.randint(-4, 4, (32, 16)).float()
    first = compare(model, x, region=BF16).layers[0]
    assert first.weights > 0.3
    with torch.no_grad():
        model.weight.copy_(model.weight.to(BF16))
    second = compare(model, x, region=BF16).layers[0]
    assert second.weights == 0
    assert second.arithmetic == pytest.approx(1, abs=0.02)


def test_a_loss_is_compared_as_one_number():
    model, x = made("an encoder")
    one = compare(model, x, dtype=BF16, loss=lambda out: out.abs().mean())
    both = compare(model, {"src": x}, dtype=BF16, loss=lambda out, given: F.mse_loss(out, given["src"].flip(1).to(out)))
    for result in (one, both):
        assert result.error < 0.05
        assert result.explained == pytest.approx(1, abs=0.05)


def test_lines_are_those_of_the_model():
    result = compare(*made("autograd's special cases"), dtype=BF16)
    here = Path(__file__).read_text().splitlines()
    for line in result.lines:
        assert (line.file, line.source) == (__file__, here[line.line - 1].strip())
    assert {"table = (self.steps * 3).cos()"}.isdisjoint(
        line.source for line in result.lines
    )  # charged where it is used
    assert any("Square.apply" in line.source for line in result.lines)


class Twins(nn.Module):
    """Two layers whose errors cancel, beside one that has the rest."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second = copy.deepcopy(self.first)

    def forward(self, x):
        first, second, last = (layer(x).float().sum() for layer in (self.first, self.second, self.last))
        return first - second + 0.001 * last


def test_shares_that_cancel_but_for_little_are_no_rows():
    result = compare(Twins(), torch.randn(4, 8), region=BF16)
    assert sum(abs(layer.share) for layer in result.layers) > 10
    lines = str(result).splitlines()
    assert all(line.startswith(("bfloat16", "note", "    ")) for line in lines)
    assert any("is chance: pass more batches" in note for note in result.notes)


def test_a_planted_cancellation_is_named_first():
    model, x = planted()
    result = compare(model, x, dtype=BF16)
    assert {layer.name for layer in result.layers[:2]} == {"layers.1.linear1", "layers.1.linear2"}
    assert sum(layer.share for layer in result.layers[:2]) > 0.9
    assert result.depth[-1] == ""
    assert result.depth.index("layers.1.linear1") < result.depth.index("layers.1.linear2")


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(8, 4, bias=False), nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        chosen = self.gate(x).argmax(-1)
        return torch.stack([expert(x) for expert in self.experts], 1)[torch.arange(len(x)), chosen]


def test_a_choice_that_comes_out_otherwise_has_its_share():
    result = compare(Router(), torch.randn(2000, 8), dtype=BF16)
    first = result.layers[0]
    assert first.name == ""
    assert first.decisions > 0.9
    assert not result.linear
    assert result.bisected > 0  # derivatives know nothing of a choice
    assert "argmax" in result.lines[0].source
    assert any("choices come out otherwise" in note for note in result.notes)


class Steep(nn.Module):
    """A large angle: a rounding goes round the circle, and no derivative tells how far."""

    def __init__(self):
        super().__init__()
        self.before, self.angle, self.after = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.after(torch.sin(1e4 * self.angle(torch.tanh(self.before(x)))))


def test_what_is_not_linear_is_measured_by_real_runs():
    result = compare(Steep(), torch.randn(64, 8), dtype=BF16)
    assert not result.linear
    assert 0 < result.bisected <= 16
    assert any("not linear" in note and f"{result.bisected} runs" in note for note in result.notes)
    assert result.keep(error=0.01).error < 0.01
    assert result.keep(error="1%").names == result.keep(error=0.01).names


def test_at_a_minimum_shares_explain_the_error_too():
    model, x = made("an encoder")
    with torch.no_grad():
        target = model(x) + 1e-4  # the loss grows with the square of the error
    result = compare(model, x, dtype=BF16, loss=lambda out: F.mse_loss(out.float(), target))
    assert result.explained == pytest.approx(1, abs=0.03)


# ---------------------------------------------------------------- what must stay in float32


def measured(kept, model, x):
    """The error of a model as `apply` leaves it."""
    exact = copy.deepcopy(model).to(F64)
    with torch.no_grad():
        wide = exact(x.to(F64))
        return float((kept.apply(copy.deepcopy(model))(x) - wide).norm() / wide.norm())


@pytest.mark.parametrize("share", [0.9, 0.5, 0.25, 0.1, 1e-3])
def test_what_is_kept_reaches_the_error(share):
    model, x = planted()
    result = compare(model, x, dtype=BF16)
    kept = result.keep(error=share * result.error)
    assert kept.error <= share * result.error
    assert 1 <= kept.runs <= 16
    assert measured(kept, model, x) == pytest.approx(kept.error, rel=0.2)
    assert f"(verified by {kept.runs} run" in " ".join(str(result).split())


class Cancels(nn.Module):
    """A norm by E[x²] - E[x]², of values with a large mean: a few roundings are all of what is left."""

    def __init__(self, width):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x):
        x = x + 8
        mean = x.mean(-1, keepdim=True)
        variance = (x * x).mean(-1, keepdim=True) - mean * mean
        return (x - mean) * torch.rsqrt(variance.clamp_min(0) + 1e-2) * self.weight + self.bias


def culprit(place):
    """One such norm, before, between and behind layers that are well."""
    torch.manual_seed(0)
    layers = [nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 16)]
    layers.insert({"first": 0, "in the midst": 3, "last": 5}[place], Cancels({"in the midst": 64}.get(place, 16)))
    return nn.Sequential(*layers).eval(), torch.randn(128, 16)


def of_all_sets(model, x):
    """What each set of layers holds of the parameters, and the error with it in float32, the cheapest set first."""
    total = sum(p.numel() for p in model.parameters())
    layers = [name for name, layer in model.named_children() if [*layer.parameters()]]
    for names in itertools.chain(*(itertools.combinations(layers, n) for n in range(1, len(layers) + 1))):
        share = sum(p.numel() for name in names for p in model.get_submodule(name).parameters()) / total
        yield share, measured(dtypeguard.results.Kept(names, 0.0, 0, BF16), model, x)


@pytest.mark.parametrize("place", ["first", "in the midst", "last"])
def test_where_the_error_is_not_linear_what_is_kept_is_near_the_cheapest_of_all_sets(place):
    model, x = culprit(place)
    sets = list(of_all_sets(model, x))
    for target in (0.3, 0.03, 0.01, 0.004, 0.002):
        result = compare(model, x, dtype=BF16)
        assert not result.linear
        kept = result.keep(error=target)
        assert kept.error <= target
        assert measured(kept, model, x) == pytest.approx(kept.error, rel=1e-3)
        assert kept.parameters <= min(share for share, error in sets if error <= target) + 0.1
        assert kept.runs <= 16
        assert [bool(re.match("more than half", note)) for note in kept.notes] == [True] * (kept.parameters > 0.5)


def test_what_was_run_is_kept_at_once_and_is_in_the_curve():
    model, x = culprit("in the midst")
    result = compare(model, x, dtype=BF16)
    kept = result.keep(error=0.01)
    assert (kept.names, kept.runs) == (("3",), 1)
    assert min(error for share, error in result.curve if share <= kept.parameters) <= kept.error


def test_bits_are_for_formats():
    result = compare(nn.Linear(4, 4), torch.ones(2, 4), dtype=BF16)
    with pytest.raises(TypeError, match=r"keep: bits= goes with formats: compare\(model, batch, format="):
        result.keep(bits=4)


def test_the_curve_has_no_cheaper_set_than_what_is_kept_that_should_do():
    """What a run has shown of one set corrects what is expected of all others."""
    torch.manual_seed(0)
    result = compare(encoder(3), [torch.randn(4, 16, 32) for _ in range(2)], dtype=BF16)
    wanted = result.error / 1.5
    kept = result.keep(error=wanted)
    assert (kept.parameters, kept.error) in kept.curve
    assert [error for share, error in kept.curve if share < kept.parameters and error <= wanted] == []


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (1.0, "100 %"), (0.9999, "99.9 %"), (0.9962, "99.6 %"), (0.99, "99 %"), (0.02, "2 %"), (0.0012, "0.12 %"),
        (1e-5, "< 0.01 %"), (0.0, "0 %"),
    ],
)  # fmt: skip
def test_only_the_whole_is_100_percent_and_only_nothing_is_0(share, said):
    assert of_whole(share) == said


def test_two_culprits_are_found_one_beside_the_other():
    torch.manual_seed(0)
    layers = [nn.Linear(16, 32), Cancels(32), nn.Linear(32, 32), nn.GELU(), Cancels(32), nn.Linear(32, 4)]
    model, x = nn.Sequential(*layers).eval(), torch.randn(128, 16)
    kept = compare(model, x, dtype=BF16).keep(error=0.02)
    assert kept.names == ("1", "4")
    assert measured(kept, model, x) <= 0.02


@pytest.mark.parametrize("place", ["in the midst", "last"])
def test_a_layer_that_makes_the_next_one_float32_stands_below_it(place):
    model, x = culprit(place)
    result = compare(model, x, dtype=BF16)
    cause, before = result.layers[:2]
    assert (cause.kind, cause.through) == ("Cancels", "")
    assert (before.kind, before.through) == ("Linear", cause.name)
    assert abs(before.share) < 0.005
    assert before.saves > 0.9
    assert f"saves in {cause.name}" in str(result).splitlines()[4]


def test_a_row_without_room_for_its_line_takes_none_from_others():
    layers, x = culprit("in the midst")
    names = ("first", "act", "before_what_cancels", "what_cancels_digits", "after", "last")
    model = nn.Sequential(OrderedDict(zip(names, layers, strict=True)))
    result = compare(nn.Sequential(OrderedDict(body=model)), x, dtype=BF16)
    rows = {row.split(" %")[-1].split()[0]: row for row in str(result).splitlines()[2:]}
    assert "saves in " in rows["body.before_what_cancels"]
    assert re.search(r" test_compare.py:\d+$", rows["body.what_cancels_digits"])


def test_what_is_kept_can_be_saved():
    kept = compare(*planted(), dtype=BF16).keep(error=0.01)
    assert pickle.loads(pickle.dumps(kept)) == kept


@pytest.mark.parametrize("wide", [F32, F64])
def test_kept_modules_have_the_dtype_that_was_compared(wide):
    model, x = planted()
    kept = compare(model.to(wide), x.to(wide), dtype=BF16).keep(error=0.01)
    assert (kept.wide, Kept.from_dict(kept.to_dict())) == (wide, kept)
    applied = kept.apply(planted()[0].double())
    assert {applied.get_submodule(name).weight.dtype for name in kept.names} == {wide}
    assert {parameter.dtype for parameter in applied.parameters()} == {wide, BF16}


@pytest.mark.parametrize(
    ("kept", "told"),
    [
        (Kept((), 0.01, 0, BF16), "keep in float32: nothing -> 1 % (the whole model in bfloat16)"),
        (Kept((), 0.01, 0, None), "keep in float32: nothing -> 1 % (the whole model in autocast)"),
        (
            Kept(("layers.0.mlp", "layers.1.mlp", "layers.2.mlp", "head"), 0.002, 3, BF16, parameters=0.25),
            "keep in float32: layers.{0-2}.mlp, head -> 0.2 % (verified by 3 runs; 25 % of\n    the parameters)",
        ),
        (
            Kept(
                tuple(
                    f"stages.{stage}.blocks.{block}" for stage in range(4) for block in range(4 if stage == 2 else 2)
                ),
                0.002,
                3,
                BF16,
                parameters=0.25,
            ),
            "keep in float32: stages.{0-1,3}.blocks.{0-1}, stages.2.blocks.{0-3} -> 0.2 %\n    (verified by 3 runs; 25 "
            "% of the parameters)",
        ),
        (
            Kept(("",), 1e-6, 2, F16, parameters=1.0, curve=((0.5, 0.1),), notes=("a note",)),
            "keep in float32: the whole model, as no part of it that was tried is enough ->\n    0.0001 % (verified by "
            "2 runs; 100 % of the parameters)\nnote: a note",
        ),
    ],
)
def test_what_is_kept_is_printed_in_words(kept, told):
    assert str(kept) == told


def test_the_planted_pair_is_kept():
    model, x = planted()
    result = compare(model, x, dtype=BF16)
    kept = result.keep(error=result.error / 4)
    assert kept.names == ("layers.1.linear1", "layers.1.linear2")


@pytest.mark.parametrize("low", [{"dtype": BF16}, {"region": BF16}], ids=["dtype", "autocast"])
def test_a_module_is_not_kept_whole_where_a_part_of_it_does(low):
    torch.manual_seed(0)
    parts = [
        nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)) for _ in range(2)
    ]
    model, x = nn.Sequential(*parts), torch.randn(64, 64)
    result = compare(model, x, **low)
    kept = result.keep(result.error * 0.3)
    assert not {"", "0"} & {*kept.names}
    assert kept.error <= result.error * 0.3
    assert kept.runs <= 8


class Stream(nn.Module):
    """What is added to stays bfloat16 under autocast, unless what it begins with is float32."""

    def __init__(self):
        super().__init__()
        self.first, self.norms = nn.Linear(64, 64), nn.ModuleList(nn.LayerNorm(64) for _ in range(4))
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

    def forward(self, x):
        x = self.first(x) * 3
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        return x


class Weighted(nn.Module):
    """A product of two results, which autocast casts."""

    def __init__(self):
        super().__init__()
        self.one, self.other, self.head = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 8)

    def forward(self, x):
        return self.head(self.one(x).tanh() @ self.other(x).mT @ x / 64)


@pytest.mark.parametrize("made", [Stream, Weighted])
def test_what_keeping_saves_under_autocast_is_what_it_does(made):
    torch.manual_seed(0)
    model, batches = made(), [torch.randn(8, 32, 64) for _ in range(4)]
    result = compare(model, batches, region=BF16)
    search = result._search
    for layer in result.layers:
        if layer.name in search.leaves:
            saved = 1 - (search.trial([layer.name]) / result.error) ** 2
            assert layer.saves == pytest.approx(saved, abs=0.06), layer.name


@pytest.mark.parametrize("low", LOW)
def test_the_first_layers_have_been_run(low):
    """Errors of layers are not independent, so the layers that shares put first are run."""
    torch.manual_seed(0)
    model, batches = encoder(3), [torch.randn(4, 16, 32) for _ in range(2)]
    result = compare(model, batches, **LOW[low])
    search = result._search
    real = {name: 1 - (search.trial([name]) / result.error) ** 2 for name in search.leaves}
    first = next(layer for layer in result.layers if layer.name in real)
    assert first.measured
    assert first.saves == max(layer.saves for layer in result.layers if layer.name in real)
    run = {layer.name: layer.saves for layer in result.layers if layer.measured and layer.name != INPUTS}
    assert run == {name: real[name] for name in run}
    assert 1 <= len(run) <= 3
    assert {layer.name for layer in result.layers if layer.saves is not None} - {INPUTS} == {*real}
    ranks = [abs(layer.share) if layer.saves is None else layer.saves for layer in result.layers if not layer.through]
    assert ranks == sorted(ranks, reverse=True)
    assert max(ranks) <= 1


class Skipping(nn.Module):
    """Its own code computes with the batch."""

    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.out((x + 40 + 0.1 * self.inner(x)) - 40)


def test_what_passing_the_batch_in_float32_saves_is_what_keep_passes():
    """`apply` leaves the batch as it is, so where the model's own code computes with it, that is in float32 too."""
    torch.manual_seed(0)
    model, x = Skipping(), torch.randn(64, 16)
    result = compare(model, x, dtype=BF16)
    row = next(layer for layer in result.layers if layer.name == INPUTS)
    kept = result.keep(error=result.error / 4)
    assert row.measured
    assert row.saves > 0.95
    assert kept.names == ()
    assert "keep in float32: no module (`kept.apply` casts the batch) -> " in " ".join(str(result).split())
    assert 1 - (kept.error / result.error) ** 2 == pytest.approx(row.saves)
    exact = copy.deepcopy(model).double()(x.double())
    error = (kept.apply(model)(x) - exact).norm() / exact.norm()
    assert error.item() == pytest.approx(kept.error, rel=1e-6)


def test_what_keep_promises_of_an_encoder_is_what_it_has_without_gradients():
    """PyTorch's fast path reads weights past the modules that are kept; the error on it is told."""
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    model, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(16, 10, 32)
    exact = copy.deepcopy(model).double()(x.double())

    def error_of(model):
        with torch.no_grad(), torch.autocast("cpu", dtype=BF16):
            return ((model(x) - exact).norm() / exact.norm()).item()

    result = compare(model, x, region=BF16)
    kept = result.keep(error=result.error / 2)
    fast = error_of(model)
    assert fast > 1.05 * result.error
    assert f"fast path, and the error is {percent(fast)}" in str(result).replace("\n    ", " ")
    assert error_of(kept.apply(model)) == pytest.approx(kept.error, rel=1e-6)


class Narrow(nn.Module):
    """Its error comes from a few numbers; most of its parameters are elsewhere."""

    def __init__(self):
        super().__init__()
        self.angles, self.body, self.head = nn.Linear(4, 64), nn.Linear(64, 512), nn.Linear(512, 4)
        with torch.no_grad():
            self.angles.weight *= 40

    def forward(self, x):
        return self.head(torch.relu(self.body(self.angles(x).sin())))


def test_the_cheapest_modules_are_kept_and_their_price_is_told():
    torch.manual_seed(0)
    model, x = Narrow(), torch.randn(64, 4)
    result = compare(model, x, region=BF16)
    kept = result.keep(error=result.error / 3)
    assert kept.names == ("angles",)
    count = {name: sum(p.numel() for p in module.parameters()) for name, module in model.named_modules()}
    assert kept.parameters == pytest.approx(count["angles"] / count[""])
    assert f"; {100 * kept.parameters:.2g} % of the parameters)" in " ".join(str(result).split())
    low = compare(model, x, dtype=BF16).keep(error=result.error / 3)
    assert low.bytes == pytest.approx(2 * low.parameters / (1 + low.parameters))
    shares, errors = zip(*kept.curve, strict=True)
    assert (shares[0], errors[0]) == (0.0, result.error)
    assert list(shares) == sorted(shares)


def test_a_set_that_holds_most_of_the_model_hardly_pays():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(6)))
    result = compare(model, torch.randn(64, 32), dtype=BF16)
    kept = result.keep(error=result.error / 3)
    assert kept.parameters > 0.5
    assert kept.notes[0].startswith("more than half of the model is kept: ")


class Reads(nn.Module):
    """Nearly all of its parameters are in the layer that takes the batch."""

    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(4, 64, batch_first=True), nn.Linear(64, 1)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


def test_an_error_that_the_batch_has_is_said_to_be_in_the_batch():
    torch.manual_seed(0)
    model, x = Reads(), torch.randn(16, 10, 4)
    result = compare(model, x + 1000, dtype=BF16)
    with pytest.raises(CompareError, match=r"of this error is in the batch, which is rounded to bfloat16"):
        result.keep(error=result.error / 2)
    assert compare(model, x, dtype=BF16).keep(error=1e-6).names == ("rnn", "head")  # here it is not


def test_what_is_kept_has_been_run_as_it_will_be():
    """With the batch as it was passed, and compiled."""
    torch.manual_seed(0)
    model, x = Narrow(), torch.randn(64, 4)
    ran = []

    def backend(module, inputs):
        ran.append(inputs)
        return module

    torch.compiler.reset()
    result = compare(torch.compile(model, backend=backend), x, dtype=BF16)
    before = len(ran)
    kept = result.keep(error=result.error / 3)
    assert len(ran) > before
    assert not any("_orig_mod" in layer.name for layer in result.layers)
    assert measured(kept, model, x) == pytest.approx(kept.error, rel=1e-6)
    applied = kept.apply(torch.compile(copy.deepcopy(model), backend=backend))
    assert applied(x).dtype is not F32


def test_names_that_differ_by_a_number_are_one():
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            parts = [nn.ModuleDict({"up": nn.Linear(16, 16), "down": nn.Linear(16, 16)}) for _ in range(4)]
            self.layers = nn.ModuleList(parts)

        def forward(self, x):
            for layer in self.layers:
                x = x + layer["down"](torch.tanh(layer["up"](x)))
            return x

    torch.manual_seed(0)
    result = compare(Deep(), torch.randn(8, 16), dtype=BF16)
    assert set(result.keep(error=1e-6).names) == {f"layers.{n}.{name}" for n in range(4) for name in ("up", "down")}
    assert "keep in float32: layers.*.up, layers.*.down ->" in str(result)


class Frequencies(nn.Module):
    """A module of buffers alone."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scales", torch.exp(torch.linspace(0, 5, 16)))

    def forward(self, t):
        angles = t[:, None] * self.scales
        return torch.cat([angles.sin(), angles.cos()], -1)


def test_a_module_of_buffers_can_be_kept_and_holds_no_parameters():
    torch.manual_seed(0)
    model = nn.Sequential(Frequencies(), nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 8))
    kept = compare(model, 3 * torch.rand(256), dtype=BF16).keep(error=0.02)
    assert (kept.names, kept.parameters) == (("0",), 0.0)
    assert kept.error < 0.005
    assert max(share for share, _ in kept.curve) <= 1


def test_an_error_that_the_dtype_has_anyway_keeps_nothing():
    model, x = planted()
    result = compare(model, x, dtype=BF16)
    assert result.keep(error=0.5).names == ()
    kept = r"keep in float32: no module \(`kept.apply` casts the batch\) -> \S+ % \(verified by 1 run\)"
    assert re.search(f"{kept}$", " ".join(str(result).split()))


class Flow(nn.Module):
    """Adds to its input, which may come in float32."""

    def __init__(self):
        super().__init__()
        self.step = nn.Linear(16, 16)

    def forward(self, x):
        return x + 0.01 * self.step(x)


class Weighs(Flow):
    """Multiplies its input by what a layer made of it: both are to be of one dtype."""

    def forward(self, x):
        return (self.step(x) @ x.mT / 4).softmax(-1) @ x


@pytest.mark.parametrize("kind", [Flow, Weighs])
def test_where_nothing_is_kept_the_error_is_that_of_the_batch_as_it_is_passed_or_a_note_says_why_not(kind):
    torch.manual_seed(0)
    model, x = kind(), torch.randn(32, 4, 16)
    kept = compare(model, x, dtype=BF16).keep(error=0.01)
    takes = kind is Flow
    assert kept.notes == (() if takes else NOT_AS_PASSED)
    with torch.no_grad():
        out, exact = kept.apply(copy.deepcopy(model))(x if takes else x.to(BF16)), model(x)
    assert kept.error == pytest.approx(float((out - exact).norm() / exact.norm()), rel=1e-3)


NOT_AS_PASSED = ("the model does not run with the batch in float32: pass it in bfloat16, as was done here",)


@pytest.mark.parametrize("low", LOW)
def test_apply_leaves_the_model_what_it_is(low):
    model, x = planted()
    result = compare(model, x, **LOW[low])
    kept = result.keep(error=result.error / 4)
    applied = copy.deepcopy(model)
    state = applied.state_dict()
    assert kept.apply(applied) is applied
    assert isinstance(applied, type(model))
    assert list(applied.state_dict()) == list(state)
    names = tuple(f"{name}." for name in kept.names)
    for name, parameter in applied.named_parameters():
        wide = "autocast" in low or name.startswith(names)
        assert parameter.dtype is (F32 if wide else LOW[low]["dtype"])

    def call(model):
        with torch.no_grad(), torch.autocast("cpu", LOW[low].get("region"), "autocast" in low):
            return model(x)

    out = call(applied)
    for mode in ("strict", "warn", "off"):
        with dtypeguard.mode(mode):
            assert same(call(applied), out)
    again = kept.apply(copy.deepcopy(model))
    again.load_state_dict(applied.state_dict())
    assert same(call(again), out)
    assert same(call(copy.deepcopy(applied)), out)
    assert dtypeguard.casts() == []  # they are meant
    assert type(dtypeguard.unguard(applied)) is type(model)


def test_a_model_with_kept_modules_trains_and_compiles():
    model, x = planted()
    result = compare(model, x, dtype=BF16)
    applied = result.keep(error=result.error / 4).apply(copy.deepcopy(model))
    applied(x).float().square().mean().backward()
    assert all(parameter.grad.dtype is parameter.dtype for parameter in applied.parameters())
    torch.compiler.reset()
    assert same(torch.compile(applied, fullgraph=True, backend="eager")(x), applied(x))


class Refused(nn.Module):
    """What is multiplied must have one dtype, so the result of a kept module must be cast back."""

    def __init__(self):
        super().__init__()
        self.one, self.other, self.out = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        with torch.no_grad():
            self.one.bias += 300

    def forward(self, x):
        return self.out(torch.tanh(self.one(x) @ self.other(x).mT / 500))


def test_a_result_that_would_be_refused_is_cast_back():
    model, x = Refused(), torch.randn(2, 16, 16)
    result = compare(model, x, dtype=BF16)
    kept = result.keep(error=result.error * 0.8)
    assert measured(kept, model, x) == pytest.approx(kept.error, rel=0.2)
    assert set(kept.narrow) <= set(kept.names)


class Asks(nn.Module):
    """It makes a tensor of the dtype that it gets."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        h = self.first(x)
        scale = torch.full((8, 8), 0.5, dtype=h.dtype)
        return self.second(x) @ scale


def test_a_program_that_asks_for_a_dtype_runs_with_what_is_kept():
    model, x = Asks(), torch.randn(4, 8)
    result = compare(model, x, dtype=BF16)
    kept = result.keep(error=1e-6)
    assert measured(kept, model, x) < 1e-6


def test_modules_that_share_a_parameter_are_kept_together():
    model = nn.Sequential(nn.Embedding(10, 16), nn.Linear(16, 10, bias=False))
    model[1].weight = model[0].weight
    result = compare(model, torch.randint(10, (3, 5)), dtype=BF16)
    kept = result.keep(error=result.error / 3)
    assert kept.names == ("0", "1")
    applied = kept.apply(copy.deepcopy(model))
    assert applied[0].weight is applied[1].weight


@pytest.mark.parametrize("largest", [1.0, 100.0])
def test_an_embedding_that_bounds_its_norms_has_shares(largest):
    model, ids = nn.Sequential(nn.Embedding(50, 64, max_norm=largest), nn.Linear(64, 32)), torch.arange(40)
    model(ids)
    assert compare(model, ids, dtype=BF16).explained == pytest.approx(1, abs=0.03)


def test_with_the_first_module_kept_the_batch_is_taken_as_it_is():
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    x = torch.randn(16, 8)
    result = compare(model, x, dtype=BF16)
    kept = result.keep(error=1e-6)
    assert kept.names == ("0", "2")
    assert measured(kept, model, x) < 1e-6


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.time, self.value, self.head = nn.Linear(1, 16), nn.Linear(3, 16), nn.Linear(16, 1)

    def forward(self, values, time):
        return self.head(self.value(values) + torch.sin(self.time(time)))


def test_a_module_that_is_kept_takes_its_own_input_as_it_is():
    torch.manual_seed(0)
    model, batch = TwoInputs(), (torch.randn(64, 3), torch.rand(64, 1) * 500)
    result = compare(model, batch, dtype=BF16)
    first = result.layers[0]
    kept = result.keep(error=result.error / 10)
    assert (first.name, kept.names) == ("time", ("time",))
    assert first.saves == pytest.approx(1 - (kept.error / result.error) ** 2, abs=1e-3)
    assert first.saves > 0.99


# ---------------------------------------------------------------- values that are lost, outputs without a gradient


class Overflows(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        h = self.up(x) * 400
        h = h * h
        return self.down(h / h.amax(-1, keepdim=True))


def test_a_lost_value_is_named_and_its_module_kept():
    model, x = Overflows(), torch.randn(16, 8)
    result = compare(model, x, dtype=F16)
    assert math.isinf(result.error)
    assert result.explained is None
    assert len(result.born) == 1
    assert "h * h" in result.born[0]
    assert "float16" in result.born[0]
    kept = result.keep(error=0.01)
    assert kept.names == ("up",)
    assert kept.error < 0.01
    assert kept.runs <= 5
    assert measured(kept, model, x) == pytest.approx(kept.error, rel=0.2)


def test_a_norm_that_would_lose_what_is_too_large_is_kept_too():
    model, x = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)), torch.randn(16, 8)
    with torch.no_grad():
        model[0].weight *= 3e5
    kept = compare(model, x, dtype=F16).keep(error=0.01)
    assert kept.names == ("0", "1")
    assert measured(kept, model, x) == pytest.approx(kept.error, rel=0.2)


class Inference(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    @torch.no_grad()
    def forward(self, x):
        return self.second(self.first(x).relu())


@pytest.mark.parametrize("loss", [lambda out: out.abs().sqrt().mul_(2), lambda out: out.square().relu_().add_(1)])
def test_a_program_for_inference_may_overwrite_what_a_backward_needs(loss):
    assert compare(nn.Linear(8, 4), torch.randn(4, 8), dtype=BF16, loss=loss).explained == pytest.approx(1, abs=0.03)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)


class Forces(Two):
    """A gradient is a part of what it computes."""

    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(self.b(torch.tanh(self.a(x))).sum(), x)[0]


class Mapped(Two):
    def forward(self, x):
        return torch.func.vmap(torch.func.jacrev(lambda row: self.b(torch.tanh(self.a(row)))))(x)


class Complex(Two):
    def forward(self, x):
        h = torch.view_as_complex(self.a(x).float().view(-1, 8, 2))
        return self.b(torch.view_as_real(h * h.abs()).reshape(-1, 16).to(x.dtype))


class Parts(Two):
    """Parts of a result are written to, one by one, in a list, and past autograd."""

    def forward(self, x):
        h, other = self.a(x).chunk(2, -1)
        h.mul_(2)
        rows = list(torch.cat([h, other], -1).unbind(0))
        torch._foreach_mul_(rows, 3.0)
        out = self.b(torch.stack(rows))
        out.data[0] *= 2
        return torch.add(out, out, out=torch.empty_like(out))


class Masked(Two):
    """A mask that is added, and one that takes out what is not a number."""

    def forward(self, x, mask):
        h = self.a(x)
        return self.b(torch.where(h > 0, (h + 0.1).log(), 0)) + (h + mask).softmax(-1)


class Nested(Two):
    """Tensors of a subclass, with kernels of its own."""

    def forward(self, x):
        parts = torch.nested.as_nested_tensor([x[:2], x[2:]], layout=torch.jagged)
        return self.b(self.a(parts).values())


class Biased(Two):
    """Fused attention of grouped queries, whose mask is a parameter: its kernel has no derivative for that."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(4, 6, 6))

    def forward(self, x):
        query, key = self.a(x).view(6, 4, 4).transpose(0, 1), self.b(x)[:, :8].view(6, 2, 4).transpose(0, 1)
        fused = F.scaled_dot_product_attention
        return fused(query[None], key[None], key[None], attn_mask=self.bias[None], enable_gqa=True)


def causal():
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True)
    return layer.train(), {"src": torch.randn(2, 6, 16), "src_mask": mask(6), "is_causal": True}


def mask(size):
    return torch.full((size, size), -math.inf).triu(1)


OTHERS = {
    "a gradient": lambda: (Forces(), torch.randn(6, 16)),
    "transforms": lambda: (Mapped(), torch.randn(6, 16)),
    "complex numbers": lambda: (Complex(), torch.randn(6, 16)),
    "parts that are written to": lambda: (Parts(), torch.randn(6, 16)),
    "infinities in a mask": lambda: (Masked(), (torch.randn(16, 16), mask(16))),
    "causal attention in training": causal,
    "nested tensors": lambda: (Nested(), torch.randn(6, 16)),
    "attention with a mask to learn": lambda: (Biased(), torch.randn(6, 16)),
}


@pytest.mark.parametrize("other", OTHERS)
def test_shares_explain_the_error_of(other):
    result = compare(*OTHERS[other](), dtype=BF16)
    assert result.explained == pytest.approx(1, abs=0.02)
    assert result.keep(error=result.error / 2).error <= result.error / 2


class Counts(nn.Module):
    """It changes an index after it has used it, as a cache of keys and values does."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Parameter(torch.randn(9, 8)), nn.Linear(8, 4)
        self.register_buffer("place", torch.arange(3))

    def forward(self, x):
        first = self.table[self.place] * x
        self.place.add_(4)
        return self.head(first + self.table[self.place])


def test_an_index_may_change_after_it_was_used():
    result = compare(Counts(), torch.randn(3, 8), dtype=BF16)
    assert result.explained == pytest.approx(1, abs=0.03)


def test_an_operation_without_a_derivative_is_said():
    result = compare(nn.Linear(8, 4), torch.randn(4, 8), dtype=BF16, loss=lambda y: torch.special.gammainc(y.exp(), y))
    assert any("the derivative for 'igamma: input' is not implemented" in note for note in result.notes)


def test_a_model_that_needs_no_gradient_has_shares():
    result = compare(Inference(), torch.randn(64, 8), dtype=BF16)
    assert result.explained == pytest.approx(1, abs=0.03)


class Chooses(Inference):
    def forward(self, x):
        return super().forward(x).argmax(-1)


def test_without_a_gradient_there_is_the_course_over_depth():
    result = compare(Chooses(), torch.randn(4000, 8), dtype=BF16)
    assert result.explained is None
    assert all(layer.share is None for layer in result.layers)
    assert result.depth == ["first", "second"]
    assert all(layer.error > 0 for layer in result.layers if layer.name)
    assert any("need a gradient" in note for note in result.notes)


def test_integers_are_counted():
    result = compare(Chooses(), torch.randn(4000, 8), dtype=BF16)
    assert 0 < result.error < 0.1
    text = str(result).splitlines()
    assert "integers differ" in text[0]
    assert all(re.fullmatch(r" +[\d.]+ %  #{1,12} *  after \w+", line) for line in text[1:-1])
    with pytest.raises(CompareError, match="the model returns integers"):
        result.keep(error=0.1)


@pytest.mark.parametrize(
    ("errors", "lengths"),
    [([1e-3, 1e-2, 1e-1], [0, 6, 12]), ([0.003, math.inf], [6, 12]), ([0.0, 0.03], [0, 6]), ([0.0], [0]), ([], [])],
)
def test_bars_are_logarithmic(errors, lengths):
    assert [len(bar) for bar in bars(errors)] == lengths


@torch.library.custom_op("dtypeguard_tests::grows", mutates_args=())
def grows(x: torch.Tensor) -> torch.Tensor:
    return (2 * x).exp()


def _saved(ctx, inputs, output):
    ctx.output = output


grows.register_autograd(lambda ctx, gradient: 2 * gradient * ctx.output, setup_context=_saved)


class Kernel(nn.Module):
    def forward(self, x):
        return grows(x / 2)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.LSTM(8, 16, 2, batch_first=True)

    def forward(self, x):
        return self.inner(x)[0]


@pytest.mark.parametrize("kernel", [Recurrent, Kernel])
def test_a_kernel_that_nobody_looks_into_is_run_as_a_whole(kernel):
    model = nn.Sequential(nn.Linear(8, 8), kernel(), nn.LazyLinear(4))
    model(torch.randn(4, 9, 8))
    result = compare(model, torch.randn(4, 9, 8), dtype=BF16)
    assert result.explained == pytest.approx(1, abs=0.03)
    assert max(layer.arithmetic for layer in result.layers if layer.name.startswith("1")) > 0.05


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.full((8,), 0.5))

    def forward(self, x):
        return grows(x * self.scale)


def test_only_the_module_of_such_a_kernel_is_run_as_a_whole():
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(Scaled(), nn.Linear(8, 8)), nn.Linear(8, 4))
    result = compare(model, torch.randn(4, 9, 8), dtype=BF16)
    assert {layer.name for layer in result.layers if layer.weights} >= {"0", "1.1", "2"}
    assert result.notes == []


@pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN has no LSTM in bfloat16 here")
def test_a_kernel_beside_random_numbers_is_counted():
    model = nn.Sequential(nn.LSTM(8, 16, 2, dropout=0.3, batch_first=True).train())
    result = compare(model, torch.randn(4, 9, 8), dtype=BF16, loss=lambda out: out[0])
    assert any("have no share: mkldnn_rnn_layer" in note for note in result.notes)


# ---------------------------------------------------------------- nothing changes


@pytest.mark.parametrize("name", MODELS)
def test_the_caller_s_program_stays_as_it_is(name):
    model, batch = made(name)
    model(*_call(batch)[0], **_call(batch)[1])  # a batch norm has seen something
    before = copy.deepcopy((model.state_dict(), batch))
    attributes = [(set(vars(module)), len(module._forward_hooks), type(module)) for module in model.modules()]
    state, fused = torch.get_rng_state(), torch.backends.mha.get_fastpath_enabled()
    result = compare(model, batch, dtype=BF16)
    result.keep(error=result.error / 2)
    assert same((model.state_dict(), batch), before)
    assert all(p.grad is None for p in model.parameters())
    assert [(set(vars(m)), len(m._forward_hooks), type(m)) for m in model.modules()] == attributes
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.backends.mha.get_fastpath_enabled() == fused
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")


def _call(batch):
    batch = batch[0] if isinstance(batch, list) else batch
    if isinstance(batch, dict):
        return (), batch
    return batch if isinstance(batch, tuple) else (batch,), {}


class Mutates(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 8)

    def forward(self, given):
        given["x"].mul_(2)
        given["seen"] = True
        return self.b(self.a(given["x"]))


@pytest.mark.parametrize("low", LOW)
def test_a_model_may_write_to_its_batch(low):
    model, given = Mutates(), {"x": torch.randn(32, 16)}
    before = copy.deepcopy(given)
    result = compare(model, (given,), **LOW[low])
    for share in (0.9, 0.3, 1e-3):
        assert result.keep(error=share * result.error).error <= share * result.error
    assert same(given, before)


class Numbers(nn.Module):
    """It writes to all that it gets: ids, and values that are in the low dtype already."""

    def __init__(self, refuses):
        super().__init__()
        self.table, self.refuses = nn.Embedding(10, 8), refuses

    def forward(self, ids, low):
        ids.fill_(3)
        h = self.table(ids) + low.mul_(2)
        return h @ torch.ones(8, 8, dtype=F32) if self.refuses else h


@pytest.mark.parametrize("refuses", [False, True])
def test_nothing_of_a_batch_is_written_to(refuses):
    batch = torch.arange(6), torch.randn(6, 8, dtype=BF16)
    before = copy.deepcopy(batch)
    if refuses:
        with pytest.raises(CompareError, match="was refused"):
            compare(Numbers(refuses), batch, dtype=BF16)
    else:
        compare(Numbers(refuses), batch, dtype=BF16).keep(error=1e-4)
    assert same(batch, before)


class Noisy(nn.Module):
    """Noise that is drawn in float32, and cast."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(16, 8)

    def forward(self, x):
        return self.a(x + torch.randn(x.shape).to(x.dtype))


def test_random_numbers_are_drawn_once():
    result = compare(Noisy(), torch.randn(64, 16), dtype=BF16)
    assert result.explained == pytest.approx(1, abs=0.03)


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(16, 8)

    def forward(self, x):
        h = self.a(x)
        return h.clamp(-0.1, 0.1) if h.dtype is F32 else h


def test_a_reference_that_is_another_program_is_told():
    result = compare(Branches(), torch.randn(64, 16), dtype=BF16)
    assert result.reference is F32
    assert any("in float64 the model is another program" in note for note in result.notes)


class Ties(nn.Module):
    """What is chosen is as good as the other one, in float32 and below."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, x):
        best = torch.stack([x[:, 0], x[:, 0] + 1e-12]).argmax(0)
        return torch.where(best[:, None] == 0, self.one(x), self.other(x))


@pytest.mark.parametrize("low", [{"dtype": BF16}, {"region": BF16}], ids=["dtype", "autocast"])
def test_where_float64_chooses_otherwise_the_model_itself_is_the_reference(low):
    torch.manual_seed(0)
    result = compare(Ties(), torch.randn(64, 16).bfloat16().float(), **low)
    assert result.reference is F32
    assert result.error < 0.02
    assert result.explained == pytest.approx(1, abs=0.02)
    kept = result.keep(error=result.error / 3)
    assert "one" in kept.names
    assert "float32" in result.title


def test_values_that_are_not_finite_in_the_reference_are_told():
    x = torch.randn(8, 16)
    x[0] = math.nan
    result = compare(nn.Linear(16, 4), x, dtype=BF16)
    assert "4 of 32 values are not finite in the reference, and were left out" in result.notes


def test_a_region_around_it_has_no_part_in_it():
    model, x = nn.Linear(16, 4), torch.randn(8, 16)
    with torch.autocast("cpu", BF16):
        inside = compare(model, x, dtype="float16")
    assert inside.error == compare(model, x, dtype=F16).error


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode, dtypeguard.audit])
def test_what_is_around_changes_nothing(around):
    model, x = made("an encoder")
    plain = compare(model, x, dtype=BF16)
    with around():
        inside = compare(model, x.clone(), dtype=BF16)
        assert inside.keep(error=inside.error / 2).error <= inside.error / 2
    assert inside.error == plain.error
    assert inside.explained == pytest.approx(plain.explained)


def test_a_comparison_repeats():
    model, x = made("an encoder in training")
    assert compare(model, x, dtype=BF16).to_json() == compare(model, x, dtype=BF16).to_json()


# ---------------------------------------------------------------- what is wrong


LINEAR = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
X = torch.ones(4, 8)


class Refuses(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return self.fc(x) @ torch.ones(8, 8)


class Uncopied(nn.Linear):
    def __deepcopy__(self, memo):
        raise RuntimeError("a handle")


WRONG = {
    "none": (lambda: compare(LINEAR, X), TypeError, "got none: for example compare(model, batch, dtype="),
    "both": (lambda: compare(LINEAR, X, dtype=BF16, region=BF16), TypeError, "got dtype and region"),
    "no such dtype": (
        lambda: compare(LINEAR, X, dtype=torch.int8), ValueError,
        "dtype=int8 is no dtype to compare: use bfloat16, float16 or float32",
    ),
    "no such region": (
        lambda: compare(LINEAR, X, region=F32), ValueError,
        "region=float32 is no dtype to compare: use bfloat16 or float16",
    ),
    "a class": (lambda: compare(nn.Linear, X, dtype=BF16), TypeError, "compare takes a model, not the class Linear"),
    "no batch": (lambda: compare(LINEAR, [], dtype=BF16), TypeError, "`batch` is an empty list"),
    "a number": (lambda: compare(LINEAR, [X, 3], dtype=BF16), TypeError, "`batch[1]` is an int: pass a tensor"),
    "a loss of numbers": (lambda: compare(LINEAR, X, dtype=BF16, loss=3), TypeError, "`loss` is an int"),
    "another device": (
        lambda: compare(LINEAR, X.to("meta"), dtype=BF16), DeviceError,
        "argument 0 is on meta, and has no values: create it where the model is",
    ),
    "narrow already": (
        lambda: compare(copy.deepcopy(LINEAR).to(BF16), X, dtype=BF16), CompareError,
        "Sequential has bfloat16 parameters already, so its digits are lost: pass the model in float32",
    ),
    "wider": (
        lambda: compare(copy.deepcopy(LINEAR).to(BF16), X, dtype=F32), CompareError,
        "dtype=torch.float32 is wider than the bfloat16 parameters of Sequential: nothing is lost. In float32 its "
        "outputs change by 0.",
    ),
    "a refusal": (
        lambda: compare(Refuses(), X, dtype=BF16), CompareError,
        "`self.fc(x) @ torch.ones(8, 8)` was refused: expected m1 and m2 to have the same dtype",
    ),
    "another shape": (
        lambda: compare(LINEAR, torch.ones(4, 9), dtype=BF16), CompareError,
        "Sequential does not run on the batch as it is, before any conversion: RuntimeError: mat1 and mat2 shapes",
    ),
    "another shape in the second": (
        lambda: compare(LINEAR, [X, torch.ones(4, 9)], dtype=BF16), CompareError,
        "Sequential does not run on batch[1] as it is, before any conversion: RuntimeError: mat1 and mat2 shapes",
    ),
    "a format as a dtype": (
        lambda: compare(LINEAR, X, dtype="fp8"), ValueError,  # type: ignore[arg-type]
        "compare: dtype='fp8' is a format, to which operands are rounded: write format='fp8'",
    ),
    "more arguments in the second": (
        lambda: compare(LINEAR, [X, (X, X)], dtype=BF16), TypeError,
        "compare: Sequential.forward(input) does not take batch[1]: too many positional arguments; a tuple is read as",
    ),
    "no tensors": (
        lambda: compare(LINEAR, X, dtype=BF16, loss=lambda out: "good"), CompareError,
        "the model returns no tensors, so there is nothing to compare",
    ),
    "no finite value": (
        lambda: compare(LINEAR, X * math.nan, dtype=BF16), CompareError,
        "no value of the outputs is finite in the reference, so there is nothing to compare",
    ),
    "no value": (lambda: compare(LINEAR, X[:0], dtype=BF16), CompareError, "the outputs have no values"),
    "float32 already": (lambda: compare(LINEAR, X, dtype=F32), CompareError, "has float32 parameters: pass a narrower"),
    "no copy": (lambda: compare(Uncopied(8, 8), X, dtype=BF16), CompareError, "cannot copy this Uncopied"),
    "no error": (lambda: compare(LINEAR, X, dtype=BF16).keep(error=0), ValueError, "keep: error=0: it must be "),
    "an error of 100 %": (
        lambda: compare(LINEAR, X, dtype=BF16).keep(error=1), ValueError,
        "keep(error=1) is 100 %, no goal: did you mean '1%'? With nothing kept the error is ",
    ),
    "a text for an error": (
        lambda: compare(LINEAR, X, dtype=BF16).keep(error="small"), TypeError,
        "keep: error='small' is no number: pass 0.01 or '1%'",
    ),
    "too small an error": (
        lambda: compare(planted()[0], planted()[1], dtype=BF16).keep(error=1e-12), CompareError,
        "cannot be reached: the whole model in float32 has an error of",
    ),
    "another model": (
        lambda: compare(*planted(), dtype=BF16).keep(error=1e-3).apply(nn.Linear(3, 3)), CompareError,
        "Linear has no module 'layers.",
    ),
    "another model, of which nothing is kept": (
        lambda: Kept((), 0.01, 0, BF16, cast=("head",)).apply(nn.Linear(3, 3)), CompareError,
        "Linear has no module 'head'",
    ),
    "a model in the dtype": (
        lambda: compare(*planted(), dtype=BF16).keep(error=1e-3).apply(planted()[0].to(BF16)), CompareError,
        "has bfloat16 parameters already, so its digits are lost: apply what `keep` returns to the model in float32",
    ),
    "a model in another half precision": (
        lambda: Kept(("0",), 0.01, 0, BF16).apply(nn.Sequential(nn.Linear(3, 3)).half()), CompareError,
        "Sequential has float16 parameters already, so its digits are lost",
    ),
    "a model in half precision under autocast": (
        lambda: Kept(("0",), 0.01, 0, None).apply(nn.Sequential(nn.Linear(3, 3)).half()), CompareError,
        "Sequential has float16 parameters already, so its digits are lost",
    ),
    "a module in the dtype": (
        lambda: Kept(("0",), 0.01, 0, BF16).apply(nn.Sequential(nn.Linear(3, 3).to(BF16), nn.Linear(3, 3))),
        CompareError, "parameter 0.weight is bfloat16 already, so its digits are lost",
    ),
}  # fmt: skip


CHANGES = {
    "a step": (lambda model, kept: torch.nn.init.ones_(model[1].weight), "1.weight was written to"),
    "a conversion": (lambda model, kept: model.to(BF16), "0.weight was float32, and is bfloat16"),
    "what was kept": (lambda model, kept: kept.apply(model), "0.weight was float32, and is bfloat16"),
    "a new layer": (lambda model, kept: model.append(nn.Linear(2, 2)), "has a new parameter, 2.weight"),
    "a layer less": (lambda model, kept: model.pop(1), "has no parameter 1.weight any more"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_has_changed_since_is_said(change):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    result = compare(model, torch.randn(4, 8), dtype=BF16)
    kept, (changes, text) = result.keep(error=0.5), CHANGES[change]
    changes(model, kept)
    with pytest.raises(CompareError, match=f"the model has changed since it was compared: .*{re.escape(text)}"):
        result.keep(error=1e-6)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(name):
    program, error, text = WRONG[name]
    with pytest.raises(error) as caught:
        program()
    assert text in str(caught.value)


# ---------------------------------------------------------------- to read


def test_the_text_fits_a_terminal():
    texts = [str(compare(*made(name), dtype=BF16)) for name in MODELS]
    texts += [
        str(compare(Steep(), torch.randn(64, 8), dtype=BF16)),
        str(compare(Router(), torch.randn(99, 8), dtype=BF16)),
    ]
    texts += [str(compare(Overflows(), torch.randn(16, 8), dtype=F16)), str(compare(Inference(), X, dtype=BF16))]
    assert max(len(line) for text in texts for line in text.splitlines()) <= 80


def test_the_text_and_the_data_agree(tmp_path):
    result = compare(*planted(), dtype=BF16)
    kept = result.keep(error=result.error / 4)
    first, *rest = str(result).splitlines()
    lines = [first, *(line for line in rest if "%" in line and not line.startswith("    "))]
    assert lines[0].startswith("bfloat16 against float64: output error")
    assert "explained 100 %" in lines[0]
    first = result.layers[0]
    assert lines[1].split()[:5] == [f"{100 * first.saves:.0f}", "%", f"{100 * first.share:.0f}", "%", first.name]
    assert lines[-1].startswith("keep in float32: layers.1.linear1, layers.1.linear2 ->")
    data = json.loads(result.to_json(tmp_path / "result.json"))
    assert data == json.loads((tmp_path / "result.json").read_text())
    assert data["error"] == result.error
    assert dtypeguard.results.Kept.from_dict(data["kept"]) == kept
    with pytest.raises(TypeError, match="from_dict: None is no dict"):
        dtypeguard.results.Kept.from_dict(None)
    assert [row["name"] for row in data["layers"]] == [layer.name for layer in result.layers]
    json.loads(compare(Overflows(), torch.randn(16, 8), dtype=F16).to_json())  # JSON has no infinity


# ---------------------------------------------------------------- a kept model beside guards


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x):
        return x + self.second(self.norm(self.first(x)).relu())


@pytest.fixture(scope="module")
def kept():
    """A model in bfloat16 of which some modules are kept, and what it gives."""
    torch.manual_seed(0)
    model, x = nn.Sequential(Block(), Block(), nn.Linear(8, 4)), torch.randn(4, 8)
    found = compare(model, x, dtype=torch.bfloat16).keep(error=0.001)
    found.apply(model)
    assert 0 < len(found.names) < 5
    return model, x.bfloat16()


def through_a_block(model, mode):
    with dtypeguard.guarded(model, mode=mode):
        pass
    return model


GUARDS = {
    "guard": lambda model, mode: dtypeguard.guard(model, mode=mode),
    "depth": lambda model, mode: dtypeguard.guard(model, mode=mode, depth="all"),
    "unguard": lambda model, mode: dtypeguard.unguard(dtypeguard.guard(model, mode=mode)),
    "a block": through_a_block,
    "twice": lambda model, mode: dtypeguard.guard(dtypeguard.guard(model), mode=mode),
    "a copy": lambda model, mode: copy.deepcopy(dtypeguard.guard(model, mode=mode)),
    "a pickle": lambda model, mode: pickle.loads(pickle.dumps(dtypeguard.guard(model, mode=mode))),
}


@pytest.mark.parametrize("mode", ["strict", "lenient"])
@pytest.mark.parametrize("way", GUARDS.values(), ids=list(GUARDS))
def test_the_borders_of_a_kept_model_stay_beside_guards_and_without_them(kept, way, mode):
    model, x = kept
    expected = model(x)
    assert not dtypeguard.is_guarded(model)
    assert torch.equal(way(copy.deepcopy(model), mode)(x), expected)  # warnings are errors here


@pytest.mark.parametrize("option", ["skip_args", "move_args"])
def test_a_model_that_is_kept_whole_takes_the_options_of_a_guard(option):
    model = dtypeguard.results.Kept(("",), 1e-3, 1, torch.bfloat16).apply(nn.Linear(8, 4))
    x = torch.randn(2, 8)
    expected = model(x)
    assert torch.equal(dtypeguard.guard(model, **{option: "input"})(x), expected)
    with pytest.raises(ValueError, match=r"Linear\.forward has no argument 'y', only input"):
        dtypeguard.guard(model, **{option: "y"})


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is:DeprecationWarning")
def test_a_kept_model_cannot_be_scripted(kept):
    with pytest.raises(TypeError, match="cannot read the casts that `keep` put into"):
        torch.jit.script(copy.deepcopy(kept[0]))


def test_the_borders_of_a_kept_model_are_given_up_on_purpose(kept):
    model, x = kept
    bare = dtypeguard.unguard(copy.deepcopy(model), borders=True)
    with pytest.raises(RuntimeError, match="dtype"):
        bare(x)


class Picky(nn.Linear):
    """A layer that looks at the dtype itself."""

    def forward(self, x):
        if x.dtype is BF16:
            raise ValueError("no bfloat16 here")
        return super().forward(x)


def test_a_model_that_refuses_a_dtype_itself_is_named():
    with pytest.raises(CompareError, match=r"Picky does not run in bfloat16\n.*ValueError: no bfloat16 here"):
        compare(Picky(4, 4), torch.randn(3, 4), dtype=BF16)


@pytest.mark.parametrize("tool", ["compare", "diff"])
def test_a_loss_that_wants_more_than_output_and_batch_is_named(tool):
    model = nn.Linear(4, 4)
    call = {
        "compare": lambda loss: compare(model, torch.randn(3, 4), dtype=BF16, loss=loss),
        "diff": lambda loss: diff(model, model, torch.randn(3, 4), loss=loss),
    }[tool]
    with pytest.raises(TypeError, match=f"{tool}: `loss` wants out, target, weight: pass a function of the output, or"):
        call(lambda out, target, weight: out.sum())


def test_what_is_kept_does_not_depend_on_what_was_kept_before():
    def result():
        torch.manual_seed(0)
        layers = [nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4)]
        return compare(nn.Sequential(*layers), torch.randn(32, 16), dtype=BF16)

    first, second = result(), result()
    second.keep(error=second.error / 2)
    kept = [one.keep(error=one.error / 6) for one in (first, second)]
    assert kept[0] == kept[1]
