"""Hyperparameters that are zero in the dtype of the parameters."""

import functools
from typing import Any

import torch
from torch import Tensor

from ..._core.base.dtypes import FLOATING
from ..._core.base.errors import plain
from ..._engine.watch.rule import Rule
from ...amp._optimizer import Group, is_torchs


def find(rule: Rule, key: str, group: Group) -> None:
    watched, value = group.watched, group.options.get(key)
    if not isinstance(value, (int, float)) or not value or group.options.get("fused"):  # those compute in float32
        return
    lost = [p for p in group.parameters() if p.dtype in FLOATING and _vanishes(float(value), p.dtype)]
    if not is_torchs(watched.optimizer):  # it may compute in wider state
        lost = [p for p in lost if any(_keeps_in(p.dtype, state) for state in watched.state_of(p).values())]
    if lost:
        facts = {"key": key, "value": value, "found": plain(lost[0].dtype)}
        group.add(rule, facts, lost, from_dtype=lost[0].dtype, origin=watched.since(lost[0]))


@functools.cache
def _vanishes(value: float, dtype: torch.dtype) -> bool:
    return torch.tensor(value, dtype=dtype, device="cpu").item() == 0


def _keeps_in(dtype: torch.dtype, state: Any) -> bool:
    return isinstance(state, Tensor) and state.ndim > 0 and state.dtype is dtype
