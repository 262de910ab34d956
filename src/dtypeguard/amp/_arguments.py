"""The arguments of `watch`."""

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from .._core.base.config import Mode, as_mode
from .._core.base.options import kind_of
from .._engine.watch.rule import select

WATCHED = ("DG3", "DG4")  # the families that a watch looks for


def models_of(model: Any) -> list[nn.Module]:
    models = _several(model, nn.Module)
    for one in models:
        if not isinstance(one, nn.Module):
            told = f"watch takes an nn.Module as model, or several, not {kind_of(one)}"
            raise TypeError(f"{told} (model, optimizer, scaler)")
    if not any(parameter.requires_grad for one in models for parameter in one.parameters()):
        names = ", ".join(type(one).__name__ for one in models) or "an empty collection"
        raise ValueError(f"model has no trainable parameters: {names}")
    return models


def _several(given: Any, kind: type) -> list[Any]:
    """What an argument holds that is one thing or several."""
    one = isinstance(given, (kind, dict, str)) or not isinstance(given, Iterable)
    return [given] if one else list(given)


def optimizers_of(optimizer: Any) -> list[Optimizer]:
    optimizers: list[Optimizer] = []
    for one in _several(optimizer, Optimizer):
        while isinstance(getattr(one, "optimizer", None), Optimizer):  # the wrapper of a framework
            one = one.optimizer
        if not isinstance(one, Optimizer):
            raise TypeError(f"watch takes a torch.optim.Optimizer as optimizer, or several, not {kind_of(one)}")
        optimizers.append(one)
    if not optimizers:
        raise ValueError("optimizer is an empty collection: give at least one torch.optim.Optimizer")
    return list(dict.fromkeys(optimizers))


def read(
    mode: Any = None, every: Any = 1, averaged: Any = None, metrics: Any = None, ignore: Any = ()
) -> tuple[Mode | None, frozenset[str]]:
    """The options of `watch`, each checked: the mode, and the rules that are left out."""
    _check_steps("every", every)
    if metrics is not None:
        _check_steps("metrics", metrics)
    rules = select(ignore)
    if others := sorted(rule for rule in rules if not rule.startswith(WATCHED)):
        raise ValueError(f"ignore: a watch looks for {' and '.join(WATCHED)}, and {others[0]} is a rule of audits")
    return as_mode(mode), rules


def _check_steps(option: str, steps: Any) -> None:
    if isinstance(steps, bool) or not isinstance(steps, int):
        raise TypeError(f"{option} must be a number of steps, not {steps!r}")
    if steps < 1:
        raise ValueError(f"{option}={steps} is no number of steps: use 1 or more")
