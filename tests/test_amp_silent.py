"""No false alarms: a strict watch on a training program that is right changes no bit of it and says nothing."""

import collections
import concurrent.futures
import contextlib
import copy
import functools
import inspect
import io
import itertools
import pickle

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, parametrizations
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, ReduceLROnPlateau
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from dtypeguard import AmpError, amp

F16, BF16, F32, F64, C64 = torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64
STEPS = 60
HARMLESS = "info"


# ---------------------------------------------------------------- each program runs twice


def silent(program=None, *, infos=()):
    """A test of a program that gets `watch`: it runs bare, then under strict watches, and must not differ in a bit.

    A program returns everything that it made: modules, optimizers, scalers, losses. Watches may find `infos`, no more.
    """
    if program is None:
        return functools.partial(silent, infos=infos)

    def test(**parameters):
        __tracebackhide__ = True
        twice(program, infos, **parameters)

    functools.update_wrapper(test, program)
    del test.__wrapped__
    test.__signature__ = inspect.Signature(list(inspect.signature(program).parameters.values())[1:])
    return test


def twice(program, infos=(), **parameters):
    """Run a program bare and watched, and compare."""
    torch.manual_seed(0)
    bare = plain(program(unwatched, **parameters)), torch.get_rng_state()
    watches, before = [], []
    torch.manual_seed(0)
    watched = plain(program(functools.partial(strictly, watches, before), **parameters)), torch.get_rng_state()
    for things, held in before:
        assert footprint(*things) == held
    same(bare, watched)
    assert watches
    assert {finding.rule for watch in watches for finding in watch.report()} == set(infos)
    assert {finding.severity for watch in watches for finding in watch.report()} <= {HARMLESS}


@contextlib.contextmanager
def unwatched(model, optimizer, scaler=None, **options):
    yield None


@contextlib.contextmanager
def strictly(watches, before, model, optimizer, scaler=None, **options):
    """A strict watch; what the first of several found is kept in `before`."""
    if not before or all(watch.closed for watch in watches):
        before.append(((model, optimizer, scaler), footprint(model, optimizer, scaler)))
    with amp.watch(model, optimizer, scaler, mode="strict", **options) as watch:
        watches.append(watch)
        yield watch


def many(things, kind):
    return [things] if isinstance(things, kind) else list(things)


def footprint(model, optimizer, scaler):
    """Where a watch holds on: hooks, and the scaler's class."""
    models = many(model, nn.Module)
    optimizers = [getattr(one, "optimizer", one) for one in many(optimizer, torch.optim.Optimizer)]
    kinds = ["_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks"]
    modules = [module for one in models for module in one.modules()]
    on_modules = [hook for module in modules for kind in kinds for hook in getattr(module, kind).values()]
    on_modules = [
        hook for hook in on_modules if getattr(hook, "__name__", "") != "_infer_parameters"
    ]  # lazy modules' own
    kinds = ["_optimizer_step_pre_hooks", "_optimizer_step_post_hooks", "_optimizer_state_dict_pre_hooks"]
    on_optimizers = [[list(getattr(one, kind).values()) for kind in kinds] for one in optimizers]
    held = {id(p): p for one in optimizers for group in one.param_groups for p in group["params"]}
    held |= {id(p): p for one in models for p in one.parameters()}
    on_parameters = [hook for p in held.values() for hook in (p._post_accumulate_grad_hooks or {}).values()]
    on_parameters += [hook for p in held.values() for hook in (p._backward_hooks or {}).values()]
    return on_modules, on_optimizers, on_parameters, type(scaler)


def plain(made):
    """What a program made, as tensors and numbers."""
    if isinstance(made, nn.Module):
        gradients = {name: parameter.grad for name, parameter in made.named_parameters()}
        return [plain(dict(made.state_dict())), plain(gradients)]
    if isinstance(made, (torch.optim.Optimizer, GradScaler)):
        return plain(made.state_dict())
    if isinstance(made, (list, tuple)):
        return [plain(one) for one in made]
    if isinstance(made, dict):
        return {key: plain(value) for key, value in made.items()}
    return made.detach().clone() if isinstance(made, torch.Tensor) else made


def same(a, b):
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert a.dtype is b.dtype
        if a.is_sparse:
            a, b = a.to_dense(), b.to_dense()
        assert torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
        assert torch.equal(a.isnan(), b.isnan())
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            same(one, other)
    else:
        assert a == b or a != a


# ---------------------------------------------------------------- what the programs are made of


def net(dtype=F32, width=16):
    return nn.Sequential(nn.Linear(6, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, 3)).to(dtype)


def batches(steps=STEPS, dtype=F32, rows=8):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(rows, 6, generator=generator, dtype=F64)
        noise = torch.randn(rows, 3, generator=generator, dtype=F64)
        yield x.to(dtype), (x[:, :3] * x[:, 3:] + noise).to(dtype)


def mse(out, y):
    return nn.functional.mse_loss(out.float(), y.float())


def half(dtype=F16):
    return torch.autocast("cpu", dtype)


FLAVOURS = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.02, momentum=0.9),
    "fused SGD": lambda params: torch.optim.SGD(params, lr=0.05, fused=True),
    "Adam": lambda params: torch.optim.Adam(params, lr=0.005),
    "fused Adam": lambda params: torch.optim.Adam(params, lr=0.005, fused=True),
    "foreach AdamW": lambda params: torch.optim.AdamW(params, lr=0.005, foreach=True),
}
slow = pytest.mark.slow
both = [pytest.param(flavour, marks=[] if flavour in ("Adam", "fused Adam") else slow) for flavour in FLAVOURS]
flavours = pytest.mark.parametrize("flavour", [pytest.param(f, marks=[] if f == "Adam" else slow) for f in FLAVOURS])
fused_too = pytest.mark.parametrize("flavour", both)


def parts(flavour, **options):
    """A model, its optimizer and a scaler."""
    model = net()
    return model, FLAVOURS[flavour](model.parameters()), GradScaler("cpu", **options)


def loss_of(model, x, y):
    with half():
        return mse(model(x), y)


# ---------------------------------------------------------------- every optimizer of torch

RATES = {"SGD": 0.05, "LBFGS": 0.5, "Adadelta": 1.0, "ASGD": 0.05, "Muon": 0.02, "Rprop": 0.01}
COARSE = {"SGD": 0.2, "ASGD": 0.2, "Adadelta": 2.0}  # for bfloat16, so that updates arrive
ALL = ["ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Muon", "NAdam", "RAdam"]
ALL += ["RMSprop", "Rprop", "SGD", "SparseAdam"]
FEW = ("SGD", "Adam", "Adafactor", "Muon", "NAdam")  # the others are tried now and then
REAL_ONLY = {"Adafactor", "Muon", "SparseAdam"}
TABLE = [(name, {}) for name in ALL if name != "SparseAdam"]
TABLE += [(name, {"foreach": True}) for name in ALL if name not in ("LBFGS", "Muon", "SparseAdam")]
TABLE += [(name, {"maximize": True}) for name in ALL if name not in ("LBFGS", "Muon", "SparseAdam")]
TABLE += [(name, {"fused": True}) for name in ("Adagrad", "Adam", "AdamW", "SGD")]
TABLE += [(name, {"amsgrad": True, **how}) for name in ("Adam", "AdamW") for how in ({}, {"fused": True})]
TABLE += [
    ("SGD", {"momentum": 0.9}),
    ("SGD", {"momentum": 0.9, "foreach": True}),
    ("SGD", {"momentum": 0.9, "fused": True}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-2}),
    ("SGD", {"momentum": 0.9, "dampening": 0.5}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
    ("Muon", {"nesterov": False, "weight_decay": 0.0}),
    ("Muon", {"adjust_lr_fn": "match_rms_adamw"}),
    ("Adam", {"weight_decay": 1e-2, "decoupled_weight_decay": True}),
    ("Adam", {"lr": torch.tensor(0.01), "foreach": False}),
    ("NAdam", {"weight_decay": 1e-2, "decoupled_weight_decay": True}),
    ("RAdam", {"weight_decay": 1e-2, "decoupled_weight_decay": True}),
    ("Adagrad", {"lr_decay": 1e-3, "initial_accumulator_value": 0.1}),
    ("Adafactor", {"weight_decay": 1e-2, "beta2_decay": -0.5}),
    ("LBFGS", {"line_search_fn": "strong_wolfe", "max_iter": 4}),
    ("ASGD", {"t0": 10, "weight_decay": 1e-3}),
]


def shown(options):
    return " ".join(f"{key}={getattr(value, 'item', lambda v=value: v)()}" for key, value in options.items()) or "-"


def often(options):
    return () if options.keys() <= {"fused", "amsgrad"} else slow


every_optimizer = pytest.mark.parametrize(
    ("name", "options"), [pytest.param(*row, id=f"{row[0]} {shown(row[1])}", marks=often(row[1])) for row in TABLE]
)


def matrices(dtype):
    """Muon takes matrices only."""
    return nn.Sequential(nn.Linear(6, 16, bias=False), nn.GELU(), nn.Linear(16, 3, bias=False)).to(dtype)


