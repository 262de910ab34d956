"""`compare(format=)` on programs as people write them: what is a weight, whose gradient, and what `apply` follows."""

import copy
import math

import pytest
import torch
from support import BF16, same
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint

import dtypeguard
from dtypeguard import CompareError, compare


def mse(out):
    return out.square().mean()


def apart(one, other):
    return float((one - other).detach().norm() / other.detach().norm())


def batch(rows=16, width=64):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(1))


class Program(nn.Module):
    """A model made of its parts and a function of them."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *args):
        return self.function(self, *args)


def weight(*shape):
    return nn.Parameter(torch.randn(shape) / shape[-1] ** 0.5)


def linear(into=64, out=64):
    return nn.Linear(into, out)


# The model, and how many numbers of weights each module multiplies.
WEIGHTS = {
    "spectral norm": (lambda: nn.Sequential(parametrizations.spectral_norm(linear())), {"0": 64 * 64}),
    "orthogonal": (lambda: nn.Sequential(parametrizations.orthogonal(linear())), {"0": 64 * 64}),
    "a merged adapter": (
        lambda: Program(lambda m, x: F.linear(x, m.w + m.a @ m.b), w=weight(64, 64), a=weight(64, 4), b=weight(4, 64)),
        {"": 64 * 64 + 2 * 4 * 64},
    ),
    "a mask": (
        lambda: Program(lambda m, x: F.linear(x, m.w * m.mask), w=weight(64, 64), mask=torch.ones(64, 64)), {"": 4096},
    ),
    "queries that are learned": (
        lambda: Program(lambda m, x: m.q(m.query.expand(16, 64)) + m.k(x), q=linear(), k=linear(), query=weight(1, 64)),
        {"q": 4096, "k": 4096},
    ),
    "weights that are chosen": (
        lambda: Program(lambda m, x: torch.bmm(x[:, None], m.w[(x[:, 0] > 0).long()])[:, 0], w=weight(2, 64, 64)),
        {"": 2 * 4096},
    ),
    "slices": (lambda: Program(lambda m, x: sum(F.linear(x, w) for w in m.w), w=weight(8, 64, 64)), {"": 8 * 4096}),
    "two widths": (
        lambda: Program(lambda m, x: F.linear(x, m.w) + F.pad(F.linear(x, m.w[:32]), (0, 32)), w=weight(64, 64)),
        {"": 4096},
    ),
    "attention of two": (
        lambda: Program(lambda m, x: m.mha(x, x * 2, x)[0], mha=nn.MultiheadAttention(64, 4)),
        {"mha": 4 * 4096},
    ),
    "tied": (
        lambda: Program(lambda m, x: m.b(m.a(x)), a=linear(), b=linear()),
        {"a": 4096, "b": 4096},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", WEIGHTS)
def test_weights_are_found_and_counted(kind):
    torch.manual_seed(0)
    make, counts = WEIGHTS[kind]
    result = compare(make(), batch(), format="fp8:row")
    kept = result.keep(error=10.0)
    assert {*kept.formats} == {*counts}
    assert result.stays == {}
    assert {name: held.count for name, held in result._subject.weights.items()} == counts
    assert 0.01 < result.error < 0.2
    assert 0.9 < result.explained < 1.1


def test_each_batch_shows_its_own_modules():
    torch.manual_seed(0)
    model = Program(lambda m, x, other: (m.b if other else m.a)(x), a=linear(), b=linear())
    result = compare(model, [(batch(), False), (batch(), True)], format="mxfp8")
    assert {*result.keep(error=10.0).formats} == {"a", "b"}


def test_what_stays_in_a_kernel_counts_its_bits():
    torch.manual_seed(0)
    model = Program(lambda m, x: m.head(m.lstm(x[None])[0][0]), lstm=nn.LSTM(64, 64), head=linear())
    kept = compare(model, batch(), format="nvfp4").keep(error=10.0)
    recurrent = sum(p.numel() for p in model.lstm.parameters())
    assert kept.names == ("lstm",)
    assert kept.bits == pytest.approx((32 * recurrent + 4.5 * 4096) / (recurrent + 4096))


def test_bilinear_layers_are_listed():
    torch.manual_seed(0)
    model = Program(lambda m, x: m.two(x, x) + m.one(x), two=nn.Bilinear(64, 64, 64), one=linear())
    assert compare(model, batch(), format="mxfp8").stays == {"two": "its products are in one kernel with other things"}


def test_a_half_model_stays_in_its_own_dtype():
    model = nn.Sequential(linear(), nn.GELU(), linear(64, 10)).to(BF16)
    text = str(compare(model, batch().to(BF16), format="mxfp8"))
    assert "stays in bfloat16: 2 (10 outputs, not divisible by 16)" in text


@pytest.mark.filterwarnings("ignore:(Config )?Deprecation")  # of older versions of torchao
def test_a_quantized_model_is_refused_in_words():
    q = pytest.importorskip("torchao.quantization")
    model = nn.Sequential(linear())
    q.quantize_(model, q.Int8WeightOnlyConfig(set_inductor_config=False))
    with pytest.raises(CompareError, match="its weights are tensors of another class, as those that are quantized"):
        compare(model, batch(), format="mxfp8")


# ---------------------------------------------------------------- gradients


class Doubled(torch.autograd.Function):
    """A linear layer with a backward of its own."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.T

    @staticmethod
    def backward(ctx, gradient):
        x, w = ctx.saved_tensors
        return gradient @ w, gradient.T @ x


