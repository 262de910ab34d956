"""What it costs to write down what a model holds, and to check it."""

import models
import torch
import transformers
from bars import MS, Context
from report import Row, Table, at_most, duration, times
from timing import interleave
from torch import nn

import dtypeguard

MANIFEST, CHECK = 10 * MS, 5 * MS  # of 1,000 parameters
BETWEEN = 20  # ns that a guarded call costs more
NAMED, MADE, CHECKED = "`named_parameters()` and `named_buffers()`", "`manifest(model)`", "`lock.check(model)`"


def _tensors(model: nn.Module) -> tuple[list[object], list[object]]:
    return list(model.named_parameters()), list(model.named_buffers())


def holding(context: Context) -> Table:
    """Manifests of models with 1,000 parameters, and a guarded call between two checks."""
    table = Table(
        "`manifest` of 1,000 parameters",
        "500 linear layers, and a Llama of 110 layers with 1,437 modules, which has no bar. The guarded call is that "
        "of a bare module, with `state=` and without.",
        ("candidate", "time", "÷ names"),
    )
    config = transformers.LlamaConfig(
        num_hidden_layers=110, hidden_size=16, intermediate_size=16, vocab_size=16, num_attention_heads=2
    )
    linears = nn.Sequential(*(nn.Linear(2, 2) for _ in range(500)))
    for name, model in (("linear layers", linears), ("Llama", transformers.LlamaForCausalLM(config))):
        lock = dtypeguard.manifest(model)
        cases = {NAMED: (_tensors, (model,)), MADE: (dtypeguard.manifest, (model,)), CHECKED: (lock.check, (model,))}
        samples = interleave(cases, 4)
        for case, bar in ((NAMED, None), (MADE, MANIFEST), (CHECKED, CHECK)):
            ns = samples.median(case)
            limit = at_most(bar, duration(bar)) if bar is not None and model is linears else None
            ratio = times(samples.ratio(case, NAMED))
            table.rows.append(Row(f"{case}, {name}", duration(ns), ratio, limit, ns if limit else None))
    bare, held = models.Pass(), models.Pass()
    dtypeguard.guard(bare)
    dtypeguard.guard(held, state=dtypeguard.manifest(held))
    x = torch.ones(2, 8)
    samples = interleave({"without": (bare, (x,)), "with": (held, (x,))}, 4)
    extra = samples.extra("with", "without")
    bar = at_most(BETWEEN, duration(BETWEEN))
    table.rows.append(Row("`guard(model, state=)`, more than `guard(model)` a call", duration(extra), "", bar, extra))
    return table
