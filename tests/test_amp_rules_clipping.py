"""Rule DG309: gradients clipped while they are scaled, and all else that is done to scaled gradients."""

import re

import pytest
import torch
from amp_programs import (
    ALL,
    F16,
    GRADIENTS,
    Bug,
    batch,
    clip_norm,
    clip_value,
    clipped_after_unscaling_both,
    finish,
    lenient_warns_once_and_goes_on,
    nothing_is_said,
    of,
    off_is_silent,
    one,
    program,
    rows,
    scaled_backward,
    square,
    strict_raises,
    train,
    two,
)
from torch import nn


def user_clip(model, scaler, step):
    total = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    for parameter in model.parameters():
        parameter.grad.mul_((2.5 / (total + 1e-6)).clamp(max=1.0))


def user_clip_through_data(model, scaler, step):
    total = sum(p.grad.data.norm().item() ** 2 for p in model.parameters()) ** 0.5
    for parameter in model.parameters():
        parameter.grad.data.mul_(min(1.0, 1.0 / (total + 1e-6)))


def later(start, spoil):
    return lambda model, scaler, step: spoil(model, scaler, step) if step >= start else None


def sharpness_aware(step, model, optimizer, scaler):
    scaled_backward(model, scaler, step)
    norm = torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm()
    moved = [0.05 * parameter.grad / norm for parameter in model.parameters()]
    with torch.no_grad():
        for parameter, move in zip(model.parameters(), moved, strict=True):
            parameter.add_(move)
    optimizer.zero_grad()
    scaled_backward(model, scaler, step)
    with torch.no_grad():
        for parameter, move in zip(model.parameters(), moved, strict=True):
            parameter.sub_(move)
    finish(scaler, optimizer)


def clamp_anew(model, scaler, step):
    for parameter in model.parameters():
        parameter.grad = parameter.grad.clamp(-1, 1)


def each_layer(model, scaler, step):
    nn.utils.clip_grad_norm_(model.body.parameters(), 1.0)
    nn.utils.clip_grad_norm_(model.head.parameters(), 0.5)


def write(change):
    """`change(gradient)` in place on every gradient."""

    def spoil(model, scaler, step):
        for parameter in model.parameters():
            change(parameter.grad)

    return spoil


def zero_the_head(model, scaler, step):
    model.head.weight.grad.zero_()


def clip_to_scaled_bound(model, scaler, step):
    nn.utils.clip_grad_norm_(model.parameters(), 1.0 * scaler.get_scale())


def by_tokens(model, scaler, step):
    for parameter in model.parameters():
        parameter.grad.div_(3000 + 517 * (step % 11))


def one_clip_for_two(step, a, b, oa, ob, scaler):
    scaler.scale(square(a(batch(step))) + square(b(batch(step)))).backward()
    nn.utils.clip_grad_norm_([*a.parameters(), *b.parameters()], 1.0)
    scaler.step(oa)
    scaler.step(ob)
    scaler.update()


CLIPPED = (
    GRADIENTS + " were clipped to {} while still multiplied by the scale {:g}: after unscaling the bound is {:.3g}"
)


OF_FIRST = tuple(f"Net[0].{name}" for name in ALL)


def clipped(how, bound, scale=65536.0):
    return CLIPPED.format(how, scale, bound / scale)


