"""Function transforms, higher derivatives, checkpointing and tracing see through a guard and a contract.

Each transform is run on a bare model and on its strictly guarded twin: the results must be bit-identical. Then it is
run on float64 input: the twin of a lenient guard is the bare model behind an explicit `.float()`.
"""

import copy
import functools
import warnings

import pytest
import torch
from jaxtyping import Float, Float32
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import (
    functional_call,
    functionalize,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import checkpoint
from torch.utils._pytree import tree_flatten

import dtypeguard
from dtypeguard import CastWarning, DtypeError, ShapeError, enforce, guard

BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64
DEPTHS = ("auto", "all")

said = pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")  # where another test says that it warns
vmap_is_slow = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # vmap's own
scripted_decompositions = pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # torch's own
linearize_folds = pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")  # torch's own


class Net(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(dropout))
        self.head = nn.Linear(4, 2)

    def forward(self, x, scale=None):
        y = self.head(self.body(x))
        return y if scale is None else y * scale


def guarded(model, mode="strict", depth="auto"):
    return guard(copy.deepcopy(model), mode=mode, depth=depth)


def rows(n=5, dtype=F32):
    return torch.linspace(-1, 1, n * 3).reshape(n, 3).to(dtype)


def values(model):
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def same(got, expected):
    got, got_form = tree_flatten(got)
    expected, expected_form = tree_flatten(expected)
    assert str(got_form) == str(expected_form)
    for a, b in zip(got, expected, strict=True):
        assert a.dtype is b.dtype
        assert a.requires_grad == b.requires_grad
        assert torch.equal(a, b)


def loss(model):
    return lambda x: model(x).square().sum()


def parameter_loss(model):
    return lambda params, x: functional_call(model, params, (x,)).square().sum()


def seeded(transform):
    def run(model, x):
        torch.manual_seed(1)
        return transform(model, x)

    return run


def pulled_back(model, x):
    y, pull = vjp(model, x)
    return y, pull(torch.ones_like(y))


def pushed_forward(model, x):
    return jvp(model, (x,), (torch.ones_like(x),))


def linearized(model, x):
    y, push = linearize(model, x)
    return y, push(torch.ones_like(x))


def in_the_parameters(model, x):
    return grad(parameter_loss(model))(values(model), x)


def per_sample(model, x):
    return vmap(grad(parameter_loss(model)), (None, 0))(values(model), x)


def with_aux(model, x):
    def both(x):
        y = model(x)
        return y.square().sum(), y

    return grad_and_value(both, has_aux=True)(x)


def in_place(model, x):
    def body(x):
        return model(x.clone().mul_(2)).add_(1)

    return functionalize(body, remove="mutations_and_views")(x)


def over_both(model, x):
    """A network per row."""
    params = {name: torch.stack([p * n for n in range(1, len(x) + 1)]) for name, p in values(model).items()}
    return vmap(functools.partial(functional_call, model))(params, x)


def drawn(randomness):
    def run(model, x):
        model.body[2].p = 0.5
        return vmap(model, randomness=randomness)(x)

    return seeded(run)


TRANSFORMS = {
    "vmap": lambda model, x: vmap(model)(x),
    "vmap, second axis": lambda model, x: vmap(model, in_dims=1, out_dims=1)(x.T.contiguous()),
    "vmap, nested": lambda model, x: vmap(vmap(model))(torch.stack([x, x])),
    "vmap, in chunks": lambda model, x: vmap(model, chunk_size=2)(x),
    "vmap, keyword": lambda model, x: vmap(model)(x, scale=torch.full((2,), 3.0)),
    "vmap, one argument held": lambda model, x: vmap(model, (0, None))(x, torch.ones(2)),
    "vmap, other randomness in each": drawn("different"),
    "vmap, the same randomness in each": drawn("same"),
    "vmap, a network per row": over_both,
    "grad": lambda model, x: grad(loss(model))(x),
    "grad, in the parameters": in_the_parameters,
    "grad, per sample": per_sample,
    "grad of grad": lambda model, x: grad(lambda x: grad(loss(model))(x).square().sum())(x),
    "grad_and_value": lambda model, x: grad_and_value(loss(model))(x),
    "grad_and_value, aux": with_aux,
    "vjp": pulled_back,
    "jvp": pushed_forward,
    "jacrev": lambda model, x: jacrev(model)(x),
    "jacrev, in chunks": lambda model, x: jacrev(model, chunk_size=2)(x),
    "jacrev, in the parameters": lambda model, x: jacrev(parameter_loss(model))(values(model), x),
    "jacrev, per sample": lambda model, x: vmap(jacrev(model))(x),
    "jacfwd": lambda model, x: jacfwd(model)(x),
    "jacfwd, per sample": lambda model, x: vmap(jacfwd(model))(x),
    "hessian": lambda model, x: hessian(loss(model))(x),
    "hessian, per sample": lambda model, x: vmap(hessian(loss(model)))(x),
    "hessian, reverse over reverse": lambda model, x: jacrev(jacrev(loss(model)))(x),
    "hessian, forward over forward": lambda model, x: jacfwd(jacfwd(loss(model)))(x),
    "hessian, in the parameters": lambda model, x: hessian(parameter_loss(model))(values(model), x),
    "linearize": linearized,
    "functionalize": lambda model, x: functionalize(model)(x),
    "functionalize, in-place and views": in_place,
    "functionalize in vmap": lambda model, x: vmap(functionalize(model))(x),
}


@vmap_is_slow
@scripted_decompositions
@linearize_folds
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_gives_what_it_gives_without_a_guard(name, depth):
    transform, bare = TRANSFORMS[name], Net()
    same(transform(guarded(bare, depth=depth), rows()), transform(bare, rows()))
    assert dtypeguard.casts() == []


@vmap_is_slow
@scripted_decompositions
@linearize_folds
@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_wrong_dtype_inside_a_transform_is_named_in_strict_mode(name):
    with pytest.raises(DtypeError, match="argument `x` is float64, the module's parameters are float32") as caught:
        TRANSFORMS[name](guarded(Net()), rows(dtype=F64))
    assert (caught.value.argument, caught.value.actual, caught.value.expected) == ("x", F64, F32)


@vmap_is_slow
@scripted_decompositions
@linearize_folds
@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_wrong_dtype_inside_a_transform_is_repaired_like_an_explicit_cast(name):
    """Gradients come back in the dtype of the caller's tensor; twice, because the second repair goes another way."""
    transform, bare = TRANSFORMS[name], Net()
    expected = transform(Behind(bare), rows(dtype=F64))
    model = guarded(bare, "lenient")
    for first in (True, False):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            same(transform(model, rows(dtype=F64)), expected)
        casts = [warning for warning in told if issubclass(warning.category, CastWarning)]
        assert bool(casts) == first
        assert all("`x` was cast from float64 to float32" in str(warning.message) for warning in casts)
        assert len({str(warning.message) for warning in casts}) == len(casts)
    assert {(record.argument, record.from_dtype, record.to_dtype) for record in dtypeguard.casts()} == {("x", F64, F32)}


class Behind(Net):
    """A net that casts its own input."""

    def __init__(self, inner) -> None:
        super().__init__()
        self.load_state_dict(inner.state_dict())

    def forward(self, x, scale=None):
        return super().forward(x.to(self.head.weight.dtype), scale)


# ---------------------------------------------------------------- other parameters


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("dtype", [torch.float16, BF16, F64])
def test_functional_call_holds_to_the_dtype_of_the_parameters_it_is_given(dtype, depth):
    model, bare = guarded(Net(), depth=depth), Net()
    other = {name: p.to(dtype) for name, p in values(model).items()}
    x = rows(dtype=dtype)
    same(functional_call(model, other, (x,)), functional_call(bare, other, (x,)))
    with pytest.raises(DtypeError) as caught:
        functional_call(model, other, (rows(),))
    assert (caught.value.argument, caught.value.actual, caught.value.expected) == ("x", F32, dtype)
    assert model(rows()).dtype is F32


@said
def test_functional_call_repairs_towards_the_parameters_it_is_given():
    model = guarded(Net(), "lenient")
    other = {name: p.to(BF16) for name, p in values(model).items()}
    for _ in range(2):
        same(functional_call(model, other, (rows(),)), functional_call(Net(), other, (rows(dtype=BF16),)))
        same(model(rows()), copy.deepcopy(model)(rows()))
    assert [(record.from_dtype, record.to_dtype, record.count) for record in dtypeguard.casts()] == [(F32, BF16, 2)]


def test_functional_call_with_some_parameters_of_another_dtype_checks_each_owner():
    model = guarded(Net(), depth="all")
    mixed = {name: p.to(BF16) for name, p in values(model).items() if name.startswith("head")}
    with pytest.raises(DtypeError) as caught:
        functional_call(model, mixed, (rows(),))
    assert (caught.value.module_path, caught.value.argument, caught.value.expected) == ("Net.head", "input", BF16)


@pytest.mark.parametrize("strict", [False, True])
def test_functional_call_takes_tied_weights_as_it_does_without_a_guard(strict):
    bare = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    bare[1].weight = bare[0].weight
    given = {"0.weight": torch.eye(3), "0.bias": torch.ones(3), "1.bias": torch.zeros(3)}
    call = functools.partial(functional_call, strict=strict, tie_weights=True)
    same(call(guarded(bare, depth="all"), given, (rows(),)), call(bare, given, (rows(),)))
    assert dtypeguard.casts() == []


def test_the_old_stateless_functional_call_sees_through_a_guard():
    model, bare = guarded(Net()), Net()
    other = {name: p.to(BF16) for name, p in values(model).items()}
    with pytest.warns(FutureWarning, match="stateless"):
        same(
            nn.utils.stateless.functional_call(model, other, rows(dtype=BF16)),
            functional_call(bare, other, (rows(dtype=BF16),)),
        )


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("base", ["meta", "one of them"])
def test_an_ensemble_of_stacked_modules_gives_what_its_members_give(base, depth):
    bare = [Net() for _ in range(3)]
    models = [guarded(model, depth=depth) for model in bare]
    state = stack_module_state(models)
    skeleton = copy.deepcopy(models[0]).to("meta") if base == "meta" else models[0]

    def call(params, buffers, x):
        return functional_call(skeleton, (params, buffers), (x,))

    torch.testing.assert_close(vmap(call, (0, 0, None))(*state, rows()), torch.stack([model(rows()) for model in bare]))
    many = torch.stack([rows(), rows() * 2, rows() * 3])
    expected = torch.stack([model(x) for model, x in zip(bare, many, strict=True)])
    torch.testing.assert_close(vmap(call)(*state, many), expected)
    with pytest.raises(DtypeError, match="argument `x` is float64"):
        vmap(call)(*state, many.double())
    assert dtypeguard.casts() == []


@said
def test_an_ensemble_repairs_its_input_once_for_all():
    models = [guarded(Net(), "lenient") for _ in range(3)]
    params, buffers = stack_module_state(models)

    def call(params, buffers, x):
        return functional_call(models[0], (params, buffers), (x,))

    x = rows(dtype=F64)
    torch.testing.assert_close(
        vmap(call, (0, 0, None))(params, buffers, x), torch.stack([model(x.float()) for model in models])
    )
    (record,) = dtypeguard.casts()
    assert (record.argument, record.count) == ("x", 1)


def test_buffers_are_updated_functionally_as_without_a_guard():
    bare = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    state = {**values(bare), **{name: b.clone() for name, b in bare.named_buffers()}}
    again = {name: tensor.clone() for name, tensor in state.items()}
    model = guarded(bare, depth="all")
    same(functional_call(model, state, (rows(),)), functional_call(bare, again, (rows(),)))
    same(state, again)
    assert not torch.equal(state["1.running_mean"], bare[1].running_mean)


# ---------------------------------------------------------------- enforced functions


@enforce
def distance(a: Float32[Tensor, "n d"], b: Float32[Tensor, "m d"]) -> Float32[Tensor, "n m"]:
    return (a[:, None] - b[None]).square().sum(-1)


@enforce
def energy(x: Float32[Tensor, "d"], w: Float32[Tensor, "d"]) -> Float32[Tensor, ""]:
    return (x.sin() * w).sum()


class Scorer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    @enforce
    def forward(self, x: Float[Tensor, "3"]) -> Float[Tensor, "2"]:
        return self.fc(x)


ENFORCED = {
    "vmap": lambda f, x, w: vmap(f)(x, w),
    "vmap, one held": lambda f, x, w: vmap(f, (0, None))(x, w[0]),
    "vmap, second axis": lambda f, x, w: vmap(f, (1, 0))(x.T, w),
    "vmap, nested": lambda f, x, w: vmap(vmap(f, (None, 0)), (0, None))(x, w),
    "grad": lambda f, x, w: grad(f, (0, 1))(x[0], w[0]),
    "grad, per sample": lambda f, x, w: vmap(grad(f))(x, w),
    "grad_and_value": lambda f, x, w: grad_and_value(f)(x[0], w[0]),
    "vjp": lambda f, x, w: vjp(f, x[0], w[0])[1](torch.tensor(2.0)),
    "jvp": lambda f, x, w: jvp(f, (x[0], w[0]), (x[1], w[1])),
    "jacrev": lambda f, x, w: jacrev(f, (0, 1))(x[0], w[0]),
    "jacfwd": lambda f, x, w: jacfwd(f, (0, 1))(x[0], w[0]),
    "hessian": lambda f, x, w: hessian(f, (0, 1))(x[0], w[0]),
    "hessian, per sample": lambda f, x, w: vmap(hessian(f))(x, w),
    "linearize": lambda f, x, w: linearize(f, x[0], w[0])[1](x[1], w[1]),
    "functionalize": lambda f, x, w: functionalize(f)(x[0], w[0]),
}


@scripted_decompositions
@linearize_folds
@pytest.mark.parametrize("name", ENFORCED)
def test_an_enforced_function_is_transformed_like_its_body(name, strict):
    transform = ENFORCED[name]
    same(transform(energy, rows(), rows() + 1), transform(energy.__wrapped__, rows(), rows() + 1))
    assert dtypeguard.casts() == []


@said
@scripted_decompositions
@linearize_folds
@pytest.mark.parametrize("name", ENFORCED)
def test_an_enforced_function_repairs_inside_a_transform_like_an_explicit_cast(name):
    def explicit(x, w):
        return energy.__wrapped__(x.to(F32), w.to(F32))

    for _ in range(2):
        got = ENFORCED[name](energy, rows(dtype=F64), rows() + 1)
        same(got, ENFORCED[name](explicit, rows(dtype=F64), rows() + 1))
    assert {record.argument for record in dtypeguard.casts()} == {"x"}


@pytest.mark.parametrize("name", ["grad", "vjp", "jvp"])
def test_writing_to_a_cast_copy_is_said_inside_a_transform_too(name):
    @enforce
    def writes(x: Float32[Tensor, "d"], w: Float32[Tensor, "d"]) -> Float32[Tensor, ""]:
        return (x.mul_(2) * w).sum()

    with pytest.warns(dtypeguard.DtypeGuardWarning) as told:
        ENFORCED[name](writes, rows(dtype=F64), rows() + 1)
    assert {warning.category for warning in told} == {CastWarning, dtypeguard.InplaceOnCastWarning}


@scripted_decompositions
@linearize_folds
@pytest.mark.parametrize("name", ENFORCED)
def test_an_enforced_function_refuses_inside_a_transform(name, strict):
    with pytest.raises(DtypeError, match="argument `w` is float64, the annotation wants float32"):
        ENFORCED[name](energy, rows(), rows(dtype=F64))


def test_inside_vmap_axes_are_those_of_one_example(strict):
    x, y = torch.randn(4, 5, 3), torch.randn(4, 2, 3)
    torch.testing.assert_close(vmap(distance)(x, y), torch.cdist(x, y).square())
    model = Scorer()
    torch.testing.assert_close(vmap(model)(rows()), model.fc(rows()))
    with pytest.raises(ShapeError, match="argument `x` has 2 axes, the annotation wants 1"):
        model(rows())
    with pytest.raises(ShapeError, match="argument `x` has 2 axes, the annotation wants 1"):
        vmap(model)(torch.stack([rows(), rows()]))
    with pytest.raises(ShapeError, match="argument `b` has axis d=2, but d=3 in `a`") as caught:
        vmap(distance)(x, torch.randn(4, 2, 2))
    assert caught.value.axes["n"] == 5
    assert "f32[2,2]" in str(caught.value)


def test_the_mapped_axis_itself_is_no_axis_of_the_contract(strict):
    """Two arguments of other batch sizes are vmap's business."""
    with pytest.raises(ValueError, match="size"):
        vmap(energy)(rows(5), rows(4))
    assert vmap(energy, (None, 0))(rows(1)[0], rows(4)).shape == (4,)
    assert vmap(energy, (None, 0))(rows(1)[0], rows(3)).shape == (3,)


@pytest.mark.parametrize("level", [1, 2, 3])
def test_results_are_checked_at_every_level_of_vmap(level, strict):
    @enforce
    def widens(x: Float32[Tensor, "d"]) -> Float32[Tensor, "d"]:
        return x.double()

    call, x = widens, rows()[0]
    for _ in range(level):
        call, x = vmap(call), torch.stack([x, x])
    with pytest.raises(DtypeError, match="the result is float64, the annotation wants float32"):
        call(x)


@said
@vmap_is_slow
def test_a_guarded_model_inside_an_enforced_loss_gives_per_sample_gradients_in_the_callers_dtype():
    model = guarded(Net(), "lenient")

    @enforce(anchor="x")
    def objective(params, x: Float[Tensor, "3"], y: Float[Tensor, "2"]) -> Float[Tensor, ""]:
        return (functional_call(model, params, (x,)) - y.to(F32)).square().sum()

    params = {name: p.double() for name, p in values(model).items()}
    x, y = rows(), torch.zeros(5, 2)
    got = vmap(grad(objective, (0, 1)), (None, 0, 0))(params, x, y)
    assert all(g.dtype is F64 for g in got[0].values())
    assert got[1].dtype is F32
    assert {record.argument for record in dtypeguard.casts()} == {"x"}


def test_a_named_anchor_is_followed_inside_vmap(strict):
    @enforce(anchor="pred")
    def mse(pred: Float[Tensor, "n"], target: Float[Tensor, "n"]) -> Float[Tensor, ""]:
        return (pred - target).square().mean()

    a, b = rows(dtype=BF16), rows(dtype=BF16) + 1
    same(vmap(mse)(a, b), vmap(mse.__wrapped__)(a, b))
    with pytest.raises(DtypeError, match="argument `target` is float32, `pred` is bfloat16"):
        vmap(mse)(a, b.float())


# ---------------------------------------------------------------- forward mode


@pytest.mark.parametrize("depth", DEPTHS)
def test_dual_tensors_pass_a_guard(depth):
    bare = Net()

    def derivative(model):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(rows(), torch.ones(5, 3))
            return tuple(forward_ad.unpack_dual(model(dual)))

    same(derivative(guarded(bare, depth=depth)), derivative(bare))
    assert dtypeguard.casts() == []


@said
def test_a_repair_keeps_the_tangent():
    model = guarded(Net(), "lenient")
    for _ in range(2):
        with forward_ad.dual_level():
            wide = forward_ad.make_dual(rows(dtype=F64), torch.ones(5, 3, dtype=F64))
            y, tangent = forward_ad.unpack_dual(model(wide))
            right = forward_ad.unpack_dual(model(forward_ad.make_dual(rows(), torch.ones(5, 3))))
        same((y, tangent), tuple(right))


def test_a_dual_tensor_of_another_dtype_is_refused(strict):
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(rows(dtype=F64), torch.ones(5, 3, dtype=F64))
        with pytest.raises(DtypeError, match="argument `x` is float64"):
            guarded(Net(), None)(dual)


def test_dual_parameters_are_an_anchor_as_well():
    bare = Net()

    def derivative(model):
        with forward_ad.dual_level():
            duals = {name: forward_ad.make_dual(p, torch.ones_like(p)) for name, p in values(model).items()}
            return tuple(forward_ad.unpack_dual(functional_call(model, duals, (rows(),))))

    same(derivative(guarded(bare)), derivative(bare))


# ---------------------------------------------------------------- make_fx


def casts_in(graph):
    return [node for node in graph.graph.nodes if node.target is torch.ops.aten._to_copy.default]


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("depth", DEPTHS)
def test_make_fx_traces_through_a_guard_as_through_the_bare_model(mode, depth):
    bare = Net()
    x = rows()
    got = make_fx(guarded(bare, depth=depth), tracing_mode=mode, _allow_non_fake_inputs=True)(x)
    expected = make_fx(bare, tracing_mode=mode, _allow_non_fake_inputs=True)(x)
    assert [str(node.target) for node in got.graph.nodes] == [str(node.target) for node in expected.graph.nodes]
    same(got(x), expected(x))


@said
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx_records_one_cast(mode):
    model = guarded(Net(), "lenient")
    for _ in range(2):
        traced = make_fx(model, tracing_mode=mode, _allow_non_fake_inputs=True)(rows(dtype=F64))
        assert len(casts_in(traced)) == 1
        same(traced(rows(dtype=F64)), model(rows()))


def test_make_fx_raises_what_eager_raises(strict):
    with pytest.raises(DtypeError, match="argument `x` is float64, the module's parameters are float32"):
        make_fx(guarded(Net(), None), tracing_mode="fake", _allow_non_fake_inputs=True)(rows(dtype=F64))


def test_named_axes_do_not_fix_the_sizes_of_a_symbolic_trace(strict):
    traced = make_fx(lambda a, b: distance(a, b), tracing_mode="symbolic")(torch.randn(5, 3), torch.randn(4, 3))
    a, b = torch.randn(7, 2), torch.randn(6, 2)
    same(traced(a, b), distance.__wrapped__(a, b))


def test_make_fx_of_a_transformed_guarded_model():
    bare = Net()

    def step(model):
        return make_fx(lambda params, x: vmap(grad(parameter_loss(model)), (None, 0))(params, x))(values(model), rows())

    got, expected = step(guarded(bare)), step(bare)
    assert [str(node.target) for node in got.graph.nodes] == [str(node.target) for node in expected.graph.nodes]
    same(got(values(bare), rows()), expected(values(bare), rows()))


# ---------------------------------------------------------------- checkpointing


def deep(dropout=0.0):
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Dropout(dropout), nn.LayerNorm(6)) for _ in range(4))
    )


