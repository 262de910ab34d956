"""Training programs that are run watched and unwatched, and what must be said about them.

A program is a generator function of `watch`: it yields its models, optimizers and scaler, then what `watch(...)`
returned, then once after each iteration, without end.
"""

import dataclasses
import functools
import itertools
import linecache
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree
from versions import since

from dtypeguard import AmpError, AmpWarning, amp

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
ALL = ("body.weight", "body.bias", "head.weight", "head.bias")
AT = "optimizer.step()"
FOUR = "`body.weight`, `body.bias`, `head.weight` and 1 more"
GRADIENTS = f"gradients of {FOUR}"
Program = Callable[..., Iterator[Any]]

SEVERITIES = {
    **dict.fromkeys("DG301 DG302 DG307 DG308 DG309 DG310 DG311 DG312 DG314 DG401 DG403 DG404 DG408".split(), "error"),
    **dict.fromkeys("DG303 DG305 DG306 DG313 DG402 DG405 DG406 DG407".split(), "warning"),
    "DG304": "info",
}
FIXES = {
    "DG301": ("`model.float()`", "`torch.autocast('cpu', dtype=torch.float16)`"),
    "DG302": ("convert the model before the first backward", "`optimizer.zero_grad()`"),
    "DG303": ("drop the scaler (`GradScaler(enabled=False)`)",),
    "DG304": ("`torch.autocast('cpu', dtype=torch.float16)`", "drop the scaler"),
    "DG305": ("`scaler = torch.amp.GradScaler('cpu')`", "`scaler.scale(loss).backward()`", "bfloat16"),
    "DG306": ("`criterion(output.float(), target)`",),
    "DG307": ("`scaler.scale(loss).backward()`", "`.detach()`"),
    "DG308": ("`scaler.scale(loss).backward()` for every loss",),
    "DG309": ("`scaler.unscale_(optimizer)` before `clip_grad_norm_`",),
    "DG310": ("`unscale_`, clip, `step` and `update` once, after the last micro-batch",),
    "DG311": ("`scaler.update()` once at the end of each iteration",),
    "DG312": ("`scaler.step(optimizer)` in place of `optimizer.step()`",),
    "DG313": ("NaN in the data", "overflow in the forward"),
    "DG314": ("call `unscale_` once, after the last micro-batch",),
    "DG401": ("build the optimizer after the last change of the model", "`optimizer.add_param_group`"),
    "DG402": ("`optimizer.add_param_group`", "`requires_grad_(False)`"),
    "DG403": ("`optimizer.load_state_dict(optimizer.state_dict())`",),
    "DG404": ("float32", "1e-4"),
    "DG405": ("float32", "larger weight decay"),
    "DG406": ("float32 parameters and use autocast", "stochastic rounding"),
    "DG407": ("keep the average in float32",),
    "DG408": ("`torch.autograd.set_detect_anomaly(True)`",),
}


@dataclasses.dataclass(frozen=True)
class Bug:
    """A program with a fault, and what its rule must say.

    Attributes:
        program: the program.
        says: the message, or a pattern of it.
        at: what stands in the line that is named.
        names: the parameters.
        late: whether parameters change before it can be known.
        also: rules that are right to speak up as well.
        steps: how long it runs.
    """

    program: Program
    says: str | re.Pattern[str]
    at: str
    names: tuple[str, ...] = ()
    late: bool = False
    also: tuple[str, ...] = ()
    steps: int = 60


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.body(x).tanh())


def batch(step):
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(step))


def square(output):
    return (output.float() - 3).square().mean()


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, **options})


def of(kind, **options):
    """Builds an optimizer of this class."""
    return lambda model: kind(model.parameters(), **options)


def program(loop, **options):
    return functools.partial(loop, **options)


def clip_norm(bound, **options):
    return lambda model, *_: nn.utils.clip_grad_norm_(model.parameters(), bound, **options)


