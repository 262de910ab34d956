"""Rules DG401 to DG405: what the optimizer holds, its state, eps and weight decay."""

import copy
import itertools

import pytest
import torch
from amp_programs import (
    ADAM,
    ALL,
    AT,
    BF16,
    F16,
    F32,
    F64,
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
    run,
    sgd,
    square,
    state,
    strict_raises,
    unfrozen_head,
)
from torch import nn
from torch.nn.utils import parametrizations, prune


def pair(watch, prepare, together=True):
    """A model, and two optimizers that `prepare` makes; under one watch, or one watch each."""
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


def masters(watch, dtype=BF16):
    """float32 copies of half parameters, which the optimizer holds, written back after each step."""
    model = Net().to(dtype)
    wide = [parameter.detach().float().requires_grad_() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(wide, lr=0.1)
    yield [model], [optimizer], None
    yield watch(model, optimizer)
    for step in itertools.count():
        model.zero_grad()
        square(model(batch(step).to(dtype))).backward()
        for parameter, master in zip(model.parameters(), wide, strict=True):
            master.grad = parameter.grad.float()
        optimizer.step()
        with torch.no_grad():
            for parameter, master in zip(model.parameters(), wide, strict=True):
                parameter.copy_(master)
        yield


class Adapter(nn.Module):
    """A low rank update beside a frozen layer, as PEFT makes it."""

    def __init__(self, base) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(base.in_features, 2, bias=False), nn.Linear(2, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


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


class WideMoments(Own):
    """Momentum in float32, whatever the parameters are; its eps is used in float32 too."""

    def move(self, parameter, update):
        state = self.state[parameter]
        moment = state.setdefault("moment", torch.zeros_like(parameter, dtype=F32))
        parameter.add_(moment.mul_(0.5).add_(update).to(parameter.dtype))


class NarrowMoments(Own):
    def move(self, parameter, update):
        moment = self.state[parameter].setdefault("moment", torch.zeros_like(parameter))
        parameter.add_(moment.mul_(0.5).add_(update.to(moment.dtype)))


def of_head(model):
    return torch.optim.SGD(model.head.parameters(), lr=0.1)


def of_head_and_temperature(model):
    model.temperature = [nn.Parameter(torch.ones(()))]
    return torch.optim.SGD([*model.head.parameters(), *model.temperature], lr=0.1)


def with_loss(model):
    return torch.optim.SGD([*model.parameters(), nn.Parameter(torch.ones(2))], lr=0.1)


def new_head(model, optimizer):
    model.head = nn.Linear(8, 1)


def new_mlp(model, optimizer):
    model.head = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5))


def new_head_for_both(model, optimizer):
    new_head(model, optimizer)
    del optimizer.param_groups[0]["params"][2:]
    optimizer.add_param_group({"params": model.head.parameters()})


def weight_norm(model, optimizer):
    parametrizations.weight_norm(model.head)


def pruned(model, optimizer):
    prune.l1_unstructured(model.head, "weight", amount=2)


def assigned(model, optimizer):
    model.load_state_dict({name: tensor.clone() for name, tensor in model.state_dict().items()}, assign=True)


def loaded(model, optimizer):
    model.load_state_dict({name: tensor.clone() for name, tensor in model.state_dict().items()})


def adapted(model, optimizer):
    model.requires_grad_(False)
    model.body = Adapter(model.body)


def adapted_and_told(model, optimizer):
    adapted(model, optimizer)
    optimizer.add_param_group({"params": [p for p in model.body.parameters() if p.requires_grad]})


def thaw(model, optimizer):
    model.body.requires_grad_(True)


def thaw_and_tell(model, optimizer):
    thaw(model, optimizer)
    optimizer.add_param_group({"params": model.body.parameters()})


def convert(dtype, part=lambda model: model):
    return lambda model, optimizer: part(model).to(dtype) and None


def convert_with_state(model, optimizer):
    model.to(BF16)
    optimizer.load_state_dict(optimizer.state_dict())


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


def parts():
    model = Net()
    return [model], [torch.optim.Adam(model.body.parameters(), lr=1e-2), sgd(model.head)]