def guard_blocks(model, mode="strict", depth="auto"):
    for block in model:
        guard(block, mode=mode, depth=depth)
    return model


def wide(dtype=F32):
    return torch.linspace(-1, 1, 30).reshape(5, 6).to(dtype).requires_grad_()


CHECKPOINTS = {
    "none": lambda model, x: model(x),
    "reentrant": lambda model, x: functools.reduce(
        lambda h, block: checkpoint.checkpoint(block, h, use_reentrant=True), model, x
    ),
    "not reentrant": lambda model, x: functools.reduce(
        lambda h, block: checkpoint.checkpoint(block, h, use_reentrant=False), model, x
    ),
    "not reentrant, whole": lambda model, x: checkpoint.checkpoint(model, x, use_reentrant=False),
    "reentrant, sequential": lambda model, x: checkpoint.checkpoint_sequential(model, 2, x, use_reentrant=True),
    "not reentrant, sequential": lambda model, x: checkpoint.checkpoint_sequential(model, 2, x, use_reentrant=False),
    "no early stop": lambda model, x: no_early_stop(model, x),
    "selective, matmuls": lambda model, x: checkpoint.checkpoint(
        model, x, use_reentrant=False, context_fn=selective([torch.ops.aten.addmm.default])
    ),
    "selective, by policy": lambda model, x: checkpoint.checkpoint(
        model, x, use_reentrant=False, context_fn=selective(policy)
    ),
    "nested": lambda model, x: checkpoint.checkpoint(
        lambda x: CHECKPOINTS["not reentrant"](model, x), x, use_reentrant=False
    ),
}