def trained(watch, model, optimizer, data, criterion=mse, sign=1.0):
    losses = []
    if isinstance(optimizer, torch.optim.LBFGS) and not optimizer.defaults["line_search_fn"]:
        # it remembers gradients, so it wants the same batch
        data = itertools.repeat(next(iter(data)), STEPS)
    with watch(model, optimizer):
        for x, y in data:

            def closure(x=x, y=y):
                optimizer.zero_grad()
                loss = sign * criterion(model(x), y)
                loss.backward()
                return loss

            if isinstance(optimizer, torch.optim.LBFGS):
                losses.append(optimizer.step(closure))
            else:
                losses.append(closure())
                optimizer.step()
    return model, optimizer, losses


def made(name, options, model, rate):
    options = {"lr": rate, **options}
    if name == "LBFGS":
        options |= {"lr": 0.05, "max_iter": 4}
    return getattr(torch.optim, name)(model.parameters(), **options)


@pytest.mark.thin(3)
@pytest.mark.parametrize("dtype", [F32, pytest.param(F64, marks=slow)], ids=["float32", "float64"])
@every_optimizer
@silent
def test_every_optimizer(watch, name, options, dtype):
    model = matrices(dtype) if name == "Muon" else net(dtype)
    optimizer = made(name, options, model, RATES.get(name, 0.01))
    sign = -1.0 if options.get("maximize") else 1.0
    return trained(watch, model, optimizer, batches(dtype=dtype), nn.functional.mse_loss, sign)


def trains_bfloat16(name, options):
    """On CPUs the fused SGD of torch 2.13 leaves bfloat16 parameters where they are: a watch says so."""
    return not (name == "SGD" and options.get("fused"))


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(*row, id=f"{row[0]} {shown(row[1])}", marks=() if row[1] == {} and row[0] in FEW else slow)
        for row in TABLE
        if trains_bfloat16(*row)
    ],
)
@silent
def test_every_optimizer_with_bfloat16_parameters_and_updates_that_arrive(watch, name, options):
    model = matrices(BF16) if name == "Muon" else net(BF16)
    if name == "Adadelta":
        options = {"eps": 1e-3, **options}
    optimizer = made(name, options, model, COARSE.get(name, 0.05))
    sign = -1.0 if options.get("maximize") else 1.0
    return trained(watch, model, optimizer, batches(dtype=BF16), sign=sign)


@pytest.mark.parametrize("options", [{"eps": 1e-3}, {"eps": 1e-3, "fused": True}], ids=["Adam", "fused Adam"])
@silent
def test_float16_parameters_with_a_wide_eps(watch, options):
    model = net(F16)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05, **options)
    return trained(watch, model, optimizer, batches(dtype=F16))


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(6, 8, dtype=C64), nn.Linear(8, 3, dtype=C64)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(
            name,
            options,
            id=f"{name} {shown(options)}",
            marks=() if options == {} and name in ("SGD", "Adam") else slow,
        )
        for name, options in TABLE
        if name not in REAL_ONLY and "fused" not in options
    ],
)
@silent
def test_every_optimizer_with_complex_parameters(watch, name, options):
    model = Complex()
    optimizer = made(name, options, model, RATES.get(name, 0.01))
    sign = -1.0 if options.get("maximize") else 1.0
    data = ((x.to(C64), y) for x, y in batches())
    return trained(watch, model, optimizer, data, lambda out, y: (out - y).abs().square().mean(), sign)


class Looked(nn.Module):
    def __init__(self, dtype=F32):
        super().__init__()
        self.table = nn.Embedding(11, 6, sparse=True, dtype=dtype)
        self.head = nn.Linear(6, 3, dtype=dtype)

    def forward(self, ids):
        return self.head(self.table(ids).mean(1))


@pytest.mark.thin(4)
@pytest.mark.parametrize("dtype", [F32, F64, BF16], ids=["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("maximize", [False, True])
@silent
def test_sparse_adam_beside_adam(watch, dtype, maximize):
    model, losses = Looked(dtype), []
    optimizers = [
        torch.optim.SparseAdam(model.table.parameters(), lr=0.05, maximize=maximize),
        torch.optim.Adam(model.head.parameters(), lr=0.05, maximize=maximize),
    ]
    with watch(model, optimizers):
        for _, y in batches(dtype=dtype):
            loss = mse(model(torch.randint(11, (8, 4))), y) * (-1 if maximize else 1)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            losses.append(loss)
    return model, optimizers, losses


@pytest.mark.parametrize("sparse", ["SGD", "Adagrad"])
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")  # Adagrad makes sparse tensors
@silent
def test_sparse_gradients_in_an_optimizer_of_dense_ones(watch, sparse):
    model, losses = Looked(), []
    optimizer = getattr(torch.optim, sparse)(model.parameters(), lr=0.05)
    with watch(model, optimizer):
        for _, y in batches():
            optimizer.zero_grad()
            loss = mse(model(torch.randint(11, (8, 4))), y)
            loss.backward()
            optimizer.step()
            losses.append(loss)
    return model, optimizer, losses


@silent
def test_a_differentiable_inner_optimizer_beside_the_one_that_is_watched(watch):
    model, losses = net(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with watch(model, optimizer):
        for x, y in batches():
            optimizer.zero_grad()
            fast = {name: parameter.clone() for name, parameter in model.named_parameters()}
            inner = torch.optim.SGD(list(fast.values()), lr=0.1, differentiable=True)
            kept = {name: tensor.clone() for name, tensor in fast.items()}
            loss = mse(torch.func.functional_call(model, kept, (x,)), y)
            gradients = torch.autograd.grad(loss, list(kept.values()), create_graph=True)
            for tensor, gradient in zip(fast.values(), gradients, strict=True):
                tensor.grad = gradient
            inner.step()
            loss = mse(torch.func.functional_call(model, fast, (x,)), y)
            loss.backward()
            optimizer.step()
            losses.append(loss)
    return model, optimizer, losses


# ---------------------------------------------------------------- float16 autocast and a scaler


@fused_too
@silent
def test_a_plain_loop(watch, flavour):
    model, optimizer, scaler = parts(flavour)
    losses = []
    with watch(model, optimizer, scaler):
        for x, y in batches():
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss)
    return model, optimizer, scaler, losses


@flavours
@silent
def test_a_scaler_that_the_watch_was_not_told_of(watch, flavour):
    model, optimizer, scaler = parts(flavour)
    losses = []
    with watch(model, optimizer):
        for x, y in batches():
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss)
    assert type(scaler) is GradScaler
    return model, optimizer, scaler, losses


CLIPS = {
    "norm": lambda params: clip_grad_norm_(params, 0.5),
    "norm foreach": lambda params: clip_grad_norm_(params, 0.5, foreach=True),
    "maximum norm": lambda params: clip_grad_norm_(params, 0.1, norm_type=float("inf")),
    "value": lambda params: clip_grad_value_(params, 0.05),
    "never": lambda params: clip_grad_norm_(params, 1e9),
}


@pytest.mark.thin(5)
@pytest.mark.parametrize("clip", CLIPS)
@fused_too
@silent
def test_clipping_after_unscaling(watch, flavour, clip):
    model, optimizer, scaler = parts(flavour)
    losses = []
    with watch(model, optimizer, scaler):
        for x, y in batches():
            optimizer.zero_grad(set_to_none=clip != "value")
            loss = loss_of(model, x, y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            losses += [loss, CLIPS[clip](model.parameters())]
            scaler.step(optimizer)
            scaler.update()
    return model, optimizer, scaler, losses


@pytest.mark.parametrize("clip", ["norm", "value"])
@flavours
@silent
def test_a_bound_that_is_multiplied_by_the_scale(watch, flavour, clip):
    """Clipping before `unscale_` to the scaled bound is what clipping after it does."""
    model, optimizer, scaler = parts(flavour)
    losses = []
    with watch(model, optimizer, scaler):
        for x, y in batches():
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            scaler.scale(loss).backward()
            if clip == "norm":
                clip_grad_norm_(model.parameters(), 0.5 * scaler.get_scale())
            else:
                clip_grad_value_(model.parameters(), 0.05 * scaler.get_scale())
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss)
    return model, optimizer, scaler, losses


@pytest.mark.thin(4)
@pytest.mark.parametrize("clip", [False, True], ids=["unclipped", "clipped"])
@pytest.mark.parametrize("n", [pytest.param(2, marks=slow), 3, pytest.param(5, marks=slow)])
@pytest.mark.parametrize("how", ["loss / n", "grad / n", "grad * (1 / n)", "foreach_div"])
@flavours
@silent
def test_accumulation(watch, flavour, how, n, clip):
    model, optimizer, scaler = parts(flavour)
    losses = []
    with watch(model, optimizer, scaler):
        for i, (x, y) in enumerate(batches(STEPS * 2)):
            loss = loss_of(model, x, y)
            scaler.scale(loss / n if how == "loss / n" else loss).backward()
            losses.append(loss)
            if i % n < n - 1:
                continue
            gradients = [p.grad for p in model.parameters()]
            if how == "foreach_div":
                torch._foreach_div_(gradients, n)
            for gradient in gradients:
                if how == "grad / n":
                    gradient.div_(n)
                elif how == "grad * (1 / n)":
                    gradient.mul_(1 / n)
            if clip:
                scaler.unscale_(optimizer)
                clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return model, optimizer, scaler, losses


def halved(gradients):
    for gradient in gradients:
        gradient.div_(2)


def summed(gradients):
    """As an all-reduce does: in place, of all at once, then divided."""
    for gradient in gradients:
        gradient.add_(gradient.roll(1)).div_(2)


def weighted(gradients):
    """By this rank's share of all tokens."""
    for gradient in gradients:
        gradient.mul_(0.37)


def counted(gradients):
    """By the number of tokens."""
    for gradient in gradients:
        gradient.div_(4096)


def odd_count(gradients):
    for gradient in gradients:
        gradient.div_(2731)


def centered(gradients):
    for gradient in gradients:
        if gradient.ndim > 1:
            gradient.sub_(gradient.mean(1, keepdim=True))


def silenced(gradients):
    """One layer is frozen by hand."""
    gradients[0].zero_()


def masked(gradients):
    gradients[0][:3] = 0


def nothing_left(gradients):
    for gradient in gradients:
        gradient.zero_()


def signs_turned(gradients):
    for gradient in gradients:
        gradient.neg_()


def slower_below(gradients):
    gradients[0].mul_(0.1)
    gradients[1].mul_(0.1)


def cleaned(gradients):
    for gradient in gradients:
        torch.nan_to_num(gradient, nan=0, posinf=1e5, neginf=-1e5, out=gradient)


def replaced(gradients):
    for gradient in gradients:
        gradient.copy_(gradient.clone())


CHANGES = [halved, summed, weighted, counted, odd_count, centered, silenced, masked, nothing_left, signs_turned]
CHANGES += [slower_below, cleaned, replaced]


@pytest.mark.thin(4)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@flavours
@silent
def test_scaled_gradients_that_are_changed_by_what_does_not_depend_on_the_scale(watch, flavour, change):
    model, optimizer, scaler = parts(flavour)
    losses = []
    with watch(model, optimizer, scaler):
        for x, y in batches():
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            scaler.scale(loss).backward()
            change([p.grad for p in model.parameters()])
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss)
    return model, optimizer, scaler, losses


