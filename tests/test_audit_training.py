"""What an audit finds of DG3 and DG4 where nobody hands it an optimizer or a scaler."""

import contextlib
import copy
import gc
import threading
import warnings
import weakref
from types import SimpleNamespace

import pytest
import torch
from support import BF16, F16, F32, same
from torch import nn
from torch.autograd.profiler import record_function
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim.optimizer import Optimizer, _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _len_torch_dispatch_stack

from dtypeguard import AmpError, AmpWarning, amp, audit

GradScaler = torch.amp.GradScaler
SGD, Adam, RMSprop = torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop
FAILURES = (RuntimeError, ValueError, AssertionError, TypeError, IndexError)  # of programs with a fault


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(3, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.body(x).tanh())


def batch(step, *shape):
    return torch.randn(*(shape or (4, 3)), generator=torch.Generator().manual_seed(step))


def square(output):
    return (output.float() - 3).square().mean()


def made(model=Net, optimizer=SGD, scaler=True, **options):
    """Makes the parts of a program; several optimizers are those of several models."""

    def make():
        torch.manual_seed(0)
        kinds = optimizer if isinstance(optimizer, tuple) else (optimizer,)
        models = [model() for _ in kinds]
        optimizers = [kind(one.parameters(), **{"lr": 0.1, **options}) for kind, one in zip(kinds, models, strict=True)]
        return SimpleNamespace(
            models=models, optimizers=optimizers, model=models[0], optimizer=optimizers[0],
            scaler=GradScaler("cpu", init_scale=1024.0) if scaler else None,
        )  # fmt: skip

    return make


def bf16():
    return Net().bfloat16()


@contextlib.contextmanager
def half_forward(dtype=F16):
    with torch.autocast("cpu", dtype=dtype):
        yield


def scaled(p, step=0, model=None):
    with half_forward():
        output = (model or p.model)(batch(step))
    return p.scaler.scale(square(output))


def everything(p):
    """What a program has computed."""
    tensors = [t.clone() for model in p.models for t in model.state_dict().values()]
    states = [copy.deepcopy(optimizer.state_dict()) for optimizer in p.optimizers]
    scale = None if p.scaler is None else p.scaler.state_dict()
    return pytree.tree_leaves([tensors, states, scale, vars(p).get("extra"), torch.get_rng_state()])


def installed():
    """What an audit replaces, as it is now."""
    classes = GradScaler, ShardedGradScaler, Optimizer, AveragedModel, record_function, nn.Module
    own = amp._watch.Watch, amp._scaling.Scaling, amp._optimizer.WatchedOptimizer
    hooks = _global_optimizer_pre_hooks, _global_optimizer_post_hooks
    names = {f"{kind.__qualname__}.{name}": value for kind in classes + own for name, value in vars(kind).items()}
    return names | {"hooks": [*map(dict, hooks)], "modes": _len_torch_dispatch_stack()}


def left_on(p):
    """What a program's objects carry, besides their values."""
    hooks = [
        [dict(o._optimizer_step_pre_hooks), dict(o._optimizer_step_post_hooks), set(vars(o))] for o in p.optimizers
    ]
    parameters = [(t._backward_hooks, vars(t)) for model in p.models for t in model.parameters()]
    return type(p.scaler), p.scaler and set(vars(p.scaler)), hooks, parameters


def audited(make, train, place="inside"):
    """The report, the error and what was computed."""
    before = installed()
    parts = None if place == "inside" else make()
    given = (parts.models, parts.optimizers, parts.scaler) if place == "given" else ()
    error = None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
        try:
            with audit(*given) as report:
                if parts is None:
                    parts = make()
                shapes = left_on(parts)
                train(parts)
        except FAILURES as raised:
            error = raised
    assert report.faults == []
    assert installed() == before
    now = left_on(parts)
    assert now[0] is shapes[0]
    assert [hooks[:2] for hooks in now[2]] == [hooks[:2] for hooks in shapes[2]]
    assert now[3] == shapes[3]
    return report, error, parts


def alone(make, train):
    parts = make()
    with warnings.catch_warnings(), contextlib.suppress(*FAILURES):
        warnings.simplefilter("ignore")
        train(parts)
    return everything(parts)