def no_early_stop(model, x):
    with checkpoint.set_checkpoint_early_stop(False):
        return CHECKPOINTS["not reentrant"](model, x)


def selective(choice):
    return functools.partial(checkpoint.create_selective_checkpoint_contexts, choice)


def policy(ctx, op, *args, **kwargs):
    keep = op in (torch.ops.aten.gelu.default, torch.ops.aten.native_layer_norm.default)
    return checkpoint.CheckpointPolicy.MUST_SAVE if keep else checkpoint.CheckpointPolicy.PREFER_RECOMPUTE


def trained(how, model, x, autocast=False):
    """The result and all gradients of one step."""
    torch.manual_seed(2)
    with torch.autocast("cpu", BF16, enabled=autocast):
        y = CHECKPOINTS[how](model, x)
    y.float().square().sum().backward()
    return y, x.grad, [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("how", CHECKPOINTS)
def test_a_checkpointed_step_is_bit_identical_under_a_guard(how, depth, autocast):
    bare = deep(dropout=0.5)
    model = guard_blocks(copy.deepcopy(bare), depth=depth)
    same(trained(how, model, wide(), autocast), trained(how, bare, wide(), autocast))
    assert dtypeguard.casts() == []


@said
@pytest.mark.parametrize("how", CHECKPOINTS)
def test_a_checkpointed_repair_is_made_again_when_it_is_recomputed(how):
    bare = deep()
    model = guard_blocks(copy.deepcopy(bare), "lenient")
    wide_x = wide(F64)
    got = trained(how, model, wide_x)
    same(wide_x.grad, got[1])
    assert wide_x.grad.dtype is F64
    y, x_grad, grads = trained("none", bare, wide())
    same((got[0], got[2]), (y, grads))
    same(got[1], x_grad.double())
    assert {(record.argument, record.from_dtype, record.to_dtype) for record in dtypeguard.casts()} == {
        ("input", F64, F32)
    }


@pytest.mark.parametrize("how", CHECKPOINTS)
def test_a_wrong_dtype_is_refused_before_anything_is_checkpointed(how):
    model = guard_blocks(deep())
    with pytest.raises(DtypeError, match="argument `input` is float64, the module's parameters are float32"):
        CHECKPOINTS[how](model, wide(F64))


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_enforced_function_binds_its_axes_again(reentrant, strict):
    a, b = torch.randn(4, 3, requires_grad=True), torch.randn(5, 3, requires_grad=True)
    checkpoint.checkpoint(distance, a, b, use_reentrant=reentrant).sum().backward()
    got = a.grad.clone(), b.grad.clone()
    a.grad = b.grad = None
    distance.__wrapped__(a, b).sum().backward()
    same(got, (a.grad, b.grad))
    with pytest.raises(ShapeError, match="argument `b` has axis d=2, but d=3 in `a`"):
        checkpoint.checkpoint(distance, a, b[:, :2], use_reentrant=reentrant)


@said
@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_runs_under_the_mode_in_force_at_backward(reentrant):
    model = guarded(Net(), None)
    with dtypeguard.mode("lenient"):
        y = checkpoint.checkpoint(model, rows(dtype=F64).requires_grad_(), use_reentrant=reentrant)
    with dtypeguard.mode("strict"), pytest.raises(DtypeError, match="argument `x` is float64"):
        y.sum().backward()
    pinned = guarded(Net(), "lenient")
    y = checkpoint.checkpoint(pinned, rows(dtype=F64).requires_grad_(), use_reentrant=reentrant)
    with dtypeguard.mode("strict"):
        y.sum().backward()


def test_a_guarded_model_that_checkpoints_its_own_blocks():
    class Checkpointing(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = deep()

        def forward(self, x):
            for block in self.blocks:
                x = checkpoint.checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
            return x

    bare = Checkpointing()
    same(trained("none", guarded(bare, depth="all"), wide()), trained("none", bare, wide()))


# ---------------------------------------------------------------- autograd


def test_double_backward_is_bit_identical():
    def penalty(model):
        x = rows().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (slope.norm(dim=1) - 1).square().mean().backward()
        return slope, x.grad, [p.grad for p in model.parameters() if p.grad is not None]

    bare = Net()
    same(penalty(guarded(bare, depth="all")), penalty(bare))


@said
def test_double_backward_goes_through_a_repair():
    def slopes(model, dtype):
        x = rows(dtype=dtype).requires_grad_()
        (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        slope.square().sum().backward()
        return slope.detach(), x.grad

    bare = Net()
    for _ in range(2):
        got = slopes(guarded(bare, "lenient"), F64)
        same(got, slopes(Behind(bare), F64))
        assert all(tensor.dtype is F64 for tensor in got)


@vmap_is_slow
@pytest.mark.parametrize("depth", DEPTHS)
def test_gradcheck_of_a_guarded_float64_module(depth):
    model = guarded(Net().double(), depth=depth)
    x = rows(3, F64).requires_grad_()
    check = {"check_forward_ad": True, "check_batched_grad": True, "check_batched_forward_grad": True}
    assert torch.autograd.gradcheck(model, (x,), check_backward_ad=True, **check)
    assert torch.autograd.gradcheck(model, (x,), fast_mode=True)
    assert torch.autograd.gradgradcheck(model, (x,), check_fwd_over_rev=True)
    assert dtypeguard.casts() == []


AUTOGRAD = {
    "jacobian": lambda f, x: torch.autograd.functional.jacobian(f, x),
    "jacobian, vectorized": lambda f, x: torch.autograd.functional.jacobian(f, x, vectorize=True),
    "jacobian, forward mode": lambda f, x: torch.autograd.functional.jacobian(
        f, x, vectorize=True, strategy="forward-mode"
    ),
    "jacobian, graph": lambda f, x: torch.autograd.functional.jacobian(f, x, create_graph=True).detach(),
    "hessian": lambda f, x: torch.autograd.functional.hessian(lambda x: f(x).square().sum(), x),
    "hessian, vectorized": lambda f, x: torch.autograd.functional.hessian(
        lambda x: f(x).square().sum(), x, vectorize=True
    ),
    "vjp": lambda f, x: torch.autograd.functional.vjp(f, x, torch.ones(5, 2)),
    "jvp": lambda f, x: torch.autograd.functional.jvp(f, x, torch.ones_like(x)),
    "vhp": lambda f, x: torch.autograd.functional.vhp(lambda x: f(x).square().sum(), x, torch.ones_like(x)),
    "hvp": lambda f, x: torch.autograd.functional.hvp(lambda x: f(x).square().sum(), x, torch.ones_like(x)),
}


@scripted_decompositions
@vmap_is_slow
@pytest.mark.parametrize("name", AUTOGRAD)
def test_autograd_functional_sees_through_a_guard(name):
    transform, bare = AUTOGRAD[name], Net()
    same(transform(guarded(bare), rows()), transform(bare, rows()))
    assert dtypeguard.casts() == []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CastWarning)
        same(transform(guarded(bare, "lenient"), rows(dtype=F64)), transform(Behind(bare), rows(dtype=F64)))
    assert len(dtypeguard.casts()) == 1
    with pytest.raises(DtypeError, match="argument `x` is float64"):
        transform(guarded(bare), rows(dtype=F64))


def test_saved_tensors_are_those_of_the_bare_model():
    def saved(model):
        packed = []

        def pack(tensor):
            packed.append((tensor.dtype, tuple(tensor.shape)))
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(rows().requires_grad_()).sum().backward()
        return packed

    bare = Net()
    assert saved(guarded(bare, depth="all")) == saved(bare) != []


@pytest.mark.parametrize("how", ["offload", "forbid"])
def test_contexts_over_saved_tensors(how):
    bare = Net()
    model = guarded(bare, depth="all")
    if how == "forbid":
        with (
            torch.autograd.graph.disable_saved_tensors_hooks("none here"),
            pytest.raises(RuntimeError, match="none here"),
            torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
        ):
            model(rows())
        return
    for each in (model, bare):
        with torch.autograd.graph.save_on_cpu():
            each(rows()).sum().backward()
    same([p.grad for p in model.parameters()], [p.grad for p in bare.parameters()])


@said
def test_a_repair_saves_no_wide_copy_for_backward():
    """What autograd keeps is the narrow tensor; the caller's float64 one may go."""
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t.dtype) or t, lambda t: t):
        guarded(Net(), "lenient")(rows(dtype=F64).requires_grad_()).sum().backward()
    assert set(packed) == {F32}