@pytest.mark.thin(3)
@pytest.mark.parametrize("change", [halved, weighted, counted, odd_count, silenced, masked], ids=lambda c: c.__name__)
@flavours
@silent
def test_scaled_gradients_that_are_changed_in_a_loop_that_hardly_moves(watch, flavour, change):
    """One batch again and again under a warm-up: gradients are nearly the same at each step."""
    model, optimizer, scaler = parts(flavour)
    schedule = LambdaLR(optimizer, lambda step: step * 1e-5)
    x, y = next(batches())
    losses = []
    with watch(model, optimizer, scaler):
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            scaler.scale(loss).backward()
            change([p.grad for p in model.parameters()])
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            losses.append(loss)
    return model, optimizer, scaler, losses


@flavours
@silent
def test_several_losses_of_one_forward(watch, flavour):
    model, optimizer, scaler = parts(flavour)
    losses = []
    with watch(model, optimizer, scaler):
        for x, y in batches():
            optimizer.zero_grad()
            with half():
                out = model(x)
                first, second = mse(out, y), out.float().abs().mean()
            scaler.scale(first).backward(retain_graph=True)
            scaler.scale(second).backward()
            scaler.step(optimizer)
            scaler.update()
            losses += [first, second]
    return model, optimizer, scaler, losses


@flavours
@silent
def test_a_list_of_losses_that_is_scaled_at_once(watch, flavour):
    model, optimizer, scaler = parts(flavour)
    losses = []
    with watch(model, optimizer, scaler):
        for x, y in batches():
            optimizer.zero_grad()
            with half():
                out = model(x)
                pair = [mse(out, y), (out.float().abs().mean(),)]
            first, (second,) = scaler.scale(pair)
            (first + second).backward()
            scaler.step(optimizer)
            scaler.update()
            losses += [first, second]
    return model, optimizer, scaler, losses


@flavours
@silent
def test_losses_from_a_generator(watch, flavour):
    model, optimizer, scaler = parts(flavour)
    losses = []
    with watch(model, optimizer, scaler):
        for x, y in batches():
            optimizer.zero_grad()
            with half():
                out = model(x)
            pair = list(scaler.scale(loss for loss in (mse(out, y), out.float().abs().mean())))
            sum(pair).backward()
            scaler.step(optimizer)
            scaler.update()
            losses += pair
    return model, optimizer, scaler, losses


@flavours
@silent
def test_a_gradient_that_is_scaled_instead_of_the_loss(watch, flavour):
    model, optimizer, scaler = parts(flavour)
    losses = []
    with watch(model, optimizer, scaler):
        for x, y in batches():
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward(scaler.scale(torch.ones_like(loss)))
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss)
    return model, optimizer, scaler, losses


@flavours
@silent
def test_the_scale_is_multiplied_by_hand(watch, flavour):
    model, optimizer, scaler = parts(flavour)
    losses = []
    with torch.no_grad():
        scaler.scale(torch.zeros(()))  # a scaler that never scaled anything refuses to step
    with watch(model, optimizer, scaler):
        for x, y in batches():
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            (loss * scaler.get_scale()).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss)
    return model, optimizer, scaler, losses


@flavours
@silent
def test_the_scale_is_read_once_for_each_iteration(watch, flavour):
    model, optimizer, scaler = parts(flavour)
    losses = []
    with torch.no_grad():
        scaler.scale(torch.zeros(()))  # a scaler that never scaled anything refuses to step
    with watch(model, optimizer, scaler):
        scale = scaler.get_scale()
        for x, y in batches():
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            (loss * scale).backward()
            scaler.step(optimizer)
            scaler.update()
            scale = scaler.get_scale()
            losses.append(loss)
    return model, optimizer, scaler, losses


@flavours
@silent
def test_gradients_of_a_scaled_loss_that_are_put_in_by_hand(watch, flavour):
    model, optimizer, scaler = parts(flavour)
    losses = []
    with watch(model, optimizer, scaler):
        for x, y in batches():
            loss = loss_of(model, x, y)
            gradients = torch.autograd.grad(scaler.scale(loss), list(model.parameters()))
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss)
    return model, optimizer, scaler, losses


@flavours
@silent
def test_two_models_and_two_optimizers_share_a_scaler(watch, flavour):
    models = [net(), net(width=8)]
    optimizers = [FLAVOURS[flavour](model.parameters()) for model in models]
    scaler, losses = GradScaler("cpu"), []
    with watch(models, optimizers, scaler):
        for x, y in batches():
            for optimizer in optimizers:
                optimizer.zero_grad()
            with half():
                outs = [model(x) for model in models]
                first = mse(2 * outs[0] + 3 * outs[1], y)
                second = mse(3 * outs[0] - 5 * outs[1], y)
            scaler.scale(first).backward(retain_graph=True)
            scaler.scale(second).backward()
            scaler.unscale_(optimizers[0])
            clip_grad_norm_(models[0].parameters(), 0.5)
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
            losses += [first, second]
    return models, optimizers, scaler, losses


@pytest.mark.thin(4)
@pytest.mark.parametrize("together", [True, False], ids=["one watch", "two watches"])
@pytest.mark.parametrize("updates", ["one for both", "one for each"])
@pytest.mark.parametrize("clip", [False, True])
@flavours
@silent
def test_a_gan(watch, flavour, updates, clip, together):
    maker, judge = net(), nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    making, judging = FLAVOURS[flavour](maker.parameters()), FLAVOURS[flavour](judge.parameters())
    scaler, losses = GradScaler("cpu"), []
    bce = nn.functional.binary_cross_entropy_with_logits
    with contextlib.ExitStack() as stack:
        if together:
            stack.enter_context(watch([maker, judge], [making, judging], scaler))
        else:
            stack.enter_context(watch(maker, making, scaler))
            stack.enter_context(watch(judge, judging, scaler))
        for x, y in batches():
            judging.zero_grad()
            with half():
                fake = maker(x)
                real, false = judge(y).float(), judge(fake.detach()).float()
                loss = bce(real, torch.ones_like(real)) + bce(false, torch.zeros_like(false))
            scaler.scale(loss).backward()
            if clip:
                scaler.unscale_(judging)
                clip_grad_norm_(judge.parameters(), 0.5)
            scaler.step(judging)
            if updates == "one for each":
                scaler.update()
            losses.append(loss)
            making.zero_grad()
            with half():
                verdict = judge(fake).float()
                loss = bce(verdict, torch.ones_like(verdict))
            scaler.scale(loss).backward()
            if clip:
                scaler.unscale_(making)
                clip_grad_norm_(maker.parameters(), 0.5)
            scaler.step(making)
            scaler.update()
            losses.append(loss)
    return maker, judge, making, judging, scaler, losses


