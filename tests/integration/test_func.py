"""Function transforms, higher derivatives, checkpointing and tracing see through a guard and a contract.

Each transform is run on a bare model and on its strictly guarded twin: the results must be bit-identical. Then it is
run on float64 input: the twin of a lenient guard is the bare model behind an explicit `.float()`.
"""

import copy
import functools
import gc
import warnings

import pytest
import torch
from jaxtyping import Float, Float32
from support import BF16, F16, F32, F64
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd import functional as autograd
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

DEPTHS = ("auto", "all")

said = pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")  # where another test says that it warns
pytestmark = [
    pytest.mark.filterwarnings(text)
    for text in (  # torch's own
        "ignore:There is a performance drop:UserWarning",
        "ignore:`torch.jit.script`:DeprecationWarning",
        "ignore:Attempted to insert a get_attr Node:UserWarning",
    )
]


class Net(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(dropout))
        self.head = nn.Linear(4, 2)

    def forward(self, x, scale=None):
        y = self.head(self.body(x))
        return y if scale is None else y * scale


class Behind(Net):
    """A net that casts its own input."""

    def __init__(self, inner) -> None:
        super().__init__()
        self.load_state_dict(inner.state_dict())

    def forward(self, x, scale=None):
        return super().forward(x.to(self.head.weight.dtype), scale)


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


def dual(model, x):
    with forward_ad.dual_level():
        return tuple(forward_ad.unpack_dual(model(forward_ad.make_dual(x, torch.ones_like(x)))))


def dual_parameters(model, x):
    with forward_ad.dual_level():
        duals = {name: forward_ad.make_dual(p, torch.ones_like(p)) for name, p in values(model).items()}
        return tuple(forward_ad.unpack_dual(functional_call(model, duals, (x,))))


def double_backward(model, x):
    model.zero_grad()
    x.requires_grad_()
    (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    slope.square().sum().backward()
    return slope.detach(), x.grad, [p.grad for p in model.parameters() if p.grad is not None]


def checkpointed(how=checkpoint.checkpoint, autocast=False, **options):
    """The result and all gradients of one step, with dropout."""

    @seeded
    def run(model, x):
        model.zero_grad()
        model.body[2].p = 0.5
        with torch.autocast("cpu", BF16, enabled=autocast):
            y = how(model, x.requires_grad_(), **options)
        y.float().square().sum().backward()
        return y, x.grad, [parameter.grad for parameter in model.parameters()]

    return run


def no_early_stop(model, x):
    with checkpoint.set_checkpoint_early_stop(False):
        return checkpoint.checkpoint(model, x, use_reentrant=False)


def inside_another(model, x):
    return checkpoint.checkpoint(lambda x: checkpoint.checkpoint(model, x, use_reentrant=False), x, use_reentrant=False)


def policy(ctx, op, *args, **kwargs):
    keep = op is torch.ops.aten.tanh.default
    return checkpoint.CheckpointPolicy.MUST_SAVE if keep else checkpoint.CheckpointPolicy.PREFER_RECOMPUTE


def selective(choice):
    context = functools.partial(checkpoint.create_selective_checkpoint_contexts, choice)
    return checkpointed(use_reentrant=False, context_fn=context)


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
    "a dual tensor": dual,
    "dual parameters": dual_parameters,
    "double backward": double_backward,
    "checkpoint, reentrant": checkpointed(use_reentrant=True),
    "checkpoint": checkpointed(use_reentrant=False),
    "checkpoint under autocast": checkpointed(use_reentrant=False, autocast=True),
    "checkpoint, no early stop": checkpointed(no_early_stop),
    "checkpoint in a checkpoint": checkpointed(inside_another),
    "checkpoint of some operators": selective([torch.ops.aten.addmm.default]),
    "checkpoint by policy": selective(policy),
    "autograd's jacobian": lambda model, x: autograd.jacobian(model, x),
    "autograd's jacobian, vectorized": lambda model, x: autograd.jacobian(model, x, vectorize=True),
    "autograd's jacobian, forward": lambda model, x: autograd.jacobian(
        model, x, vectorize=True, strategy="forward-mode"
    ),
    "autograd's hessian": lambda model, x: autograd.hessian(loss(model), x),
    "autograd's vjp": lambda model, x: autograd.vjp(model, x, torch.ones(5, 2)),
    "autograd's jvp": lambda model, x: autograd.jvp(model, x, torch.ones_like(x)),
    "autograd's vhp": lambda model, x: autograd.vhp(loss(model), x, torch.ones_like(x)),
}


