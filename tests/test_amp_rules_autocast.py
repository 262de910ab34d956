"""Rules DG301 to DG306: float16 parameters, gradients of another dtype, autocast and the scaler, the loss."""

import itertools

import pytest
import torch
from amp_programs import (
    ALL,
    BF16,
    F16,
    FIXES,
    FOUR,
    Bug,
    Net,
    batch,
    finish,
    lenient_warns_once_and_goes_on,
    nothing_is_said,
    of,
    off_is_silent,
    once,
    one,
    one_update_for_two,
    one_without_scaler,
    program,
    rows,
    run,
    same,
    sgd,
    square,
    strict_raises,
    train,
    two,
)
from torch import nn


def unscaled(watch, model=Net, optimizer=sgd, dtype=F16, scaler=None):
    """A loop with autocast and without scaling; `scaler` makes one that is given to the watch and not used."""
    model, scaler = model(), scaler and scaler()
    optimizer = optimizer(model)
    yield [model], [optimizer], scaler
    yield watch(model, optimizer, scaler)
    for step in itertools.count():
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            output = model(batch(step))
        square(output).backward()
        optimizer.step()
        yield


def half_net():
    return Net().half()


def half_head():
    model = Net()
    model.head.half()
    return model


def frozen_half_body():
    model = Net()
    model.body.half().requires_grad_(False)
    return model


def wide_gradients():
    model = HalfInside().to(BF16)
    for parameter in model.parameters():
        parameter.grad_dtype = torch.float32
    return model


def free_gradients():
    model = HalfInside().to(BF16)
    for parameter in model.parameters():
        parameter.grad_dtype = None
    return model


def two_groups(model):
    groups = [{"params": model.body.parameters()}, {"params": model.head.parameters(), "lr": 1e-3}]
    return torch.optim.Adam(groups, lr=1e-2, eps=1e-3)


class Inside(Net):
    """Autocast begins in its forward."""

    dtype = F16

    def forward(self, x):
        with torch.autocast("cpu", dtype=self.dtype):
            return super().forward(x)


class InsideBfloat16(Inside):
    dtype = BF16


class Decorated(Net):
    @torch.autocast("cpu", dtype=F16)
    def forward(self, x):
        return super().forward(x)


class Shielded(Net):
    """Computes in float32, whatever the region that it is called in."""

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return super().forward(x.float())


class Taught(Net):
    """Has a frozen teacher that runs in half precision, without a graph."""

    dtype = F16

    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Linear(3, 1).requires_grad_(False)

    def forward(self, x):
        with torch.no_grad(), torch.autocast("cpu", dtype=self.dtype):
            goal = self.teacher(x)
        return super().forward(x) + goal.float()


class TaughtInBfloat16(Taught):
    dtype = BF16


class HalfInside(Net):
    """Half parameters, called with float32."""

    def __init__(self) -> None:
        super().__init__()
        self.half()

    def forward(self, x):
        return super().forward(x.to(self.head.weight.dtype))


class Mixed(Net):
    """bfloat16 in a float16 region."""

    def forward(self, x):
        with torch.autocast("cpu", dtype=BF16):
            inner = self.body(x).tanh()
        return self.head(inner.float())


def cast_data(*names, dtype=BF16, at=0):
    """Replaces `.data` of parameters between backward and step."""

    def spoil(model, scaler, step):
        for name, parameter in model.named_parameters():
            if step == at and name in names:
                parameter.data = parameter.data.to(dtype)

    return spoil


def widen_gradients(model, scaler, step):
    for parameter in model.parameters():
        parameter.grad = parameter.grad.float()


def use_the_scaler(step, model, optimizer, scaler):
    with torch.autocast("cpu", dtype=F16):
        output = model(batch(step))
    scaler.scale(square(output)).backward()
    finish(scaler, optimizer)


def in_bfloat16(step, model, optimizer, scaler):
    with torch.autocast("cpu", dtype=BF16):
        output = model(batch(step))
    square(output).backward()
    optimizer.step()


def after_a_dry_run(step, model, optimizer, scaler):
    if step == 0:
        with torch.autocast("cpu", dtype=F16):
            model(batch(step))
    in_bfloat16(step, model, optimizer, scaler)


def after_an_evaluation(step, model, optimizer, scaler):
    model.eval()
    with torch.autocast("cpu", dtype=F16), torch.no_grad():
        model(batch(step))
    model.train()
    in_bfloat16(step, model, optimizer, scaler)


def half_loss(output):
    return (output - 3).square().mean()


def half_beside_full(step, model, optimizer, scaler):
    with torch.autocast("cpu", dtype=F16):
        output = model(batch(step))
    first, second = scaler.scale([square(output), output.mean()])
    (first + second).backward()
    finish(scaler, optimizer)


def loss_under_autocast(step, model, optimizer, scaler):
    with torch.autocast("cpu", dtype=F16):
        loss = nn.functional.mse_loss(model(batch(step)), torch.ones(4, 1))
    scaler.scale(loss).backward()
    finish(scaler, optimizer)


