"""Rules DG307, DG308 and DG310 to DG313: how a GradScaler is used."""

import re

import pytest
import torch
from amp_programs import (
    ALL,
    F16,
    GRADIENTS,
    Bug,
    Net,
    batch,
    clipped_after_unscaling_both,
    finish,
    lenient_warns_once_and_goes_on,
    nothing_is_said,
    of,
    off_is_silent,
    one,
    one_update_for_two,
    one_without_scaler,
    program,
    rows,
    scaled_backward,
    sgd,
    square,
    strict_raises,
    train,
    two,
)
from torch import nn


def forget_gradients(step, model, optimizer, scaler):
    scaled_backward(model, scaler, step)
    optimizer.zero_grad()
    scaler.step(optimizer)
    scaler.update()


def detached(step, model, optimizer, scaler):
    loss = scaler.scale(square(model(batch(step))).detach())
    loss.backward()


def computed_without_grad(step, model, optimizer, scaler):
    with torch.no_grad():
        loss = square(model(batch(step)))
    scaler.scale(loss).backward()


def one_left_out(step, a, b, oa, ob, scaler):
    scaled_backward(a, scaler, step)
    scaler.step(oa)
    scaler.step(ob)


def validated(step, model, optimizer, scaler):
    scaled_backward(model, scaler, step)
    finish(scaler, optimizer)
    with torch.no_grad():
        assert scaler.scale(square(model(batch(step)))).item() > 0


def a_constant_among_losses(step, model, optimizer, scaler):
    first, second = scaler.scale([square(model(batch(step))), torch.tensor(0.5)])
    (first + second).backward()
    finish(scaler, optimizer)


def experts(step, a, b, oa, ob, scaler):
    scaled_backward((a, b)[step % 2], scaler, step)
    finish(scaler, oa, ob)


def another_batch_after_unscaling(step, model, optimizer, scaler):
    scaled_backward(model, scaler, step)
    scaler.unscale_(optimizer)
    scaled_backward(model, scaler, step + 1)
    scaler.step(optimizer)
    scaler.update()


def unscaled_in_the_middle_of_four(step, model, optimizer, scaler):
    for n in range(4):
        scaler.scale(square(model(batch(step + n))) / 4).backward()
        if n == 1:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()


def a_penalty_after_unscaling(step, model, optimizer, scaler):
    scaled_backward(model, scaler, step)
    scaler.unscale_(optimizer)
    scaler.scale(1e-2 * model.head.weight.square().sum()).backward()
    scaler.step(optimizer)
    scaler.update()


def the_other_s_loss_after_unscaling(step, a, b, oa, ob, scaler):
    scaled_backward(a, scaler, step)
    scaler.unscale_(oa)
    scaled_backward(b, scaler, step)
    finish(scaler, oa, ob)


def a_step_left_out_after_unscaling(step, model, optimizer, scaler):
    scaled_backward(model, scaler, step)
    scaler.unscale_(optimizer)
    if step % 2:
        scaler.step(optimizer)
    scaler.update()


def never_scaled(step, model, optimizer, scaler):
    square(model(batch(step))).backward()
    scaler.step(optimizer)


def scaled_at_first(step, model, optimizer, scaler):
    loss = square(model(batch(step)))
    (scaler.scale(loss) if step < 3 else loss).backward()
    scaler.unscale_(optimizer)
    finish(scaler, optimizer)


def one_loss_of_two(step, model, optimizer, scaler):
    scaled_backward(model, scaler, step)
    square(model(batch(step + 1))).backward()
    scaler.step(optimizer)
    scaler.update()


def one_loss_of_two_and_a_look_at_the_scale(step, model, optimizer, scaler):
    scaled_backward(model, scaler, step)
    square(model(batch(step + 1))).backward()
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    assert before <= scaler.get_scale()


def the_last_of_four(step, model, optimizer, scaler):
    for n in range(4):
        loss = square(model(batch(step + n))) / 4
        (loss if n == 3 else scaler.scale(loss)).backward()
    scaler.unscale_(optimizer)
    finish(scaler, optimizer)