def serious(report):
    return [finding for finding in report.findings if finding.severity != "info"]


# ---------------------------------------------------------------- what must be found


def replaced_data(p):
    for step in range(3):
        p.optimizer.zero_grad()
        square(p.model(batch(step))).backward()
        if step == 1:
            p.model.body.weight.data = p.model.body.weight.data.to(torch.float64)
        p.optimizer.step()  # here


def no_scaler(p):
    for step in range(3):
        p.optimizer.zero_grad()
        with half_forward():
            output = p.model(batch(step))
        square(output).backward()
        p.optimizer.step()  # here


def other_parameters(p):
    p.scaler.scale(square(p.models[1](batch(0)))).backward()
    p.scaler.step(p.optimizer)  # here


def clipped(p, clip):
    for step in range(3):
        p.optimizer.zero_grad()
        scaled(p, step).backward()
        clip(p)
        p.scaler.step(p.optimizer)
        p.scaler.update()


def by_norm(p):
    clipped(p, lambda p: clip_grad_norm_(p.model.parameters(), 1.0))  # here


def by_hand(p):
    def clip(p):
        for parameter in p.model.parameters():
            parameter.grad.clamp_(-1.0, 1.0)  # here

    clipped(p, clip)


def by_norm_from_the_third_step_on(p):
    for step in range(4):
        p.optimizer.zero_grad()
        scaled(p, step).backward()
        if step > 1:
            clip_grad_norm_(p.model.parameters(), 1.0)  # here
        p.scaler.step(p.optimizer)
        p.scaler.update()


def unscaled_twice(p):
    for step in range(2):
        scaled(p, step).backward()
        p.scaler.unscale_(p.optimizer)  # here


def past_the_scaler(p):
    scaled(p).backward()
    p.optimizer.step()  # here


def step_all(p, steps=3):
    for step in range(steps):
        p.optimizer.zero_grad()
        square(p.model(batch(step).to(p.model.head.weight.dtype))).backward()
        p.optimizer.step()  # here


def new_head(p):
    p.model.head = nn.Linear(8, 1)
    step_all(p)


def body_only(parameters, **options):
    return SGD(list(parameters)[:2], **options)


def converted(p):
    square(p.model(batch(0))).backward()
    p.optimizer.step()
    p.model.bfloat16()
    p.optimizer.zero_grad()
    square(p.model(batch(1).bfloat16())).backward()
    p.optimizer.step()  # here


def not_finite(p):
    for step in range(3):
        p.optimizer.zero_grad()
        square(p.model(batch(step)) * (float("nan") if step == 1 else 1.0)).backward()
        p.optimizer.step()  # here


BUGS = {  # what is made inside of an audit is seen by the rules' programs
    "DG302": [(replaced_data, made(scaler=False))],
    "DG305": [(no_scaler, made(optimizer=torch.optim.AdamW, scaler=False))],
    "DG307": [(other_parameters, made(optimizer=(SGD, SGD)))],
    "DG309": [(by_norm, made()), (by_norm_from_the_third_step_on, made()), (by_hand, made())],
    "DG310": [(unscaled_twice, made())],
    "DG312": [(past_the_scaler, made())],
    "DG401": [(new_head, made(scaler=False))],
    "DG402": [(step_all, made(optimizer=body_only, scaler=False))],
    "DG403": [(converted, made(optimizer=Adam, scaler=False))],
    "DG408": [(not_finite, made(optimizer=Adam, scaler=False, foreach=True))],
}
ROWS = [(rule, *case, place) for rule, cases in BUGS.items() for case in cases for place in ("before", "given")]


@pytest.mark.thin(3)
@pytest.mark.parametrize(("rule", "train", "make", "place"), ROWS)
def test_a_fault_is_found_at_its_line(rule, train, make, place):
    report, _, parts = audited(make, train, place)
    if (train, place) == (past_the_scaler, "before"):  # the optimizer is not known before it is too late
        assert serious(report) == []
        return
    found = [finding for finding in report.findings if finding.rule == rule]
    assert [finding.source.endswith("# here") for finding in found] == [True], report.findings
    assert {f.rule for f in serious(report) if f.rule[:3] in ("DG3", "DG4")} == {rule}
    assert same(everything(parts), alone(make, train))