def test_a_users_own_function_has_a_rounded_backward():
    torch.manual_seed(0)
    first, second = linear(), linear()
    plain = Program(lambda m, x: F.linear(m.a(x), m.b.weight), a=first, b=second)
    own = Program(lambda m, x: Doubled.apply(m.a(x), m.b.weight), a=first, b=second)
    errors = [compare(model, batch(), format="nvfp4", loss=mse).gradients for model in (plain, own)]
    assert errors[1] == pytest.approx(errors[0], rel=1e-3)


def test_the_bias_of_a_convolution_sums_what_was_not_rounded():
    torch.manual_seed(0)
    conv = nn.Conv2d(32, 32, 3, padding=1)
    low = compare(conv, torch.randn(2, 32, 6, 6), format="mxfp4", loss=mse)
    x = torch.randn(2, 32, 6, 6)
    applied = low.keep(error=10.0).apply(copy.deepcopy(conv))
    own, theirs = (torch.autograd.grad(mse(m(x)), m.bias)[0] for m in (conv, applied))
    assert compare(conv, x, format="mxfp4", loss=mse).gradients["bias"] == pytest.approx(apart(theirs, own), rel=1e-3)


def test_a_gradient_that_is_zero_is_not_told():
    torch.manual_seed(0)
    parts = {name: linear() for name in ("query", "key", "value")}
    model = Program(
        lambda m, x: F.scaled_dot_product_attention(m.query(x[None]), m.key(x[None]), m.value(x[None])), **parts
    )
    gradients = compare(model, batch(), format="mxfp8", loss=mse).gradients
    assert "key.bias" not in gradients  # it moves all scores of a row alike
    assert max(gradients.values()) < 1


def test_another_expert_in_the_low_run_is_no_mistake():
    for seed in range(6):
        torch.manual_seed(seed)
        model = Program(
            lambda m, x: torch.stack([m.e[int(m.gate(m.first(row)).argmax())](row) for row in x]),
            first=linear(), gate=linear(64, 16), e=nn.ModuleList(linear() for _ in range(16)),
        )  # fmt: skip
        result = compare(model, batch(8), format="mxfp4", loss=mse)
        assert math.isfinite(result.gradient)


# ---------------------------------------------------------------- apply


class Stop(nn.Linear):
    error = None

    def forward(self, x):
        if self.error is not None:
            raise self.error
        return super().forward(x)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), ValueError()], ids=repr)
def test_nothing_is_left_on_by_an_interrupt(error):
    torch.manual_seed(0)
    model = nn.Sequential(Stop(64, 64), linear())
    compare(model, batch(), format="nvfp4", attention=True).keep(error=1.0).apply(model)
    attention = F.scaled_dot_product_attention
    expected, model[0].error = model(batch()), error
    with pytest.raises(type(error)):
        model(batch())
    assert _get_current_dispatch_mode_stack() == []
    assert F.scaled_dot_product_attention is attention
    model[0].error = None
    assert same(model(batch()), expected)


def test_a_model_with_formats_is_compared_as_it_was():
    torch.manual_seed(0)
    model = nn.Sequential(linear(), nn.Tanh(), linear())
    plain = copy.deepcopy(model)
    result = compare(model, batch(), format="nvfp4")
    kept = result.keep(error=10.0)
    kept.apply(model)
    assert compare(model, batch(), format="nvfp4").error == result.error
    assert result.keep(error=0.05).error <= 0.05
    assert apart(model(batch()), plain(batch())) == pytest.approx(kept.error, rel=1e-3)
    with pytest.raises(CompareError, match=r"take that off with kept\.remove\(model\)"):
        compare(model, batch(), dtype=BF16)
    assert same(kept.remove(model)(batch()), plain(batch()))
    assert "forward" not in vars(model)


