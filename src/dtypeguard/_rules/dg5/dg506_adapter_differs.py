"""DG506 adapter-differs."""

from dataclasses import dataclass, field

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from ..._core.base.modules import inside, tensors_below
from ..._engine.watch.models import Dtypes, usual
from .._kit import Call, Recorder, Rule, Severity, listed, name_of, on, size_of

RULE = Rule(
    "DG506",
    "adapter-differs",
    Severity.INFO,
    summary="A few parameters differ in dtype from all others.",
    says="{names}: {found}, where the other parameters of {module} are {expected}",
    fix="convert what was added like the model, `.to(torch.{expected})`, or cast what passes between them",
    why="A layer that is added to a converted model (an adapter, a head, a cache) has the default dtype.",
    converts=False,
    sources=("https://github.com/huggingface/accelerate/issues/3620",),
)


@dataclass
class Seen:
    roots: set[int] = field(default_factory=set)


@on("entered", RULE, "DG101", "DG110")  # which ask for the dtype of models that are gone
def parameters_agree(call: Call, audit: Recorder) -> None:
    """Once for each outermost module: whether its parameters have one dtype."""
    seen = audit.state(Seen).roots
    if audit.local.modules or id(call.module) in seen:
        return
    seen.add(id(call.module))
    parameters = [
        (inside(path, name), tensor)
        for path, module, kind, name, tensor in tensors_below(call.module)
        if kind == "parameter"
        and tensor.dtype.is_floating_point
        and not (isinstance(module, _NormBase) and tensor.dtype is torch.float32)  # as DG501 and DG502 ask for
    ]
    if any(is_lazy(parameter) for _, parameter in parameters):
        seen.discard(id(call.module))  # it has no dtypes yet
        return
    if not parameters:
        return
    dtype = audit.state(Dtypes).of[call.path] = usual([parameter for _, parameter in parameters], call.module, audit)
    odd = [(name, parameter) for name, parameter in parameters if parameter.dtype is not dtype]
    if not odd:
        return
    facts = {
        "names": listed(name for name, _ in odd), "found": " and ".join(sorted({name_of(p.dtype) for _, p in odd})),
        "module": call.path, "expected": name_of(dtype),
    }  # fmt: skip
    audit.find(
        RULE, audit.here(), module=call.path, op="forward", facts=facts, parameters=[name for name, _ in odd],
        from_dtype=odd[0][1].dtype, to_dtype=dtype, bytes=sum(size_of(p) for _, p in odd),
    )  # fmt: skip