@flavours
@silent
def test_a_gan_whose_judge_is_trained_in_float32_without_the_scaler(watch, flavour):
    maker, judge = net(), nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    making, judging = FLAVOURS[flavour](maker.parameters()), FLAVOURS[flavour](judge.parameters())
    scaler, losses = GradScaler("cpu"), []
    bce = nn.functional.binary_cross_entropy_with_logits
    with watch([maker, judge], [making, judging], scaler):
        for x, y in batches():
            making.zero_grad()
            with half():
                fake = maker(x)
                verdict = judge(fake).float()
                loss = bce(verdict, torch.ones_like(verdict))
            scaler.scale(loss).backward()
            scaler.step(making)
            scaler.update()
            losses.append(loss)
            judging.zero_grad()
            real, false = judge(y), judge(fake.detach().float())
            loss = bce(real, torch.ones_like(real)) + bce(false, torch.zeros_like(false))
            loss.backward()
            judging.step()
            losses.append(loss)
    return maker, judge, making, judging, scaler, losses


@flavours
@silent
def test_one_optimizer_of_two_has_no_part_in_the_scaling(watch, flavour):
    models = [net(), net()]
    optimizers = [FLAVOURS[flavour](model.parameters()) for model in models]
    scaler, losses = GradScaler("cpu"), []
    with watch(models, optimizers, scaler):
        for x, y in batches():
            for optimizer in optimizers:
                optimizer.zero_grad()
            scaled, free = loss_of(models[0], x, y), mse(models[1](x), y)
            scaler.scale(scaled).backward()
            free.backward()
            scaler.step(optimizers[0])
            optimizers[1].step()
            scaler.update()
            losses += [scaled, free]
    return models, optimizers, scaler, losses


@flavours
@silent
def test_a_gradient_penalty(watch, flavour):
    model, optimizer, scaler = parts(flavour)
    losses = []
    with watch(model, optimizer, scaler):
        for x, y in batches():
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            gradients = torch.autograd.grad(scaler.scale(loss), list(model.parameters()), create_graph=True)
            inverse = 1.0 / scaler.get_scale()
            with half():
                penalty = sum((gradient * inverse).pow(2).sum() for gradient in gradients).sqrt()
                loss = loss + 0.01 * penalty.float()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            losses += [loss, penalty]
    return model, optimizer, scaler, losses


@flavours
@silent
def test_a_gradient_penalty_on_the_input(watch, flavour):
    model, optimizer, scaler = parts(flavour)
    losses = []
    with watch(model, optimizer, scaler):
        for x, y in batches():
            x = x.requires_grad_()
            optimizer.zero_grad()
            with half():
                out = model(x)
            (slope,) = torch.autograd.grad(scaler.scale(out.float().sum()), x, create_graph=True)
            slope = slope / scaler.get_scale()
            loss = mse(out, y) + 0.1 * (slope.norm(dim=1) - 1).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss)
    return model, optimizer, scaler, losses


@pytest.mark.thin(4)
@pytest.mark.parametrize("scale", [2.0**40, 2.0**20])
@pytest.mark.parametrize("clip", [False, True])
@fused_too
@silent
def test_first_steps_are_skipped_until_the_scale_is_found(watch, flavour, scale, clip):
    model, optimizer, scaler = parts(flavour, init_scale=scale)
    losses = []
    with watch(model, optimizer, scaler):
        for x, y in batches():
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            scaler.scale(loss).backward()
            if clip:
                scaler.unscale_(optimizer)
                clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss)
    assert scaler.get_scale() < scale
    return model, optimizer, scaler, losses


@pytest.mark.thin(5)
@pytest.mark.parametrize("bad", [[0], [5], [1, 2, 3], [49], [0, 49, 50, 59]], ids=str)
@pytest.mark.parametrize("scale", [2.0**16, pytest.param(1.0, marks=slow)], ids=["scale 65536", "scale 1"])
@fused_too
@silent
def test_a_batch_with_nan_is_skipped(watch, flavour, bad, scale):
    model, optimizer, scaler = parts(flavour, init_scale=scale)
    losses = []
    with watch(model, optimizer, scaler):
        for i, (x, y) in enumerate(batches()):
            optimizer.zero_grad()
            loss = loss_of(model, x * float("nan") if i in bad else x, y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss)
    return model, optimizer, scaler, losses


@flavours
@silent
def test_a_loss_that_is_not_finite_is_dropped_before_its_backward(watch, flavour):
    model, optimizer, scaler = parts(flavour)
    losses = []
    with watch(model, optimizer, scaler):
        for i, (x, y) in enumerate(batches()):
            optimizer.zero_grad()
            loss = loss_of(model, x * float("nan") if i % 7 == 2 else x, y)
            losses.append(loss)
            if not loss.isfinite():
                continue
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return model, optimizer, scaler, losses


@flavours
@silent
def test_a_step_with_a_large_norm_is_left_out_by_hand(watch, flavour):
    model, optimizer, scaler = parts(flavour)
    losses = []
    with watch(model, optimizer, scaler):
        for x, y in batches():
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = clip_grad_norm_(model.parameters(), float("inf"))
            if norm < 2.0:
                scaler.step(optimizer)
            scaler.update()
            losses += [loss, norm]
    return model, optimizer, scaler, losses


@pytest.mark.parametrize("options", [{"growth_interval": 5}, {"growth_interval": 1, "growth_factor": 4.0}], ids=str)
@flavours
@silent
def test_a_scale_that_grows_until_it_overflows(watch, flavour, options):
    model, optimizer, scaler = parts(flavour, **options)
    scales = []
    with watch(model, optimizer, scaler):
        for x, y in batches():
            optimizer.zero_grad()
            scaler.scale(loss_of(model, x, y)).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
    assert max(scales) > 2.0**16
    return model, optimizer, scaler, scales


@pytest.mark.parametrize("new", [512.0, torch.tensor(512.0), 0.5], ids=["number", "tensor", "below 1"])
@flavours
@silent
def test_a_scale_that_is_set(watch, flavour, new):
    model, optimizer, scaler = parts(flavour)
    losses = []
    with watch(model, optimizer, scaler):
        for i, (x, y) in enumerate(batches()):
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update(new if i == 20 else None)
            losses.append(loss)
    return model, optimizer, scaler, losses


@pytest.mark.parametrize("reentrant", [True, False])
@flavours
@silent
def test_checkpointing(watch, flavour, reentrant):
    model, optimizer, scaler = parts(flavour)
    losses = []
    with watch(model, optimizer, scaler):
        for x, y in batches():
            x = x.requires_grad_()
            optimizer.zero_grad()
            with half():
                hidden = checkpoint(model[:3], x, use_reentrant=reentrant)
                loss = mse(checkpoint(model[3], hidden, use_reentrant=reentrant), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss)
    return model, optimizer, scaler, losses


@pytest.mark.parametrize("dtype", [F32, BF16], ids=["float32", "bfloat16"])
@flavours
@silent
def test_a_scaler_that_is_disabled(watch, flavour, dtype):
    model, optimizer, scaler = parts(flavour, enabled=False)
    losses = []
    with watch(model, optimizer, scaler):
        for x, y in batches():
            optimizer.zero_grad()
            with torch.autocast("cpu", BF16, enabled=dtype is BF16):
                loss = mse(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss)
    return model, optimizer, scaler, losses


@flavours
@silent(infos=["DG304"])
def test_a_scaler_in_float32_is_only_mentioned(watch, flavour):
    model, optimizer, scaler = parts(flavour)
    losses = []
    with watch(model, optimizer, scaler):
        for x, y in batches():
            optimizer.zero_grad()
            loss = mse(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss)
    return model, optimizer, scaler, losses


@flavours
@silent
def test_regularization_is_added_to_scaled_gradients(watch, flavour):
    model, optimizer, scaler = parts(flavour)
    losses = []
    with watch(model, optimizer, scaler):
        for x, y in batches():
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            scaler.scale(loss).backward()
            scale = scaler.get_scale()
            for parameter in model.parameters():
                parameter.grad.add_(parameter.detach(), alpha=1e-2 * scale)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss)
    return model, optimizer, scaler, losses


@pytest.mark.parametrize("to_none", [True, False])
@flavours
@silent
def test_a_backward_for_a_saliency_map_is_zeroed_again(watch, flavour, to_none):
    model, optimizer, scaler = parts(flavour)
    losses = []
    with watch(model, optimizer, scaler):
        for x, y in batches():
            x = x.requires_grad_()
            model(x).sum().backward()
            losses.append(x.grad)
            optimizer.zero_grad(set_to_none=to_none)
            loss = loss_of(model, x.detach(), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss)
    return model, optimizer, scaler, losses


@flavours
@silent
def test_steps_in_float32_without_the_scaler_between_those_with_it(watch, flavour):
    model, optimizer, scaler = parts(flavour)
    losses = []
    with watch(model, optimizer, scaler):
        for i, (x, y) in enumerate(batches()):
            optimizer.zero_grad()
            if i % 2:
                loss = mse(model(x), y)
                loss.backward()
                optimizer.step()
            else:
                loss = loss_of(model, x, y)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            losses.append(loss)
    return model, optimizer, scaler, losses


@flavours
@silent
def test_a_validation_loss_goes_through_the_same_function_and_is_scaled_too(watch, flavour):
    model, optimizer, scaler = parts(flavour)
    losses = []
    with watch(model, optimizer, scaler):
        for x, y in batches():
            optimizer.zero_grad()
            loss = scaler.scale(loss_of(model, x, y))
            loss.backward()
            scaler.step(optimizer)
            scaler.update()
            model.eval()
            with torch.no_grad():
                losses += [loss, scaler.scale(loss_of(model, x, y))]
            model.train()
    return model, optimizer, scaler, losses


