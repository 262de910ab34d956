"""One right training loop on handwritten digits, and that loop with one line changed: what the watch says, and when."""

import copy
import types
import warnings
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from support import same
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from dtypeguard import AmpError, AmpWarning, amp

BATCH, PARTS, EPOCH = 50, 2, 28
STEPS = 18  # of the loops with a fault: enough for a scale of 65536 to fall below 1
BODY = ("body.0.weight", "body.0.bias", "body.3.weight", "body.3.bias")
HEAD = ("head.weight", "head.bias")
ALL = BODY + HEAD


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()
        )
        self.head = nn.Linear(256, 10)

    def forward(self, images):
        return self.head(self.body(images).flatten(1))


def digits():
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    images = torch.from_numpy(data.images).float()[order, None] / 16
    return images, torch.from_numpy(data.target)[order]


IMAGES, LABELS = digits()
TRAIN, TEST = slice(0, BATCH * EPOCH), slice(BATCH * EPOCH, None)


def nothing(run):
    return None


def cross_entropy(run, images, labels):
    return F.cross_entropy(run.model(images), labels) / PARTS


RIGHT = {
    "build": nothing,
    "optimizer": lambda run: torch.optim.AdamW(run.model.parameters(), lr=1e-2),
    "scaler": lambda run: torch.amp.GradScaler("cpu"),
    "before watch": nothing,
    "batch": lambda run, images: images,
    "autocast": lambda run: torch.autocast("cpu", torch.float16),
    "loss": cross_entropy,
    "backward": lambda run, loss: run.scaler.scale(loss).backward(),
    "unscale": lambda run: run.scaler.unscale_(run.optimizer),
    "clip": lambda run: clip_grad_norm_(run.model.parameters(), 1.0),
    "step": lambda run: run.scaler.step(run.optimizer),
    "update": lambda run: run.scaler.update(),
    "after": nothing,
}


def train(run, mode, steps, change):
    """The loop. `change` replaces lines by name; `run` knows how far it came, step 0 being the call of `watch`."""
    lines = RIGHT | change

    def do(name, *args):
        run.line = name
        return lines[name](run, *args)

    torch.manual_seed(0)
    run.step, run.averaged = 0, None
    run.model = Net()
    do("build")
    run.optimizer, run.scaler = do("optimizer"), do("scaler")
    do("before watch")
    if mode is not None:
        run.line = "watch"
        run.handle = amp.watch(run.model, run.optimizer, run.scaler, mode=mode, averaged=run.averaged)
    while run.step < steps:
        for batch in torch.randperm(TRAIN.stop).split(BATCH)[: steps - run.step]:
            run.step += 1
            for part in batch.split(BATCH // PARTS):
                with do("autocast"):
                    loss = do("loss", do("batch", IMAGES[part]), LABELS[part])
                do("backward", loss)
            do("unscale")
            do("clip")
            do("step")
            do("update")
            run.optimizer.zero_grad()
            do("after")


@torch.no_grad()
def accuracy(model):
    return (model(IMAGES[TEST]).argmax(1) == LABELS[TEST]).double().mean().item()


WITHOUT_SCALER = {
    "scaler": nothing,
    "backward": lambda run, loss: loss.backward(),
    "unscale": nothing,
    "step": lambda run: run.optimizer.step(),
    "update": nothing,
}
BFLOAT16 = {**WITHOUT_SCALER, "autocast": lambda run: torch.autocast("cpu", torch.bfloat16)}
FLOAT32 = {**WITHOUT_SCALER, "autocast": lambda run: nullcontext()}


# ---------------------------------------------------------------- lines that are right


def average(dtype):
    def build(run):
        run.averaged = AveragedModel(run.model, multi_avg_fn=get_ema_multi_avg_fn(0.99)).to(dtype)

    return build


def follow(run):
    run.averaged.update_parameters(run.model)


def reload(run):
    run.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))
    run.scaler.load_state_dict(run.scaler.state_dict())


def infinite_at(*steps):
    def batch(run, images):
        return images * torch.inf if run.step in steps else images

    return batch


HEALTHY = {
    "as it is": {},
    "bfloat16 parameters with an lr that moves them": {**FLOAT32, "build": lambda run: run.model.bfloat16(),
                                                       "batch": lambda run, images: images.bfloat16()},
    "some batches overflow": {"batch": infinite_at(2, 7, 8)},
    "an average in float32": {"before watch": average(torch.float32), "after": follow},
    "fused AdamW without unscale_": {
        "optimizer": lambda run: torch.optim.AdamW(run.model.parameters(), lr=1e-2, fused=True),
        "unscale": nothing, "clip": nothing,
    },
}  # fmt: skip


@pytest.mark.thin(3)
@pytest.mark.parametrize("change", HEALTHY.values(), ids=HEALTHY)
def test_a_right_loop_learns_in_silence_and_exactly_as_without_the_watch(change):
    watched, alone = types.SimpleNamespace(), types.SimpleNamespace()
    train(watched, "strict", 3 * EPOCH, change)
    train(alone, None, 3 * EPOCH, change)
    assert watched.handle.report() == []
    assert same(made(watched), made(alone))
    assert accuracy(watched.model.float()) > (0.85 if change else 0.9)