def clip_value(bound):
    return lambda model, *_: nn.utils.clip_grad_value_(model.parameters(), bound)


# ---------------------------------------------------------------- loops, models, and what is done to them


def train(
    watch,
    model=Net,
    optimizer=sgd,
    scale=65536.0,
    enabled=True,
    autocast=None,
    loss=square,
    inputs=batch,
    micro=1,
    change=lambda step, model, optimizer: None,
    spoil=lambda model, scaler, step: None,
    unscale=False,
    clip=lambda model: None,
    set_to_none=True,
):
    """The usual loop. `spoil` has the gradients while they are scaled, `clip` after `unscale_`."""
    model = model()
    optimizer, scaler = optimizer(model), torch.amp.GradScaler("cpu", init_scale=scale, enabled=enabled)
    yield [model], [optimizer], scaler
    yield watch(model, optimizer, scaler)
    for step in itertools.count():
        change(step, model, optimizer)
        optimizer.zero_grad(set_to_none=set_to_none)
        for _ in range(micro):
            with torch.autocast("cpu", dtype=autocast or F16, enabled=autocast is not None):
                output = model(inputs(step))
            scaler.scale(loss(output) / micro).backward()
        spoil(model, scaler, step)
        if unscale:
            scaler.unscale_(optimizer)
            clip(model)
        scaler.step(optimizer)
        scaler.update()
        yield


def two(watch, iteration, models=lambda: [Net(), Net()], optimizers=(sgd, sgd), scaled=True):
    """Two models with an optimizer each; `iteration` does the rest."""
    models = models()
    optimizers = [optimizer(model) for optimizer, model in zip(optimizers, models, strict=True)]
    scaler = torch.amp.GradScaler("cpu")
    yield models, optimizers, scaler
    yield watch(models, optimizers, scaler if scaled else None)
    for step in itertools.count():
        for optimizer in optimizers:
            optimizer.zero_grad()
        iteration(step, *models, *optimizers, scaler)
        yield


def one(watch, iteration, model=Net, optimizer=sgd, named=True):
    """One model; `iteration` does the rest."""
    model, scaler = model(), torch.amp.GradScaler("cpu")
    optimizer = optimizer(model)
    yield [model], [optimizer], scaler
    yield watch(model, optimizer, scaler if named else None)
    for step in itertools.count():
        optimizer.zero_grad()
        iteration(step, model, optimizer, scaler)
        yield


def once(at, change):
    """`change(model, optimizer)` at one step."""
    return lambda step, model, optimizer: change(model, optimizer) if step == at else None


def scaled_backward(model, scaler, step, times=1):
    for _ in range(times):
        scaler.scale(square(model(batch(step)))).backward()


def finish(scaler, *optimizers):
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()


def one_without_scaler(step, a, b, oa, ob, scaler):
    """A critic without a scaler beside a generator with one."""
    scaled_backward(a, scaler, step)
    scaler.step(oa)
    scaler.update()
    square(b(a(batch(step)).detach().expand(4, 3))).backward()
    ob.step()


def clipped_after_unscaling_both(step, a, b, oa, ob, scaler):
    scaler.scale(square(a(batch(step))) + square(b(batch(step)))).backward()
    scaler.unscale_(oa)
    scaler.unscale_(ob)
    nn.utils.clip_grad_norm_([*a.parameters(), *b.parameters()], 1.0)
    finish(scaler, oa, ob)


def one_update_for_two(step, a, b, oa, ob, scaler):
    scaler.scale(square(a(batch(step))) + square(b(batch(step)))).backward()
    finish(scaler, oa, ob)


