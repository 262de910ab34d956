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
from support import BF16, F16, F32, F64, same
from torch import nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, parametrizations
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, ReduceLROnPlateau
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from dtypeguard import AmpError, amp

C64 = torch.complex64
STEPS = 60


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
    assert same(bare, watched)
    assert watches
    assert {finding.rule for watch in watches for finding in watch.report()} == set(infos)
    assert {finding.severity for watch in watches for finding in watch.report()} <= {"info"}


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
    lazy = "_infer_parameters"  # lazy modules' own
    on_modules = [hook for hook in on_modules if getattr(hook, "__name__", "") != lazy]
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
    return made.detach().to_dense().clone() if isinstance(made, torch.Tensor) else made


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
    return torch.autocast("cpu", dtype or F16, enabled=dtype is not None)


FLAVOURS = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.02, momentum=0.9),
    "fused SGD": lambda params: torch.optim.SGD(params, lr=0.05, fused=True),
    "Adam": lambda params: torch.optim.Adam(params, lr=0.005),
    "fused Adam": lambda params: torch.optim.Adam(params, lr=0.005, fused=True),
    "foreach AdamW": lambda params: torch.optim.AdamW(params, lr=0.005, foreach=True),
}
slow = pytest.mark.slow
flavours = pytest.mark.parametrize("flavour", [pytest.param(f, marks=[] if f == "Adam" else slow) for f in FLAVOURS])


def parts(flavour, model=net, **options):
    """A model, its optimizer and a scaler."""
    model = model()
    return model, FLAVOURS[flavour](model.parameters()), GradScaler("cpu", **options)


def loss_of(model, x, y, dtype=F16):
    with half(dtype):
        return mse(model(x), y)


def bce(verdict, value):
    return nn.functional.binary_cross_entropy_with_logits(verdict.float(), torch.full_like(verdict.float(), value))


def clip(model):
    return clip_grad_norm_(model.parameters(), 0.5)


class Loop:
    """Training in float16 with a scaler; an iteration is given as a function of this."""

    def __init__(self, model, optimizer, scaler, dtype=F16):
        self.model, self.optimizer, self.scaler, self.dtype = model, optimizer, scaler, dtype
        self.losses = []  # and whatever else is computed
        self.i = self.x = self.y = self.scale = None

    def run(self, watch, iteration, data=None, told=True, to_none=True, **options):
        with watch(self.model, self.optimizer, self.scaler if told else None, **options):
            self.go(iteration, data, to_none)
        return self.model, self.optimizer, self.scaler, self.losses

    def go(self, iteration, data=None, to_none=True):
        for self.i, (self.x, self.y) in enumerate(batches() if data is None else data):
            self.optimizer.zero_grad(set_to_none=to_none)
            iteration(self)

    @property
    def gradients(self):
        return [parameter.grad for parameter in self.model.parameters()]

    def loss(self):
        self.losses.append(loss_of(self.model, self.x, self.y, self.dtype))
        return self.losses[-1]

    def backward(self, loss=None):
        self.scaler.scale(self.loss() if loss is None else loss).backward()

    def clip(self):
        self.scaler.unscale_(self.optimizer)
        self.losses.append(clip(self.model))

    def finish(self):
        self.scaler.step(self.optimizer)
        self.scaler.update()


def usual(loop):
    loop.backward()
    loop.finish()


def clipped(loop):
    loop.backward()
    loop.clip()
    loop.finish()


# ---------------------------------------------------------------- every optimizer of torch

RATES = {"SGD": 0.05, "LBFGS": 0.5, "Adadelta": 1.0, "ASGD": 0.05, "Muon": 0.02, "Rprop": 0.01}
COARSE = {"SGD": 0.2, "ASGD": 0.2, "Adadelta": 2.0}  # for bfloat16, so that updates arrive
ALL = ["ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Muon", "NAdam", "RAdam"]
ALL += ["RMSprop", "Rprop", "SGD"]
FEW = ("SGD", "Adam", "Adafactor", "Muon", "NAdam")  # the others are tried now and then
TABLE = [(name, {}) for name in ALL]
TABLE += [(name, {"foreach": True}) for name in ALL if name not in ("LBFGS", "Muon")]
TABLE += [(name, {"maximize": True}) for name in ALL if name not in ("LBFGS", "Muon")]
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


def optimizers_of(quick, wanted=lambda name, options: True):
    """The rows of the table; all but the quick ones are slow."""

    def shown(options):
        return " ".join(f"{key}={getattr(value, 'item', lambda v=value: v)()}" for key, value in options.items()) or "-"

    rows = [row for row in TABLE if wanted(*row)]
    marks = [() if quick(*row) else slow for row in rows]
    return pytest.mark.parametrize(
        ("name", "options"),
        [pytest.param(*row, id=f"{row[0]} {shown(row[1])}", marks=m) for row, m in zip(rows, marks, strict=True)],
    )


def made(name, options, model, rate):
    options = {"lr": rate, **options}
    if name == "LBFGS":
        options |= {"lr": 0.05, "max_iter": 4}
    return getattr(torch.optim, name)(model.parameters(), **options)


def model_for(name, dtype):
    """Muon takes matrices only."""
    matrices = nn.Sequential(nn.Linear(6, 16, bias=False), nn.GELU(), nn.Linear(16, 3, bias=False))
    return matrices.to(dtype) if name == "Muon" else net(dtype)


def trained(
    watch, model, optimizer, data=None, criterion=mse, run=None, after=lambda i, loss: None, closure=None, **options
):
    """Training without a scaler; `after` follows each step, and `run` stands for the model's forward."""
    losses, run = [], run or model
    closure = isinstance(optimizer, torch.optim.LBFGS) if closure is None else closure
    sign = -1.0 if optimizer.defaults.get("maximize") else 1.0
    data = batches() if data is None else data
    if isinstance(optimizer, torch.optim.LBFGS) and not optimizer.defaults["line_search_fn"]:
        # it remembers gradients, so it wants the same batch
        data = itertools.repeat(next(iter(data)), STEPS)
    with watch(model, optimizer, **options):
        for i, (x, y) in enumerate(data):

            def loss(x=x, y=y):
                optimizer.zero_grad()
                value = sign * criterion(run(x), y)
                value.backward()
                return value

            losses.append(optimizer.step(loss) if closure else loss())
            if not closure:
                optimizer.step()
            after(i, losses[-1])
    return model, optimizer, losses


