"""Faults of training that rules' own programs do not show, and right programs near them, under `amp.watch`.

The programs beside each rule say the usual of it; what is here goes another way through a detector.
"""

import copy
import itertools
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from amp_programs import (
    ADAM,
    ALL,
    AT,
    FOUR,
    Bug,
    Careful,
    HiddenMasters,
    Masters,
    NarrowMoments,
    Net,
    Own,
    Stochastic,
    Wide,
    WideMoments,
    batch,
    clip_norm,
    clip_value,
    closed,
    finish,
    groups,
    half,
    is_found,
    nothing_is_said,
    of,
    once,
    one,
    one_update_for_two,
    plain,
    program,
    run,
    scaled_backward,
    sgd,
    square,
    train,
    two,
    unfrozen_head,
)
from support import BF16, F16, F32
from torch import nn
from torch.nn.utils import prune
from versions import since

# ---------------------------------------------------------------- autocast and dtypes


def unscaled(watch, model=Net, optimizer=sgd, dtype=F16):
    """A loop with autocast and without scaling."""
    model = model()
    optimizer = optimizer(model)
    yield [model], [optimizer], None
    yield watch(model, optimizer)
    for step in itertools.count():
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            output = model(batch(step))
        square(output).backward()
        optimizer.step()
        yield


class HalfInside(Net):
    """Half parameters, called with float32."""

    def __init__(self):
        super().__init__()
        self.half()

    def forward(self, x):
        return super().forward(x.to(self.head.weight.dtype))


def free_gradients(dtype):
    def build():
        model = HalfInside().to(BF16)
        for parameter in model.parameters():
            parameter.grad_dtype = dtype
        return model

    return build


def widen_gradients(model, scaler, step):
    for parameter in model.parameters():
        parameter.grad = parameter.grad.float()


class Inside(Net):
    """Autocast begins in its forward, or ends there."""

    enabled = True

    def forward(self, x):
        with torch.autocast("cpu", dtype=F16, enabled=self.enabled):
            return super().forward(x.float())


class Shielded(Inside):
    enabled = False


class Taught(Net):
    """Has a frozen teacher that runs in float16, without a graph."""

    def __init__(self):
        super().__init__()
        self.teacher = nn.Linear(3, 1).requires_grad_(False)

    def forward(self, x):
        with torch.no_grad(), torch.autocast("cpu", dtype=F16):
            goal = self.teacher(x)
        return super().forward(x) + goal.float()


class Mixed(Net):
    """bfloat16 in a float16 region."""

    def forward(self, x):
        with torch.autocast("cpu", dtype=BF16):
            inner = self.body(x).tanh()
        return self.head(inner.float())


def cast_data(*names, at):
    """Replaces `.data` of parameters between backward and step."""

    def spoil(model, scaler, step):
        for name, parameter in model.named_parameters():
            if step == at and name in names:
                parameter.data = parameter.data.to(BF16)

    return spoil


def after_a_dry_run(step, model, optimizer, scaler):
    if step == 0:
        with torch.autocast("cpu", dtype=F16):
            model(batch(step))
    with torch.autocast("cpu", dtype=BF16):
        output = model(batch(step))
    square(output).backward()
    optimizer.step()


# ---------------------------------------------------------------- scalers


def one_left_out(step, a, b, oa, ob, scaler):
    scaled_backward(a, scaler, step)
    scaler.step(oa)
    scaler.step(ob)


def a_constant_among_losses(step, model, optimizer, scaler):
    first, second = scaler.scale([square(model(batch(step))), torch.tensor(0.5)])
    (first + second).backward()
    finish(scaler, optimizer)


def experts(step, a, b, oa, ob, scaler):
    scaled_backward((a, b)[step % 2], scaler, step)
    finish(scaler, oa, ob)


def in_turn(step, a, b, oa, ob, scaler):
    scaled_backward((a, b)[step % 2], scaler, step)
    finish(scaler, (oa, ob)[step % 2])