class Renamed(GradScaler):
    """A scaler of the user's own."""

    def step(self, optimizer, *args, **kwargs):
        self.unscale_(optimizer)
        clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 0.5)
        return super().step(optimizer, *args, **kwargs)


@flavours
@silent
def test_a_scaler_of_a_derived_class(watch, flavour):
    model, optimizer, _ = parts(flavour)
    scaler, losses = Renamed("cpu"), []
    with watch(model, optimizer, scaler):
        for x, y in batches():
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss)
    return model, optimizer, scaler, losses


# ---------------------------------------------------------------- autocast without a scaler


@flavours
@silent
def test_bfloat16_autocast_without_a_scaler(watch, flavour):
    model = net()
    optimizer, losses = FLAVOURS[flavour](model.parameters()), []
    with watch(model, optimizer):
        for x, y in batches():
            optimizer.zero_grad()
            with half(BF16):
                loss = mse(model(x), y)
            loss.backward()
            clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            losses.append(loss)
    return model, optimizer, losses


@flavours
@silent
def test_evaluation_in_float16_between_steps_in_float32(watch, flavour):
    model = net()
    optimizer, losses = FLAVOURS[flavour](model.parameters()), []
    with watch(model, optimizer):
        for x, y in batches():
            optimizer.zero_grad()
            loss = mse(model(x), y)
            loss.backward()
            optimizer.step()
            model.eval()
            with torch.no_grad(), half():
                losses += [loss, mse(model(x), y)]
            with torch.inference_mode(), half():
                losses.append(mse(model(x), y))
            model.train()
    return model, optimizer, losses


@pytest.mark.parametrize("graph", ["no_grad", "frozen", "detached"])
@silent
def test_a_frozen_body_in_float16_under_a_head_in_float32(watch, graph):
    model = nn.ModuleDict({"body": net(), "head": nn.Linear(3, 3)})
    model["body"].requires_grad_(graph == "detached")
    optimizer, losses = torch.optim.Adam(model["head"].parameters(), lr=0.01), []
    with watch(model, optimizer):
        for x, y in batches():
            optimizer.zero_grad()
            with half(), torch.set_grad_enabled(graph != "no_grad"):
                features = model["body"](x)
            loss = mse(model["head"](features.detach().float()), y)
            loss.backward()
            optimizer.step()
            losses.append(loss)
    return model, optimizer, losses


# ---------------------------------------------------------------- parameters that differ, freeze and come


def mixed():
    """A bfloat16 body, a float32 norm, a float64 head."""
    model = net().to(BF16)
    model[1].to(F32)
    model[3].to(F64)
    return model


def run_mixed(model, x):
    return model[3](model[2](model[1](model[0](x.to(BF16)).float())).double())


@pytest.mark.thin(5)
@pytest.mark.parametrize("how", [{}, {"foreach": True}, {"fused": True}, {"amsgrad": True}], ids=str)
@pytest.mark.parametrize("groups", [False, True], ids=["one group", "a group for each"])
@silent
def test_groups_of_different_dtypes(watch, groups, how):
    model, losses = mixed(), []
    given = [{"params": list(layer.parameters())} for layer in model if list(layer.parameters())]
    optimizer = torch.optim.AdamW(given if groups else model.parameters(), lr=0.05, **how)
    with watch(model, optimizer):
        for x, y in batches():
            optimizer.zero_grad()
            loss = mse(run_mixed(model, x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss)
    return model, optimizer, losses


@pytest.mark.thin(3)
@pytest.mark.parametrize("where", ["first", "last"])
@pytest.mark.parametrize("scaled", [False, True], ids=["float32", "float16 and scaler"])
@silent
def test_a_group_without_parameters(watch, where, scaled):
    model, losses = net(), []
    groups = [{"params": list(model.parameters()), "weight_decay": 0.01}, {"params": [], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups[:: -1 if where == "first" else 1], lr=0.01)
    scaler = GradScaler("cpu", enabled=scaled)
    with watch(model, optimizer, scaler):
        for x, y in batches():
            optimizer.zero_grad()
            with torch.autocast("cpu", F16, enabled=scaled):
                loss = mse(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss)
    return model, optimizer, losses


@pytest.mark.parametrize("to_none", [True, False])
@silent
def test_frozen_parameters_in_the_optimizer(watch, to_none):
    model, losses = net(), []
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with watch(model, optimizer):
        for x, y in batches():
            optimizer.zero_grad(set_to_none=to_none)
            loss = mse(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss)
    return model, optimizer, losses


@silent
def test_frozen_float16_parameters_beside_those_that_a_scaler_trains(watch):
    body, head = net(F16), nn.Linear(3, 3)
    body.requires_grad_(False)
    model = nn.Sequential(body, head)
    optimizer, scaler, losses = torch.optim.Adam(model.parameters(), lr=0.01), GradScaler("cpu"), []
    with watch(model, optimizer, scaler):
        for x, y in batches():
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss)
    return model, optimizer, scaler, losses


@pytest.mark.thin(3)
@pytest.mark.parametrize("held", ["from the start", "when thawed"])
@pytest.mark.parametrize("scaled", [False, True], ids=["float32", "float16 and scaler"])
@silent
def test_layers_thaw_one_after_the_other(watch, held, scaled):
    model, losses = net(), []
    layers = [model[3], model[1], model[0]]
    for layer in layers[1:]:
        layer.requires_grad_(False)
    start = model if held == "from the start" else layers[0]
    optimizer, scaler = torch.optim.AdamW(start.parameters(), lr=0.01), GradScaler("cpu", enabled=scaled)
    with watch(model, optimizer, scaler):
        for i, (x, y) in enumerate(batches()):
            if i in (20, 47):
                layer = layers[1 + i // 40].requires_grad_(True)
                if held == "when thawed":
                    optimizer.add_param_group({"params": list(layer.parameters()), "lr": 0.001})
            optimizer.zero_grad()
            with torch.autocast("cpu", F16, enabled=scaled):
                loss = mse(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss)
    return model, optimizer, scaler, losses


@silent
def test_layers_freeze_in_the_middle(watch):
    model, losses = net(), []
    optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=0.01), GradScaler("cpu")
    with watch(model, optimizer, scaler):
        for i, (x, y) in enumerate(batches()):
            if i == 20:
                model[0].requires_grad_(False)
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss)
    return model, optimizer, scaler, losses


class Branching(nn.Module):
    """A branch that only some batches take, and one that none takes."""

    def __init__(self):
        super().__init__()
        self.body, self.sometimes, self.never = net(), nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x):
        return self.body(x) + (self.sometimes(x) if x[0, 0] > 0 else 0)


@pytest.mark.parametrize("to_none", [True, False])
@flavours
@silent
def test_parameters_that_only_some_batches_use(watch, flavour, to_none):
    model = Branching()
    optimizer, scaler, losses = FLAVOURS[flavour](model.parameters()), GradScaler("cpu"), []
    with watch(model, optimizer, scaler):
        for x, y in batches():
            optimizer.zero_grad(set_to_none=to_none)
            loss = loss_of(model, x, y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss)
    return model, optimizer, scaler, losses


@pytest.mark.parametrize("body", ["trained", "under no_grad"])
@silent
def test_a_criterion_with_parameters_of_its_own_in_the_optimizer(watch, body):
    model, losses = nn.ModuleDict({"body": net(), "head": nn.Linear(3, 3)}), []
    criterion = nn.Linear(3, 3)
    trained_parts = [model["head"]] if body == "under no_grad" else [model]
    parameters = [p for module in (*trained_parts, criterion) for p in module.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.01)
    with watch(model, optimizer):
        for x, y in batches():
            optimizer.zero_grad()
            with torch.set_grad_enabled(body == "trained"):
                features = model["body"](x)
            loss = mse(criterion(model["head"](features)), y)
            loss.backward()
            optimizer.step()
            losses.append(loss)
    return model, criterion, optimizer, losses


def weight_normed():
    model = net()
    parametrizations.weight_norm(model[0])
    parametrizations.orthogonal(model[3])
    return model


def tied():
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 3))
    model[2].weight = model[0].weight
    return model


def lazy():
    return nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyLinear(3))