@pytest.mark.thin(3)
@pytest.mark.parametrize("dtype", [F32, pytest.param(F64, marks=slow)], ids=["float32", "float64"])
@optimizers_of(quick=lambda name, options: options.keys() <= {"fused", "amsgrad"})
@silent
def test_every_optimizer(watch, name, options, dtype):
    model = model_for(name, dtype)
    optimizer = made(name, options, model, RATES.get(name, 0.01))
    return trained(watch, model, optimizer, batches(dtype=dtype), nn.functional.mse_loss)


def trains_bfloat16(name, options):
    """On CPUs the fused SGD of torch 2.13 leaves bfloat16 parameters where they are: a watch says so."""
    return not (name == "SGD" and options.get("fused"))


def in_bfloat16(name, options):
    model = model_for(name, BF16)
    options = {"eps": 1e-3, **options} if name == "Adadelta" else options
    return model, made(name, options, model, COARSE.get(name, 0.05))


@pytest.mark.thin(3)
@optimizers_of(quick=lambda name, options: options == {} and name in FEW, wanted=trains_bfloat16)
@silent
def test_every_optimizer_with_bfloat16_parameters_and_updates_that_arrive(watch, name, options):
    return trained(watch, *in_bfloat16(name, options), batches(dtype=BF16))


@pytest.mark.parametrize("options", [{"eps": 1e-3}, {"eps": 1e-3, "fused": True}], ids=["Adam", "fused Adam"])
@silent
def test_float16_parameters_with_a_wide_eps(watch, options):
    model = net(F16)
    return trained(watch, model, torch.optim.Adam(model.parameters(), lr=0.05, **options), batches(dtype=F16))


@optimizers_of(
    quick=lambda name, options: options == {} and name in ("SGD", "Adam"),
    wanted=lambda name, options: name not in ("Adafactor", "Muon") and "fused" not in options,
)
@silent
def test_every_optimizer_with_complex_parameters(watch, name, options):
    model = nn.Sequential(nn.Linear(6, 8, dtype=C64), nn.Tanh(), nn.Linear(8, 3, dtype=C64))
    optimizer = made(name, options, model, RATES.get(name, 0.01))
    data = ((x.to(C64), y) for x, y in batches())
    return trained(watch, model, optimizer, data, lambda out, y: (out - y).abs().square().mean())


@slow
@pytest.mark.parametrize("at", [1, 7, 49])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=["float32", "bfloat16"])
@optimizers_of(quick=lambda name, options: True, wanted=trains_bfloat16)
@silent
def test_an_optimizers_state_makes_a_round_trip_in_mid_training(watch, name, options, dtype, at):
    model, optimizer = in_bfloat16(name, options)
    if dtype is F32:
        model = model_for(name, F32)
        optimizer = made(name, options, model, RATES.get(name, 0.01))

    def reload(i, loss):
        if i == at:
            model.load_state_dict(saved(model.state_dict()))
            optimizer.load_state_dict(saved(optimizer.state_dict()))

    return trained(watch, model, optimizer, batches(dtype=dtype), after=reload)


class Looked(nn.Module):
    def __init__(self, dtype=F32):
        super().__init__()
        self.table = nn.Embedding(11, 6, sparse=True, dtype=dtype)
        self.head = nn.Linear(6, 3, dtype=dtype)

    def forward(self, x):
        return self.head(self.table(torch.randint(11, (8, 4))).mean(1))


@pytest.mark.thin(2)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=["float32", "bfloat16"])
@silent
def test_sparse_adam_beside_adam(watch, dtype):
    model, losses = Looked(dtype), []
    optimizers = [
        torch.optim.SparseAdam(model.table.parameters(), lr=0.05),
        torch.optim.Adam(model.head.parameters(), lr=0.05),
    ]
    with watch(model, optimizers):
        for x, y in batches(dtype=dtype):
            loss = mse(model(x), y)
            model.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            losses.append(loss)
    return model, optimizers, losses


@pytest.mark.parametrize("sparse", ["SGD", "Adagrad"])
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")  # Adagrad makes sparse tensors
@silent
def test_sparse_gradients_in_an_optimizer_of_dense_ones(watch, sparse):
    model = Looked()
    return trained(watch, model, getattr(torch.optim, sparse)(model.parameters(), lr=0.05))


@silent
def test_a_differentiable_inner_optimizer_beside_the_one_that_is_watched(watch):
    model = net()

    def run(x):
        fast = {name: parameter.clone() for name, parameter in model.named_parameters()}
        inner = torch.optim.SGD(list(fast.values()), lr=0.1, differentiable=True)
        kept = {name: tensor.clone() for name, tensor in fast.items()}
        loss = torch.func.functional_call(model, kept, (x,)).square().mean()
        gradients = torch.autograd.grad(loss, list(kept.values()), create_graph=True)
        for tensor, gradient in zip(fast.values(), gradients, strict=True):
            tensor.grad = gradient
        inner.step()
        return torch.func.functional_call(model, fast, (x,))

    return trained(watch, model, torch.optim.Adam(model.parameters(), lr=0.01), run=run)


# ---------------------------------------------------------------- float16 autocast and a scaler


def to_the_scaled_norm(loop):
    """Clipping before `unscale_` to the scaled bound is what clipping after it does."""
    loop.backward()
    clip_grad_norm_(loop.model.parameters(), 0.5 * loop.scaler.get_scale())
    loop.finish()


def to_the_scaled_value(loop):
    loop.backward()
    clip_grad_value_(loop.model.parameters(), 0.05 * loop.scaler.get_scale())
    loop.finish()


def clipped_by(function, *args, **kwargs):
    def clipped(loop):
        loop.backward()
        loop.scaler.unscale_(loop.optimizer)
        function(loop.model.parameters(), *args, **kwargs)
        loop.finish()

    return clipped


