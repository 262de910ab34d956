"""Bugs of public projects, each cut down to the training step that shows it: found, named, and silent once mended."""

import linecache

import pytest
import torch
from amp_programs import BF16, F16, batch, nothing_is_said, program, run, same, sgd
from torch import nn

from dtypeguard import AmpError


def unscale_float16(watch, fault):
    """haotian-liu/LLaVA#363: a model loaded in float16 is trained with a scaler."""
    model = nn.Linear(3, 1).to(F16 if fault else torch.float32)
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu")
    yield [model], [optimizer], scaler
    yield watch(model, optimizer, scaler)
    with torch.autocast("cpu", dtype=F16):
        loss = model(batch(0)).float().pow(2).mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    yield


def clip_first(watch, fault):
    """Lightning-AI/pytorch-lightning#9330: clipped while scaled, so the step is 65536 times too small."""
    model = nn.Linear(3, 1, bias=False)
    optimizer, scaler = sgd(model, lr=1.0), torch.amp.GradScaler("cpu")
    yield [model], [optimizer], scaler
    yield watch(model, optimizer, scaler)
    scaler.scale(model(batch(0) * 10).pow(2).mean()).backward()
    if not fault:
        scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    yield


def unscale_each_micro_batch(watch, fault):
    """huggingface/transformers#23935: accumulation unscales on every micro-batch."""
    model = nn.Linear(3, 1)
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu")
    yield [model], [optimizer], scaler
    yield watch(model, optimizer, scaler)
    for micro in batch(0).chunk(2):
        scaler.scale(model(micro).pow(2).mean() / 2).backward()
        if fault:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if not fault:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    yield


def adam_in_float16(watch, fault):
    """pytorch/pytorch#8860: eps and the squared gradient are 0 in float16."""
    model = nn.ParameterDict({"scale": nn.Parameter(torch.ones(4, dtype=F16 if fault else torch.float32))})
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    yield [model], [optimizer], None
    yield watch(model, optimizer)
    (model["scale"].float() * 1e-4).sum().backward()
    optimizer.step()
    yield


def half_after_a_step(watch, fault):
    """pytorch/pytorch#7844, of dtypes: the model changes under an optimizer that has state."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-4)
    yield [model], [optimizer], None
    yield watch(model, optimizer)
    for step in range(2):
        with torch.autocast("cpu", dtype=BF16, enabled=step == 1 and not fault):
            output = model(batch(step).to(model.weight.dtype))
        optimizer.zero_grad()
        output.float().pow(2).mean().backward()
        optimizer.step()
        if fault and step == 0:
            model.half()
    yield


def average_in_bfloat16(watch, fault):
    """d8ahazard/sd_dreambooth_extension#1417: an average in bfloat16 stays at its first value."""
    model = nn.ParameterDict({"weight": nn.Parameter(torch.full((4,), 1.5))})
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    average = {"weight": torch.full((4,), 1.0, dtype=BF16 if fault else torch.float32)}
    yield [model], [optimizer], None
    yield watch(model, optimizer, averaged=average)
    for _ in range(100):
        optimizer.zero_grad()
        model["weight"].sum().mul(0.5).backward()
        optimizer.step()
        average["weight"].mul_(0.999).add_(model["weight"].detach(), alpha=0.001)
    yield


ZOO = {
    "LLaVA#363": (unscale_float16, "DG301", "watch(", ("weight", "bias"), "Attempting to unscale FP16 gradients."),
    "pytorch-lightning#9330": (clip_first, "DG309", "scaler.step(optimizer)", ("weight",), None),
    "transformers#23935": (
        *(unscale_each_micro_batch, "DG310", "scaler.unscale_(optimizer)", ()),
        "unscale_() has already been called on this optimizer since the last update().",
    ),
    "pytorch#8860": (adam_in_float16, "DG404", "watch(", ("scale",), None),
    "pytorch#7844": (
        *(half_after_a_step, "DG403", "optimizer.step()", ("weight", "bias")),
        "expected dtype float for `end` but got dtype c10::Half",
    ),
    "sd_dreambooth_extension#1417": (average_in_bfloat16, "DG407", "optimizer.step()", ("weight",), None),
}


@pytest.mark.parametrize("name", ZOO)
def test_the_bug_of_a_public_project_is_found(name):
    make, rule, at, names, said = ZOO[name]
    bug = program(make, fault=True)
    alone, ran = run(bug, None, 1), run(bug, "strict", 1)
    assert said == (None if alone.error is None else str(alone.error))
    assert (type(ran.error), ran.error.rule, ran.error.argument) == (AmpError, rule, names[0] if names else None)
    line = int(ran.error.call_site.split(":")[1].split(",")[0])
    assert at in linecache.getline(__file__, line)
    ran = run(bug, "lenient", 1)
    assert next((finding.rule, finding.parameters) for finding in ran.serious()) == (rule, names)
    assert (type(ran.error), str(ran.error)) == (type(alone.error), str(alone.error))
    assert same(ran.everything, alone.everything)


@pytest.mark.parametrize("name", ZOO)
def test_the_bug_of_a_public_project_once_mended_is_silent(name):
    nothing_is_said(program(ZOO[name][0], fault=False), 1)