def head_only(step, model, optimizer, scaler):
    with torch.no_grad():
        inner = model.body(batch(step))
    scaler.scale(square(model.head(inner))).backward()
    finish(scaler, optimizer)


BUGS = {
    "DG301": {
        "a model in half precision, SGD with momentum": Bug(
            program(train, model=half_net, optimizer=of(torch.optim.SGD, lr=0.1, momentum=0.9), autocast=F16),
            f"{FOUR} (4 of 4 trainable parameters) are float16, and a GradScaler refuses float16 gradients",
            *("watch(model, optimizer, scaler)", ALL),
        ),
        "one layer in half precision, in the second group": Bug(
            program(train, model=half_head, optimizer=two_groups, autocast=F16),
            "`head.weight`, `head.bias` (2 of 4 trainable parameters) are float16, and a GradScaler refuses "
            "float16 gradients",
            *("watch(model, optimizer, scaler)", ALL[2:]),
        ),
        "half after three steps": Bug(
            program(train, autocast=F16, change=once(3, lambda model, optimizer: model.half())),
            f"{FOUR} (4 of 4 trainable parameters) are float16, and a GradScaler refuses float16 gradients",
            *("scaler.step(optimizer)", ALL),
            late=True,
        ),
        "a half layer after five steps, unscaled explicitly": Bug(
            program(train, autocast=F16, unscale=True, change=once(5, lambda model, optimizer: model.head.half())),
            "`head.weight`, `head.bias` (2 of 4 trainable parameters) are float16, and a GradScaler refuses "
            "float16 gradients",
            *("scaler.unscale_(optimizer)", ALL[2:]),
            late=True,
        ),
        "the second of two optimizers": Bug(
            program(two, iteration=one_update_for_two, models=lambda: [Net(), HalfInside()]),
            "`HalfInside.body.weight`, `HalfInside.body.bias`, `HalfInside.head.weight` and 1 more (4 of 4 trainable "
            "parameters) are float16, and a GradScaler refuses float16 gradients",
            *("scaler.step(optimizer)", tuple(f"HalfInside.{name}" for name in ALL)),
            late=True,
        ),
    },
    "DG302": {
        "all of `.data` replaced after backward": Bug(
            program(train, spoil=cast_data(*ALL)),
            f"the gradients of {FOUR} are float32, the parameters bfloat16",
            *("scaler.step(optimizer)", ALL),
            late=True,
        ),
        "one parameter widened at the fourth step": Bug(
            program(train, spoil=cast_data("head.weight", dtype=torch.float64, at=3)),
            "the gradients of `head.weight` are float32, the parameters float64",
            *("scaler.step(optimizer)", ("head.weight",)),
            late=True,
        ),
        "two parameters at a step at which not everything is looked at": Bug(
            program(train, spoil=cast_data("body.weight", "body.bias", at=4), optimizer=of(torch.optim.SGD, lr=0.01)),
            "the gradients of `body.weight`, `body.bias` are float32, the parameters bfloat16",
            *("scaler.step(optimizer)", ALL[:2]),
            late=True,
        ),
    },
    "DG303": {
        "bfloat16 autocast": Bug(
            program(train, autocast=BF16),
            "a GradScaler is enabled, but the forward ran in bfloat16",
            "scaler.scale(loss(output)",
        ),
        "autocast inside the model": Bug(
            program(train, model=InsideBfloat16, optimizer=of(torch.optim.AdamW)),
            "a GradScaler is enabled, but the forward ran in bfloat16",
            "scaler.scale(loss(output)",
        ),
        "a bfloat16 model, accumulating": Bug(
            program(train, model=lambda: Net().to(BF16), inputs=lambda step: batch(step).to(BF16), micro=2),
            "a GradScaler is enabled, but the forward ran in bfloat16",
            "scaler.scale(loss(output)",
        ),
    },
    "DG305": {
        "autocast around the model": Bug(
            program(unscaled),
            "the model ran under float16 autocast, and SGD stepped without a GradScaler",
            "optimizer.step()",
        ),
        "autocast inside the model, Adam": Bug(
            program(unscaled, model=Inside, dtype=BF16, optimizer=of(torch.optim.Adam)),
            "the model ran under float16 autocast, and Adam stepped without a GradScaler",
            "optimizer.step()",
        ),
        "a decorated forward": Bug(
            program(unscaled, model=Decorated, dtype=BF16, optimizer=of(torch.optim.AdamW, fused=True)),
            "the model ran under float16 autocast, and AdamW stepped without a GradScaler",
            "optimizer.step()",
        ),
        "a scaler that is disabled": Bug(
            program(unscaled, scaler=lambda: torch.amp.GradScaler("cpu", enabled=False)),
            "the model ran under float16 autocast, and SGD stepped without a GradScaler",
            "optimizer.step()",
        ),
    },
    "DG306": {
        "a float16 loss": Bug(
            program(train, autocast=F16, loss=half_loss, scale=128.0),
            "the loss given to `scaler.scale` is float16",
            "scaler.scale(loss(output)",
        ),
        "a bfloat16 loss": Bug(
            program(train, autocast=BF16, loss=half_loss),
            "the loss given to `scaler.scale` is bfloat16",
            "scaler.scale(loss(output)",
            also=("DG303",),
        ),
        "one of two losses": Bug(
            program(one, iteration=half_beside_full, optimizer=of(torch.optim.RMSprop)),
            "the loss given to `scaler.scale` is float16",
            "scaler.scale([square(output)",
        ),
    },
}
HEALTHY = {
    "DG301": {
        "float32 parameters under float16 autocast": program(train, autocast=F16),
        "a frozen half body": program(train, model=frozen_half_body, autocast=F16),
        "half parameters and a fused optimizer, which unscales by itself": program(
            train,
            model=half_net,
            inputs=lambda step: batch(step).half(),
            optimizer=of(torch.optim.SGD, lr=0.1, fused=True),
            scale=128.0,
        ),
        "half parameters and a disabled scaler": program(
            train, model=half_net, inputs=lambda step: batch(step).half(), enabled=False
        ),
        "half parameters of an optimizer that the scaler does not drive": program(
            two, iteration=one_without_scaler, models=lambda: [Net(), HalfInside()]
        ),
    },
    "DG302": {
        "converted before the first backward": program(
            train, change=once(0, lambda model, optimizer: model.double()), inputs=lambda step: batch(step).double()
        ),
        "converted in the middle, gradients along with it": program(
            train,
            change=once(5, lambda model, optimizer: model.double()),
            inputs=lambda step: batch(step).to(torch.float64 if step >= 5 else torch.float32),
        ),
        "some parameters without a gradient": program(one, iteration=head_only),
        "a gradient in another dtype that was asked for": program(train, model=wide_gradients, enabled=False),
        "any dtype was asked for": program(train, model=free_gradients, enabled=False, spoil=widen_gradients),
    },
    "DG303": {
        "a disabled scaler": program(train, autocast=BF16, enabled=False),
        "float16": program(train, autocast=F16),
        "float16 and bfloat16 in one model": program(train, model=Mixed, autocast=F16),
        "a teacher in bfloat16, without a graph": program(train, model=TaughtInBfloat16, autocast=F16),
    },
    "DG305": {
        "bfloat16 autocast": program(unscaled, dtype=BF16),
        "a scaler that nobody named to the watch": program(one, iteration=use_the_scaler, named=False),
        "one forward in float16 before training in bfloat16": program(one, iteration=after_a_dry_run, named=False),
        "float16 in evaluation": program(one, iteration=after_an_evaluation, named=False),
        "a teacher in float16, without a graph": program(unscaled, model=Taught, dtype=BF16),
        "a model that turns autocast off": program(unscaled, model=Shielded),
    },
    "DG306": {
        "a loss in float32": program(train, autocast=F16),
        "a half loss and a disabled scaler": program(train, autocast=BF16, loss=half_loss, enabled=False),
        "a loss that autocast computes in float32": program(one, iteration=loss_under_autocast),
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
@pytest.mark.parametrize(("rule", "healthy"), rows(HEALTHY))
def test_nothing_is_said_of_a_program_that_is_right(rule, healthy):
    nothing_is_said(healthy)


LISTED_ONLY = {
    "float32": program(train),
    "autocast that is disabled": program(train, model=Shielded, autocast=F16),
    "autocast that reaches the teacher only": program(train, model=Taught),
    "accumulation in float32, Adam": program(train, micro=2, optimizer=of(torch.optim.Adam)),
}


NOT_LISTED = {
    "float16 autocast": program(train, autocast=F16),
    "autocast inside the model": program(train, model=Inside),
    "a disabled scaler": program(train, enabled=False),
    "float16 for a part": program(train, model=Mixed, autocast=F16),
}


@pytest.mark.parametrize("name", LISTED_ONLY)
def test_a_scaler_that_gains_nothing_is_only_listed(name):
    for mode in ("strict", "lenient"):
        ran = run(LISTED_ONLY[name], mode, 60)
        (finding,) = ran.handle.report()
        assert (finding.rule, finding.severity, finding.parameters) == ("DG304", "info", ())
        assert (
            finding.message == "a GradScaler is enabled, but nothing between the parameters and the loss is in float16"
        )
        assert all(phrase in finding.fix for phrase in FIXES["DG304"])
        assert not ran.told
        assert same(ran.everything, run(LISTED_ONLY[name], None, 60).everything)


@pytest.mark.parametrize("name", NOT_LISTED)
def test_a_scaler_that_is_needed_or_disabled_is_not_listed(name):
    ran = run(NOT_LISTED[name], "strict", 60)
    assert (ran.error, ran.told, ran.handle.report()) == (None, [], [])