def test_the_line_to_change_is_the_one_that_has_converted_the_parameters():
    with audit() as report:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.Adam(model.parameters(), weight_decay=1e-8)
        square(model(torch.ones(2, 4))).backward()
        optimizer.step()
        model.half()  # since here
        optimizer.zero_grad()
        square(model(torch.ones(2, 4).half())).backward()
        with pytest.raises(RuntimeError, match="expected dtype"):
            optimizer.step()  # here
    found = [f for f in report.findings if f.rule in ("DG403", "DG404", "DG405")]
    assert {f.rule for f in found} == {"DG403", "DG404", "DG405"}
    for finding in found:
        assert finding.source.endswith("# here")
        assert (finding.edit.source.rpartition("# ")[2], finding.edit.label) == ("since here", "float16 since here")


# ---------------------------------------------------------------- averages


def mul_add(ema, w, d):
    for mean, tensor in zip(ema, w, strict=True):
        mean.mul_(d).add_(tensor, alpha=1 - d)  # here


def mul_add_scaled(ema, w, d):
    for mean, tensor in zip(ema, w, strict=True):
        mean *= d
        mean += (1 - d) * tensor  # here


def through_data(ema, w, d):
    for mean, tensor in zip(ema, w, strict=True):
        mean.data.mul_(d).add_(tensor.data, alpha=1 - d)  # here


def lerp(ema, w, d):
    for mean, tensor in zip(ema, w, strict=True):
        mean.lerp_(tensor, 1 - d)  # here


def difference(ema, w, d):
    for mean, tensor in zip(ema, w, strict=True):
        mean.sub_((1 - d) * (mean - tensor))  # here


def difference_with_alpha(ema, w, d):
    for mean, tensor in zip(ema, w, strict=True):
        mean.add_(tensor - mean, alpha=1 - d)  # here


def copied(ema, w, d):
    for mean, tensor in zip(ema, w, strict=True):
        mean.copy_(d * mean + (1 - d) * tensor)  # here


def foreach(ema, w, d):
    torch._foreach_mul_(ema, d)
    torch._foreach_add_(ema, w, alpha=1 - d)  # here


def foreach_lerp(ema, w, d):
    torch._foreach_lerp_(ema, w, 1 - d)  # here


def foreach_difference(ema, w, d):
    torch._foreach_sub_(ema, torch._foreach_sub(ema, w), alpha=1 - d)  # here


def bound_anew(ema, w, d):
    for k, tensor in enumerate(w):
        ema[k] = d * ema[k] + (1 - d) * tensor  # here


def bound_anew_from_the_other_side(ema, w, d):
    ema[:] = [torch.add((1 - d) * tensor, mean * d) for mean, tensor in zip(ema, w, strict=True)]  # here


def bound_anew_with_alpha(ema, w, d):
    for k, tensor in enumerate(w):
        ema[k] = torch.add(d * ema[k], tensor, alpha=1 - d)  # here


def bound_anew_by_difference(ema, w, d):
    for k, tensor in enumerate(w):
        ema[k] = ema[k] - (1 - d) * (ema[k] - tensor)  # here


def bound_anew_by_lerp(ema, w, d):
    for k, tensor in enumerate(w):
        ema[k] = torch.lerp(ema[k], tensor, 1 - d)  # here


def that_require_grad(ema, w, d):
    for mean, tensor in zip(ema, w, strict=True):
        mean.requires_grad_().mul_(d).add_(tensor, alpha=1 - d)  # here


FORMS = (
    bound_anew, bound_anew_from_the_other_side, bound_anew_with_alpha, bound_anew_by_difference, bound_anew_by_lerp,
    that_require_grad,
    mul_add, mul_add_scaled, through_data, lerp, difference, difference_with_alpha, copied, foreach, foreach_lerp,
    foreach_difference,
)  # fmt: skip


def averaging(form, dtype, decay, model_dtype=BF16, steps=64, lr=0.02):
    """A model that moves, and an average of it."""

    def train(p):
        ema = [parameter.detach().to(dtype, copy=True) for parameter in p.model.parameters()]
        for step in range(steps):
            p.optimizer.zero_grad()
            square(p.model(batch(step).to(model_dtype))).backward()
            p.optimizer.step()
            with torch.no_grad():
                form(ema, [parameter.detach().to(dtype) for parameter in p.model.parameters()], decay)
        p.extra = ema

    return train, made(bf16 if model_dtype is BF16 else Net, scaler=False, lr=lr)


