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

import torch
from support import BF16, F16, F32, same
from torch import nn
from torch.utils import _pytree as pytree

from dtypeguard import AmpError, AmpWarning, amp

ALL = ("body.weight", "body.bias", "head.weight", "head.bias")
AT = "optimizer.step()"
FOUR = "`body.weight`, `body.bias`, `head.weight` and 1 more"
GRADIENTS = f"gradients of {FOUR}"
Program = Callable[..., Iterator[Any]]


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


class Wide(Net):
    """Weights around 1, and enough of them for shares that mean something."""

    def __init__(self, dtype=BF16) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 32), nn.Linear(32, 1)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.rand_like(parameter) + 0.5)
        self.to(dtype)


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
    """Copies that are wider, as its state."""

    def move(self, parameter, update):
        parameter.copy_(self.kept(parameter).add_(update))

    def kept(self, parameter):
        return self.state[parameter].setdefault("master", parameter.detach().float().clone())


class HiddenMasters(Masters):
    """Its copies are no state."""

    def kept(self, parameter):
        return self.__dict__.setdefault("copies", {}).setdefault(parameter, parameter.detach().float().clone())


class WideMoments(Own):
    """Momentum in float32, whatever the parameters are; its eps is used in float32 too."""

    dtype = F32

    def move(self, parameter, update):
        moment = self.state[parameter].setdefault("moment", torch.zeros_like(parameter, dtype=self.dtype))
        parameter.add_(moment.mul_(0.5).add_(update.to(moment.dtype)).to(parameter.dtype))


class NarrowMoments(WideMoments):
    dtype = None  # the parameter's


def groups(*options, kind=torch.optim.SGD, **defaults):
    """The body's parameters in the first group, the head's in the second."""
    return lambda model: kind(
        [{"params": list(part.parameters()), **own} for part, own in zip(model.children(), options, strict=True)],
        **defaults,
    )


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


def _is_at(bug, file, line):
    """Whether a place is the line of a program that a case names."""
    return Path(file).resolve().parent == Path(__file__).parent and bug.at in linecache.getline(file, line)


def _matches(says, message):
    return says.fullmatch(message) is not None if isinstance(says, re.Pattern) else says == message


# ---------------------------------------------------------------- what is asked of every case


def is_found(rule, bug):
    """Strict mode raises before parameters change, where it can be known; lenient mode warns once."""
    ran = run(bug.program, "strict", bug.steps)
    error = ran.error
    assert isinstance(error, AmpError), (error, ran.handle and ran.handle.report())
    assert (error.rule, error.argument) == (rule, bug.names[0] if bug.names else None), str(error)
    assert _matches(bug.says, error.violations[0]), error.violations[0]
    file, line = error.call_site.split(", in ")[0].rsplit(":", 1)
    assert _is_at(bug, file, int(line)), error.call_site
    assert bug.late or same(ran.now, ran.parameters)
    alone, ran = run(bug.program, None, bug.steps), run(bug.program, "lenient", bug.steps)
    (finding,) = ran.found(rule)
    assert finding.parameters == bug.names
    assert _matches(bug.says, finding.message), finding.message
    assert [(type(ran.error), str(ran.error)), ran.steps] == [(type(alone.error), str(alone.error)), alone.steps]
    assert same(ran.everything, alone.everything)
    told = [warning for warning in ran.told if issubclass(warning.category, AmpWarning)]
    mine = [warning for warning in told if str(warning.message).startswith(f"{rule} ")]
    assert len(mine) == 1
    assert _is_at(bug, mine[0].filename, mine[0].lineno), finding.site
    assert {str(warning.message)[:5] for warning in told} <= {rule, *bug.also}


def nothing_is_said(program, steps=60):
    alone = run(program, None, steps)
    assert alone.error is None, "the program itself is broken"
    ran = run(program, "strict", steps)
    if ran.error is not None:
        raise ran.error
    assert not ran.told
    assert ran.serious() == []
    assert same(ran.everything, alone.everything)