def one_loss_of_two_and_a_look_at_the_scale(step, model, optimizer, scaler):
    scaled_backward(model, scaler, step)
    square(model(batch(step + 1))).backward()
    before = scaler.get_scale()
    finish(scaler, optimizer)
    assert before <= scaler.get_scale()


def unscaled_before_the_scaled(step, model, optimizer, scaler):
    square(model.head(torch.ones(4, 8))).backward()
    scaler.scale(square(model.body(batch(step)))).backward()
    finish(scaler, optimizer)


def never_scaled(step, model, optimizer, scaler):
    square(model(batch(step))).backward()
    scaler.step(optimizer)


def both_scaled_first(step, a, b, oa, ob, scaler):
    first, second = scaler.scale(square(a(batch(step)))), scaler.scale(square(b(batch(step))))
    first.backward()
    scaler.step(oa)
    second.backward()
    scaler.step(ob)
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


def sum_of_scaled(step, model, optimizer, scaler):
    (scaler.scale(square(model(batch(step)))) / 4 + scaler.scale(square(model(batch(step + 1))))).backward()
    finish(scaler, optimizer)


def past_from_the_sixth(step, model, optimizer, scaler):
    scaled_backward(model, scaler, step)
    if step < 5:
        finish(scaler, optimizer)
    else:
        optimizer.step()


def stepped_twice(step, a, b, oa, ob, scaler):
    scaler.scale(square(a(batch(step))) + square(b(batch(step)))).backward()
    finish(scaler, oa)
    scaler.step(ob)
    scaler.step(ob)


# ---------------------------------------------------------------- clipping


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
        torch._foreach_add_(list(model.parameters()), moved)
    optimizer.zero_grad()
    scaled_backward(model, scaler, step)
    with torch.no_grad():
        torch._foreach_sub_(list(model.parameters()), moved)
    finish(scaler, optimizer)


def clamp_anew(model, scaler, step):
    for parameter in model.parameters():
        parameter.grad = parameter.grad.clamp(-1, 1)


def each_layer(model, scaler, step):
    nn.utils.clip_grad_norm_(model.body.parameters(), 1.0)
    nn.utils.clip_grad_norm_(model.head.parameters(), 0.5)


def five():
    """Of its ten gradients the values of four are compared at first: none is of the layer in the middle."""
    return nn.Sequential(*[nn.Linear(3, 3) for _ in range(5)])


def clip_part(*layers):
    """One clip of some layers' gradients."""

    def clip(model, scaler=None, step=0):
        nn.utils.clip_grad_norm_([parameter for n in layers for parameter in model[n].parameters()], 0.03)

    return clip


def write(change):
    """`change(gradient, step)` in place on every gradient."""

    def spoil(model, scaler, step):
        for parameter in model.parameters():
            change(parameter.grad, step)

    return spoil


def one_clip_for_two(step, a, b, oa, ob, scaler):
    scaler.scale(square(a(batch(step))) + square(b(batch(step)))).backward()
    nn.utils.clip_grad_norm_([*a.parameters(), *b.parameters()], 1.0)
    finish(scaler, oa, ob)


def clipped(how, bound, scale=65536.0, names=ALL):
    says = f"clipped to {how} while still multiplied by the scale {scale:g}: after unscaling the bound"
    listed = ", ".join(f"`{name}`" for name in names[:3]) + (" and 1 more" if len(names) > 3 else "")
    return f"gradients of {listed} were {says} is {bound / scale:.3g}", "scaler.step(optimizer)", tuple(names)


# ---------------------------------------------------------------- what an optimizer holds


def pair(watch, prepare, together=True):
    """Models and optimizers that `prepare` makes, under one watch or one watch each."""
    models, optimizers = prepare()
    yield models, optimizers, None
    if together:
        yield watch(models, optimizers)
    else:
        handles = [watch(model, optimizer) for model, optimizer in zip(models, optimizers, strict=True)]
        yield handles[0]
    for step in itertools.count():
        for optimizer in optimizers:
            optimizer.zero_grad()
        sum(square(model(batch(step))) for model in models).backward()
        for optimizer in optimizers:
            optimizer.step()
        yield