@pytest.mark.thin(5)
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_an_average_that_cannot_move_is_found(form, dtype):
    train, make = averaging(form, dtype, 0.9999, F32)
    report, error, parts = audited(make, train)
    assert error is None
    (finding,) = serious(report)
    assert (finding.rule, finding.severity, finding.source[-6:]) == ("DG407", "warning", "# here")
    assert finding.parameters
    assert same(everything(parts), alone(make, train))


@pytest.mark.parametrize("function", [get_ema_avg_fn, get_ema_multi_avg_fn], ids=lambda function: function.__name__)
def test_an_averaged_model_that_cannot_move_is_found(function):
    def train(p):
        option = {function.__name__.removeprefix("get_ema_"): function(0.9999)}
        average = AveragedModel(copy.deepcopy(p.model), **option)
        for step in range(64):
            p.optimizer.zero_grad()
            square(p.model(batch(step).bfloat16())).backward()
            p.optimizer.step()
            average.update_parameters(p.model)  # here
        p.extra = list(average.parameters())

    make = made(bf16, scaler=False, lr=0.02)
    report, error, parts = audited(make, train)
    assert error is None
    assert [(f.rule, f.source[-6:]) for f in serious(report)] == [("DG407", "# here")]
    assert same(everything(parts), alone(make, train))


@pytest.mark.thin(8)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@pytest.mark.parametrize(
    ("dtype", "decay", "lr"),
    [(F32, 0.999, 0.02), (BF16, 0.9, 0.1), (F16, 0.9, 0.1), (BF16, 0.5, 0.02), (BF16, 0.9999, 0.0), (BF16, 1.0, 0.02)],
    ids=["float32", "bfloat16 fast", "float16 fast", "faster", "of a model that rests", "switched off"],
)
def test_an_average_that_moves_or_has_nowhere_to_go_is_silent(form, dtype, decay, lr):
    if form is copied and decay == 1:
        pytest.skip("its decay is not known")
    train, make = averaging(form, dtype, decay, F32, lr=lr)
    report, error, parts = audited(make, train)
    assert (serious(report), error) == ([], None)
    assert same(everything(parts), alone(make, train))


def noise(step, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(step))


def converged_statistics(momentum):
    def loop(steps):
        mean = torch.full((64,), 1.0, dtype=BF16)
        for step in range(steps):
            mean.mul_(1 - momentum).add_((1 + 0.02 * noise(step, 64)).bfloat16(), alpha=momentum)
        return mean

    return loop


def momentum_by_hand(steps):
    buffer = torch.zeros(64, dtype=BF16)
    for step in range(steps):
        buffer.mul_(0.9).add_(noise(step, 64).bfloat16())
        buffer.mul_(0.99).add_(noise(step, 64).bfloat16(), alpha=0.01)
    return buffer


def decay_by_hand(steps):
    weight = torch.ones(64, dtype=BF16)
    for _ in range(steps):
        weight.mul_(1 - 1e-4 * 1e-2)
    return weight


def clip_by_hand(steps):
    for step in range(steps):
        gradient = noise(step, 64).bfloat16()
        gradient.mul_(0.95)
        gradient.add_(torch.zeros_like(gradient))
    return gradient


def dropout_in_place(steps):
    kept = torch.ones(64, dtype=BF16)
    for _ in range(steps):
        kept.mul_(torch.ones(64, dtype=BF16)).mul_(1.0)
        nn.functional.dropout(kept.clone(), 0.1, inplace=True)
    return kept


def trained_by_hand_with_decay(steps):
    weight = torch.linspace(1, 2, 64, dtype=BF16).requires_grad_()
    for step in range(steps):
        (gradient,) = torch.autograd.grad((weight * noise(step, 64).bfloat16()).sum(), weight)
        with torch.no_grad():
            weight.mul_(1 - 1e-4).add_(gradient, alpha=1e-3).add_(1e-4 * gradient).sub_(1e-4 * (gradient + weight))
    return weight.detach()