BUGS = {
    "DG309": {
        **{
            f"to norm {bound}": Bug(
                program(train, spoil=clip_norm(bound), unscale=unscale, autocast=F16, scale=1024.0),
                clipped(f"norm {bound:.3g}", bound, 1024.0),
                "scaler.unscale_(optimizer)" if unscale else "scaler.step(optimizer)",
                ALL,
            )
            for bound, unscale in ((0.37, True), (1.0, False), (5, True))
        },
        "to a maximum norm, one tensor at a time": Bug(
            program(train, spoil=clip_norm(0.5, norm_type=float("inf"), foreach=False), micro=3),
            clipped("maximum norm 0.5", 0.5),
            *("scaler.step(optimizer)", ALL),
        ),
        "to a 1-norm, Adam": Bug(
            program(train, spoil=clip_norm(10.0, norm_type=1), optimizer=of(torch.optim.Adam), scale=1024.0),
            clipped("1-norm 10", 10.0, 1024.0),
            *("scaler.step(optimizer)", ALL),
        ),
        "to values": Bug(
            program(train, spoil=clip_value(0.25)),
            clipped("values between -0.25 and 0.25", 0.25),
            *("scaler.step(optimizer)", ALL),
        ),
        "to a norm, gradients kept and zeroed": Bug(
            program(train, spoil=clip_norm(2.0), set_to_none=False, optimizer=of(torch.optim.Adagrad)),
            clipped("norm 2", 2.0),
            *("scaler.step(optimizer)", ALL),
        ),
        "to values, with a fused optimizer": Bug(
            program(train, spoil=clip_value(1.0), optimizer=of(torch.optim.AdamW, fused=True)),
            clipped("values between -1 and 1", 1.0),
            *("scaler.step(optimizer)", ALL),
        ),
        "to a third": Bug(
            program(train, spoil=clip_norm(1 / 3)),
            clipped("norm 0.333", 1 / 3),
            "scaler.step(optimizer)",
            ALL,
            late=True,
        ),
        "each layer by itself": Bug(
            program(train, spoil=each_layer),
            clipped("norm 1", 1.0),
            *("scaler.step(optimizer)", ALL),
            late=True,
        ),
        "in a loop of the user's": Bug(
            program(train, spoil=user_clip), clipped("norm 2.5", 2.5), "scaler.step(optimizer)", ALL
        ),
        "in a loop of the user's, through `.data`": Bug(
            program(train, spoil=user_clip_through_data), clipped("norm 1", 1.0), "scaler.step(optimizer)", ALL
        ),
        "from the 71st step": Bug(
            program(train, spoil=later(70, clip_norm(0.7)), optimizer=of(torch.optim.SGD, lr=1e-3)),
            *(clipped("norm 0.7", 0.7), "scaler.step(optimizer)", ALL),
            steps=110,
        ),
        "in new tensors": Bug(
            program(train, spoil=clamp_anew),
            clipped("values between -1 and 1", 1.0),
            *("scaler.step(optimizer)", ALL),
        ),
        "at once for two optimizers": Bug(
            program(two, iteration=one_clip_for_two),
            re.compile(
                r"gradients of `Net\[0\]\.body\.weight`.* were clipped to norm 1 while .* the bound is 1\.53e-05"
            ),
            *("scaler.step(oa)", OF_FIRST),
        ),
    },
}
HEALTHY = {
    "DG309": {
        "clipped after unscale_": program(train, unscale=True, clip=clip_norm(0.37), autocast=F16),
        "clipped after unscale_, gradients zeroed in place": program(
            train, unscale=True, clip=clip_norm(0.5), set_to_none=False, optimizer=of(torch.optim.RMSprop)
        ),
        "clipped after unscale_, to values": program(train, unscale=True, clip=clip_value(0.01)),
        "clipped after unscale_, fused": program(
            train, unscale=True, clip=clip_norm(1.0), optimizer=of(torch.optim.Adam, fused=True)
        ),
        "one clip for two optimizers after unscale_": program(two, iteration=clipped_after_unscaling_both),
        "to a bound times the scale": program(train, spoil=clip_to_scaled_bound),
        "divided by a number of ranks": program(train, spoil=write(lambda gradient: gradient.div_(3))),
        "divided by a number of tokens": program(train, spoil=by_tokens),
        "divided by one number of tokens, on one batch, with a small lr": program(
            train,
            spoil=write(lambda gradient: gradient.div_(5000)),
            inputs=lambda step: batch(0),
            optimizer=of(torch.optim.SGD, lr=1e-6),
        ),
        "sharpness-aware": program(one, iteration=sharpness_aware),
        "one layer held still": program(train, spoil=zero_the_head),
        "NaN made zero": program(train, spoil=write(lambda gradient: gradient.nan_to_num_(0.0, 1e5, -1e5))),
        "noise added": program(train, spoil=write(lambda gradient: gradient.add_(torch.randn_like(gradient)))),
        "a mask": program(train, spoil=write(lambda gradient: gradient.view(-1)[::2].zero_())),
        "centred": program(train, spoil=write(lambda gradient: gradient.sub_(gradient.mean()))),
        "three quarters of whole numbers": program(
            train,
            spoil=write(lambda gradient: gradient.mul_(0.75)),
            scale=1.0,
            loss=lambda output: output.float().sum(),
        ),
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


@pytest.mark.parametrize(("rule", "healthy"), rows(HEALTHY))
def test_nothing_is_said_of_a_program_that_is_right(rule, healthy):
    nothing_is_said(healthy)