def plain(
    watch,
    model=Net,
    optimizer=sgd,
    prepare=lambda model, optimizer: None,
    change=lambda step, model, optimizer: None,
    loss=square,
    inputs=batch,
    spoil=lambda model, step: None,
    schedule=None,
    average=None,
    follow=None,
):
    """The usual loop. `prepare` comes between optimizer and watch, `spoil` between backward and step."""
    model = model()
    optimizer = optimizer(model)
    prepare(model, optimizer)
    scheduler = schedule and schedule(optimizer)
    average = average and average(model)
    yield [model], [optimizer], None
    yield watch(model, optimizer, averaged=average)
    for step in itertools.count():
        change(step, model, optimizer)
        optimizer.zero_grad()
        dtype = next(model.parameters()).dtype
        loss(model(inputs(step).to(dtype))).backward()
        spoil(model, step)
        optimizer.step()
        if scheduler:
            scheduler.step()
        if follow:
            follow(average, model)
        yield


def closed(watch, optimizer, inputs=batch):
    """The gradients are made in the step."""
    model = Net()
    optimizer = optimizer(model)
    yield [model], [optimizer], None
    yield watch(model, optimizer)
    for step in itertools.count():

        def closure(step=step):
            optimizer.zero_grad()
            loss = square(model(inputs(step)))
            loss.backward()
            return loss

        optimizer.step(closure)
        yield


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 3, sparse=True)

    def forward(self, x):
        return self.table((x.abs() * 9).long().clamp(max=8))


def half(dtype=F16):
    return lambda: Net().to(dtype)


def unfrozen_head():
    model = Net()
    model.body.requires_grad_(False)
    return model


class Own(torch.optim.Optimizer):
    """SGD of the user's own; how an update reaches a parameter is the subclass's."""

    def __init__(self, params, lr, **defaults):
        super().__init__(params, {"lr": lr, **defaults})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.move(parameter, -group["lr"] * parameter.grad.float())

    def move(self, parameter, update):
        parameter.add_(update.to(parameter.dtype))


def groups(*options, kind=torch.optim.SGD, **defaults):
    """The body's parameters in the first group, the head's in the second."""
    return lambda model: kind(
        [{"params": list(part.parameters()), **own} for part, own in zip(model.children(), options, strict=True)],
        **defaults,
    )


def state(keys, names, found, expected):
    return f"state {keys} of {names} is {found}, the parameters are {expected}"


ADAM = of(torch.optim.Adam, lr=1e-2, eps=1e-3)


# ---------------------------------------------------------------- running


@dataclasses.dataclass
class Run:
    """What became of a program: its handle, its error, its tensors, and what was warned of."""

    steps: int = 0
    handle: Any = None
    error: Exception | None = None
    parameters: list[torch.Tensor] = dataclasses.field(default_factory=list)  # after the last whole iteration
    now: list[torch.Tensor] = dataclasses.field(default_factory=list)
    everything: list[Any] = dataclasses.field(default_factory=list)
    told: list[warnings.WarningMessage] = dataclasses.field(default_factory=list)

    def found(self, rule):
        return [finding for finding in self.handle.report() if finding.rule == rule]

    def serious(self):
        return [finding for finding in self.handle.report() if finding.severity != "info"]


def _parameters(models, optimizers):
    held = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    return [p.detach().clone() for p in [*(p for model in models for p in model.parameters()), *held]]


def _unwatched(*arguments, **options):
    return None


def run(program, mode, steps):
    """Run a program for some iterations, or until it fails; `mode` None leaves it unwatched."""
    result = Run()
    torch.manual_seed(0)
    running = program(_unwatched if mode is None else functools.partial(amp.watch, mode=mode))
    models, optimizers, scaler = next(running)
    with warnings.catch_warnings(record=True) as result.told:
        warnings.simplefilter("always")
        result.parameters = _parameters(models, optimizers)
        try:
            result.handle = next(running)
            for _ in range(steps):
                next(running)
                result.steps += 1
                result.parameters = _parameters(models, optimizers)
        except (AmpError, RuntimeError, ValueError, AssertionError, TypeError, IndexError) as error:
            result.error = error
    result.now = _parameters(models, optimizers)
    states = [optimizer.state_dict() for optimizer in optimizers]
    scale = None if scaler is None else scaler.state_dict()
    result.everything = pytree.tree_leaves([result.now, states, scale, torch.get_rng_state()])
    running.close()
    return result