class Probe(Net):
    """Its body never gets a gradient, and is not frozen either."""

    temperature = None

    def forward(self, x):
        with torch.no_grad():
            inner = self.body(x).tanh()
        return self.head(inner) if self.temperature is None else self.head(inner) * self.temperature[0]


class Caster(Net):
    """Follows the dtype of each layer."""

    def forward(self, x):
        return self.head(self.body(x).tanh().to(self.head.weight.dtype))


def of_head_and_temperature(model):
    model.temperature = [nn.Parameter(torch.ones(()))]
    return torch.optim.SGD([*model.head.parameters(), *model.temperature], lr=0.1)


def new_head(model, optimizer):
    model.head = nn.Linear(8, 1)


def new_mlp(model, optimizer):
    model.head = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5))


def new_head_for_both(model, optimizer):
    new_head(model, optimizer)
    del optimizer.param_groups[0]["params"][2:]
    optimizer.add_param_group({"params": model.head.parameters()})


def assigned(model, optimizer):
    model.load_state_dict({name: tensor.clone() for name, tensor in model.state_dict().items()}, assign=True)


def resumed(model, optimizer):
    """A checkpoint of a float32 run, loaded into bfloat16."""
    twin = Net()
    old = type(optimizer)(twin.parameters(), lr=1e-2)
    square(twin(batch(0))).backward()
    old.step()
    optimizer.load_state_dict(old.state_dict())


def second_stale():
    a, b = Net(), Net()
    optimizers = [sgd(a), sgd(b)]
    new_head(b, None)
    return [a, b], optimizers


def apart():
    """Two models, each with its own watch."""
    models = [Net(), Net()]
    return models, [sgd(model) for model in models]


def holds(count, names, model="Net", optimizer="SGD"):
    return f"{optimizer} holds {count} of 4 parameters that the model {model} does not have, and lacks {names}"


# ---------------------------------------------------------------- updates, averages, values


def infinite(*names, at, value):
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


def now_and_then(model, step):
    if step % 8 == 7:
        infinite(*ALL, at=step, value=float("nan"))(model, step)


def mended(model, step):
    now_and_then(model, step)
    clean(model)


def add_cleaner(model, optimizer):
    optimizer.register_step_pre_hook(lambda *_: clean(model))


def near_the_limit(model, step):
    for parameter in model.parameters():
        parameter.grad.fill_(6e4)


def classes():
    return nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 4)).to(BF16)


def cross_entropy(output):
    return F.cross_entropy(output.float(), torch.arange(len(output)) % 4)


def as_dict(dtype):
    return lambda model: {name: p.detach().to(dtype, copy=True) for name, p in model.named_parameters()}


def as_list(dtype):
    return lambda model: list(as_dict(dtype)(model).values())


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


def averaged(average, follow=None, model=lambda: Wide(F32), optimizer=lambda model: sgd(model, lr=1e-3)):
    return program(plain, model=model, optimizer=optimizer, average=average, follow=follow)


def zero_bias():
    """A model whose head has a bias that any average can follow."""
    model = Wide(F32)
    nn.init.zeros_(model.head.bias)
    return model


def lost(names, optimizer="SGD", lr="1e-05"):
    return re.compile(
        r"(9\d|100) % of the elements of bfloat16 parameters with a non-zero gradient did not move in a step of "
        rf"{optimizer} \(lr={lr}\): {names}"
    )


def stuck(names):
    return re.compile(
        rf"the average of {names} is bfloat16 and does not move: (9\d|100) % of the elements that differ from the "
        r"model stayed as they were in \d+ .*"
    )


# ---------------------------------------------------------------- what is found