def apart():
    """Two models, each with its own watch."""
    models = [Net(), Net()]
    return models, [sgd(model) for model in models]


def holds(count, names, of=4, model="Net", optimizer="SGD"):
    return f"{optimizer} holds {count} of {of} parameters that the model {model} does not have, and lacks {names}"


def gets(names, share):
    return f"{names} ({share} trainable parameters) get gradients, and no watched optimizer holds them"


WATCH = "watch(model, optimizer"


MOMENTS = "`exp_avg`, `exp_avg_sq`"


TORCHS = {
    name: of(getattr(torch.optim, name), lr=1.0 if name == "Adadelta" else 0.05)
    for name in "Adam AdamW Adamax NAdam RAdam RMSprop Rprop ASGD Adagrad Adadelta Adafactor".split()
}


BUGS = {
    "DG401": {
        "the head replaced after the optimizer was built": Bug(
            program(plain, prepare=new_head), holds(2, "`head.weight`, `head.bias`"), WATCH, ALL[2:]
        ),
        "the head replaced at the third step": Bug(
            program(plain, change=once(2, new_head)), holds(2, "`head.weight`, `head.bias`"), AT, ALL[2:], late=True
        ),
        "an MLP in place of the head": Bug(
            program(plain, prepare=new_mlp),
            *(holds(2, "`head.0.weight`, `head.0.bias`, `head.2.weight` and 1 more"), WATCH),
            ("head.0.weight", "head.0.bias", "head.2.weight", "head.2.bias"),
        ),
        "weight_norm after the optimizer": Bug(
            program(plain, prepare=weight_norm, optimizer=of(torch.optim.AdamW)),
            holds(
                1,
                "`head.parametrizations.weight.original0`, `head.parametrizations.weight.original1`",
                optimizer="AdamW",
            ),
            *(AT, ("head.parametrizations.weight.original0", "head.parametrizations.weight.original1")),
        ),
        "load_state_dict(assign=True)": Bug(program(plain, prepare=assigned), holds(4, FOUR), WATCH, ALL),
        "load_state_dict(assign=True) in the middle": Bug(
            program(plain, change=once(3, assigned), optimizer=of(torch.optim.RMSprop)),
            *(holds(4, FOUR, optimizer="RMSprop"), AT, ALL),
            late=True,
        ),
        "the optimizer of another model": Bug(
            program(plain, optimizer=lambda model: sgd(copy.deepcopy(model))), holds(4, FOUR), WATCH, ALL
        ),
        "the second of two optimizers": Bug(
            program(pair, prepare=second_stale),
            holds(2, "`Net[1].head.weight`, `Net[1].head.bias`", model="Net[0], Net[1]", optimizer="SGD 1"),
            *("watch(models, optimizers)", ("Net[1].head.weight", "Net[1].head.bias")),
        ),
    },
    "DG402": {
        "only the head was given": Bug(
            program(plain, optimizer=of_head), gets("`body.weight`, `body.bias`", "2 of 4"), AT, ALL[:2]
        ),
        "an adapter put in after the optimizer": Bug(
            program(plain, prepare=adapted, optimizer=of(torch.optim.AdamW)),
            *(gets("`body.down.weight`, `body.up.weight`", "2 of 2"), AT, ("body.down.weight", "body.up.weight")),
        ),
        "layers that are unfrozen later": Bug(
            program(plain, model=unfrozen_head, optimizer=of_head, change=once(2, thaw)),
            *(gets("`body.weight`, `body.bias`", "2 of 4"), AT, ALL[:2]),
        ),
        "a closure, and one parameter left out": Bug(
            program(
                closed, optimizer=lambda model: torch.optim.LBFGS(list(model.parameters())[1:], lr=0.1, max_iter=4)
            ),
            *(gets("`body.weight`", "1 of 4"), "optimizer.step(closure)", ALL[:1]),
            late=True,
        ),
    },
    "DG403": {
        "Adam, .bfloat16() after three steps": Bug(
            program(plain, optimizer=ADAM, change=once(3, convert(BF16))),
            *(state(MOMENTS, FOUR, "float32", "bfloat16"), AT, ALL),
            late=True,
        ),
        "SGD with momentum, .double() after five": Bug(
            program(plain, optimizer=of(torch.optim.SGD, lr=0.01, momentum=0.9), change=once(5, convert(F64))),
            *(state("`momentum_buffer`", FOUR, "float32", "float64"), AT, ALL),
            late=True,
        ),
        "RMSprop, .half()": Bug(
            program(plain, optimizer=of(torch.optim.RMSprop, lr=1e-3, eps=1e-3), change=once(1, convert(F16))),
            *(state("`square_avg`", FOUR, "float32", "float16"), AT, ALL),
            late=True,
        ),
        "Adagrad, which has state before its first step": Bug(
            program(plain, optimizer=of(torch.optim.Adagrad, lr=1e-2, eps=1e-3), prepare=convert(BF16)),
            *(state("`sum`", FOUR, "float32", "bfloat16"), WATCH, ALL),
        ),
        "AdamW, foreach, one layer": Bug(
            program(
                plain,
                model=Caster,
                optimizer=of(torch.optim.AdamW, eps=1e-3, foreach=True, amsgrad=True),
                change=once(2, convert(BF16, lambda model: model.head)),
            ),
            *(
                state("`exp_avg`, `exp_avg_sq`, `max_exp_avg_sq`", "`head.weight`, `head.bias`", "float32", "bfloat16"),
                AT,
                ALL[2:],
            ),
            late=True,
        ),
        "an optimizer of the user's": Bug(
            program(plain, optimizer=of(NarrowMoments, lr=0.1), change=once(6, convert(BF16))),
            *(state("`moment`", FOUR, "float32", "bfloat16"), AT, ALL),
            late=True,
        ),
    },
    "DG404": {
        "Adam": Bug(
            program(plain, model=half(), optimizer=of(torch.optim.Adam, lr=1e-3)),
            *(f"eps=1e-08 is 0 in float16, the dtype of {FOUR}", WATCH, ALL),
            also=("DG406", "DG408"),
        ),
        "RMSprop, one tensor at a time": Bug(
            program(plain, model=half(), optimizer=of(torch.optim.RMSprop, foreach=False)),
            *(f"eps=1e-08 is 0 in float16, the dtype of {FOUR}", WATCH, ALL),
            also=("DG406", "DG408"),
        ),
        "Adagrad": Bug(
            program(plain, model=half(), optimizer=of(torch.optim.Adagrad)),
            *(f"eps=1e-10 is 0 in float16, the dtype of {FOUR}", WATCH, ALL),
            also=("DG406", "DG408"),
        ),
        "the second of two groups": Bug(
            program(
                plain,
                model=half(),
                optimizer=groups({"eps": 1e-3}, {"eps": 1e-9}, kind=torch.optim.AdamW, lr=1e-3, amsgrad=True),
            ),
            *("eps=1e-09 is 0 in float16, the dtype of `head.weight`, `head.bias`", WATCH, ALL[2:]),
            also=("DG406", "DG408"),
        ),
    },
    "DG405": {
        "SGD": Bug(
            program(plain, model=half(), optimizer=of(torch.optim.SGD, lr=0.1, weight_decay=1e-8)),
            *(f"weight_decay=1e-08 is 0 in float16, the dtype of {FOUR}", WATCH, ALL),
        ),
        "AdamW": Bug(
            program(plain, model=half(), optimizer=of(torch.optim.AdamW, lr=1e-2, eps=1e-3, weight_decay=2e-8)),
            *(f"weight_decay=2e-08 is 0 in float16, the dtype of {FOUR}", WATCH, ALL),
        ),
        "one of two groups": Bug(
            program(
                plain,
                model=half(),
                optimizer=groups({"weight_decay": 1e-9}, {"weight_decay": 1e-2}, lr=0.1, momentum=0.5),
            ),
            *("weight_decay=1e-09 is 0 in float16, the dtype of `body.weight`, `body.bias`", WATCH, ALL[:2]),
        ),
    },
}
HEALTHY = {
    "DG401": {
        "the head replaced before the optimizer was built": program(
            plain, optimizer=lambda model: new_head(model, None) or sgd(model)
        ),
        "the head replaced, the optimizer told": program(plain, change=once(3, new_head_for_both)),
        "weight_norm before the optimizer": program(
            plain, optimizer=lambda model: weight_norm(model, None) or sgd(model)
        ),
        "pruned in the middle": program(plain, change=once(3, pruned)),
        "load_state_dict in the middle": program(plain, change=once(3, loaded)),
        "parameters of the loss besides": program(plain, optimizer=with_loss),
        "a head with a temperature on a body that gets no gradient": program(
            plain, model=Probe, optimizer=of_head_and_temperature
        ),
        "float32 masters of a bfloat16 model": program(masters),
        "two models, a watch for each": program(pair, prepare=apart, together=False),
    },
    "DG402": {
        "the rest is frozen": program(plain, model=unfrozen_head, optimizer=of_head),
        "unfrozen, and the optimizer told": program(
            plain, model=unfrozen_head, optimizer=of_head, change=once(2, thaw_and_tell)
        ),
        "an adapter, and the optimizer told": program(plain, prepare=adapted_and_told),
        "two optimizers under one watch": program(pair, prepare=parts),
        "a body that gets no gradient": program(plain, model=Probe, optimizer=of_head),
        "two models, a watch for each": program(pair, prepare=apart, together=False),
    },
    "DG403": {
        "converted before the optimizer, Adam": program(plain, model=half(BF16), optimizer=ADAM),
        "state converted along": program(plain, optimizer=ADAM, change=once(4, convert_with_state)),
        "a float32 checkpoint loaded into bfloat16": program(
            plain, model=half(BF16), optimizer=of(torch.optim.Adam, lr=1e-2), prepare=resumed
        ),
        "wide state from the start": program(plain, model=half(BF16), optimizer=of(WideMoments, lr=0.05)),
        "converted, SGD without state": program(plain, change=once(4, convert(F64))),
        **{f"{name} in bfloat16": program(plain, model=half(BF16), optimizer=kind) for name, kind in TORCHS.items()},
        "amsgrad and maximize": program(
            plain, optimizer=of(torch.optim.Adam, lr=1e-2, amsgrad=True, maximize=True), loss=lambda y: -square(y)
        ),
        "sparse gradients": program(plain, model=Words, optimizer=of(torch.optim.SparseAdam, lr=0.1)),
    },
    "DG404": {
        "a larger eps in float16": program(plain, model=half(), optimizer=ADAM),
        "bfloat16": program(plain, model=half(BF16), optimizer=of(torch.optim.Adam, lr=1e-2)),
        "float32": program(plain, optimizer=of(torch.optim.RMSprop, lr=1e-3)),
        "SGD in float16, which has none": program(plain, model=half()),
        "fused Adam in float16, which divides in float32": program(
            plain, model=half(), optimizer=of(torch.optim.Adam, lr=1e-2, fused=True)
        ),
        "the user's own, with wide state": program(plain, model=half(), optimizer=of(WideMoments, lr=0.05, eps=1e-8)),
    },
    "DG405": {
        "one that float16 has": program(plain, model=half(), optimizer=of(torch.optim.SGD, lr=0.1, weight_decay=1e-2)),
        "a tiny one in bfloat16": program(
            plain, model=half(BF16), optimizer=of(torch.optim.SGD, lr=0.1, weight_decay=1e-8)
        ),
        "none": program(plain, model=half(), optimizer=of(torch.optim.SGD, lr=0.1, weight_decay=0.0)),
        "a tiny one in float32": program(plain, optimizer=of(torch.optim.Adam, weight_decay=1e-12)),
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


def test_each_parameter_group_is_warned_of_once():
    options = {"kind": torch.optim.Adam, "lr": 1e-3, "amsgrad": True}
    ran = run(program(plain, model=half(), optimizer=groups({"eps": 1e-8}, {"eps": 1e-9}, **options)), "lenient", 60)
    told = [str(warning.message) for warning in ran.told if str(warning.message).startswith("DG404")]
    assert ["eps=1e-08" in told[0], "eps=1e-09" in told[1], len(told)] == [True, True, 2]
    assert ["parameter group 0" in told[0], "parameter group 1" in told[1]] == [True, True]
    assert [finding.parameters for finding in ran.found("DG404")] == [ALL[:2], ALL[2:]]