def made(run):
    scaler = None if run.scaler is None else run.scaler.state_dict()
    return [*run.model.parameters()], [*run.optimizer.state.values()], scaler


# ---------------------------------------------------------------- lines that are wrong


def once(step, do):
    return {"after": lambda run: do(run) if run.step == step else None}


def new_head(run):
    run.model.head = nn.Linear(256, 10)


def clip_by_hand(run):
    gradients = [parameter.grad for parameter in run.model.parameters()]
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    for gradient in gradients:
        gradient.mul_((1.0 / (norm + 1e-6)).clamp(max=1.0))


def before_unscale(clip):
    return {"unscale": clip, "clip": RIGHT["unscale"]}


def auxiliary(parameters, weight=1e-3):
    def backward(run, loss):
        RIGHT["backward"](run, loss)
        (weight * sum(parameter.square().sum() for parameter in parameters(run.model))).backward()

    return {"backward": backward}


def scaled_if(condition):
    return {"backward": lambda run, loss: (run.scaler.scale(loss) if condition(run) else loss).backward()}


def on_another_model(run, images, labels):
    torch.manual_seed(0)
    return F.cross_entropy(Net()(images), labels)


def nan_at(*steps):
    def batch(run, images):
        images = images.clone()
        if not steps or run.step in steps:
            images[0, 0, 0, 0] = torch.nan
        return images

    return {"batch": batch}


def convert_state(dtype):
    def convert(run):
        reload(run)
        for state in run.optimizer.state.values():
            state.update({key: value.to(dtype) for key, value in state.items() if value.ndim})

    return convert


def replace_data(dtype, step):
    def clip(run):
        RIGHT["clip"](run)
        for parameter in run.model.parameters() if run.step == step else ():
            parameter.data = parameter.data.to(dtype)

    return {"clip": clip}


def average_by_hand(dtype, decay):
    def build(run):
        run.averaged = {name: p.detach().to(dtype, copy=True) for name, p in run.model.named_parameters()}

    @torch.no_grad()
    def update(run):
        for name, parameter in run.model.named_parameters():
            run.averaged[name].mul_(decay).add_(parameter, alpha=1 - decay)

    return {"before watch": build, "after": update}


def half(**change):
    return {**FLOAT32, "build": lambda run: run.model.half(), "batch": lambda run, images: images.half(), **change}


def fault(change, step, line, rule, names=(), also=(), torch_says=None, within=STEPS):
    """One row.

    Args:
        change: the lines that differ from the right loop.
        step: the step in which strict mode raises; 0 is the call of `watch`.
        line: the line of the loop that raises.
        rule: the rule that it raises.
        names: the parameters that it names.
        also: rules that are right beside it, in a loop that goes on.
        torch_says: how PyTorch ends a loop that goes on, if it does.
        within: how many steps the loop goes on.
    """
    return types.SimpleNamespace(**locals())