REFUSES = "trainable parameters) are float16, and a GradScaler refuses float16 gradients"
UNSCALED = "SGD gets gradients of {} from a backward without `scaler.scale`; unscaling divides them by 65536"
STEP = "scaler.step(optimizer)"
FUSED = of(torch.optim.AdamW, fused=True)
BUGS = {
    "DG301: half after three steps": Bug(
        program(train, autocast=F16, change=once(3, lambda model, optimizer: model.half())),
        *(f"{FOUR} (4 of 4 {REFUSES}", STEP, ALL),
        late=True,
    ),
    "DG301: the second of two optimizers": Bug(
        program(two, iteration=one_update_for_two, models=lambda: [Net(), HalfInside()]),
        f"`HalfInside.body.weight`, `HalfInside.body.bias`, `HalfInside.head.weight` and 1 more (4 of 4 {REFUSES}",
        *("scaler.step(optimizer)", tuple(f"HalfInside.{name}" for name in ALL)),
        late=True,
    ),
    "DG302: two parameters at a step at which not everything is looked at": Bug(
        program(train, spoil=cast_data("body.weight", "body.bias", at=4), optimizer=of(torch.optim.SGD, lr=0.01)),
        *("the gradients of `body.weight`, `body.bias` are float32, the parameters bfloat16", STEP, ALL[:2]),
        late=True,
    ),
    "DG305: autocast inside the model, in another region": Bug(
        program(unscaled, model=Inside, dtype=BF16),
        *("the model ran under float16 autocast, and SGD stepped without a GradScaler", AT),
    ),
    "DG307: an optimizer that the loss does not depend on": Bug(
        program(two, iteration=one_left_out, optimizers=(sgd, of(torch.optim.Adam))),
        *("no parameter of Adam 1 has a gradient, so the scaler has no gradients to check", "scaler.step(ob)"),
        late=True,
    ),
    "DG308: never scaled": Bug(program(one, iteration=never_scaled), UNSCALED.format(FOUR), STEP, ALL),
    "DG308: one loss of two, and the scale is read to see a skipped step": Bug(
        program(one, iteration=one_loss_of_two_and_a_look_at_the_scale), UNSCALED.format(FOUR), STEP, ALL
    ),
    "DG308: an unscaled loss before the scaled one": Bug(
        program(one, iteration=unscaled_before_the_scaled),
        *(UNSCALED.format("`head.weight`, `head.bias`"), STEP, ALL[2:]),
    ),
    "DG309: to a maximum norm, one tensor at a time": Bug(
        program(train, spoil=clip_norm(0.5, norm_type=float("inf"), foreach=False), micro=3),
        *clipped("maximum norm 0.5", 0.5),
    ),
    "DG309: to a 1-norm, Adam": Bug(
        program(train, spoil=clip_norm(10.0, norm_type=1), optimizer=of(torch.optim.Adam), scale=1024.0),
        *clipped("1-norm 10", 10.0, 1024.0),
    ),
    "DG309: to a norm, gradients zeroed in place": Bug(
        program(train, spoil=clip_norm(2.0), set_to_none=False), *clipped("norm 2", 2.0)
    ),
    "DG309: to values, with a fused optimizer": Bug(
        program(train, spoil=clip_value(1.0), optimizer=FUSED), *clipped("values between -1 and 1", 1.0)
    ),
    "DG309: to a third": Bug(program(train, spoil=clip_norm(1 / 3)), *clipped("norm 0.333", 1 / 3), late=True),
    "DG309: each layer by itself": Bug(
        program(train, spoil=each_layer), *clipped("norm 1", 1.0, names=ALL[:2]), late=True
    ),
    "DG309: one layer of five": Bug(
        program(train, model=five, spoil=clip_part(2)),
        *clipped("norm 0.03", 0.03, names=("2.weight", "2.bias")),
        late=True,
    ),
    "DG309: two layers of five": Bug(
        program(train, model=five, spoil=clip_part(0, 2)),
        *clipped("norm 0.03", 0.03, names=("0.weight", "0.bias", "2.weight", "2.bias")),
        late=True,
    ),
    "DG309: in a loop of the user's": Bug(program(train, spoil=user_clip), *clipped("norm 2.5", 2.5)),
    "DG309: in a loop through `.data`": Bug(program(train, spoil=user_clip_through_data), *clipped("norm 1", 1.0)),
    "DG309: from the 71st step": Bug(
        program(train, spoil=later(70, clip_norm(0.7)), optimizer=of(torch.optim.SGD, lr=1e-3)),
        *clipped("norm 0.7", 0.7),
        steps=95,
    ),
    "DG309: in new tensors": Bug(program(train, spoil=clamp_anew), *clipped("values between -1 and 1", 1.0)),
    "DG309: at once for two optimizers": Bug(
        program(two, iteration=one_clip_for_two),
        re.compile(r"gradients of `Net\[0\]\.body\.weight`.* were clipped to norm 1 while .* the bound is 1\.53e-05"),
        *("scaler.step(optimizer)", tuple(f"Net[0].{name}" for name in ALL)),
    ),
    "DG311: one of two optimizers twice": Bug(
        program(two, iteration=stepped_twice),
        "`scaler.step` is called on SGD 1 again, and `scaler.update()` was not called since its last step",
        "scaler.step(ob)",
        late=True,
    ),
    "DG312: from the sixth step": Bug(
        program(one, iteration=past_from_the_sixth, optimizer=of(torch.optim.SGD, lr=0.1, momentum=0.9)),
        *("SGD.step() was called directly on gradients that are still multiplied by the scale 65536", AT),
        also=("DG408",),
    ),
    "DG313: NaN in one parameter": Bug(
        program(train, scale=256.0, spoil=lambda model, scaler, step: model.head.bias.grad.fill_(float("nan"))),
        re.compile(r"the scale has fallen from 256 to [\de.+-]+: (\d+) of \1 steps were skipped .* in `head.bias`"),
        *("scaler.update()", ("head.bias",)),
    ),
    "DG401: the head replaced at the third step": Bug(
        program(plain, change=once(2, new_head)), holds(2, "`head.weight`, `head.bias`"), AT, ALL[2:], late=True
    ),
    "DG401: an MLP in place of the head": Bug(
        program(plain, prepare=new_mlp),
        *(holds(2, "`head.0.weight`, `head.0.bias`, `head.2.weight` and 1 more"), "watch(model, optimizer"),
        ("head.0.weight", "head.0.bias", "head.2.weight", "head.2.bias"),
    ),
    "DG401: load_state_dict(assign=True) in the middle": Bug(
        program(plain, change=once(3, assigned), optimizer=of(torch.optim.RMSprop)),
        *(holds(4, FOUR, optimizer="RMSprop"), AT, ALL),
        late=True,
    ),
    "DG401: the second of two optimizers": Bug(
        program(pair, prepare=second_stale),
        holds(2, "`Net[1].head.weight`, `Net[1].head.bias`", model="Net[0], Net[1]", optimizer="SGD 1"),
        *("watch(models, optimizers)", ("Net[1].head.weight", "Net[1].head.bias")),
    ),
    "DG402: a closure, and one parameter left out": Bug(
        program(closed, optimizer=lambda model: torch.optim.LBFGS(list(model.parameters())[1:], lr=0.1, max_iter=4)),
        "gradients of `body.weight` (1 of 4 trainable parameters) go to no watched optimizer",
        *("optimizer.step(closure)", ALL[:1]),
        late=True,
    ),
    "DG403: AdamW, foreach, one layer": Bug(
        program(
            plain,
            model=Caster,
            optimizer=of(torch.optim.AdamW, eps=1e-3, foreach=True, amsgrad=True),
            change=once(2, lambda model, optimizer: model.head.to(BF16)),
        ),
        "state `exp_avg`, `exp_avg_sq`, `max_exp_avg_sq` of `head.weight`, `head.bias` is float32, the parameters are "
        "bfloat16",
        *(AT, ALL[2:]),
        late=True,
    ),
    "DG403: an optimizer of the user's": Bug(
        program(plain, optimizer=of(NarrowMoments, lr=0.1), change=once(6, lambda model, optimizer: model.to(BF16))),
        *(f"state `moment` of {FOUR} is float32, the parameters are bfloat16", AT, ALL),
        late=True,
    ),
    "DG406: an lr that is a tensor": Bug(
        program(
            plain,
            model=Wide,
            optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-4), foreach=False),
        ),
        *(lost(FOUR, optimizer="AdamW", lr="0.0001"), AT, ALL),
        late=True,
    ),
    "DG406: one of two groups": Bug(
        program(plain, model=Wide, optimizer=groups({"lr": 1e-5}, {"lr": 1e-3})),
        *(lost("`body.weight`, `body.bias`"), AT, ALL[:2]),
        late=True,
    ),
    "DG406: an optimizer of the user's that rounds to nearest": Bug(
        program(plain, model=Wide, optimizer=of(Own, lr=1e-5)),
        *(lost(FOUR, optimizer="Own"), AT, ALL),
        late=True,
        steps=320,
    ),
    "DG407: a list, of a bfloat16 model": Bug(
        averaged(as_list(BF16), in_place(0.999), model=Wide),
        stuck(FOUR),
        AT,
        ALL,
        late=True,
        steps=120,
        also=("DG406",),
    ),
    "DG407: a dict with new tensors each time": Bug(
        averaged(as_dict(BF16), anew), stuck(FOUR), AT, ALL, late=True, steps=120
    ),
    "DG407: a module written through `.data`": Bug(
        averaged(lambda model: copy.deepcopy(model).to(BF16), through_data, model=zero_bias),
        *(stuck("`body.weight`, `body.bias`, `head.weight`"), AT, ALL[:3]),
        late=True,
        steps=120,
    ),
    "DG408: inf in two parameters, where not everything is looked at": Bug(
        program(plain, spoil=infinite("body.bias", "head.bias", at=4, value=float("inf")), optimizer=ADAM),
        *("gradients of `body.bias`, `head.bias` (2 of 4 parameters with a gradient) are not finite", AT),
        ("body.bias", "head.bias"),
    ),
    "DG408: in a closure": Bug(
        program(
            closed, optimizer=of(torch.optim.LBFGS, lr=0.1, max_iter=4), inputs=lambda step: batch(step) / (step != 7)
        ),
        f"gradients of {FOUR} (4 of 4 parameters with a gradient) are not finite",
        *("optimizer.step(closure)", ALL),
        late=True,
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_fault_is_found_at_its_line_and_named(name):
    is_found(name[:5], BUGS[name])


# ---------------------------------------------------------------- what is right

needs_grad_dtype = since("torch", "2.10", "parameters have no grad_dtype")
HEALTHY = {
    "DG301: half parameters of an optimizer that the scaler does not drive": program(
        two, iteration=gan_half_scaled, models=lambda: [nn.Linear(3, 3), HalfInside()]
    ),
    "DG302: a gradient in another dtype that was asked for": program(train, model=free_gradients(F32), enabled=False),
    "DG302: any dtype was asked for": program(train, model=free_gradients(None), enabled=False, spoil=widen_gradients),
    "DG303: float16 and bfloat16 in one model": program(train, model=Mixed, autocast=F16),
    "DG305: one forward in float16 before training in bfloat16": program(one, iteration=after_a_dry_run, named=False),
    "DG305: a teacher in float16, without a graph": program(unscaled, model=Taught, dtype=BF16),
    "DG305: a model that turns autocast off": program(unscaled, model=Shielded),
    "DG307: a constant among the losses": program(one, iteration=a_constant_among_losses),
    "DG307: experts with fused optimizers, one of them at a time": program(
        two, iteration=experts, optimizers=(of(torch.optim.SGD, lr=0.1, fused=True),) * 2
    ),
    "DG307: an optimizer that does not step in this iteration": program(two, iteration=in_turn),
    "DG308: two losses scaled before the first backward": program(two, iteration=both_scaled_first),
    "DG308: gradients kept aside": program(one, iteration=kept_aside),
    "DG308: gradients put together by hand": program(one, iteration=surgery),
    "DG308: a backward in two parts": program(one, iteration=in_two_parts),
    "DG308: a backward in two parts, by a surrogate": program(one, iteration=in_two_parts_by_a_surrogate),
    "DG308: a sum of scaled losses": program(one, iteration=sum_of_scaled),
    "DG308: a GAN whose critic steps twice": program(
        two, iteration=gan_with_two_steps, models=lambda: [nn.Linear(3, 3), Net()]
    ),
    "DG309: divided by one number of tokens, on one batch, with a small lr": program(
        train,
        spoil=write(lambda gradient, step: gradient.div_(5000)),
        inputs=lambda step: batch(0),
        optimizer=of(torch.optim.SGD, lr=1e-6),
    ),
    "DG309: divided by a number of tokens": program(
        train, spoil=write(lambda gradient, step: gradient.div_(3000 + 517 * (step % 11)))
    ),
    "DG309: a part is clipped after unscale_": program(train, model=five, unscale=True, clip=clip_part(0, 2)),
    "DG309: a part is divided by a number of tokens": program(
        train, model=five, spoil=lambda model, scaler, step: [p.grad.div_(3000 + step) for p in model[2].parameters()]
    ),
    "DG309: sharpness-aware": program(one, iteration=sharpness_aware),
    "DG309: noise added": program(train, spoil=write(lambda gradient, step: gradient.add_(torch.randn_like(gradient)))),
    "DG309: three quarters of whole numbers": program(
        train,
        spoil=write(lambda gradient, step: gradient.mul_(0.75)),
        scale=1.0,
        loss=lambda output: output.float().sum(),
    ),
    "DG312: the scaler's own call, fused": program(train, optimizer=FUSED, autocast=F16),
    "DG313: a scale below 1 that trains": program(
        train,
        autocast=F16,
        scale=2.0,
        loss=lambda output: (output.float() * 3e5).sum(),
        optimizer=of(torch.optim.SGD, lr=1e-9),
    ),
    "DG313: a small scale from the start": program(train, autocast=F16, scale=0.5),
    "DG401: the head replaced, the optimizer told": program(plain, change=once(3, new_head_for_both)),
    "DG401: pruned in the middle": program(
        plain,
        change=once(3, lambda model, optimizer: prune.l1_unstructured(model.head, "weight", amount=2)),
    ),
    "DG401: a head with a temperature on a body that gets no gradient": program(
        plain, model=Probe, optimizer=of_head_and_temperature
    ),
    "DG401: two models, a watch for each": program(pair, prepare=apart, together=False),
    "DG402: a body that gets no gradient": program(
        plain, model=Probe, optimizer=lambda model: torch.optim.SGD(model.head.parameters(), lr=0.1)
    ),
    "DG403: a float32 checkpoint loaded into bfloat16": program(
        plain, model=half(BF16), optimizer=of(torch.optim.Adam, lr=1e-2), prepare=resumed
    ),
    "DG403: wide state from the start": program(plain, model=half(BF16), optimizer=of(WideMoments, lr=0.05)),
    "DG404: SGD in float16, which has none": program(plain, model=half()),
    "DG404: fused Adam in float16, which divides in float32": program(
        plain, model=half(), optimizer=of(torch.optim.Adam, lr=1e-2, fused=True)
    ),
    "DG404: the user's own, with wide state": program(
        plain, model=half(), optimizer=of(WideMoments, lr=0.05, eps=1e-8)
    ),
    "DG405: none": program(plain, model=half(), optimizer=of(torch.optim.SGD, lr=0.1, weight_decay=0.0)),
    "DG406: RAdam, whose first steps are short": program(
        plain, model=classes, loss=cross_entropy, optimizer=of(torch.optim.RAdam, lr=2e-2)
    ),
    "DG406: Rprop, whose steps grow": program(
        plain,
        model=classes,
        loss=cross_entropy,
        inputs=lambda step: batch(0),
        optimizer=of(torch.optim.Rprop, lr=1e-5),
    ),
    "DG406: momentum 0.99, which gathers speed": program(
        plain, model=classes, loss=cross_entropy, optimizer=of(torch.optim.SGD, lr=1e-2, momentum=0.99)
    ),
    "DG406: stochastic rounding": program(plain, model=Wide, optimizer=of(Stochastic, lr=1e-3)),
    "DG406: masters in the optimizer's state": program(plain, model=Wide, optimizer=of(Masters, lr=1e-5)),
    "DG406: masters elsewhere in the optimizer": program(plain, model=Wide, optimizer=of(HiddenMasters, lr=1e-5)),
    "DG406: lr 0 for one group": program(plain, model=half(BF16), optimizer=groups({"lr": 0.0}, {"lr": 0.1})),
    "DG407: bfloat16, of a model that rests": averaged(
        as_dict(BF16), in_place(0.5), optimizer=of(torch.optim.SGD, lr=0.0)
    ),
    "DG407: bfloat16, not begun yet": averaged(as_dict(BF16)),
    "DG407: bfloat16, with stochastic rounding": averaged(as_dict(BF16), with_stochastic_rounding),
    "DG408: NaN made zero before the step": program(plain, spoil=mended),
    "DG408: an optimizer that skips by itself": program(plain, optimizer=of(Careful, lr=0.1), spoil=now_and_then),
    "DG408: cleaned in a hook of the optimizer": program(plain, change=once(0, add_cleaner), spoil=now_and_then),
    "DG408: values near the limit of float16": program(
        plain, model=half(), optimizer=of(torch.optim.SGD, lr=1e-6), spoil=near_the_limit
    ),
    "DG408: NaN in a frozen parameter's old gradient": program(plain, model=unfrozen_head, prepare=stale_nan),
}
LONG = {"stochastic rounding", "masters in the optimizer's state", "masters elsewhere in the optimizer"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[needs_grad_dtype] if name.startswith("DG302") else []) for name in HEALTHY]
)
def test_nothing_is_said_of_a_program_that_is_right(name):
    nothing_is_said(HEALTHY[name], 320 if name[7:] in LONG else 60)