def a_mean_over_micro_batches(divide, clipped):
    """`divide` makes a mean of the sum of three backwards, where their losses are not divided."""

    def accumulated(loop):
        for x, y in batches(3):
            loss = loss_of(loop.model, x + loop.x, y)
            loop.backward(loss if divide else loss / 3)
        if divide:
            divide(loop.gradients)
        if clipped:
            loop.clip()
        loop.finish()

    return accumulated


def each(change):
    """A function of one gradient, as one of all."""

    def changed(gradients):
        for gradient in gradients:
            change(gradient)

    return changed


def several_losses_of_one_forward(loop):
    with half():
        out = loop.model(loop.x)
        first, second = mse(out, loop.y), out.float().abs().mean()
    loop.scaler.scale(first).backward(retain_graph=True)
    loop.scaler.scale(second).backward()
    loop.finish()


def a_gradient_that_is_scaled_instead_of_the_loss(loop):
    loss = loop.loss()
    loss.backward(loop.scaler.scale(torch.ones_like(loss)))
    loop.finish()


def the_scale_is_multiplied_by_hand(loop):
    (loop.loss() * loop.scaler.get_scale()).backward()
    loop.finish()


def the_scale_is_read_once_for_each_iteration(loop):
    loop.scale = loop.scale or loop.scaler.get_scale()
    (loop.loss() * loop.scale).backward()
    loop.finish()
    loop.scale = loop.scaler.get_scale()


def gradients_are_put_in_by_hand(loop):
    gradients = torch.autograd.grad(loop.scaler.scale(loop.loss()), list(loop.model.parameters()))
    for parameter, gradient in zip(loop.model.parameters(), gradients, strict=True):
        parameter.grad = gradient
    loop.finish()


def a_gradient_penalty(loop):
    loss = loop.loss()
    gradients = torch.autograd.grad(loop.scaler.scale(loss), list(loop.model.parameters()), create_graph=True)
    inverse = 1.0 / loop.scaler.get_scale()
    with half():
        penalty = sum((gradient * inverse).pow(2).sum() for gradient in gradients).sqrt()
    loop.backward(loss + 0.01 * penalty.float())
    loop.clip()
    loop.finish()


def a_gradient_penalty_on_the_input(loop):
    x = loop.x.requires_grad_()
    with half():
        out = loop.model(x)
    (slope,) = torch.autograd.grad(loop.scaler.scale(out.float().sum()), x, create_graph=True)
    slope = slope / loop.scaler.get_scale()
    loop.backward(mse(out, loop.y) + 0.1 * (slope.norm(dim=1) - 1).square().mean())
    loop.finish()


def nan_at(*bad):
    def poisoned(loop):
        loop.x = loop.x * float("nan") if loop.i in bad else loop.x
        usual(loop)

    return poisoned


def a_loss_that_is_not_finite_is_dropped(loop):
    loop.x = loop.x * float("nan") if loop.i % 7 == 2 else loop.x
    loss = loop.loss()
    if loss.isfinite():
        loop.backward(loss)
        loop.finish()


def a_step_with_a_large_norm_is_left_out_by_hand(loop):
    loop.backward()
    loop.scaler.unscale_(loop.optimizer)
    if clip_grad_norm_(loop.model.parameters(), float("inf")) < 2.0:
        loop.scaler.step(loop.optimizer)
    loop.scaler.update()


def a_scale_that_is_set(new):
    def set_once(loop):
        loop.backward()
        loop.scaler.step(loop.optimizer)
        loop.scaler.update(new if loop.i == 20 else None)

    return set_once


def checkpointed(reentrant):
    def iteration(loop):
        with half():
            hidden = checkpoint(loop.model[:3], loop.x.requires_grad_(), use_reentrant=reentrant)
            loss = mse(checkpoint(loop.model[3], hidden, use_reentrant=reentrant), loop.y)
        loop.backward(loss)
        loop.clip()
        loop.finish()

    return iteration


def regularization_is_added_to_scaled_gradients(loop):
    loop.backward()
    scale = loop.scaler.get_scale()
    for parameter in loop.model.parameters():
        parameter.grad.add_(parameter.detach(), alpha=1e-2 * scale)
    loop.finish()


def a_saliency_map_first(to_none):
    def iteration(loop):
        loop.x.requires_grad_()
        loop.model(loop.x).sum().backward()
        loop.losses.append(loop.x.grad)
        loop.optimizer.zero_grad(set_to_none=to_none)
        loop.x = loop.x.detach()
        usual(loop)

    return iteration


def steps_in_float32_without_the_scaler_between(loop):
    if loop.i % 2:
        mse(loop.model(loop.x), loop.y).backward()
        loop.optimizer.step()
    else:
        usual(loop)


def a_validation_loss_is_scaled_too(loop):
    usual(loop)
    loop.model.eval()
    with torch.no_grad():
        loop.losses.append(loop.scaler.scale(loss_of(loop.model, loop.x, loop.y)))
    loop.model.train()


def a_layer_freezes(loop):
    if loop.i == 20:
        loop.model[0].requires_grad_(False)
    usual(loop)


def a_checkpoint_is_read(*at):
    def iteration(loop):
        usual(loop)
        if loop.i in at:
            for thing in (loop.model, loop.optimizer, loop.scaler):
                thing.load_state_dict(saved(thing.state_dict()))

    return iteration


def saved(thing):
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    buffer.seek(0)
    return torch.load(buffer)