def test_the_graph_of_a_healthy_call_has_no_node_of_the_guard():
    def names(fn, seen=None):
        seen = [] if seen is None else seen
        if fn is not None:
            seen.append(fn.name())
            for parent, _ in fn.next_functions:
                names(parent, seen)
        return seen

    bare = Net()
    x = rows().requires_grad_()
    assert names(guarded(bare, depth="all")(x).grad_fn) == names(bare(x).grad_fn)
    with pytest.warns(CastWarning):
        repaired = guarded(bare, "lenient")(rows(dtype=F64).requires_grad_())
    assert names(repaired.grad_fn) == names(Behind(bare)(rows(dtype=F64).requires_grad_()).grad_fn)


class Bad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * float("nan")


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled:UserWarning")
@pytest.mark.filterwarnings("ignore:Error detected in:UserWarning")  # what anomaly mode says
@pytest.mark.parametrize("mode", ["strict", "lenient"])
@said
def test_anomaly_mode_trains_and_still_finds_the_nan(mode):
    bare = Net()
    model = guarded(bare, mode)
    x = rows(dtype=F32 if mode == "strict" else F64).requires_grad_()
    with torch.autograd.detect_anomaly():
        model(x).sum().backward()
        bare(rows()).sum().backward()
        with pytest.raises(RuntimeError, match="returned nan values"):
            Bad.apply(model(x)).sum().backward()
    same([p.grad for p in model.parameters()], [p.grad for p in bare.parameters()])