def recurrent():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.head = nn.GRU(6, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.head(self.cell(x[None])[0][0])

    return Recurrent()


def spectral():
    model = net()
    parametrizations.spectral_norm(model[0])
    return model


SHAPES = [weight_normed, tied, lazy, recurrent, spectral]


@pytest.mark.thin(3)
@pytest.mark.parametrize("build", SHAPES, ids=lambda build: build.__name__)
@pytest.mark.parametrize("name", [pytest.param("SGD", marks=slow), "AdamW", pytest.param("LBFGS", marks=slow)])
@silent
def test_models_of_odd_shape(watch, name, build):
    model = build()
    optimizer = made(name, {}, model, 0.01)
    return trained(watch, model, optimizer, batches())


class Scalar(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.scale, self.nothing = net(), nn.Parameter(torch.ones(())), nn.Parameter(torch.empty(0))

    def forward(self, x):
        return self.body(x) * self.scale + self.nothing.sum()


@silent
def test_parameters_of_no_axis_and_of_no_element(watch):
    model = Scalar()
    return trained(watch, model, torch.optim.AdamW(model.parameters(), lr=0.01), batches())


@flavours
@silent
def test_parameters_of_no_axis_and_of_no_element_with_a_scaler(watch, flavour):
    model = Scalar()
    optimizer, scaler, losses = FLAVOURS[flavour](model.parameters()), GradScaler("cpu"), []
    with watch(model, optimizer, scaler):
        for x, y in batches():
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            scaler.scale(loss).backward()
            for parameter in model.parameters():
                parameter.grad.div_(2)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss)
    return model, optimizer, scaler, losses


@silent
def test_a_model_in_channels_last_with_transposed_weights(watch):
    model, losses = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)), []
    model.to(memory_format=torch.channels_last, dtype=BF16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    with watch(model, optimizer):
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = model(torch.randn(2, 3, 8, 8, dtype=BF16)).float().square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss)
    return model, optimizer, losses


# ---------------------------------------------------------------- schedules and averages

SCHEDULES = {
    "one cycle": lambda optimizer: OneCycleLR(optimizer, 0.05, total_steps=STEPS + 1),
    "warm-up from 0": lambda optimizer: LambdaLR(optimizer, lambda step: min(1.0, step / 40)),
    "cosine": lambda optimizer: CosineAnnealingLR(optimizer, STEPS),
    "plateau": lambda optimizer: ReduceLROnPlateau(optimizer, patience=1, factor=0.5, min_lr=1e-3),
    "SWALR": lambda optimizer: SWALR(optimizer, swa_lr=0.02, anneal_epochs=20),
}


@pytest.mark.thin(3)
@pytest.mark.parametrize("dtype", [pytest.param(F32, marks=slow), BF16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", SCHEDULES)
@silent
def test_schedules(watch, name, dtype):
    model, losses = net(dtype), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule = SCHEDULES[name](optimizer)
    with watch(model, optimizer):
        for x, y in batches(dtype=dtype):
            optimizer.zero_grad()
            loss = mse(model(x), y)
            loss.backward()
            optimizer.step()
            schedule.step(loss.item()) if name == "plateau" else schedule.step()
            losses.append(loss)
    return model, optimizer, schedule.state_dict(), losses


@pytest.mark.thin(3)
@flavours
@pytest.mark.parametrize("name", SCHEDULES)
@silent
def test_schedules_with_a_scaler(watch, name, flavour):
    model, optimizer, scaler = parts(flavour)
    schedule, losses = SCHEDULES[name](optimizer), []
    with watch(model, optimizer, scaler):
        for x, y in batches():
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            schedule.step(loss.item()) if name == "plateau" else schedule.step()
            losses.append(loss)
    return model, optimizer, scaler, schedule.state_dict(), losses


@pytest.mark.parametrize(
    "name", ["cosine", pytest.param("exponential", marks=slow), pytest.param("one cycle", marks=slow)]
)
@silent
def test_bfloat16_parameters_under_a_rate_that_ends_at_zero(watch, name):
    """The last updates are too small to arrive, as the schedule means them to be."""
    model, losses, steps = net(BF16), [], 1000
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    schedule = {
        "cosine": lambda: CosineAnnealingLR(optimizer, steps),
        "exponential": lambda: LambdaLR(optimizer, lambda step: 0.99**step),
        "one cycle": lambda: OneCycleLR(optimizer, 0.02, total_steps=steps + 1),
    }[name]()
    with watch(model, optimizer):
        for x, y in batches(steps, BF16):
            optimizer.zero_grad()
            loss = mse(model(x), y)
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss)
    return model, optimizer, losses


@silent
def test_a_long_warm_up_of_bfloat16_parameters(watch):
    model, losses, steps = net(BF16), [], 600
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule = LambdaLR(optimizer, lambda step: (step / steps) ** 3)
    with watch(model, optimizer):
        for x, y in batches(steps, BF16):
            optimizer.zero_grad()
            loss = mse(model(x), y)
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss)
    return model, optimizer, losses


AVERAGES = {
    "SWA": lambda model: AveragedModel(model),
    "EMA": lambda model: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999)),
    "EMA of buffers": lambda model: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99), use_buffers=True),
    "late": lambda model: AveragedModel(model),
}


@pytest.mark.thin(3)
@pytest.mark.parametrize("dtype", [pytest.param(F32, marks=slow), BF16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", AVERAGES)
@silent
def test_an_average_in_float32(watch, name, dtype):
    model, losses = net(dtype), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    average, master = AVERAGES[name](copy.deepcopy(model).float()), copy.deepcopy(model).float()
    with watch(model, optimizer, averaged=average):
        for i, (x, y) in enumerate(batches(dtype=dtype)):
            optimizer.zero_grad()
            loss = mse(model(x), y)
            loss.backward()
            optimizer.step()
            if name != "late" or i > 30:
                master.load_state_dict(model.state_dict())
                average.update_parameters(master)
            losses.append(loss)
    return model, average, optimizer, losses


@pytest.mark.parametrize("kind", ["dict", "list"])
@silent
def test_an_average_by_hand(watch, kind):
    model, losses = net(BF16), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    shadow = {name: parameter.detach().float().clone() for name, parameter in model.named_parameters()}
    with watch(model, optimizer, averaged=shadow if kind == "dict" else list(shadow.values())):
        for x, y in batches(dtype=BF16):
            optimizer.zero_grad()
            loss = mse(model(x), y)
            loss.backward()
            optimizer.step()
            for name, parameter in model.named_parameters():
                shadow[name].lerp_(parameter.detach().float(), 0.001)
            losses.append(loss)
    return model, shadow, optimizer, losses


@silent
def test_a_bfloat16_average_that_is_a_copy_of_the_best_so_far(watch):
    model, losses, best = net(BF16), [], float("inf")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    kept = copy.deepcopy(model)
    with watch(model, optimizer, averaged=kept):
        for x, y in batches(dtype=BF16):
            optimizer.zero_grad()
            loss = mse(model(x), y)
            loss.backward()
            optimizer.step()
            if loss.item() < best:
                best = loss.item()
                kept.load_state_dict(model.state_dict())
            losses.append(loss)
    return model, kept, optimizer, losses


# ---------------------------------------------------------------- states that are saved, loaded and copied


def saved(thing):
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    buffer.seek(0)
    return torch.load(buffer)


@slow
@pytest.mark.parametrize("at", [1, 7, 49])
@pytest.mark.parametrize(
    ("name", "options", "dtype"),
    [
        pytest.param(name, options, dtype, id=f"{name} {shown(options)}-{str(dtype)[6:]}")
        for name, options in TABLE
        for dtype in (F32, BF16)
        if dtype is F32 or trains_bfloat16(name, options)
    ],
)
@silent
def test_an_optimizers_state_makes_a_round_trip_in_mid_training(watch, name, options, dtype, at):
    model = matrices(dtype) if name == "Muon" else net(dtype)
    options = {"eps": 1e-3, **options} if name == "Adadelta" else options
    rate = RATES.get(name, 0.01) if dtype is F32 else COARSE.get(name, 0.05)
    optimizer = made(name, options, model, rate)
    losses = []
    sign = -1.0 if options.get("maximize") else 1.0
    data = batches(dtype=dtype)
    if name == "LBFGS" and not options:
        data = itertools.repeat(next(data), STEPS)
    with watch(model, optimizer):
        for i, (x, y) in enumerate(data):

            def closure(x=x, y=y):
                optimizer.zero_grad()
                loss = sign * mse(model(x), y)
                loss.backward()
                return loss

            losses.append(closure())
            optimizer.step(closure if name == "LBFGS" else None)
            if i == at:
                model.load_state_dict(saved(model.state_dict()))
                optimizer.load_state_dict(saved(optimizer.state_dict()))
    return model, optimizer, losses


@pytest.mark.thin(3)
@pytest.mark.parametrize("at", [0, 7, 49])
@flavours
@silent
def test_a_checkpoint_is_written_and_read_in_mid_training(watch, flavour, at):
    model, optimizer, scaler = parts(flavour, growth_interval=3)
    losses = []
    with watch(model, optimizer, scaler):
        for i, (x, y) in enumerate(batches()):
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss)
            if i == at:
                for thing in (model, optimizer, scaler):
                    thing.load_state_dict(saved(thing.state_dict()))
    return model, optimizer, scaler, losses


COPIES = {"pickle": lambda things: pickle.loads(pickle.dumps(things)), "deepcopy": copy.deepcopy}


@pytest.mark.thin(4)
@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("at", [-1, pytest.param(0, marks=slow), 2, pytest.param(30, marks=slow)])
@pytest.mark.parametrize("scaled", [False, True], ids=["bfloat16", "float16 and scaler"])
@flavours
@silent
def test_copies_of_what_is_watched_are_bare_and_train_on_their_own(watch, flavour, how, at, scaled):
    model, optimizer, scaler = parts(flavour, enabled=scaled)
    taken = []

    def trains(model, optimizer, scaler, data):
        for i, (x, y) in enumerate(data):
            if i == at + 1 and not taken:
                taken.append(COPIES[how]((model, optimizer, scaler)))
            optimizer.zero_grad()
            with half(F16 if scaled else BF16):
                loss = mse(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            yield loss

    with watch(model, optimizer, scaler):
        losses = list(trains(model, optimizer, scaler, batches()))
        copied = taken[0]
        assert type(copied[2]) is GradScaler
        assert not copied[1]._optimizer_step_pre_hooks
        later = list(trains(*copied, itertools.islice(batches(), at + 1, None)))
        losses += list(trains(model, optimizer, scaler, batches(20)))
    return model, optimizer, scaler, losses, later, copied


# ---------------------------------------------------------------- several watches, and the same one again


@flavours
@silent
def test_two_models_with_a_watch_each_and_one_scaler(watch, flavour):
    models = [net(), net(width=8)]
    optimizers = [FLAVOURS[flavour](model.parameters()) for model in models]
    scaler, losses = GradScaler("cpu"), []
    with watch(models[0], optimizers[0], scaler), watch(models[1], optimizers[1], scaler):
        for x, y in batches():
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                loss = loss_of(model, x, y)
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                clip_grad_norm_(model.parameters(), 0.5)
                scaler.step(optimizer)
                losses.append(loss)
            scaler.update()
    return models, optimizers, scaler, losses


@flavours
@silent
def test_two_watches_on_the_same_training(watch, flavour):
    model, optimizer, scaler = parts(flavour)
    losses = []
    with watch(model, optimizer, scaler), watch(model, optimizer, scaler, every=3):
        for x, y in batches():
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss)
    return model, optimizer, scaler, losses


@pytest.mark.thin(3)
@pytest.mark.parametrize("at", range(5))
@flavours
@silent
def test_a_watch_is_removed_and_begun_again_anywhere_in_an_iteration(watch, flavour, at):
    model, optimizer, scaler = parts(flavour)
    losses = []
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        first.enter_context(watch(model, optimizer, scaler))

        def maybe(now, i):
            if i in (1, 9, 30) and now == at:
                first.close()
                second.close()
                second.enter_context(watch(model, optimizer, scaler))

        for i, (x, y) in enumerate(batches()):
            maybe(0, i)
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            maybe(1, i)
            scaled = scaler.scale(loss)
            maybe(2, i)
            scaled.backward()
            maybe(3, i)
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 0.5)
            maybe(4, i)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss)
    return model, optimizer, scaler, losses