LOOPS = {
    "usual": usual,
    "clipped to a norm": clipped,
    "clipped to a maximum norm": clipped_by(clip_grad_norm_, 0.1, norm_type=float("inf")),
    "clipped to values": clipped_by(clip_grad_value_, 0.05),
    "never clipped": clipped_by(clip_grad_norm_, 1e9),
    "a step with a large norm left out": a_step_with_a_large_norm_is_left_out_by_hand,
    "a scaled bound for the norm": to_the_scaled_norm,
    "a scaled bound for values": to_the_scaled_value,
    "accumulation, losses divided": a_mean_over_micro_batches(None, clipped=False),
    "accumulation, losses divided, clipped": a_mean_over_micro_batches(None, clipped=True),
    "accumulation, gradients divided": a_mean_over_micro_batches(each(lambda g: g.div_(3)), clipped=False),
    "accumulation, gradients divided, clipped": a_mean_over_micro_batches(each(lambda g: g.div_(3)), clipped=True),
    "accumulation, gradients multiplied": a_mean_over_micro_batches(each(lambda g: g.mul_(1 / 3)), clipped=False),
    "accumulation, all divided at once": a_mean_over_micro_batches(lambda gs: torch._foreach_div_(gs, 3), clipped=True),
    "several losses of one forward": several_losses_of_one_forward,
    "a scaled gradient": a_gradient_that_is_scaled_instead_of_the_loss,
    "scaled by hand": the_scale_is_multiplied_by_hand,
    "scaled by hand, the scale read before": the_scale_is_read_once_for_each_iteration,
    "gradients put in by hand": gradients_are_put_in_by_hand,
    "a gradient penalty": a_gradient_penalty,
    "a gradient penalty on the input": a_gradient_penalty_on_the_input,
    "NaN in the first batch": nan_at(0),
    "NaN in three batches in a row": nan_at(1, 2, 3),
    "NaN where everything is looked at": nan_at(0, 49, 50, 59),
    "a loss that is not finite is dropped": a_loss_that_is_not_finite_is_dropped,
    "a scale that is set": a_scale_that_is_set(512.0),
    "a scale that is set to a tensor": a_scale_that_is_set(torch.tensor(512.0)),
    "a scale that is set below 1": a_scale_that_is_set(0.5),
    "checkpointing": checkpointed(reentrant=False),
    "checkpointing, reentrant": checkpointed(reentrant=True),
    "regularization is added to scaled gradients": regularization_is_added_to_scaled_gradients,
    "a saliency map first": a_saliency_map_first(to_none=True),
    "a saliency map first, zeroed in place": a_saliency_map_first(to_none=False),
    "steps in float32 between": steps_in_float32_without_the_scaler_between,
    "a validation loss is scaled too": a_validation_loss_is_scaled_too,
    "a layer freezes": a_layer_freezes,
    "a checkpoint is read": a_checkpoint_is_read(0, 7, 49),
}


@pytest.mark.parametrize("name", LOOPS)
@flavours
@silent
def test_a_loop_with_a_scaler(watch, flavour, name):
    loop = Loop(*parts(flavour))
    if name.startswith("scaled by hand"):
        loop.scaler.scale(torch.zeros(()))  # a scaler that never scaled anything refuses to step
    return loop.run(watch, LOOPS[name])


CHANGES = {
    "halved": each(lambda gradient: gradient.div_(2)),
    "summed, as an all-reduce does": each(lambda gradient: gradient.add_(gradient.roll(1)).div_(2)),
    "weighted by a share of tokens": each(lambda gradient: gradient.mul_(0.37)),
    "divided by a number of tokens": each(lambda gradient: gradient.div_(2731)),
    "centered": each(lambda gradient: gradient.sub_(gradient.mean(-1, keepdim=True)) if gradient.ndim > 1 else None),
    "one layer silenced": lambda gradients: gradients[0].zero_(),
    "masked": lambda gradients: gradients[0][:3].zero_(),
    "all zero": each(torch.Tensor.zero_),
    "signs turned": each(torch.Tensor.neg_),
    "slower below": lambda gradients: [gradient.mul_(0.1) for gradient in gradients[:2]],
    "cleaned": each(lambda gradient: torch.nan_to_num(gradient, nan=0, posinf=1e5, neginf=-1e5, out=gradient)),
    "replaced": each(lambda gradient: gradient.copy_(gradient.clone())),
}


@pytest.mark.thin(4)
@pytest.mark.parametrize("change", CHANGES)
@flavours
@silent
def test_scaled_gradients_that_are_changed_by_what_does_not_depend_on_the_scale(watch, flavour, change):
    def changed(loop):
        loop.backward()
        CHANGES[change](loop.gradients)
        loop.clip()
        loop.finish()

    return Loop(*parts(flavour)).run(watch, changed)


STILL = ["halved", "weighted by a share of tokens", "divided by a number of tokens", "one layer silenced", "masked"]


@pytest.mark.thin(3)
@pytest.mark.parametrize("change", STILL)
@flavours
@silent
def test_scaled_gradients_that_are_changed_in_a_loop_that_hardly_moves(watch, flavour, change):
    """One batch again and again under a warm-up: gradients are nearly the same at each step."""
    loop = Loop(*parts(flavour))
    schedule = LambdaLR(loop.optimizer, lambda step: step * 1e-5)

    def changed(loop):
        loop.backward()
        CHANGES[change](loop.gradients)
        loop.finish()
        schedule.step()

    return loop.run(watch, changed, itertools.repeat(next(batches()), STEPS))


class Renamed(GradScaler):
    """A scaler of the user's own."""

    def step(self, optimizer, *args, **kwargs):
        self.unscale_(optimizer)
        clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 0.5)
        return super().step(optimizer, *args, **kwargs)


class Branching(nn.Module):
    """A branch that only some batches take, and one that none takes; parameters of no axis and of no element."""

    def __init__(self):
        super().__init__()
        self.body, self.sometimes, self.never = net(), nn.Linear(6, 3), nn.Linear(6, 3)
        self.scale, self.nothing = nn.Parameter(torch.ones(())), nn.Parameter(torch.empty(0))

    def forward(self, x):
        return self.body(x) * self.scale + (self.sometimes(x) if x[0, 0] > 0 else 0) + self.nothing.sum()


def frozen_body():
    return nn.Sequential(net(F16).requires_grad_(False), nn.Linear(3, 3))