def gradient_penalty(step, model, optimizer, scaler):
    loss = square(model(batch(step)))
    scaled = torch.autograd.grad(scaler.scale(loss), list(model.parameters()), create_graph=True)
    penalty = torch.stack([(g / scaler.get_scale()).square().sum() for g in scaled]).sum().sqrt()
    scaler.scale(loss + penalty).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    finish(scaler, optimizer)


def both_scaled_first(step, a, b, oa, ob, scaler):
    first, second = scaler.scale(square(a(batch(step)))), scaler.scale(square(b(batch(step))))
    first.backward()
    scaler.step(oa)
    second.backward()
    scaler.step(ob)
    scaler.update()


def generator_and_critic():
    return [nn.Linear(3, 3), Net()]


def gan(step, generator, critic, og, oc, scaler):
    made = generator(batch(step))
    scaler.scale(square(critic(made.detach())) + square(critic(batch(step + 1)))).backward()
    scaler.step(oc)
    og.zero_grad()
    scaler.scale(square(critic(made))).backward()
    scaler.step(og)
    scaler.update()


def gan_with_two_steps(step, generator, critic, og, oc, scaler):
    for n in range(2):
        oc.zero_grad()
        scaled_backward(critic, scaler, step + n)
        finish(scaler, oc)
    scaler.scale(square(critic(generator(batch(step))))).backward()
    finish(scaler, og)


def gan_half_scaled(step, generator, critic, og, oc, scaler):
    scaler.scale(square(critic(generator(batch(step))))).backward()
    finish(scaler, og)
    oc.zero_grad()
    square(critic(generator(batch(step)).detach())).backward()
    oc.step()


def unscaled_before_the_scaled(step, model, optimizer, scaler):
    square(model.head(torch.ones(4, 8))).backward()
    scaler.scale(square(model.body(batch(step)))).backward()
    finish(scaler, optimizer)


def kept_aside(step, model, optimizer, scaler):
    scaled_backward(model, scaler, step)
    kept = [parameter.grad for parameter in model.parameters()]
    optimizer.zero_grad()
    square(model(batch(step + 1))).backward()
    for parameter, gradient in zip(model.parameters(), kept, strict=True):
        parameter.grad = gradient
    finish(scaler, optimizer)


def surgery(step, model, optimizer, scaler):
    output, parameters = model(batch(step)), list(model.parameters())
    one = torch.autograd.grad(scaler.scale(square(output)), parameters, retain_graph=True)
    other = torch.autograd.grad(scaler.scale(output.square().mean()), parameters)
    for parameter, a, b in zip(parameters, one, other, strict=True):
        parameter.grad = a + b - (a * b).sum().clamp(max=0) * b / b.square().sum()
    finish(scaler, optimizer)


def in_two_parts(step, model, optimizer, scaler):
    inner = model.body(batch(step))
    cut = inner.detach().requires_grad_()
    scaler.scale(square(model.head(cut.tanh()))).backward()
    inner.backward(cut.grad)
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    finish(scaler, optimizer)


def in_two_parts_by_a_surrogate(step, model, optimizer, scaler):
    with torch.no_grad():
        inner = model.body(batch(step))
    inner.requires_grad_()
    scaler.scale(square(model.head(inner.tanh()))).backward()
    for part, gradient in zip(batch(step).chunk(2), inner.grad.chunk(2), strict=True):
        (model.body(part) * gradient).sum().backward()
    finish(scaler, optimizer)


def logged(step, model, optimizer, scaler):
    loss = square(model(batch(step)))
    scaler.scale(loss).backward()
    assert scaler.scale(loss.detach()).item() > 0
    finish(scaler, optimizer)


def diagnosed(step, model, optimizer, scaler):
    square(model(batch(step))).backward()
    optimizer.zero_grad(set_to_none=False)
    scaled_backward(model, scaler, step)
    finish(scaler, optimizer)


def sum_of_scaled(step, model, optimizer, scaler):
    (scaler.scale(square(model(batch(step)))) / 4 + scaler.scale(square(model(batch(step + 1))))).backward()
    finish(scaler, optimizer)


def each_micro_batch(step, model, optimizer, scaler):
    for n in range(2):
        scaled_backward(model, scaler, step + n)
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    finish(scaler, optimizer)


def to_log_the_norm(step, model, optimizer, scaler):
    scaled_backward(model, scaler, step)
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.unscale_(optimizer)
    finish(scaler, optimizer)


