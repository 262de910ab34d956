"""Rules DG406 to DG408: updates that are lost, averages that stand still, gradients that are not finite."""

import copy
import re

import pytest
import torch
import torch.nn.functional as F
from amp_programs import (
    ADAM,
    ALL,
    AT,
    BF16,
    F16,
    F32,
    FOUR,
    Bug,
    Net,
    Own,
    Words,
    batch,
    closed,
    groups,
    half,
    lenient_warns_once_and_goes_on,
    nothing_is_said,
    of,
    off_is_silent,
    once,
    plain,
    program,
    rows,
    sgd,
    strict_raises,
    unfrozen_head,
)
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn


class Wide(nn.Module):
    """Weights around 1, and enough of them for shares that mean something."""

    def __init__(self, dtype=BF16, scale=1.0) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 32), nn.Linear(32, 1)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_((torch.rand_like(parameter) + 0.5) * scale)
        self.to(dtype)

    def forward(self, x):
        return self.head(self.body(x).tanh())


class Empty(Net):
    """One parameter without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.none = nn.Parameter(torch.empty(0, 3))

    def forward(self, x):
        return super().forward(x) + self.none.sum()


def zero_bias():
    """A model whose head has a bias that any average can follow."""
    model = Wide(F32)
    nn.init.zeros_(model.head.bias)
    return model


class Careful(Own):
    """Skips a step whose gradients are not finite."""

    def step(self, closure=None):
        if all(p.grad.isfinite().all() for group in self.param_groups for p in group["params"]):
            super().step(closure)


class Stochastic(Own):
    def move(self, parameter, update):
        bits = (parameter.float() + update).view(torch.int32)
        noise = torch.randint(0, 1 << 16, bits.shape, dtype=torch.int32)
        parameter.copy_(((bits + noise) & -65536).view(F32))


class Masters(Own):
    def move(self, parameter, update):
        state = self.state[parameter]
        master = state.setdefault("master", parameter.detach().float().clone())
        parameter.copy_(master.add_(update))


class HiddenMasters(Own):
    """Its copies are no state."""

    def move(self, parameter, update):
        known = self.__dict__.setdefault("copies", {})
        parameter.copy_(known.setdefault(parameter, parameter.detach().float().clone()).add_(update))


def single_tensors(model):
    return torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-4), foreach=False)


def slow(model):
    return sgd(model, lr=1e-3)


def with_an_empty_group(model):
    return torch.optim.AdamW([{"params": list(model.parameters())}, {"params": [], "weight_decay": 0.0}], lr=1e-2)


def infinite(*names, at=0, value=float("nan")):
    def spoil(model, step):
        for name, parameter in model.named_parameters():
            if step == at and name in names:
                parameter.grad.view(-1)[-1] = value

    return spoil


def stale_nan(model, optimizer):
    for parameter in model.body.parameters():
        parameter.grad = torch.full_like(parameter, float("nan"))


def clean(model):
    for parameter in model.parameters():
        parameter.grad.nan_to_num_(0.0)


def mended(model, step):
    infinite(*ALL, at=step)(model, step)
    clean(model)


def now_and_then(model, step):
    if step % 8 == 7:
        infinite(*ALL, at=step)(model, step)


def add_cleaner(model, optimizer):
    optimizer.register_step_pre_hook(lambda *_: clean(model))


def near_the_limit(model, step):
    for parameter in model.parameters():
        parameter.grad.fill_(6e4)


def warm_up(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 200))


def cosine(optimizer):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)


def classes():
    return nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 4)).to(BF16)


def cross_entropy(output):
    return F.cross_entropy(output.float(), torch.arange(len(output)) % 4)


def averaged_model(dtype, decay):
    return lambda model: AveragedModel(copy.deepcopy(model).to(dtype), avg_fn=get_ema_avg_fn(decay))


def update_parameters(average, model):
    average.update_parameters(model)


def as_dict(dtype):
    return lambda model: {name: p.detach().to(dtype, copy=True) for name, p in model.named_parameters()}


def as_list(dtype):
    return lambda model: [p.detach().to(dtype, copy=True) for p in model.parameters()]


def as_module(dtype):
    return lambda model: copy.deepcopy(model).to(dtype)


def in_place(decay):
    def follow(average, model):
        tensors = average.values() if isinstance(average, dict) else average
        with torch.no_grad():
            for mean, parameter in zip(tensors, model.parameters(), strict=True):
                mean.mul_(decay).add_(parameter.to(mean.dtype), alpha=1 - decay)

    return follow


def anew(average, model):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            average[name] = (0.999 * average[name] + 0.001 * parameter.to(average[name].dtype)).clone()


def through_data(average, model):
    for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
        mean.data.mul_(0.999).add_(parameter.data.to(mean.dtype), alpha=0.001)


def with_stochastic_rounding(average, model):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            bits = (average[name].float() * 0.999 + parameter * 0.001).view(torch.int32)
            noise = torch.randint(0, 1 << 16, bits.shape, dtype=torch.int32)
            average[name].copy_(((bits + noise) & -65536).view(F32))


def wide32():
    return Wide(F32)


def lost(names, dtype="bfloat16", optimizer="SGD", lr="1e-05"):
    return re.compile(
        rf"(9\d|100)% of the elements of {dtype} parameters with a non-zero gradient did not move in a step of "
        rf"{optimizer} \(lr={lr}\): {names}"
    )


def stuck(names, dtype="bfloat16"):
    return re.compile(
        rf"the average of {names} is {dtype} and does not move: (9\d|100)% of the elements that differ from the model "
        r"stayed as they were in \d+ .*"
    )


LONG = {
    "a warm-up from nothing": 260,
    "a cosine to nothing": 300,
    "stochastic rounding": 320,
    "masters in the optimizer's state": 320,
    "masters elsewhere in the optimizer": 320,
}


BUGS = {
    "DG406": {
        "SGD with a small lr": Bug(
            program(plain, model=Wide, optimizer=of(torch.optim.SGD, lr=1e-5)), lost(FOUR), AT, ALL, late=True
        ),
        "Adam with a small lr": Bug(
            program(plain, model=Wide, optimizer=of(torch.optim.Adam, lr=1e-4)),
            *(lost(FOUR, optimizer="Adam", lr="0.0001"), AT, ALL),
            late=True,
        ),
        "AdamW, one tensor at a time, an lr that is a tensor": Bug(
            program(plain, model=Wide, optimizer=single_tensors),
            *(lost(FOUR, optimizer="AdamW", lr="0.0001"), AT, ALL),
            late=True,
        ),
        "float16": Bug(
            program(plain, model=lambda: Wide(F16), optimizer=of(torch.optim.RMSprop, lr=1e-5, eps=1e-3)),
            *(lost(FOUR, dtype="float16", optimizer="RMSprop"), AT, ALL),
            late=True,
        ),
        "one of two groups": Bug(
            program(plain, model=Wide, optimizer=groups({"lr": 1e-5}, {"lr": 1e-3})),
            *(lost("`body.weight`, `body.bias`"), AT, ALL[:2]),
            late=True,
        ),
        "an optimizer of the user's that rounds to nearest": Bug(
            program(plain, model=Wide, optimizer=of(Own, lr=1e-5)),
            *(lost(FOUR, optimizer="Own"), AT, ALL),
            late=True,
            steps=320,
        ),
    },
    "DG407": {
        "an AveragedModel in bfloat16, decay 0.999": Bug(
            program(plain, model=wide32, optimizer=slow, average=averaged_model(BF16, 0.999), follow=update_parameters),
            *(stuck(FOUR), AT, ALL),
            late=True,
            steps=120,
        ),
        "a dict in float16": Bug(
            program(plain, model=wide32, optimizer=slow, average=as_dict(F16), follow=in_place(0.9999)),
            *(stuck(FOUR, dtype="float16"), AT, ALL),
            late=True,
            steps=120,
        ),
        "a list, of a bfloat16 model": Bug(
            program(plain, model=Wide, optimizer=slow, average=as_list(BF16), follow=in_place(0.999)),
            *(stuck(FOUR), AT, ALL),
            late=True,
            steps=120,
        ),
        "a dict with new tensors each time": Bug(
            program(plain, model=wide32, optimizer=slow, average=as_dict(BF16), follow=anew),
            *(stuck(FOUR), AT, ALL),
            late=True,
            steps=120,
        ),
        "a module written through `.data`": Bug(
            program(plain, model=zero_bias, optimizer=slow, average=as_module(BF16), follow=through_data),
            *(stuck("`body.weight`, `body.bias`, `head.weight`"), AT, ALL[:3]),
            late=True,
            steps=120,
        ),
    },
    "DG408": {
        "NaN in one parameter": Bug(
            program(plain, spoil=infinite("body.weight")),
            *("gradients of `body.weight` (1 of 4 parameters with a gradient) are not finite", AT, ALL[:1]),
        ),
        "inf in two": Bug(
            program(plain, spoil=infinite("body.bias", "head.weight", at=3, value=float("inf")), optimizer=ADAM),
            *(
                "gradients of `body.bias`, `head.weight` (2 of 4 parameters with a gradient) are not finite",
                AT,
                ALL[1:3],
            ),
        ),
        "NaN in the data at the sixth step": Bug(
            program(plain, inputs=lambda step: batch(step) / (step != 5)),
            *(f"gradients of {FOUR} (4 of 4 parameters with a gradient) are not finite", AT, ALL),
        ),
        "in a closure": Bug(
            program(
                closed,
                optimizer=of(torch.optim.LBFGS, lr=0.1, max_iter=4),
                inputs=lambda step: batch(step) / (step != 7),
            ),
            *(
                f"gradients of {FOUR} (4 of 4 parameters with a gradient) are not finite",
                "optimizer.step(closure)",
                ALL,
            ),
            late=True,
        ),
        "an overflow in float16": Bug(
            program(plain, model=half(), loss=lambda output: (output * 6e4).float().square().sum()),
            *(f"gradients of {FOUR} (4 of 4 parameters with a gradient) are not finite", AT, ALL),
        ),
    },
}
HEALTHY = {
    "DG406": {
        "bfloat16 that trains, Adam with lr 1e-3": program(
            plain, model=half(BF16), optimizer=of(torch.optim.Adam, lr=1e-3)
        ),
        "a warm-up from nothing": program(
            plain, model=half(BF16), optimizer=of(torch.optim.AdamW, lr=1e-2), schedule=warm_up
        ),
        "a cosine to nothing": program(
            plain, model=classes, loss=cross_entropy, optimizer=of(torch.optim.AdamW), schedule=cosine
        ),
        "RAdam, whose first steps are short": program(
            plain, model=classes, loss=cross_entropy, optimizer=of(torch.optim.RAdam, lr=2e-2)
        ),
        "Rprop, whose steps grow": program(
            plain,
            model=classes,
            loss=cross_entropy,
            inputs=lambda step: batch(0),
            optimizer=of(torch.optim.Rprop, lr=1e-5),
        ),
        "momentum 0.99, which gathers speed": program(
            plain, model=classes, loss=cross_entropy, optimizer=of(torch.optim.SGD, lr=1e-2, momentum=0.99)
        ),
        "stochastic rounding": program(plain, model=Wide, optimizer=of(Stochastic, lr=1e-3)),
        "masters in the optimizer's state": program(plain, model=Wide, optimizer=of(Masters, lr=1e-5)),
        "masters elsewhere in the optimizer": program(plain, model=Wide, optimizer=of(HiddenMasters, lr=1e-5)),
        "lr 0 for one group": program(plain, model=half(BF16), optimizer=groups({"lr": 0.0}, {"lr": 0.1})),
        "float32 with a tiny lr": program(plain, model=wide32, optimizer=of(torch.optim.SGD, lr=1e-6)),
    },
    "DG407": {
        "an AveragedModel in float32": program(
            plain, model=wide32, optimizer=slow, average=averaged_model(F32, 0.999), follow=update_parameters
        ),
        "float32, of a bfloat16 model": program(
            plain, model=Wide, optimizer=slow, average=as_dict(F32), follow=in_place(0.999)
        ),
        "bfloat16, decay 0.5": program(
            plain, model=wide32, optimizer=slow, average=averaged_model(BF16, 0.5), follow=update_parameters
        ),
        "bfloat16, of a model that rests": program(
            plain,
            model=wide32,
            optimizer=of(torch.optim.SGD, lr=0.0),
            average=as_dict(BF16),
            follow=in_place(0.5),
        ),
        "bfloat16, not begun yet": program(plain, model=wide32, optimizer=slow, average=as_dict(BF16)),
        "bfloat16, with stochastic rounding": program(
            plain, model=wide32, optimizer=slow, average=as_dict(BF16), follow=with_stochastic_rounding
        ),
    },
    "DG408": {
        "NaN made zero before the step": program(plain, spoil=mended),
        "an optimizer that skips by itself": program(plain, optimizer=of(Careful, lr=0.1), spoil=now_and_then),
        "cleaned in a hook of the optimizer": program(plain, change=once(0, add_cleaner), spoil=now_and_then),
        "values near the limit of float16": program(
            plain,
            model=half(),
            optimizer=of(torch.optim.SGD, lr=1e-6),
            spoil=near_the_limit,
        ),
        "NaN in a frozen parameter's old gradient": program(plain, model=unfrozen_head, prepare=stale_nan),
        "sparse gradients": program(plain, model=Words, optimizer=of(torch.optim.SGD, lr=0.1)),
        "a parameter without elements": program(plain, model=Empty),
        "a last group without parameters": program(plain, optimizer=with_an_empty_group),
        "a closure": program(closed, optimizer=of(torch.optim.LBFGS, lr=0.1, max_iter=4)),
    },
}


@pytest.mark.parametrize(("rule", "bug"), rows(BUGS))
def test_strict_mode_raises_at_the_line_that_can_know(rule, bug):
    strict_raises(rule, bug)


@pytest.mark.thin(2)
@pytest.mark.parametrize(("rule", "bug"), rows(BUGS))
def test_lenient_mode_warns_once_and_the_program_goes_on_as_without_a_watch(rule, bug):
    lenient_warns_once_and_goes_on(rule, bug)


@pytest.mark.thin(4)
@pytest.mark.parametrize(("rule", "bug"), rows(BUGS))
def test_mode_off_does_nothing(rule, bug):
    off_is_silent(bug)


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    ("healthy", "steps"),
    [
        pytest.param(case, LONG.get(name, 60), id=f"{rule}: {name}")
        for rule in HEALTHY
        for name, case in HEALTHY[rule].items()
    ],
)
def test_nothing_is_said_of_a_program_that_is_right(healthy, steps):
    nothing_is_said(healthy, steps)