def fixed_point(steps):
    """It stands still where it should."""
    net = nn.Linear(8, 8).bfloat16()
    nn.init.normal_(net.weight, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        nn.init.zeros_(net.bias)
        net(torch.ones(1, 8, dtype=BF16))
        x = torch.ones(8, 8, dtype=BF16)
        y = torch.ones(8, 8, dtype=BF16)
        for _ in range(steps):
            x = 0.5 * x + 0.5 * net.weight.abs()
            y = 0.9 * y + 0.1 * net.weight.square()
    return x, y


def residual_blocks_without_gradients(steps):
    blocks = [nn.Linear(8, 8).bfloat16() for _ in range(2)]
    for block in blocks:
        nn.init.eye_(block.weight)
        nn.init.zeros_(block.bias)
    x = torch.ones(8, 8, dtype=BF16)
    with torch.no_grad():
        for _ in range(steps):
            for block in blocks:
                x = x + 0.0001 * block(x)
    return x


def residual_stream(steps):
    for _ in range(steps):
        x = torch.ones(64, dtype=BF16)
        x += 0.001 * x
        x.lerp_(x.flip(0) * 1.001, 0.001)
    return x


def accumulated(steps):
    total = torch.zeros(64, dtype=BF16)
    for step in range(steps):
        total.add_(noise(step, 64).bfloat16(), alpha=0.1)
    return total


def arrived(steps):
    """An average that came as near as its dtype allows."""
    mean, goal = torch.zeros(64, dtype=BF16), (1 + noise(0, 64)).bfloat16()
    for _ in range(steps):
        mean.mul_(0.9).add_(goal, alpha=0.1)
    return mean


QUIET = [
    converged_statistics(0.1), converged_statistics(0.01), momentum_by_hand, decay_by_hand, clip_by_hand,
    dropout_in_place, residual_stream, accumulated, arrived, trained_by_hand_with_decay, fixed_point,
    residual_blocks_without_gradients,
]  # fmt: skip


@pytest.mark.thin(3)
@pytest.mark.parametrize("loop", QUIET, ids=lambda loop: loop.__qualname__.partition(".")[0])
def test_what_looks_like_an_average_and_is_none_is_silent(loop):
    with audit() as report:
        result = loop(300)
    assert report.faults == []
    assert [f for f in serious(report) if f.rule == "DG407"] == []
    assert same(result, loop(300))


# ---------------------------------------------------------------- what must not be found


def usual(p, steps=6, half=True, unscale=False, micro=1, loss=square):
    for step in range(steps):
        p.optimizer.zero_grad()
        for part in range(micro):
            with torch.autocast("cpu", dtype=F16, enabled=half):
                output = p.model(batch(step * micro + part))
            p.scaler.scale(loss(output) / micro).backward()
        if unscale:
            p.scaler.unscale_(p.optimizer)
            clip_grad_norm_(p.model.parameters(), 0.5)
        p.scaler.step(p.optimizer)
        p.scaler.update()


def with_unscaling(p):
    usual(p, unscale=True)


def accumulating(p):
    usual(p, unscale=True, micro=3)


def steps_that_are_skipped(p):
    p.scaler._init_scale = 2.0**40
    usual(p, steps=30)
    assert p.scaler.get_scale() < 2.0**40


def bounds_that_know_the_scale(p):
    for step in range(5):
        p.optimizer.zero_grad()
        scaled(p, step).backward()
        clip_grad_norm_(p.model.parameters(), 0.5 * p.scaler.get_scale())
        p.scaler.step(p.optimizer)
        p.scaler.update()


def norms_that_are_logged(p):
    for step in range(5):
        p.optimizer.zero_grad()
        scaled(p, step).backward()
        clip_grad_norm_(p.model.parameters(), float("inf"))
        p.scaler.step(p.optimizer)
        p.scaler.update()


def one_of_two_without_scaler(p):
    first, second = p.models
    for step in range(6):
        p.optimizer.zero_grad()
        scaled(p, step).backward()
        p.scaler.step(p.optimizer)
        p.scaler.update()
        p.optimizers[1].zero_grad()
        square(second(first(batch(step)).detach().expand(4, 3))).backward()
        clip_grad_norm_(second.parameters(), 0.1)
        p.optimizers[1].step()


def two_scalers(p):
    scalers = p.scaler, GradScaler("cpu", init_scale=256.0)
    for step in range(6):
        for model, optimizer, scaler in zip(p.models, p.optimizers, scalers, strict=True):
            optimizer.zero_grad()
            with half_forward():
                output = model(batch(step))
            scaler.scale(square(output)).backward()
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()


def thirty(p):
    step_all(p, 30)


def scheduled(p):
    warm = torch.optim.lr_scheduler.LinearLR(p.optimizer, 1e-6, 1.0, 10)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(p.optimizer, 20)
    for step in range(30):
        step_all(p, 1)
        (warm if step < 10 else fall).step()


def closure(p):
    for step in range(5):

        def again(step=step):
            p.optimizer.zero_grad()
            loss = square(p.model(batch(step)))
            loss.backward()
            return loss

        p.optimizer.step(again)


def input_is_trained(p):
    """Style transfer: the model gets gradients, and is not to move."""
    image = nn.Parameter(batch(0))
    optimizer = torch.optim.Adam([image], lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        square(p.model(image)).backward()
        optimizer.step()
    p.extra = [image]


def phases(p):
    """The head alone, then the body: parameters of an optimizer that is gone."""
    for part in (p.model.head, p.model.body):
        optimizer = SGD(part.parameters(), lr=0.1)
        for step in range(3):
            p.model.zero_grad()
            square(p.model(batch(step))).backward()
            optimizer.step()
        del optimizer


def sixteen_bits_for_evaluation(p):
    for step in range(4):
        step_all(p, 1)
        p.model.eval()
        with half_forward():
            p.model(batch(step))
        p.model.train()
        with half_forward(), torch.no_grad():
            p.model(batch(step))


class Solver(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def wrapped_anew_for_each_step(p):
    """As torchdiffeq does: the wrapper is gone after forward."""
    p.model.to("cpu")
    for step in range(3):
        p.optimizer.zero_grad()
        square(Solver(p.model)(batch(step))).backward()
        p.optimizer.step()


HEALTHY = {
    "float32, fused": (thirty, made(optimizer=torch.optim.AdamW, scaler=False, fused=True)),
    "float16 autocast, accumulation": (accumulating, made(optimizer=Adam)),
    "skipped steps": (steps_that_are_skipped, made()),
    "bounds that know the scale": (bounds_that_know_the_scale, made()),
    "norms of scaled gradients are logged": (norms_that_are_logged, made()),
    "one of two without scaler": (one_of_two_without_scaler, made(optimizer=(SGD, Adam))),
    "two scalers": (two_scalers, made(optimizer=(SGD, SGD))),
    "bfloat16 throughout, momentum": (thirty, made(bf16, scaler=False, momentum=0.9)),
    "schedulers, bfloat16": (scheduled, made(bf16, torch.optim.AdamW, scaler=False)),
    "a closure": (closure, made(optimizer=torch.optim.LBFGS, scaler=False, max_iter=4)),
    "the input is trained": (input_is_trained, made(scaler=False)),
    "one part after the other": (phases, made(scaler=False)),
    "a wrapper that lives for a forward": (wrapped_anew_for_each_step, made(scaler=False)),
    "evaluation in float16": (sixteen_bits_for_evaluation, made(scaler=False)),
}


@pytest.mark.thin(3)
@pytest.mark.parametrize("place", ["inside", "before", "given"])
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_program_is_silent(name, place):
    train, make = HEALTHY[name]
    report, error, parts = audited(make, train, place)
    assert (serious(report), error) == ([], None)
    assert same(everything(parts), alone(make, train))


@pytest.mark.parametrize("where", ["scaler.step", "backward", "a whole step"])
def test_an_audit_of_one_step_only_is_silent(where):
    p, twin = made()(), made()()
    usual(p, 3)
    usual(twin, 6)
    for step in range(3, 6):
        whole = audit() if where == "a whole step" else contextlib.nullcontext()
        with whole as first:
            p.optimizer.zero_grad()
            with half_forward():
                output = p.model(batch(step))
            with audit() if where == "backward" else contextlib.nullcontext() as second:
                p.scaler.scale(square(output)).backward()
            with audit() if where == "scaler.step" else contextlib.nullcontext() as third:
                p.scaler.step(p.optimizer)
                p.scaler.update()
        report = first or second or third
        assert (serious(report), report.faults) == ([], [])
    assert same(everything(p), everything(twin))


# ---------------------------------------------------------------- what an audit never does


def refuses(p):
    p.optimizer.param_groups[0]["lr"] = "nonsense"
    p.optimizer.step()


@pytest.mark.parametrize(("lr", "found"), [(1e-6, [("DG406", "info")]), (1e-1, [])])
def test_a_run_that_is_too_short_for_a_verdict_says_what_it_saw(lr, found):
    model = Net().to(BF16)
    optimizer = Adam(model.parameters(), lr=lr)
    with audit() as report:
        for step in range(10):
            optimizer.zero_grad()
            model(batch(step).to(BF16)).float().square().mean().backward()
            optimizer.step()
    assert [(finding.rule, finding.severity) for finding in report.findings] == found
    assert all("in 4 looks; 32 steps are needed to be sure" in f.message for f in report.findings)
    assert [finding.source for finding in report.findings] == ["optimizer.step()"] * len(found)


def test_a_sample_of_many_parameters_says_that_it_is_one():
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(24))).to(BF16)
    optimizer = Adam(model.parameters(), lr=1e-6)
    with audit(select="DG406") as report:
        for step in range(40):
            optimizer.zero_grad()
            model(batch(step, 4, 8).to(BF16)).float().square().mean().backward()
            optimizer.step()
    assert [f.message.rpartition(" (")[2] for f in report.findings] == ["8 of 48 parameters looked at)"]


def test_a_step_that_raises_ends_as_well():
    p = made(scaler=False)()
    with audit() as report:
        square(p.model(batch(0))).backward()
        with pytest.raises(TypeError):
            refuses(p)
        before = report._recorder.operations
        (torch.ones(3) + 1).to(BF16)
        assert report._recorder.operations > before
        p.optimizer.param_groups[0]["lr"] = 0.1
        p.optimizer.step()
        assert report._recorder.local.paused == 0
    assert [f.rule for f in serious(report)] == ["DG103"]
    assert report.faults == []


def test_what_a_hook_of_the_program_does_around_a_step_is_recorded():
    p = made(scaler=False)()
    seen = []
    p.optimizer.register_step_post_hook(lambda *_: seen.append(torch.ones(3).to(BF16)))
    with audit() as report:
        step_all(p)
    assert len(seen) == 3
    assert [(cast.kind, cast.count) for cast in report.casts] == [("explicit", 3)]


class Doubles(Optimizer):
    """An optimizer of the program's own."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad.to(torch.float64).to(parameter.dtype), alpha=-group["lr"])


def test_steps_of_an_optimizer_of_the_program_s_own_are_recorded():
    p = made(optimizer=Doubles, scaler=False)()
    with audit() as report:
        step_all(p)
    assert report.casts
    assert report.faults == []


def test_steps_of_torch_s_optimizers_are_not_recorded():
    p = made(optimizer=torch.optim.AdamW, scaler=False)()
    step_all(p, 1)
    square(p.model(batch(0))).backward()
    with audit() as report:
        p.optimizer.step()
    assert report._recorder.operations < 10
    assert report.casts == []


@pytest.mark.parametrize("train", [by_norm, unscaled_twice, past_the_scaler])
def test_nested_audits_both_find(train):
    before = installed()
    with contextlib.suppress(ValueError, RuntimeError), audit() as outer, audit() as inner:
        p = made()()
        train(p)
    assert installed() == before
    for report in (outer, inner):
        assert report.faults == []
        assert len([f for f in serious(report) if f.rule[:3] == "DG3"]) == 1


@pytest.mark.parametrize("watched", [0, 1, 2])
def test_an_inner_audit_leaves_the_outer_one_awake(watched):
    others = [made(scaler=False)() for _ in range(watched)]  # which have nothing to do with the scaler
    watches = [amp.watch(other.model, other.optimizer) for other in others]
    p = made()()
    before = installed()
    with audit() as outer:
        with audit() as inner:
            usual(p, 2)
        p.optimizer.zero_grad()
        scaled(p).backward()
        clip_grad_norm_(p.model.parameters(), 1.0)  # here
        p.scaler.step(p.optimizer)
        p.scaler.update()
    assert installed() == before
    assert serious(inner) == []
    assert [(f.rule, f.source[-6:]) for f in serious(outer)] == [("DG309", "# here")]
    assert (outer.faults, inner.faults) == ([], [])
    for watch in watches:
        watch.remove()


@pytest.mark.parametrize("mode", ["lenient", "strict", "off"])
@pytest.mark.parametrize("begun", ["inside", "before"])
def test_a_watch_of_the_program_s_own_beside_it(mode, begun):
    p = made()()
    before = installed()
    with warnings.catch_warnings(record=True) as told, contextlib.ExitStack() as stack:
        warnings.simplefilter("always")
        watch = amp.watch(p.model, p.optimizer, p.scaler, mode=mode) if begun == "before" else None
        with contextlib.suppress(AmpError), audit() as report:
            watch = watch or stack.enter_context(amp.watch(p.model, p.optimizer, p.scaler, mode=mode))
            by_norm(p)
        watch.remove()
    assert report.faults == []
    assert installed() == before
    assert type(p.scaler) is GradScaler
    assert len(told) == (mode == "lenient")
    assert [f.rule for f in watch.report()] == ([] if mode == "off" else ["DG309"])
    assert [(f.rule, f.source[-6:]) for f in serious(report)] == [("DG309", "# here")]


class Half(GradScaler):
    """Says nothing to its base class."""

    def scale(self, outputs):
        if self._scale is None:
            self._lazy_init_scale_growth_tracker(outputs.device)
        return outputs * self._scale


@pytest.mark.parametrize("kind", [Half, ShardedGradScaler])
def test_scalers_that_stand_on_their_own(kind):
    p = made()()
    p.scaler = Half("cpu", init_scale=1024.0) if kind is Half else GradScaler("cpu", init_scale=1024.0)
    before = set(vars(Half))
    with audit() as report:
        by_norm(p)
    assert [(f.rule, f.source[-6:]) for f in serious(report)] == [("DG309", "# here")]
    assert set(vars(Half)) == before
    assert report.faults == []


def test_nothing_is_kept_alive():
    with audit() as report:
        p = made(optimizer=Adam)()
        with_unscaling(p)
        gone = [weakref.ref(thing) for thing in (p.model, p.optimizer, p.scaler)]
        del p
        gc.collect()
        assert [ref() for ref in gone] == [None] * 3
    assert report.faults == []


def test_a_model_that_is_converted_by_swapping(monkeypatch):
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        p = made(optimizer=SGD, scaler=False)()
        with audit() as report:
            step_all(p)
            p.model.to(torch.float64)
            p.model.to(F32)
            step_all(p)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert (serious(report), report.faults) == ([], [])


def test_threads_that_train_at_once():
    results, reports = [], []

    def train():
        p = made(optimizer=Adam)()
        with_unscaling(p)
        results.append(everything(p)[:-1])

    train()
    with audit() as report:
        threads = [threading.Thread(target=train) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        reports.append(report)
    assert (serious(report), report.faults) == ([], [])
    assert len(results) == 4


def test_a_step_past_the_scaler_is_told_once_whatever_comes_of_it():
    model, scaler = nn.Linear(4, 1), torch.amp.GradScaler("cpu", init_scale=2.0**127)
    optimizer = torch.optim.SGD(model.parameters())

    def train():
        for _ in range(12):
            with torch.autocast("cpu", dtype=F16):
                loss = model(torch.full((2, 4), 100.0)).float().sum()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            optimizer.step()  # on gradients that are infinite
            with contextlib.suppress(AssertionError):
                scaler.update()

    with audit(model, optimizer, scaler) as report:
        train()
    assert [finding.rule for finding in report.findings] == ["DG312"]
    with amp.watch(model, optimizer, scaler) as handle, pytest.warns(AmpWarning) as said:
        train()
    assert [finding.rule for finding in handle.report()] == ["DG312"]
    assert len(said) == 1
