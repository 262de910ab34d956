"""DG504 buffer-changes-dtype."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .._kit import Recorder, Rule, Severity, around, size_of
from ._stays import Stays, enter

RULE = Rule(
    "DG504",
    "buffer-changes-dtype",
    Severity.INFO,
    summary="A forward replaced a buffer by a tensor of another dtype.",
    says="{which} of {module} was {was} and became {dtype} in forward{effect}",
    fix="build it in the dtype that it replaces: `.to(self.{name})` or `dtype=self.{name}.dtype`",
    why=("A table that is grown in forward is built anew in the default dtype, whatever the model was converted to."),
    sources=("https://github.com/huggingface/transformers/issues/13665",),
)


@around(nn.Module, "__setattr__", rule=RULE)
def _setattr(audit: Recorder, original: Callable[..., Any], self: nn.Module, name: str, value: Any) -> None:
    if audit.local.modules and isinstance(value, Tensor):
        old = (vars(self).get("_buffers") or {}).get(name)
        if old is not None and old.dtype.is_floating_point and old.dtype is not value.dtype:
            audit.guarded(_replaced, audit, self, name, old.dtype, value)
    original(self, name, value)


def _replaced(audit: Recorder, module: nn.Module, name: str, was: torch.dtype, buffer: Tensor) -> None:
    path, size = audit.path_of(module), size_of(buffer)
    stays = Stays(RULE, "buffer", audit.here(), path, name, "forward", was, buffer.dtype, size)
    enter(audit, stays)
    stays.begin(audit, buffer)