def test_detach_clone_and_leaves_keep_their_place_in_the_graph():
    class Looking(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 2)

        def forward(self, x):
            self.seen = (x.is_leaf, x.requires_grad, x.grad_fn)
            x.retain_grad()
            self.x = x
            return self.fc(x)

    model = guarded(Looking())
    for x in (rows().requires_grad_(), rows().requires_grad_() * 2):
        model(x).sum().backward()
        assert model.seen == (x.is_leaf, True, x.grad_fn)
        assert model.x is x
        assert x.grad is not None


def test_grad_mode_inside_a_forward_is_the_callers():
    class Modes(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 2)

        def forward(self, x):
            self.modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), x.is_inference()
            return self.fc(x)

    model = guarded(Modes())
    model(rows())
    assert model.modes == (True, False, False)
    with torch.no_grad():
        model(rows())
    assert model.modes == (False, False, False)
    with torch.inference_mode():
        model(rows())
    assert model.modes == (False, True, True)


# ---------------------------------------------------------------- custom functions


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad

    @staticmethod
    def vmap(info, in_dims, x):
        return Cube.apply(x), in_dims[0]

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * tangent


@enforce
def cube(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
    return Cube.apply(x)


@said
def test_a_custom_function_behind_enforce_is_given_the_cast_tensor_and_sends_gradients_home():
    x = torch.tensor([1.0, 2.0], dtype=F64, requires_grad=True)
    for _ in range(2):
        cube(x).sum().backward()
        assert x.grad.tolist() == [3.0, 12.0]
        assert x.grad.dtype is F64
        x.grad = None
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    assert cube(x).grad_fn.name() == "CubeBackward"


def test_a_custom_function_behind_enforce_is_mapped_and_differentiated_forwards(strict):
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    same(vmap(cube)(x), x**3)
    same(jvp(cube, (x[0],), (torch.ones(2),)), (x[0] ** 3, 3 * x[0] ** 2))
    same(vmap(grad(lambda x: cube(x).sum()))(x), 3 * x**2)
    with pytest.raises(DtypeError, match="cube: argument `x` is float64"):
        vmap(cube)(x.double())


class Enforced(torch.autograd.Function):
    """The contract on the function's own static methods."""

    @staticmethod
    @enforce
    def forward(ctx, x: Float32[Tensor, "n"], w: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    @enforce
    def backward(ctx, grad: Float32[Tensor, "n"]):
        x, w = ctx.saved_tensors
        return grad * w, grad * x


def test_the_static_methods_of_a_custom_function_may_be_enforced(strict):
    x, w = torch.ones(3, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
    Enforced.apply(x, w).sum().backward()
    assert (x.grad.tolist(), w.grad.tolist()) == ([2.0] * 3, [1.0] * 3)
    with pytest.raises(DtypeError, match=r"Enforced\.forward: argument `w` is float64, the annotation wants float32"):
        Enforced.apply(x, w.double())
    with pytest.raises(ShapeError, match="argument `w` has axis n=2, but n=3 in `x`"):
        Enforced.apply(x, w[:2])


@said
def test_a_repair_inside_a_custom_function_is_below_autograd_so_the_gradient_still_fits():
    """Inside `Function.forward` no graph is recorded; autograd itself casts the gradient to the input's dtype."""
    x, w = torch.ones(3, dtype=F64, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
    Enforced.apply(x, w).sum().backward()
    assert (x.grad.dtype, w.grad.dtype) == (F64, F32)
    assert x.grad.tolist() == [2.0] * 3


class Guarded(torch.autograd.Function):
    """Calls a module inside, as reversible networks do."""

    @staticmethod
    def forward(ctx, x, model):
        ctx.model = model
        ctx.save_for_backward(x)
        with torch.no_grad():
            return model(x)

    @staticmethod
    def backward(ctx, grad):
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            torch.autograd.backward(ctx.model(x), grad)
        return x.grad, None


def test_a_guarded_model_called_inside_a_custom_function():
    bare = Net()

    def step(model):
        x = rows().requires_grad_()
        Guarded.apply(x, model).sum().backward()
        return x.grad, [p.grad for p in model.parameters()]

    same(step(guarded(bare, depth="all")), step(bare))