FAULTS = {
    "float16 parameters after step 5": fault(once(5, lambda run: run.model.half()), 6, "unscale", "DG301", ALL,
                                             torch_says="Attempting to unscale FP16 gradients"),
    "clip_grad_norm_ and no unscale_": fault({"unscale": nothing}, 1, "step", "DG309", ALL),
    # known when the same maximum is met for the third time
    "clip_grad_norm_ of the maximum norm": fault(
        before_unscale(lambda run: clip_grad_norm_(run.model.parameters(), 0.5, norm_type=torch.inf)),
        3, "clip", "DG309", ALL),
    "clipping by hand before unscale_": fault(before_unscale(clip_by_hand), 1, "clip", "DG309", ALL),
    "optimizer.step on scaled gradients": fault(
        {"step": lambda run: run.optimizer.step(), "unscale": nothing}, 1, "step", "DG312",
        torch_says="No inf checks were recorded prior to update"),
    "backward without scale from step 6": fault(scaled_if(lambda run: run.step < 6), 6, "unscale", "DG308", ALL),
    "auxiliary loss of the body unscaled": fault(auxiliary(lambda model: model.body.parameters()),
                                                 1, "unscale", "DG308", BODY),
    "auxiliary loss of one weight unscaled": fault(auxiliary(lambda model: [model.head.weight]),
                                                   1, "unscale", "DG308", ["head.weight"]),
    "a scaler that is built and never used": fault({**WITHOUT_SCALER, "scaler": RIGHT["scaler"]}, 1, "step", "DG305"),
    "a loss on another model, fused": fault(
        {**HEALTHY["fused AdamW without unscale_"], "loss": on_another_model}, 1, "step", "DG307",
        torch_says="No inf checks were recorded prior to update"),
    "NaN in one batch, bfloat16": fault({**BFLOAT16, **nan_at(13)}, 13, "step", "DG408", ALL),
    "NaN in every batch": fault(nan_at(), 17, "update", "DG313", ALL),
    # eight skips in a row: a few are how a scaler finds its scale
    "NaN in every batch, from a scale of 8": fault(
        {**nan_at(), "scaler": lambda run: torch.amp.GradScaler("cpu", init_scale=8.0)}, 8, "update", "DG313", ALL),
    # the optimizer is compared with the model at steps 1, 2, 4, 8, 16 and 32
    "head replaced after step 5": fault(once(5, new_head), 8, "step", "DG401", HEAD),
    # known only when the head gets gradients: before, it may be meant for another optimizer
    "optimizer lacks the head": fault(
        {"optimizer": lambda run: torch.optim.AdamW(run.model.body.parameters(), lr=1e-2)}, 1, "step", "DG402", HEAD),
    "state loaded and converted after step 5": fault(once(5, convert_state(torch.float64)), 6, "step", "DG403", ALL,
                                                     torch_says="expected dtype double for `end`"),
    # what 0 / 0 makes of the parameters: gradients are NaN from the second step on
    "eps of 1e-8 in float16": fault(half(), 0, "watch", "DG404", ALL, also={"DG408"}),
    # from the third look after seven steps, with an lr that stays: 8, 16 and 32
    "lr that rounds away in bfloat16": fault(
        {**FLOAT32, "build": lambda run: run.model.bfloat16(), "batch": lambda run, images: images.bfloat16(),
         "optimizer": lambda run: torch.optim.AdamW(run.model.parameters(), lr=1e-5)},
        32, "step", "DG406", ALL, within=34),
    "average in float16": fault(average_by_hand(torch.float16, 0.99999), 8, "step", "DG407", ALL),
    # the step mixes them in silence, and leaves state that differs: the second rule says what the first led to
    "data replaced in step 5": fault(replace_data(torch.bfloat16, 5), 5, "step", "DG302", ALL, also={"DG403"},
                                     torch_says="expected dtype float for `end`"),
}  # fmt: skip
EACH_FAULT = pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)


@EACH_FAULT
def test_strict_mode_stops_at_the_earliest_line_that_can_know(fault):
    run = types.SimpleNamespace()
    with pytest.raises(AmpError) as caught:
        train(run, "strict", fault.within, fault.change)
    error = caught.value
    assert (run.step, run.line, error.rule) == (fault.step, fault.line, fault.rule)
    assert error.argument == (fault.names[0] if fault.names else None)
    assert all(f"`{name}`" in error.violations[0] for name in fault.names[:1])
    assert "tests/test_amp_digits.py:" in error.call_site
    assert "fix" in str(error)


@pytest.mark.thin(4)
@EACH_FAULT
def test_lenient_mode_says_it_once_lists_nothing_else_and_the_loop_goes_on_as_without_the_watch(fault):
    run, alone = types.SimpleNamespace(), types.SimpleNamespace()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        goes_on(run, "lenient", fault)
    goes_on(alone, None, fault)
    findings = {found.rule: found for found in run.handle.report() if found.severity != "info"}
    assert findings.keys() == {fault.rule, *fault.also}
    assert {str(warning.message)[:5] for warning in said} == findings.keys()
    assert len({str(warning.message) for warning in said}) == len(said)
    assert all(warning.category is AmpWarning and warning.filename == __file__ for warning in said)
    assert findings[fault.rule].parameters == tuple(fault.names)
    assert run.step == alone.step
    assert same(made(run), made(alone))


def goes_on(run, mode, fault):
    if fault.torch_says is None:
        train(run, mode, fault.within, fault.change)
    else:
        with pytest.raises((RuntimeError, ValueError, AssertionError), match=fault.torch_says):
            train(run, mode, fault.within, fault.change)


def test_the_scale_that_only_falls_is_told_from_where_it_began():
    run = types.SimpleNamespace()
    with pytest.raises(AmpError, match=r"fallen from 65536 to 0\.5: 17 of 17 steps"):
        train(run, "strict", STEPS, nan_at())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_fused_sgd_that_does_not_move_half_parameters_is_told(dtype):
    """On the CPU, PyTorch 2.13 skips whole blocks of them: https://github.com/pytorch/pytorch/issues/191763."""
    change = {
        **FLOAT32,
        "build": lambda run: run.model.to(dtype),
        "batch": lambda run, images: images.to(dtype),
        "optimizer": lambda run: torch.optim.SGD(run.model.parameters(), lr=0.1, fused=True),
    }
    alone, run = types.SimpleNamespace(), types.SimpleNamespace()
    train(alone, None, 1, change)
    torch.manual_seed(0)
    first = nn.utils.parameters_to_vector(Net().to(dtype).parameters())
    moved = (nn.utils.parameters_to_vector(alone.model.parameters()) != first).double().mean()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        train(run, "lenient", 34, change)
    assert [str(warning.message)[:5] for warning in said] == (["DG406"] if moved < 0.1 else [])