def test_each_module_rounds_however_it_is_called():
    torch.manual_seed(0)
    model = Program(lambda m, x: m.b(m.a(x)), a=linear(), b=linear())
    plain = copy.deepcopy(model)
    compare(model, batch(), format="nvfp4").keep(error=10.0).apply(model)
    assert same(model.b(model.a(batch())), model(batch()))
    assert not same(model.a(batch()), plain.a(batch()))


def test_a_checkpoint_computes_the_same_again():
    torch.manual_seed(0)
    model = Program(lambda m, x: m.head(m.body(x)), body=nn.Sequential(linear(), nn.GELU()), head=linear())
    compare(model, batch(), format="mxfp4").keep(error=10.0).apply(model)
    own = torch.autograd.grad(mse(model(batch())), [*model.parameters()])
    model.function = lambda m, x: m.head(checkpoint(m.body, x, use_reentrant=False))
    assert same(torch.autograd.grad(mse(model(batch())), [*model.parameters()]), own)


def test_a_guard_and_formats_go_together():
    torch.manual_seed(0)
    model = nn.Sequential(linear(), linear())
    compare(model, batch(), format="nvfp4").keep(error=10.0).apply(model)
    expected = model(batch())
    dtypeguard.guard(model, mode="strict")
    assert same(model(batch()), expected)
    with pytest.raises(dtypeguard.DtypeError):
        model(batch().double())


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_compiled_model_runs_what_was_applied():
    torch.manual_seed(0)
    model = nn.Sequential(linear(), nn.GELU(), linear())
    kept = compare(model, batch(), format="nvfp4").keep(error=10.0)
    expected = kept.apply(copy.deepcopy(model))(batch())
    assert same(torch.compile(kept.apply(copy.deepcopy(model)), backend="eager")(batch()), expected)
    assert same(kept.apply(torch.compile(copy.deepcopy(model), backend="eager"))(batch()), expected)


def test_a_cache_in_the_batch_stays_as_it_is():
    class Cache:
        def __init__(self):
            self.keys, self.runs = torch.ones(1, 64), [0]

    def function(m, x, cache):
        cache.keys, cache.runs[0] = torch.cat([cache.keys.to(x.dtype), x]), cache.runs[0] + 1
        return m.a(cache.keys)

    torch.manual_seed(0)
    cache = Cache()
    for how in ({"format": "mxfp8"}, {"dtype": BF16}):
        compare(Program(function, a=linear()), (batch(), cache), **how)
    assert cache.keys.shape == (1, 64)
    assert cache.runs == [0]


@pytest.mark.parametrize("heads", [None, 4], ids=["three axes", "heads"])
def test_attention_is_found_by_any_name(heads):
    def function(m, x):
        q, k, v = (part[None] for part in m.qkv(x).chunk(3, -1))
        if heads is not None:
            q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in (q, k, v))
        return attention(q, k, v)[0]

    torch.manual_seed(0)
    attention = F.scaled_dot_product_attention
    model = Program(function, qkv=linear(64, 192))
    without, within = (compare(model, batch(), format="mxfp8", attention=asked).error for asked in (False, True))
    assert within > 1.02 * without


def test_attention_with_weights_alone_is_refused():
    with pytest.raises(ValueError, match="attention=True rounds activations, and int8 rounds weights alone"):
        compare(nn.Sequential(linear()), batch(), format="int8", attention=True)


def test_keep_works_in_inference_mode():
    model = nn.Sequential(linear())
    with torch.inference_mode():
        result = compare(model, batch(), format="mxfp8", loss=mse)
        assert result.keep(error=1.0).gradient > 0


@pytest.mark.parametrize("seed", range(8))
def test_what_is_asked_for_is_reached_however_crooked_the_model_is(seed):
    torch.manual_seed(seed)
    layers = [part for _ in range(3) for part in (linear(), nn.Softmax(-1) if seed % 2 else nn.Tanh())]
    model = nn.Sequential(*layers, linear())
    with torch.no_grad():
        for layer in model[::2]:
            layer.weight.mul_(float(torch.rand(()) * 30))
    result = compare(model, batch(8), format=("mxfp4", "nvfp4"))
    for share in (0.5, 0.1, 1e-3):
        if share * result.error > 1e-5:
            assert result.keep(error=share * result.error).error <= share * result.error


@pytest.mark.parametrize("trace", [torch.jit.trace, torch.export.export])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.jit.trace
def test_a_graph_that_would_not_round_is_refused(trace):
    model, x = nn.Sequential(nn.Linear(64, 64)).eval(), torch.randn(4, 64)
    kept = dtypeguard.compare(model, x, format="nvfp4").keep(error=10.0)
    with pytest.raises(CompareError, match="would not round: trace the model without them"):
        trace(kept.apply(model), (x,))
    trace(kept.remove(model), (x,))