@pytest.mark.parametrize("every", [pytest.param(2, marks=slow), 7, pytest.param(50, marks=slow)])
@flavours
@silent
def test_a_watch_of_every_nth_step(watch, flavour, every):
    model, optimizer, scaler = parts(flavour)
    losses = []
    with watch(model, optimizer, scaler, every=every):
        for x, y in batches(3 * STEPS):
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss)
    return model, optimizer, scaler, losses


# ---------------------------------------------------------------- optimizers in backward, functional calls


@pytest.mark.parametrize("name", ["SGD", "Adam", "Adafactor"])
@silent
def test_an_optimizer_for_each_parameter_that_steps_in_backward(watch, name):
    model, losses = net(), []
    optimizers = {p: getattr(torch.optim, name)([p], lr=0.01) for p in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    with watch(model, optimizers.values()):
        for x, y in batches():
            loss = mse(model(x), y)
            loss.backward()
            losses.append(loss)
    return model, list(optimizers.values()), losses


@silent
def test_gradients_from_functional_calls(watch):
    model, losses = net(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def loss_at(parameters, x, y):
        return mse(torch.func.functional_call(model, parameters, (x,)), y)

    each = torch.func.vmap(torch.func.grad_and_value(loss_at), (None, 0, 0))
    with watch(model, optimizer):
        for x, y in batches():
            detached = {name: parameter.detach() for name, parameter in model.named_parameters()}
            gradients, values = each(detached, x[:, None], y[:, None])
            for name, parameter in model.named_parameters():
                parameter.grad = gradients[name].mean(0)
            optimizer.step()
            losses.append(values)
    return model, optimizer, losses


@silent
def test_a_step_without_any_gradient(watch):
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with watch(model, optimizer):
        for _ in range(STEPS):
            optimizer.step()
    return model, optimizer


# ---------------------------------------------------------------- eval paths and compiled code


@pytest.mark.parametrize("scaled", [False, True], ids=["bfloat16", "float16 and scaler"])
@silent
def test_the_fast_path_of_an_encoder_in_eval_stays_as_fast(watch, scaled):
    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), nn.Linear(8, 3))
    optimizer, scaler = torch.optim.Adam(model.parameters(), lr=0.01), GradScaler("cpu", enabled=scaled)
    results, calls = [], []

    def evaluated(x):
        model.eval()
        with torch.no_grad(), torch.profiler.profile() as profile:
            results.append(model(x))
        calls.append([event.key for event in profile.key_averages() if "_transformer_encoder_layer" in event.key])
        assert calls[-1]
        model.train()

    with watch(model, optimizer, scaler):
        for _ in range(9):
            x = torch.randn(4, 5, 8)
            evaluated(x)
            optimizer.zero_grad()
            with half(F16 if scaled else BF16):
                loss = model(x).float().square().mean()
            scaler.scale(loss).backward()
            evaluated(x)
            scaler.step(optimizer)
            scaler.update()
        evaluated(x)
    return model, optimizer, scaler, results, calls


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(6), nn.Linear(6, 6)

    def forward(self, x):
        return x + torch.tanh(self.inner(self.norm(x)))


def compilations():
    counters = torch._dynamo.utils.counters
    return {name: dict(sorted(collections.Counter(counters[name]).items())) for name in ("stats", "graph_break")}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # of Dynamo, while it traces
@slow
@pytest.mark.parametrize("scaled", [False, True], ids=["bfloat16", "float16 and scaler"])
@pytest.mark.parametrize("part", ["whole", "each", "wrapped layer"])
@pytest.mark.parametrize("first", ["compiled", "watched"])
@pytest.mark.parametrize("flavour", ["Adam", "fused Adam"])
@silent
def test_a_compiled_model_is_compiled_no_more_often(watch, flavour, scaled, part, first):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = nn.Sequential(Block(), Block())
    optimizer, scaler = FLAVOURS[flavour](model.parameters()), GradScaler("cpu", enabled=scaled)
    run, losses = model, []
    if part == "whole":
        run = torch.compile(model, backend="aot_eager", fullgraph=True)
    elif part == "each":
        model[0].compile(backend="aot_eager", fullgraph=True)
        model[1].compile(backend="aot_eager", fullgraph=True)
    else:
        model[0] = torch.compile(model[0], backend="aot_eager", fullgraph=True)

    def steps(data):
        for x, y in data:
            optimizer.zero_grad()
            with half(F16 if scaled else BF16):
                loss = mse(run(x)[:, :3], y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss)
            model.eval()
            with torch.no_grad():
                losses.append(run(x))
            model.train()

    if first == "compiled":
        steps(batches(3))
    with watch(run, optimizer, scaler):
        steps(batches())
    steps(batches(3))
    return model, optimizer, scaler, losses, compilations()


@slow
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop"])
@pytest.mark.parametrize("first", ["compiled", "watched"])
@silent
def test_a_compiled_step(watch, name, first):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model, losses = net(), []
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=torch.tensor(0.01))
    step = torch.compile(lambda: optimizer.step(), backend="aot_eager")

    def steps(data):
        for x, y in data:
            optimizer.zero_grad()
            loss = mse(model(x), y)
            loss.backward()
            step()
            losses.append(loss)

    if first == "compiled":
        steps(batches(3))
    with watch(model, optimizer):
        steps(batches())
    return model, optimizer, losses


@slow
@silent
def test_a_compiled_step_behind_a_scaler(watch):
    torch._dynamo.reset()
    model, losses = net(), []
    optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01)), GradScaler("cpu")
    optimizer.step = torch.compile(optimizer.step, backend="aot_eager")
    with watch(model, optimizer, scaler):
        for i, (x, y) in enumerate(batches()):
            optimizer.zero_grad()
            loss = loss_of(model, x * float("nan") if i == 9 else x, y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss)
    return model, optimizer, scaler, losses


# ---------------------------------------------------------------- what else people do


@pytest.mark.thin(4)
@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("toggled", [False, True])
@flavours
@silent
def test_a_gan_with_a_scaler_for_each(watch, flavour, toggled, to_none):
    maker, judge = net(), nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    making, judging = FLAVOURS[flavour](maker.parameters()), FLAVOURS[flavour](judge.parameters())
    scalers, losses = [GradScaler("cpu"), GradScaler("cpu", init_scale=1024.0)], []
    bce = nn.functional.binary_cross_entropy_with_logits
    with watch(maker, making, scalers[0]), watch(judge, judging, scalers[1]):
        for x, y in batches():
            judge.requires_grad_(not toggled)
            making.zero_grad(set_to_none=to_none)
            with half():
                fake = maker(x)
                verdict = judge(fake).float()
            loss = bce(verdict, torch.ones_like(verdict))
            scalers[0].scale(loss).backward()
            scalers[0].step(making)
            scalers[0].update()
            losses.append(loss)
            judge.requires_grad_(True)
            judging.zero_grad(set_to_none=to_none)
            with half():
                real, false = judge(y).float(), judge(fake.detach()).float()
            loss = bce(real, torch.ones_like(real)) + bce(false, torch.zeros_like(false))
            scalers[1].scale(loss).backward()
            scalers[1].unscale_(judging)
            clip_grad_norm_(judge.parameters(), 0.5)
            scalers[1].step(judging)
            scalers[1].update()
            losses.append(loss)
    return maker, judge, making, judging, scalers, losses