MANNERS = {
    "a scaler that the watch was not told of": ({}, {"told": False}),
    "gradients zeroed in place": ({}, {"to_none": False}),
    "a scale that is too large at first": ({"init_scale": 2.0**40}, {}),
    "a scale that grows until it overflows": ({"growth_interval": 5}, {}),
    "a scale that grows at each step": ({"growth_interval": 1, "growth_factor": 4.0}, {}),
    "branches": ({"model": Branching}, {}),
    "branches, zeroed in place": ({"model": Branching}, {"to_none": False}),
    "frozen float16 parameters": ({"model": frozen_body}, {}),
    "every second step": ({}, {"every": 2}),
    "every seventh step": ({}, {"every": 7}),
    "every fiftieth step": ({}, {"every": 50}),
}


@pytest.mark.thin(2)
@pytest.mark.parametrize("iteration", [clipped, usual], ids=["clipped", "unclipped"])
@pytest.mark.parametrize("name", MANNERS)
@flavours
@silent
def test_a_loop_in_another_manner(watch, flavour, name, iteration):
    options, manner = MANNERS[name]
    steps = 3 * STEPS if "every" in manner else STEPS
    return Loop(*parts(flavour, **options)).run(watch, iteration, batches(steps), **manner)


@flavours
@silent
def test_a_scaler_of_a_derived_class(watch, flavour):
    model, optimizer, _ = parts(flavour)
    return Loop(model, optimizer, Renamed("cpu")).run(watch, usual)


@pytest.mark.parametrize("dtype", [None, BF16], ids=["float32", "bfloat16"])
@flavours
@silent
def test_a_scaler_that_is_disabled(watch, flavour, dtype):
    return Loop(*parts(flavour, enabled=False), dtype).run(watch, clipped)


@flavours
@silent(infos=["DG304"])
def test_a_scaler_in_float32_is_only_mentioned(watch, flavour):
    return Loop(*parts(flavour), None).run(watch, usual)


# ---------------------------------------------------------------- two models


def pair(flavour, *models):
    models = models or (net(), net(width=8))
    return list(models), [FLAVOURS[flavour](model.parameters()) for model in models], GradScaler("cpu"), []


def judge_of():
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))


@flavours
@silent
def test_two_models_and_two_optimizers_share_a_scaler(watch, flavour):
    models, optimizers, scaler, losses = pair(flavour)
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
            clip(models[0])
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
            losses += [first, second]
    return models, optimizers, scaler, losses


@pytest.mark.thin(6)
@pytest.mark.parametrize("toggled", [False, True], ids=["", "judge frozen for a while"])
@pytest.mark.parametrize("clips", [False, True], ids=["unclipped", "clipped"])
@pytest.mark.parametrize("how", ["one watch", "two watches", "one update", "a scaler for each", "judge in float32"])
@flavours
@silent
def test_a_gan(watch, flavour, how, clips, toggled):
    (maker, judge), (making, judging), scaler, losses = pair(flavour, net(), judge_of())
    scalers = [scaler, GradScaler("cpu", init_scale=1024.0) if how == "a scaler for each" else scaler]

    def finish(scaler, model, optimizer, loss):
        scaler.scale(loss).backward()
        if clips:
            scaler.unscale_(optimizer)
            clip(model)
        scaler.step(optimizer)
        losses.append(loss)

    with contextlib.ExitStack() as stack:
        if how in ("two watches", "a scaler for each"):
            stack.enter_context(watch(maker, making, scalers[0]))
            stack.enter_context(watch(judge, judging, scalers[1]))
        else:
            stack.enter_context(watch([maker, judge], [making, judging], scaler))
        for x, y in batches():
            judging.zero_grad()
            with half():
                fake = maker(x)
            with half(None if how == "judge in float32" else F16):
                loss = bce(judge(y), 1.0) + bce(judge(fake.detach().float()), 0.0)
            if how == "judge in float32":
                loss.backward()
                judging.step()
            else:
                finish(scalers[1], judge, judging, loss)
                if how != "one update":
                    scalers[1].update()
            judge.requires_grad_(not toggled)
            making.zero_grad()
            with half():
                verdict = judge(fake)
            finish(scalers[0], maker, making, bce(verdict, 1.0))
            scalers[0].update()
            judge.requires_grad_(True)
    return maker, judge, making, judging, scalers, losses


@flavours
@silent
def test_one_optimizer_of_two_has_no_part_in_the_scaling(watch, flavour):
    models, optimizers, scaler, losses = pair(flavour)
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
def test_two_models_with_a_watch_each_and_one_scaler(watch, flavour):
    models, optimizers, scaler, losses = pair(flavour)
    with watch(models[0], optimizers[0], scaler), watch(models[1], optimizers[1], scaler):
        for x, y in batches():
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                loss = loss_of(model, x, y)
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                clip(model)
                scaler.step(optimizer)
                losses.append(loss)
            scaler.update()
    return models, optimizers, scaler, losses


@pytest.mark.parametrize("scaled", [False, True], ids=["float32", "float16 and scaler"])
@silent
def test_another_optimizer_takes_over_the_same_parameters(watch, scaled):
    model = net()
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.01), torch.optim.SGD(model.parameters(), lr=0.01)]
    loop = Loop(model, optimizers[0], GradScaler("cpu", enabled=scaled), F16 if scaled else None)
    with watch(model, optimizers, loop.scaler):
        for n in range(3):
            loop.optimizer = optimizers[n % 2]
            loop.go(usual, batches(40))
    return model, optimizers, loop.scaler, loop.losses


# ---------------------------------------------------------------- autocast without a scaler


@pytest.mark.parametrize("evaluated", [None, F16, BF16], ids=["", "evaluated in float16", "evaluated in bfloat16"])
@pytest.mark.parametrize("dtype", [None, BF16], ids=["float32", "bfloat16"])
@flavours
@silent
def test_autocast_without_a_scaler(watch, flavour, dtype, evaluated):
    def iteration(loop):
        loop.loss().backward()
        clip(loop.model)
        loop.optimizer.step()
        loop.model.eval()
        for off in (torch.no_grad, torch.inference_mode) if evaluated else ():
            with off(), half(evaluated):
                loop.losses.append(mse(loop.model(loop.x), loop.y).clone())
        loop.model.train()

    return Loop(*parts(flavour, enabled=False), dtype).run(watch, iteration, told=False)