def test_each_parameter_group_is_warned_of_once():
    options = {"kind": torch.optim.Adam, "lr": 1e-3, "amsgrad": True}
    ran = run(program(plain, model=half(), optimizer=groups({"eps": 1e-8}, {"eps": 1e-9}, **options)), "lenient", 60)
    told = [str(warning.message) for warning in ran.told if str(warning.message).startswith("DG404")]
    assert ["eps=1e-08" in told[0], "eps=1e-09" in told[1], len(told)] == [True, True, 2]
    assert ["parameter group 0" in told[0], "parameter group 1" in told[1]] == [True, True]
    assert [finding.parameters for finding in ran.found("DG404")] == [ALL[:2], ALL[2:]]


# ---------------------------------------------------------------- three messages, word for word


def half_head():
    model = Net()
    model.head.half()
    return model


def two_groups(model):
    parameters = [{"params": model.body.parameters()}, {"params": model.head.parameters(), "lr": 1e-3}]
    return torch.optim.Adam(parameters, lr=1e-2, eps=1e-3)


GOLDEN = Path(__file__).parent / "golden" / "amp_messages.txt"
MESSAGES = {
    "a scaler with float16 parameters": program(train, model=half_head, optimizer=two_groups, autocast=F16),
    "clipped before unscale_": program(train, spoil=clip_norm(0.37), unscale=True, autocast=F16, scale=1024.0),
    "a replaced head": program(plain, prepare=new_head),
}


def message_of(name):
    """The text of the error; that of the warning is the same without the place."""
    texts = [str(run(MESSAGES[name], "strict", 9).error), str(run(MESSAGES[name], "lenient", 9).told[0].message)]
    strict, lenient = (re.sub(r"\S+\.py:\d+, in ", "FILE:LINE, in ", text) for text in texts)
    assert re.sub(r"\n  seen at    .*", "", strict) == lenient
    return strict


def write_golden():
    """`python tests/test_amp_rules.py` writes the file anew; read the difference before you commit it."""
    GOLDEN.write_text("\n".join(f"== {name}\n{message_of(name)}\n" for name in MESSAGES))


@pytest.mark.parametrize("name", MESSAGES)
def test_message(name):
    parts = re.split(r"^== (.*)$", GOLDEN.read_text(), flags=re.MULTILINE)[1:]
    golden = {title: text.strip("\n") for title, text in zip(parts[::2], parts[1::2], strict=True)}
    assert list(golden) == list(MESSAGES)
    assert message_of(name) == golden[name]


if __name__ == "__main__":
    write_golden()