def the_wrong_one_again(step, a, b, oa, ob, scaler):
    scaler.scale(square(a(batch(step))) + square(b(batch(step)))).backward()
    scaler.unscale_(oa)
    scaler.unscale_(oa)
    finish(scaler, oa, ob)


def accumulated(step, model, optimizer, scaler):
    scaled_backward(model, scaler, step, times=4)
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 0.37)
    finish(scaler, optimizer)


def no_update(step, model, optimizer, scaler):
    scaled_backward(model, scaler, step)
    scaler.step(optimizer)


def no_update_after_unscaling(step, model, optimizer, scaler):
    scaled_backward(model, scaler, step)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)


def update_every_second(step, model, optimizer, scaler):
    scaled_backward(model, scaler, step)
    scaler.step(optimizer)
    if step % 2:
        scaler.update()


def stepped_twice(step, a, b, oa, ob, scaler):
    scaler.scale(square(a(batch(step))) + square(b(batch(step)))).backward()
    finish(scaler, oa)
    scaler.step(ob)
    scaler.step(ob)


def past(step, model, optimizer, scaler):
    scaled_backward(model, scaler, step)
    optimizer.step()


def past_after_unscaling(step, model, optimizer, scaler):
    scaled_backward(model, scaler, step)
    scaler.unscale_(optimizer)
    optimizer.step()
    scaler.update()


def past_from_the_sixth(step, model, optimizer, scaler):
    scaled_backward(model, scaler, step)
    if step < 5:
        finish(scaler, optimizer)
    else:
        optimizer.step()


def past_for_the_second(step, a, b, oa, ob, scaler):
    scaler.scale(square(a(batch(step))) + square(b(batch(step)))).backward()
    scaler.step(oa)
    ob.step()
    scaler.update()


def warm_start(step, model, optimizer, scaler):
    if step < 5:
        square(model(batch(step))).backward()
        optimizer.step()
    else:
        scaled_backward(model, scaler, step)
        finish(scaler, optimizer)


def unscaled_by_hand(step, model, optimizer, scaler):
    scaled_backward(model, scaler, step)
    for parameter in model.parameters():
        parameter.grad.mul_(1 / scaler.get_scale())
    if all(p.grad.isfinite().all() for p in model.parameters()):
        optimizer.step()
    scaler.update(scaler.get_scale())


def nan(step):
    return batch(step) * float("nan")


def poisoned(every):
    return lambda step: batch(step) * (float("nan") if step % every == every - 1 else 1.0)


def in_turn(step, a, b, oa, ob, scaler):
    scaled_backward((a, b)[step % 2], scaler, step)
    finish(scaler, (oa, ob)[step % 2])


def by_hand(step, model, optimizer, scaler):
    scaler.scale(torch.ones(()))
    (square(model(batch(step))) * scaler.get_scale()).backward()
    finish(scaler, optimizer)


UNSCALED = f"SGD gets {GRADIENTS} from a backward without `scaler.scale`; unscaling divides them by 65536"


TWICE = "`unscale_` is called a second time on {} ({} since its last step, and no `update()` between)"


AGAIN = "`scaler.{}` is called on {} again, and `scaler.update()` was not called since its last step"


def only_falls(start, names):
    return re.compile(
        rf"the scale has fallen from {start} to [\de.+-]+: (\d+) of \1 steps were skipped for non-finite gradients.*"
        + ".*".join(f"`{name}`" for name in names[:1])
        + "(?!.*and 0 others).*"
    )


def falls(start, **options):
    names = options.pop("names", ALL)
    return Bug(program(train, **options), only_falls(start, names), "scaler.update()", names)