@pytest.mark.parametrize("graph", ["no_grad", "frozen", "detached"])
@silent
def test_a_frozen_body_in_float16_under_a_head_in_float32(watch, graph):
    model = nn.ModuleDict({"body": net(), "head": nn.Linear(3, 3)})
    model["body"].requires_grad_(graph == "detached")

    def run(x):
        with half(), torch.set_grad_enabled(graph != "no_grad"):
            features = model["body"](x)
        return model["head"](features.detach().float())

    return trained(watch, model, torch.optim.Adam(model["head"].parameters(), lr=0.01), run=run)


# ---------------------------------------------------------------- parameters that differ, freeze and come


@pytest.mark.thin(5)
@pytest.mark.parametrize("how", [{}, {"foreach": True}, {"fused": True}, {"amsgrad": True}], ids=str)
@pytest.mark.parametrize("groups", [False, True], ids=["one group", "a group for each"])
@silent
def test_groups_of_different_dtypes(watch, groups, how):
    """A bfloat16 body, a float32 norm, a float64 head."""
    model = net().to(BF16)
    model[1].to(F32)
    model[3].to(F64)
    given = [{"params": list(layer.parameters())} for layer in model if list(layer.parameters())]
    optimizer = torch.optim.AdamW(given if groups else model.parameters(), lr=0.05, **how)

    def run(x):
        return model[3](model[2](model[1](model[0](x.to(BF16)).float())).double())

    return trained(watch, model, optimizer, run=run)