def _bits(value):
    return value.reshape(-1).view(torch.uint8) if isinstance(value, torch.Tensor) and value.numel() else value


def same(one, other):
    """Whether two lists of tensors and numbers are the same, bit for bit."""
    if len(one) != len(other):
        return False
    for a, b in zip(one, other, strict=True):
        if isinstance(a, torch.Tensor):
            if a.dtype is not b.dtype or a.shape != b.shape or not (a.numel() == 0 or torch.equal(_bits(a), _bits(b))):
                return False
        elif a is not b and repr(a) != repr(b):
            return False
    return True


def _is_at(bug, file, line):
    """Whether a place is the line of a program that a case names."""
    return Path(file).resolve().parent == Path(__file__).parent and bug.at in linecache.getline(file, line)


def _matches(says, message):
    return says.fullmatch(message) is not None if isinstance(says, re.Pattern) else says == message


# ---------------------------------------------------------------- what is asked of every case


def strict_raises(rule, bug):
    ran = run(bug.program, "strict", bug.steps)
    error = ran.error
    assert isinstance(error, AmpError), (error, ran.handle and ran.handle.report())
    assert error.rule == rule, str(error)
    assert error.argument == (bug.names[0] if bug.names else None)
    assert _matches(bug.says, error.violations[0]), error.violations[0]
    for phrase in FIXES[rule]:
        assert phrase in str(error).split("  fix  ")[1].split("  rule  ")[0]
    assert f"docs/rules/{rule}.md" in str(error)
    file, line = error.call_site.split(", in ")[0].rsplit(":", 1)
    assert _is_at(bug, file, int(line)), error.call_site
    assert bug.late or same(ran.now, ran.parameters)


def lenient_warns_once_and_goes_on(rule, bug):
    alone = run(bug.program, None, bug.steps)
    ran = run(bug.program, "lenient", bug.steps)
    (finding,) = ran.found(rule)
    assert (finding.severity, finding.parameters) == (SEVERITIES[rule], bug.names)
    assert _matches(bug.says, finding.message), finding.message
    assert all(phrase in finding.fix for phrase in FIXES[rule])
    assert [(type(ran.error), str(ran.error)), ran.steps] == [(type(alone.error), str(alone.error)), alone.steps]
    assert same(ran.everything, alone.everything)
    told = [warning for warning in ran.told if issubclass(warning.category, AmpWarning)]
    mine = [warning for warning in told if str(warning.message).startswith(f"{rule} ")]
    assert len(mine) == 1
    assert _is_at(bug, mine[0].filename, mine[0].lineno), finding.site
    assert {str(warning.message)[:5] for warning in told} <= {rule, *bug.also}


def off_is_silent(bug):
    alone = run(bug.program, None, bug.steps)
    ran = run(bug.program, "off", bug.steps)
    assert ran.handle.report() == []
    assert not [warning for warning in ran.told if issubclass(warning.category, AmpWarning)]
    assert (type(ran.error), str(ran.error), ran.steps) == (type(alone.error), str(alone.error), alone.steps)
    assert same(ran.everything, alone.everything)


def nothing_is_said(program, steps=60):
    alone = run(program, None, steps)
    assert alone.error is None, "the program itself is broken"
    ran = run(program, "strict", steps)
    if ran.error is not None:
        raise ran.error
    assert not ran.told
    assert ran.serious() == []
    assert same(ran.everything, alone.everything)


def rows(table):
    """The cases of a table by rule, for parametrize."""
    return [
        pytest.param(rule, case, id=f"{rule}: {name}", marks=NEEDS.get(name, ()))
        for rule in table
        for name, case in table[rule].items()
    ]


NEEDS = {"any dtype was asked for": since("torch", "2.10", "parameters have no grad_dtype")}
