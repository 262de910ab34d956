"""DG504 buffer-changes-dtype."""

import re
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_buffer_registration_hook

from .._kit import Op, Recorder, Rule, Severity, name_of, on, size_of
from ._stays import Stays, enter

_NEAR = 8  # lines

RULE = Rule(
    "DG504",
    "buffer-changes-dtype",
    Severity.INFO,
    summary="A forward replaces a buffer with another dtype.",
    says="{which} of {module} was {was} and became {dtype} in forward{effect}",
    fix="{advice}",
    why=(
        "A table that is grown in forward is built anew in the default dtype, whatever the model was converted to. One "
        "that is cast to the dtype of an input and kept has lost its digits for every later call, in float32 too."
    ),
    asks=("DG101", "DG102"),
    unsafe=("like_replaced",),
    sources=(
        "https://github.com/huggingface/transformers/issues/13665",
        "https://github.com/sgl-project/sglang/issues/33117",
    ),
)


@on("start", RULE)
def _listen(audit: Recorder) -> None:
    """By a hook of torch: tensordict and others ask whether a class has the `__setattr__` of `nn.Module`."""

    def replaced(module: nn.Module, name: str, value: Any) -> None:
        if audit.records_here and audit.local.modules and isinstance(value, Tensor):
            old = module._buffers.get(name)
            if old is not None and old.dtype.is_floating_point and old.dtype is not value.dtype:
                audit.guarded(_buffer_replaced, audit, module, name, old.dtype, value)

    audit.handles.append(register_module_buffer_registration_hook(replaced))


def _buffer_replaced(audit: Recorder, module: nn.Module, name: str, was: torch.dtype, buffer: Tensor) -> None:
    path, size = audit.path_of(module), size_of(buffer)
    stays = Stays(RULE, "buffer", audit.here(), path, name, "forward", was, buffer.dtype, size)
    plain = re.sub(r"\W+", "_", name).strip("_")
    advice = f"build it in the dtype that it replaces: `.to(self.{plain})` or `dtype=self.{plain}.dtype`"
    if _narrows(was, buffer.dtype):
        advice = f"leave the buffer as it is, and cast a copy where it is used: `{plain} = self.{plain}.to(...)`"
    stays.facts["advice"] = advice
    if not any(cause.said for cause in _narrowed_source(audit, buffer)):
        enter(audit, stays)
    stays.begin(audit, buffer)


def _narrows(was: torch.dtype, dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype.itemsize < was.itemsize


@on("cast", RULE)
def widened_again(event: Op, audit: Recorder) -> None:
    """What was narrowed is wanted in the wider dtype: its digits are gone."""
    source, dtype = event.inputs[0], event.out.dtype
    if dtype.is_floating_point and dtype.itemsize > source.dtype.itemsize:
        for cause in _narrowed_source(audit, source):
            effect = f"{name_of(dtype)} is made of it at {event.site}, with the digits of {name_of(source.dtype)}"
            cause.blame(audit, effect)


def _narrowed_source(audit: Recorder, tensor: Tensor) -> list[Stays]:
    """What it was made of that was narrowed in forward."""
    causes = [cause for cause in audit.lineage.causes([tensor], _NEAR) if isinstance(cause, Stays)]
    return [cause for cause in causes if cause.rule is RULE and cause.dtype and _narrows(cause.was, cause.dtype)]