@pytest.mark.parametrize("scaled", [False, True], ids=["float32", "float16 and scaler"])
@silent
def test_another_optimizer_takes_over_the_same_parameters(watch, scaled):
    model, losses = net(), []
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.01), torch.optim.SGD(model.parameters(), lr=0.01)]
    scaler = GradScaler("cpu", enabled=scaled)
    with watch(model, optimizers, scaler):
        for i, (x, y) in enumerate(batches(2 * STEPS)):
            optimizer = optimizers[i // 40 % 2]
            optimizer.zero_grad()
            with torch.autocast("cpu", F16, enabled=scaled):
                loss = mse(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss)
    return model, optimizers, scaler, losses


def test_the_layers_outlive_the_model_that_was_watched():
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with amp.watch(nn.Sequential(*model), optimizer, mode="strict") as watch:
        for x, y in batches(500):
            optimizer.zero_grad()
            mse(model(x), y).backward()
            optimizer.step()
    assert watch.report() == []


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
@slow
@silent
def test_a_compiled_function_around_the_model_is_compiled_no_more_often(watch, autocast):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model, losses = nn.Sequential(Block(), Block()), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def loss_at(x, y):
        return mse(model(x)[:, :3], y)

    with watch(model, optimizer):
        for x, y in batches():
            optimizer.zero_grad()
            with torch.autocast("cpu", BF16, enabled=autocast):
                loss = loss_at(x, y)
            loss.backward()
            optimizer.step()
            losses.append(loss)
    return model, optimizer, losses, compilations()


@slow
@silent
def test_new_shapes_are_compiled_no_more_often(watch):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model, losses = nn.Sequential(Block(), Block()), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    run = torch.compile(model, backend="aot_eager", dynamic=False)
    with watch(run, optimizer):
        for i, (x, y) in enumerate(batches()):
            optimizer.zero_grad()
            rows = 8 if i < 2 else 7 if i < 10 else 6 if i < 40 else 5
            loss = mse(run(x[:rows])[:, :3], y[:rows])
            loss.backward()
            optimizer.step()
            losses.append(loss)
    return model, optimizer, losses, compilations()


@pytest.mark.thin(4)
@pytest.mark.parametrize(("first", "then"), [(BF16, F32), (F32, BF16), (F32, F64)], ids=str)
@pytest.mark.parametrize(
    "name", ["SGD", "AdamW", pytest.param("Adafactor", marks=slow), pytest.param("NAdam", marks=slow)]
)
@silent
def test_a_model_is_converted_with_the_optimizers_state(watch, name, first, then):
    model, losses = net(first), []
    optimizer = made(name, {"momentum": 0.9} if name == "SGD" else {}, model, 0.05)
    with watch(model, optimizer):
        for i, (x, y) in enumerate(batches()):
            if i == 21:
                optimizer.zero_grad()
                model.to(then)
                optimizer.load_state_dict(optimizer.state_dict())
            dtype = then if i > 20 else first
            optimizer.zero_grad()
            loss = mse(model(x.to(dtype)), y)
            loss.backward()
            optimizer.step()
            losses.append(loss)
    return model, optimizer, losses


class Lion(torch.optim.Optimizer):
    """An optimizer of the user's own."""

    def __init__(self, params, lr, eps=1e-12):
        super().__init__(params, {"lr": lr, "eps": eps, "betas": (0.9, 0.99)})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                mean = self.state[p].setdefault("mean", torch.zeros_like(p, dtype=F32))
                p.add_((mean * 0.9 + p.grad.float() * 0.1).sign().to(p.dtype), alpha=-group["lr"])
                mean.lerp_(p.grad.float(), 0.01)
        return loss


class Lookahead(torch.optim.Optimizer):
    """A wrapper that has an optimizer."""

    def __init__(self, optimizer):
        self.optimizer, self.param_groups, self.state, self.defaults = optimizer, optimizer.param_groups, {}, {}
        self.slow = [[p.detach().clone() for p in group["params"]] for group in self.param_groups]
        self.count = 0

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)

    @torch.no_grad()
    def step(self, closure=None):
        loss = self.optimizer.step(closure)
        self.count += 1
        if self.count % 5 == 0:
            for group, slow in zip(self.param_groups, self.slow, strict=True):
                for p, s in zip(group["params"], slow, strict=True):
                    s.lerp_(p, 0.5)
                    p.copy_(s)
        return loss


@pytest.mark.thin(4)
@pytest.mark.parametrize("dtype", [pytest.param(F32, marks=slow), BF16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize("wrapped", [False, True], ids=["own", "wrapped"])
@silent
def test_an_optimizer_of_somebody_else(watch, wrapped, closure, dtype):
    model, losses = net(dtype), []
    inner = torch.optim.Adam(model.parameters(), lr=0.05)
    optimizer = Lookahead(inner) if wrapped else Lion(model.parameters(), lr=0.01)
    with watch(model, inner if wrapped else optimizer):
        for x, y in batches(3 * STEPS, dtype):

            def loss(x=x, y=y):
                optimizer.zero_grad()
                value = mse(model(x), y)
                value.backward()
                return value

            losses.append(optimizer.step(loss) if closure else loss())
            if not closure:
                optimizer.step()
    return model, inner, losses


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@silent
def test_anomaly_detection_and_a_graph_that_is_kept(watch):
    model, optimizer, scaler = parts("Adam")
    losses = []
    with watch(model, optimizer, scaler), torch.autograd.set_detect_anomaly(True, check_nan=False):
        for x, y in batches():
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            scaler.scale(loss).backward(retain_graph=True)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss)
    return model, optimizer, scaler, losses


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad], ids=lambda c: c.__name__)
@silent
def test_a_watch_that_begins_where_gradients_are_off(watch, context):
    model, optimizer, scaler = parts("Adam")
    losses = []
    with contextlib.ExitStack() as stack:
        with context():
            stack.enter_context(watch(model, optimizer, scaler))
        for x, y in batches():
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss)
    return model, optimizer, scaler, losses


def test_threads_that_train_at_once_are_watched_at_once():
    models = [parts("Adam") for _ in range(4)]
    for model, _, _ in models:
        model.load_state_dict(models[0][0].state_dict())

    def train(i):
        model, optimizer, scaler = models[i]
        for _ in range(3):
            with amp.watch(model, optimizer, scaler, mode="strict") if i else contextlib.nullcontext() as watch:
                for x, y in batches():
                    optimizer.zero_grad()
                    scaler.scale(loss_of(model, x, y)).backward()
                    scaler.unscale_(optimizer)
                    clip_grad_norm_(model.parameters(), 0.5)
                    scaler.step(optimizer)
                    scaler.update()
            assert watch is None or watch.report() == []
        return plain([model, optimizer, scaler])

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        bare, *watched = list(pool.map(train, range(4)))
    for result in watched:
        same(result, bare)


# ---------------------------------------------------------------- and it was awake


def nan_in_a_gradient(model, optimizer, scaler):
    model[3].bias.grad.fill_(float("nan"))
    optimizer.step()


def past_the_scaler(model, optimizer, scaler):
    scaler.scale(loss_of(model, *next(batches()))).backward()
    optimizer.step()


def unscaled(model, optimizer, scaler):
    optimizer.zero_grad()
    loss_of(model, *next(batches())).backward()
    scaler.step(optimizer)


def converted(model, optimizer, scaler):
    model.half()
    model(torch.zeros(2, 6, dtype=F16)).sum().backward()
    optimizer.step()


FAULTS = [
    (nan_in_a_gradient, "DG408", "3.bias"),
    (past_the_scaler, "DG312", None),
    (unscaled, "DG308", "0.weight"),
    (converted, "DG403", "0.weight"),
]


@pytest.mark.thin(3)
@pytest.mark.parametrize(("fault", "rule", "name"), FAULTS, ids=lambda value: getattr(value, "__name__", None))
@pytest.mark.parametrize("flavour", ["SGD", "Adam", "foreach AdamW"])
def test_after_sixty_silent_steps_a_fault_is_still_found(flavour, fault, rule, name):
    model, optimizer, scaler = parts(flavour)
    with amp.watch(model, optimizer, scaler, mode="strict") as watch:
        for x, y in batches():
            optimizer.zero_grad()
            scaler.scale(loss_of(model, x, y)).backward()
            scaler.step(optimizer)
            scaler.update()
        assert watch.report() == []
        with pytest.raises(AmpError) as caught:
            fault(model, optimizer, scaler)
    assert (caught.value.rule, caught.value.argument) == (rule, name)
    assert [finding.rule for finding in watch.report()] == [rule]