@pytest.mark.parametrize("where", ["first", "last"])
@pytest.mark.parametrize("scaled", [False, True], ids=["float32", "float16 and scaler"])
@silent
def test_a_group_without_parameters(watch, where, scaled):
    model = net()
    groups = [{"params": list(model.parameters()), "weight_decay": 0.01}, {"params": [], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups[:: -1 if where == "first" else 1], lr=0.01)
    return Loop(model, optimizer, GradScaler("cpu", enabled=scaled), F16 if scaled else None).run(watch, usual)


@pytest.mark.parametrize("to_none", [True, False])
@silent
def test_frozen_parameters_in_the_optimizer(watch, to_none):
    model, optimizer, scaler = parts("foreach AdamW", enabled=False)
    model[0].requires_grad_(False)
    return Loop(model, optimizer, scaler, None).run(watch, usual, to_none=to_none)


@pytest.mark.parametrize("held", ["from the start", "when thawed"])
@pytest.mark.parametrize("scaled", [False, True], ids=["float32", "float16 and scaler"])
@silent
def test_layers_thaw_one_after_the_other(watch, held, scaled):
    model = net()
    layers = [model[3], model[1], model[0]]
    for layer in layers[1:]:
        layer.requires_grad_(False)
    start = model if held == "from the start" else layers[0]
    optimizer = torch.optim.AdamW(start.parameters(), lr=0.01)

    def iteration(loop):
        if loop.i in (20, 47):
            layer = layers[1 + loop.i // 40].requires_grad_(True)
            if held == "when thawed":
                optimizer.add_param_group({"params": list(layer.parameters()), "lr": 0.001})
        usual(loop)

    return Loop(model, optimizer, GradScaler("cpu", enabled=scaled), F16 if scaled else None).run(watch, iteration)


@pytest.mark.parametrize("body", ["trained", "under no_grad"])
@silent
def test_a_criterion_with_parameters_of_its_own_in_the_optimizer(watch, body):
    model, criterion = nn.ModuleDict({"body": net(), "head": nn.Linear(3, 3)}), nn.Linear(3, 3)
    trained_parts = [model["head"]] if body == "under no_grad" else [model]
    parameters = [p for module in (*trained_parts, criterion) for p in module.parameters()]

    def run(x):
        with torch.set_grad_enabled(body == "trained"):
            features = model["body"](x)
        return criterion(model["head"](features))

    return criterion, *trained(watch, model, torch.optim.Adam(parameters, lr=0.01), run=run)


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


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRU(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.cell(x[None])[0][0])


def channels_last():
    model = nn.Sequential(nn.Unflatten(1, (6, 1, 1)), nn.Conv2d(6, 8, 1), nn.Conv2d(8, 3, 1), nn.Flatten())
    return model.to(memory_format=torch.channels_last)


@pytest.mark.thin(3)
@pytest.mark.parametrize("build", [weight_normed, tied, lazy, Recurrent, channels_last], ids=lambda b: b.__name__)
@pytest.mark.parametrize("name", [pytest.param("SGD", marks=slow), "AdamW", pytest.param("LBFGS", marks=slow)])
@silent
def test_models_of_odd_shape(watch, name, build):
    model = build()
    return trained(watch, model, made(name, {}, model, 0.01))


# ---------------------------------------------------------------- schedules and averages

SCHEDULES = {
    "one cycle": lambda optimizer, steps: OneCycleLR(optimizer, 0.05, total_steps=steps + 1),
    "warm-up from 0": lambda optimizer, steps: LambdaLR(optimizer, lambda step: min(1.0, step / 40)),
    "cosine": lambda optimizer, steps: CosineAnnealingLR(optimizer, steps),
    "plateau": lambda optimizer, steps: ReduceLROnPlateau(optimizer, patience=1, factor=0.5, min_lr=1e-3),
    "SWALR": lambda optimizer, steps: SWALR(optimizer, swa_lr=0.02, anneal_epochs=20),
    "exponential": lambda optimizer, steps: LambdaLR(optimizer, lambda step: 0.99**step),
    "cubic": lambda optimizer, steps: LambdaLR(optimizer, lambda step: (step / steps) ** 3),
}


def scheduled(watch, name, dtype, steps=STEPS):
    model = net(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule = SCHEDULES[name](optimizer, steps)

    def after(i, loss):
        schedule.step(loss.item()) if name == "plateau" else schedule.step()

    return *trained(watch, model, optimizer, batches(steps, dtype), after=after), schedule.state_dict()


@pytest.mark.thin(3)
@pytest.mark.parametrize("dtype", [pytest.param(F32, marks=slow), BF16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", list(SCHEDULES)[:5])
@silent
def test_schedules(watch, name, dtype):
    return scheduled(watch, name, dtype)


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("cosine", 1000),
        pytest.param("exponential", 1000, marks=slow),
        pytest.param("one cycle", 1000, marks=slow),
        ("cubic", 600),
    ],
)
@silent
def test_bfloat16_parameters_under_a_rate_that_is_nothing_for_long(watch, name, steps):
    """The last updates, or the first, are too small to arrive, as the schedule means them to be."""
    return scheduled(watch, name, BF16, steps)


@pytest.mark.thin(5)
@flavours
@pytest.mark.parametrize("name", list(SCHEDULES)[:5])
@silent
def test_schedules_with_a_scaler(watch, name, flavour):
    loop = Loop(*parts(flavour))
    schedule = SCHEDULES[name](loop.optimizer, STEPS)

    def iteration(loop):
        usual(loop)
        schedule.step(loop.losses[-1].item()) if name == "plateau" else schedule.step()

    return *loop.run(watch, iteration), schedule.state_dict()


def copied(average, model):
    average.load_state_dict(model.state_dict())


def updated(average, model):
    average.update_parameters(copy.deepcopy(model).float())


def followed(average, model):
    tensors = average.values() if isinstance(average, dict) else average
    for mean, parameter in zip(tensors, model.parameters(), strict=True):
        mean.lerp_(parameter.detach().float(), 0.001)


def wide(model):
    return copy.deepcopy(model).float()


def tensors(model):
    return {name: parameter.detach().float().clone() for name, parameter in model.named_parameters()}


AVERAGES = {  # what makes it, what it does, and after which step it begins
    "SWA": (lambda model: AveragedModel(wide(model)), updated, 0),
    "EMA": (lambda model: AveragedModel(wide(model), multi_avg_fn=get_ema_multi_avg_fn(0.999)), updated, 0),
    "late": (lambda model: AveragedModel(wide(model)), updated, 31),
    "a dict": (tensors, followed, 0),
    "a list": (lambda model: list(tensors(model).values()), followed, 0),
    "a copy of the best so far": (copy.deepcopy, copied, 0),
}


@pytest.mark.parametrize("dtype", [pytest.param(F32, marks=slow), BF16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", AVERAGES)
@silent
def test_an_average(watch, name, dtype):
    make, follow, first = AVERAGES[name]
    model, best = net(dtype), [float("inf")]
    average = make(model)

    def after(i, loss):
        if i >= first and (follow is not copied or loss.item() < best[0]):
            best[0] = loss.item()
            follow(average, model)

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    return average, *trained(watch, model, optimizer, batches(dtype=dtype), after=after, averaged=average)


# ---------------------------------------------------------------- copies, several watches, and the same one again

COPIES = {"pickle": lambda things: pickle.loads(pickle.dumps(things)), "deepcopy": copy.deepcopy}


@pytest.mark.thin(4)
@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("at", [0, 3, pytest.param(31, marks=slow)])
@pytest.mark.parametrize("scaled", [False, True], ids=["bfloat16", "float16 and scaler"])
@flavours
@silent
def test_copies_of_what_is_watched_are_bare_and_train_on_their_own(watch, flavour, how, at, scaled):
    loop = Loop(*parts(flavour, enabled=scaled), F16 if scaled else BF16)
    with watch(loop.model, loop.optimizer, loop.scaler):
        loop.go(usual, batches(at))
        twin = Loop(*COPIES[how]((loop.model, loop.optimizer, loop.scaler)), loop.dtype)
        assert type(twin.scaler) is GradScaler
        assert not twin.optimizer._optimizer_step_pre_hooks
        loop.go(usual)
        twin.go(usual)
        loop.go(usual, batches(20))
    return [(one.model, one.optimizer, one.scaler, one.losses) for one in (loop, twin)]


@flavours
@silent
def test_two_watches_on_the_same_training(watch, flavour):
    loop = Loop(*parts(flavour))
    with watch(loop.model, loop.optimizer, loop.scaler):
        return loop.run(watch, clipped, every=3)


@pytest.mark.thin(3)
@pytest.mark.parametrize("at", range(5))
@flavours
@silent
def test_a_watch_is_removed_and_begun_again_anywhere_in_an_iteration(watch, flavour, at):
    loop = Loop(*parts(flavour))
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        first.enter_context(watch(loop.model, loop.optimizer, loop.scaler))

        def maybe(now):
            if loop.i in (1, 9, 30) and now == at:
                first.close()
                second.close()
                second.enter_context(watch(loop.model, loop.optimizer, loop.scaler))

        def iteration(loop):
            maybe(0)
            loss = loop.loss()
            maybe(1)
            scaled = loop.scaler.scale(loss)
            maybe(2)
            scaled.backward()
            maybe(3)
            loop.clip()
            maybe(4)
            loop.finish()

        loop.go(iteration)
    return loop.model, loop.optimizer, loop.scaler, loop.losses


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode], ids=lambda c: c.__name__)
@silent
def test_a_watch_that_begins_where_gradients_are_off(watch, context):
    loop = Loop(*parts("Adam"))
    with contextlib.ExitStack() as stack:
        with context():
            stack.enter_context(watch(loop.model, loop.optimizer, loop.scaler))
        loop.go(usual)
    return loop.model, loop.optimizer, loop.scaler, loop.losses


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@silent
def test_anomaly_detection_and_a_graph_that_is_kept(watch):
    def iteration(loop):
        loss = loop.loss()
        loop.scaler.scale(loss).backward(retain_graph=True)
        loop.backward(loss)
        loop.clip()
        loop.finish()

    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        return Loop(*parts("Adam")).run(watch, iteration)


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


@pytest.fixture
def compiler():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # of Dynamo, while it traces
@slow
@pytest.mark.parametrize("scaled", [False, True], ids=["bfloat16", "float16 and scaler"])
@pytest.mark.parametrize("part", ["whole", "each", "wrapped layer", "new shapes", "function"])
@pytest.mark.parametrize("first", ["compiled", "watched"])
@pytest.mark.parametrize("flavour", ["Adam", "fused Adam"])
@silent
def test_a_compiled_model_is_compiled_no_more_often(watch, flavour, scaled, part, first):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = nn.Sequential(Block(), Block())
    loop = Loop(*parts(flavour, lambda: model, enabled=scaled), F16 if scaled else BF16)
    compiled = functools.partial(torch.compile, backend="aot_eager", fullgraph=True)
    run = loop_model = model
    if part in ("whole", "new shapes"):
        run = loop_model = compiled(model, dynamic=False if part == "new shapes" else None)
    elif part == "each":
        model[0].compile(backend="aot_eager", fullgraph=True)
        model[1].compile(backend="aot_eager", fullgraph=True)
    elif part == "wrapped layer":
        model[0] = compiled(model[0])
    loss_at = (compiled if part == "function" else lambda function: function)(lambda x, y: mse(run(x)[:, :3], y))
    rows = {2: 7, 10: 6, 40: 5} if part == "new shapes" else {}

    def iteration(loop):
        loop.rows = 8 if loop.i == 0 else rows.get(loop.i, loop.rows)
        with half(loop.dtype):
            loss = loss_at(loop.x[: loop.rows], loop.y[: loop.rows])
        loop.losses.append(loss)
        loop.backward(loss)
        loop.finish()
        if part != "new shapes":
            model.eval()
            with torch.no_grad():
                loop.losses.append(run(loop.x))
            model.train()

    if first == "compiled":
        loop.go(iteration, batches(3))
    with watch(loop_model, loop.optimizer, loop.scaler):
        loop.go(iteration)
    loop.go(iteration, batches(3))
    return model, loop.optimizer, loop.scaler, loop.losses, compilations()


@slow
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop"])
@pytest.mark.parametrize("first", ["compiled", "watched"])
@silent
def test_a_compiled_step(watch, name, first):
    torch._dynamo.reset()
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
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01))
    optimizer.step = torch.compile(optimizer.step, backend="aot_eager")

    def iteration(loop):
        loop.x = loop.x * float("nan") if loop.i == 9 else loop.x
        clipped(loop)

    return Loop(model, optimizer, GradScaler("cpu")).run(watch, iteration)


# ---------------------------------------------------------------- what else people do


def test_the_layers_outlive_the_model_that_was_watched():
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with amp.watch(nn.Sequential(*model), optimizer, mode="strict") as watch:
        for x, y in batches(500):
            optimizer.zero_grad()
            mse(model(x), y).backward()
            optimizer.step()
    assert watch.report() == []


@pytest.mark.thin(4)
@pytest.mark.parametrize(("first", "then"), [(BF16, F32), (F32, BF16), (F32, F64)], ids=str)
@pytest.mark.parametrize(
    "name", ["SGD", "AdamW", pytest.param("Adafactor", marks=slow), pytest.param("NAdam", marks=slow)]
)
@silent
def test_a_model_is_converted_with_the_optimizers_state(watch, name, first, then):
    model = net(first)
    optimizer = made(name, {"momentum": 0.9} if name == "SGD" else {}, model, 0.05)

    def convert(i, loss):
        if i == 20:
            optimizer.zero_grad()
            model.to(then)
            optimizer.load_state_dict(optimizer.state_dict())

    return trained(watch, model, optimizer, run=lambda x: model(x.to(model[0].weight.dtype)), after=convert)


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
    model = net(dtype)
    inner = torch.optim.Adam(model.parameters(), lr=0.05)
    optimizer = Lookahead(inner) if wrapped else Lion(model.parameters(), lr=0.01)
    model, _, losses = trained(watch, model, optimizer, batches(3 * STEPS, dtype), closure=closure)
    return model, inner, losses


def test_threads_that_train_at_once_are_watched_at_once():
    loops = [Loop(*parts("Adam")) for _ in range(4)]
    for loop in loops:
        loop.model.load_state_dict(loops[0].model.state_dict())

    def train(i):
        loop = loops[i]
        for _ in range(3):
            watched = amp.watch(loop.model, loop.optimizer, loop.scaler, mode="strict")
            with watched if i else contextlib.nullcontext() as watch:
                loop.go(clipped)
            assert watch is None or watch.report() == []
        return plain([loop.model, loop.optimizer, loop.scaler])

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        bare, *watched = list(pool.map(train, range(4)))
    assert all(same(result, bare) for result in watched)


# ---------------------------------------------------------------- and it was awake


def nan_in_a_gradient(loop):
    loop.model[3].bias.grad.fill_(float("nan"))
    loop.optimizer.step()


def past_the_scaler(loop):
    loop.backward()
    loop.optimizer.step()


def unscaled(loop):
    loop.optimizer.zero_grad()
    loop.loss().backward()
    loop.scaler.step(loop.optimizer)


def converted(loop):
    loop.model.half()
    loop.model(torch.zeros(2, 6, dtype=F16)).sum().backward()
    loop.optimizer.step()


FAULTS = [
    (nan_in_a_gradient, "DG408", "3.bias"),
    (past_the_scaler, "DG312", None),
    (unscaled, "DG308", "0.weight"),
    (converted, "DG403", "0.weight"),
]


@pytest.mark.parametrize(("fault", "rule", "name"), FAULTS, ids=lambda value: getattr(value, "__name__", None))
@flavours
def test_after_sixty_silent_steps_a_fault_is_still_found(flavour, fault, rule, name):
    if "fused" in flavour:
        pytest.skip("it checks for itself what it is given")
    loop = Loop(*parts(flavour))
    with amp.watch(loop.model, loop.optimizer, loop.scaler, mode="strict") as watch:
        loop.go(usual)
        assert watch.report() == []
        with pytest.raises(AmpError) as caught:
            fault(loop)
    assert (caught.value.rule, caught.value.argument) == (rule, name)
    assert [finding.rule for finding in watch.report()] == [rule]