BUGS = {
    "DG307": {
        "a detached loss": Bug(
            program(one, iteration=detached),
            "the loss is detached, so the scaler has no gradients to check",
            "scaler.scale(square(model(batch(step))).detach())",
        ),
        "a loss computed without grad": Bug(
            program(one, iteration=computed_without_grad),
            "the loss is detached, so the scaler has no gradients to check",
            "scaler.scale(loss)",
        ),
        "gradients set to None before the step": Bug(
            program(one, iteration=forget_gradients),
            "no parameter of SGD has a gradient, so the scaler has no gradients to check",
            "scaler.step(optimizer)",
        ),
        "an optimizer that the loss does not depend on": Bug(
            program(two, iteration=one_left_out, optimizers=(sgd, of(torch.optim.Adam))),
            "no parameter of Adam 1 has a gradient, so the scaler has no gradients to check",
            "scaler.step(ob)",
            late=True,
        ),
    },
    "DG308": {
        "never scaled": Bug(program(one, iteration=never_scaled), UNSCALED, "scaler.step(optimizer)", ALL),
        "no longer scaled": Bug(program(one, iteration=scaled_at_first), UNSCALED, "scaler.unscale_(optimizer)", ALL),
        "one loss of two": Bug(program(one, iteration=one_loss_of_two), UNSCALED, "scaler.step(optimizer)", ALL),
        "one loss of two, where the scale is read to see a skipped step": Bug(
            program(one, iteration=one_loss_of_two_and_a_look_at_the_scale), UNSCALED, "scaler.step(optimizer)", ALL
        ),
        "an unscaled loss before the scaled one": Bug(
            program(one, iteration=unscaled_before_the_scaled),
            "SGD gets gradients of `head.weight`, `head.bias` from a backward without `scaler.scale`; "
            "unscaling divides them by 65536",
            *("scaler.step(optimizer)", ALL[2:]),
        ),
        "the last micro-batch": Bug(
            program(one, iteration=the_last_of_four), UNSCALED, "scaler.unscale_(optimizer)", ALL
        ),
    },
    "DG310": {
        "on each micro-batch": Bug(
            program(one, iteration=each_micro_batch),
            TWICE.format("SGD", "2 scaled losses"),
            "scaler.unscale_(optimizer)",
        ),
        "to log a norm": Bug(
            program(one, iteration=to_log_the_norm, optimizer=of(torch.optim.Adagrad)),
            TWICE.format("Adagrad", "1 scaled loss"),
            "scaler.unscale_(optimizer)",
        ),
        "on the first optimizer instead of the second": Bug(
            program(two, iteration=the_wrong_one_again), TWICE.format("SGD 0", "1 scaled loss"), "scaler.unscale_(oa)"
        ),
    },
    "DG311": {
        "update forgotten": Bug(
            program(one, iteration=no_update), AGAIN.format("step", "SGD"), "scaler.step(optimizer)"
        ),
        "update forgotten, with unscale_": Bug(
            program(one, iteration=no_update_after_unscaling),
            *(AGAIN.format("unscale_", "SGD"), "scaler.unscale_(optimizer)"),
        ),
        "update at every second step": Bug(
            program(one, iteration=update_every_second, optimizer=of(torch.optim.Adam, fused=True)),
            *(AGAIN.format("step", "Adam"), "scaler.step(optimizer)"),
        ),
        "one optimizer twice": Bug(
            program(two, iteration=stepped_twice), AGAIN.format("step", "SGD 1"), "scaler.step(ob)", late=True
        ),
    },
    "DG312": {
        "in place of scaler.step": Bug(
            program(one, iteration=past),
            "SGD.step() was called directly on gradients that are still multiplied by the scale 65536",
            "optimizer.step()",
            also=("DG408",),
        ),
        "after unscale_": Bug(
            program(one, iteration=past_after_unscaling, optimizer=of(torch.optim.AdamW, foreach=True)),
            "AdamW.step() was called directly after `unscale_`, past the scaler's check for inf and NaN",
            "optimizer.step()",
        ),
        "from the sixth step": Bug(
            program(one, iteration=past_from_the_sixth, optimizer=of(torch.optim.SGD, lr=0.1, momentum=0.9)),
            "SGD.step() was called directly on gradients that are still multiplied by the scale 65536",
            "optimizer.step()",
            also=("DG408",),
        ),
        "for the second optimizer": Bug(
            program(two, iteration=past_for_the_second),
            "SGD 1.step() was called directly on gradients that are still multiplied by the scale 65536",
            "ob.step()",
            late=True,
            also=("DG408",),
        ),
    },
    "DG313": {
        "NaN in the data": falls(65536, inputs=nan),
        "an overflow in the forward, from a small scale": falls(
            16, scale=16.0, autocast=F16, loss=lambda output: (output * 1e5).float().square().mean()
        ),
        "NaN in one parameter": falls(
            256,
            scale=256.0,
            spoil=lambda model, scaler, step: model.head.bias.grad.fill_(float("nan")),
            names=("head.bias",),
        ),
    },
}
MIXED = (
    "a scaled loss was added to the gradients of SGD after `unscale_`: they mix parts that are divided by the scale "
    "65536 and parts that are not"
)
BUGS["DG314"] = {
    "another batch after unscaling": Bug(
        program(one, iteration=another_batch_after_unscaling), MIXED, "scaler.step(optimizer)"
    ),
    "unscaled in the middle of four batches": Bug(
        program(one, iteration=unscaled_in_the_middle_of_four), MIXED, "scaler.step(optimizer)", also=("DG313",)
    ),
    "a penalty after unscaling": Bug(
        program(one, iteration=a_penalty_after_unscaling), MIXED, "scaler.step(optimizer)"
    ),
}
HEALTHY = {
    "DG314": {
        "once, after four micro-batches": program(one, iteration=accumulated),
        "the loss of another optimizer after unscaling": program(two, iteration=the_other_s_loss_after_unscaling),
        "a step left out by hand after unscaling": program(one, iteration=a_step_left_out_after_unscaling),
    },
    "DG307": {
        "validation, scaled for the log": program(one, iteration=validated),
        "the loss scaled for the log, detached": program(one, iteration=logged),
        "a constant among the losses": program(one, iteration=a_constant_among_losses),
        "experts with fused optimizers, one of them at a time": program(
            two, iteration=experts, optimizers=(of(torch.optim.SGD, lr=0.1, fused=True),) * 2
        ),
        "an optimizer that does not step in this iteration": program(two, iteration=in_turn),
    },
    "DG308": {
        "multiplied by the scale by hand": program(one, iteration=by_hand),
        "a gradient penalty": program(one, iteration=gradient_penalty),
        "two losses scaled before the first backward": program(two, iteration=both_scaled_first),
        "an unscaled backward whose gradients are zeroed": program(one, iteration=diagnosed),
        "gradients kept aside": program(one, iteration=kept_aside),
        "gradients put together by hand": program(one, iteration=surgery),
        "a backward in two parts": program(one, iteration=in_two_parts),
        "a backward in two parts, by a surrogate": program(one, iteration=in_two_parts_by_a_surrogate),
        "a sum of scaled losses": program(one, iteration=sum_of_scaled),
        "accumulation over four micro-batches": program(train, micro=4, autocast=F16),
        "accumulation into gradients that are zeroed": program(train, micro=2, autocast=F16, set_to_none=False),
        "a GAN": program(two, iteration=gan, models=generator_and_critic, optimizers=(of(torch.optim.Adam),) * 2),
        "a GAN whose critic steps twice": program(two, iteration=gan_with_two_steps, models=generator_and_critic),
    },
    "DG310": {
        "once, after four micro-batches": program(one, iteration=accumulated),
        "once for each of two optimizers": program(two, iteration=clipped_after_unscaling_both),
        "never": program(train, micro=2),
    },
    "DG311": {
        "one update for two optimizers": program(two, iteration=one_update_for_two),
        "after every step": program(train, optimizer=of(torch.optim.Adagrad, lr=0.1)),
        "a disabled scaler, never updated": program(train, enabled=False),
    },
    "DG312": {
        "an optimizer that the scaler does not drive": program(two, iteration=one_without_scaler),
        "a GAN whose critic has no scaler": program(two, iteration=gan_half_scaled, models=generator_and_critic),
        "a few steps before the scaler is used": program(one, iteration=warm_start),
        "unscaled by hand": program(one, iteration=unscaled_by_hand),
        "the scaler's own call, fused": program(train, optimizer=of(torch.optim.AdamW, fused=True), autocast=F16),
    },
    "DG313": {
        "a scale that settles": program(train, autocast=F16, scale=2.0**40),
        "a bad batch now and then": program(train, autocast=F16, inputs=poisoned(10), scale=1024.0),
        "a scale below 1 that trains": program(
            train,
            autocast=F16,
            scale=2.0,
            loss=lambda output: (output.float() * 3e5).sum(),
            optimizer=of(torch.optim.SGD, lr=1e-9),
        ),
        "a small scale from the start": program(train, autocast=F16, scale=0.5),
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