def judged(transform, checked, bare, by_hand, right, wrong, argument):
    """The same to the bit, named in strict mode, and repaired like an explicit cast in lenient mode.

    Gradients come back in the dtype of the caller's tensor; twice, because the second repair goes another way.
    """
    dtypeguard.set_mode("strict")
    for each in checked:
        same(transform(each, *right()), transform(bare, *right()))
    assert dtypeguard.casts() == []
    with pytest.raises(DtypeError) as caught:
        transform(checked[0], *wrong())
    assert (caught.value.argument, caught.value.actual, caught.value.expected) == (argument, F64, F32)
    del caught  # torch < 2.11: a checkpoint that raised keeps its hooks while its frame lives; goes with that floor
    gc.collect()
    dtypeguard.set_mode("lenient")
    for first in (True, False):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            same(transform(checked[0], *wrong()), transform(by_hand, *wrong()))
        casts = [(str(w.message), w.filename, w.lineno) for w in told if issubclass(w.category, CastWarning)]
        assert bool(casts) == first
        assert all(f"`{argument}` was cast from float64 to float32" in text for text, _, _ in casts)
        assert len(set(casts)) == len(casts)
    assert {(c.argument, c.from_dtype, c.to_dtype) for c in dtypeguard.casts()} == {(argument, F64, F32)}


@pytest.mark.thin(4)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_sees_through_a_guard(name):
    bare = Net()
    models = [guarded(bare, None, depth) for depth in DEPTHS]
    judged(TRANSFORMS[name], models, bare, Behind(bare), lambda: (rows(),), lambda: (rows(dtype=F64),), "x")


# ---------------------------------------------------------------- other parameters


@said
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("dtype", [F16, F64])
def test_functional_call_holds_to_the_dtype_of_the_parameters_it_is_given(dtype, depth):
    model, bare = guarded(Net(), None, depth), Net()
    other = {name: p.to(dtype) for name, p in values(model).items()}
    expected = functional_call(bare, other, (rows(dtype=dtype),))
    with dtypeguard.mode("strict"):
        same(functional_call(model, other, (rows(dtype=dtype),)), expected)
        with pytest.raises(DtypeError) as caught:
            functional_call(model, other, (rows(),))
        assert (caught.value.argument, caught.value.actual, caught.value.expected) == ("x", F32, dtype)
    for _ in range(2):
        same(functional_call(model, other, (rows(),)), expected)
        assert model(rows()).dtype is F32
    assert [(record.from_dtype, record.to_dtype, record.count) for record in dtypeguard.casts()] == [(F32, dtype, 2)]


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


def energy_by_hand(x, w):
    return energy.__wrapped__(x, w.to(F32))


@pytest.mark.thin(3)
@pytest.mark.parametrize("name", ENFORCED)
def test_a_transform_sees_through_an_enforced_function(name):
    right, wrong = lambda: (rows(), rows() + 1), lambda: (rows(), rows(dtype=F64) + 1)
    judged(ENFORCED[name], [energy], energy.__wrapped__, energy_by_hand, right, wrong, "w")


@pytest.mark.parametrize("name", ["grad", "vjp", "jvp"])
def test_writing_to_a_cast_copy_is_said_inside_a_transform_too(name):
    @enforce
    def writes(x: Float32[Tensor, "d"], w: Float32[Tensor, "d"]) -> Float32[Tensor, ""]:
        return (x.mul_(2) * w).sum()

    with pytest.warns(dtypeguard.DtypeGuardWarning) as told:
        ENFORCED[name](writes, rows(dtype=F64), rows() + 1)
    ours = {one.category for one in told if issubclass(one.category, dtypeguard.DtypeGuardWarning)}  # not torch's own
    assert ours == {CastWarning, dtypeguard.InplaceOnCastWarning}


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


def test_named_axes_do_not_fix_the_sizes_of_a_symbolic_trace(strict):
    traced = make_fx(lambda a, b: distance(a, b), tracing_mode="symbolic")(torch.randn(5, 3), torch.randn(4, 3))
    a, b = torch.randn(7, 2), torch.randn(6, 2)
    same(traced(a, b), distance.__wrapped__(a, b))


# ---------------------------------------------------------------- checkpointing


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


# ---------------------------------------------------------------- autograd


@pytest.mark.parametrize("depth", DEPTHS)
def test_gradcheck_of_a_guarded_float64_module(depth):
    model = guarded(Net().double(), depth=depth)
    x = rows(3, F64).requires_grad_()
    check = {"check_forward_ad": True, "check_batched_grad": True, "check_batched_forward_grad": True}
    assert torch.autograd.gradcheck(model, (x,), check_backward_ad=True, **check)
    assert torch.autograd.gradcheck(model, (x,), fast_mode=True)
    assert torch.autograd.gradgradcheck(model, (x,), check_fwd_over_rev=True)
    assert dtypeguard.casts() == []


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
