"""Formats for layers: what each costs and damages, and the choices of which none is cheaper and better."""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_MOVES = 64  # of those that damage less, and of those that cost less
_POINTS = 2048  # choices that are kept: of those that cost nearly the same, the best


@dataclass(frozen=True, slots=True)
class Option:
    """A format for one layer."""

    format: str | None  # None for that of the model
    cost: float  # bits of all its weights
    damage: float  # the square of the error that it makes in the outputs


@dataclass(frozen=True, slots=True)
class Choice:
    """A format for each layer."""

    cost: float
    damage: float
    _options: Callable[[], dict[str, Option]]

    @property
    def formats(self) -> dict[str, str | None]:
        """By the name of the layer, in order."""
        return {name: option.format for name, option in self._options().items()}

    def near(self, options: Mapping[str, Sequence[Option]], most: float) -> list["Choice"]:
        """Those in which one layer or two have another format, and that cost so much at most: the best first."""
        own = self._options()
        moves = [
            (name, one, one.cost - own[name].cost, one.damage - own[name].damage)
            for name, several in options.items()
            for one in several
            if one != own[name]
        ]
        better = sorted((move for move in moves if move[3] < 0), key=lambda move: move[3])[:_MOVES]
        cheaper = sorted((move for move in moves if move[2] < 0), key=lambda move: move[3])[:_MOVES]
        pairs = (pair for pair in itertools.product(better, cheaper) if pair[0][0] != pair[1][0])
        found = []
        for change in (*((move,) for move in moves), *pairs):
            cost, damage = self.cost + sum(move[2] for move in change), self.damage + sum(move[3] for move in change)
            if cost <= most:
                chosen = {**own, **{name: option for name, option, *_ in change}}
                found.append(Choice(cost, damage, functools.partial(dict, chosen)))
        return sorted(found, key=lambda one: one.damage)


def choices(options: Mapping[str, Sequence[Option]]) -> list[Choice]:
    """All choices of which none is cheaper and better, the cheapest first: a multiple-choice knapsack, by layers.

    Damages are added: errors of layers are independent, and small.
    """
    costs, damages = torch.zeros(2, 1, dtype=torch.float64)
    steps: list[tuple[str, Sequence[Option], Tensor, Tensor]] = []
    for name, several in options.items():
        each = torch.tensor([(one.cost, one.damage) for one in several], dtype=torch.float64)
        cost, damage = ((front[:, None] + own).flatten() for front, own in zip((costs, damages), each.T, strict=True))
        kept = _pareto_front(cost, damage)
        costs, damages = cost[kept], damage[kept]
        steps.append((name, several, kept // len(several), kept % len(several)))

    def options_at(place: int) -> dict[str, Option]:
        found: list[tuple[str, Option]] = []
        for name, several, before, chosen in reversed(steps):
            found.append((name, several[int(chosen[place])]))
            place = int(before[place])
        return dict(reversed(found))

    pairs = enumerate(zip(costs.tolist(), damages.tolist(), strict=True))
    return [Choice(cost, damage, functools.partial(options_at, place)) for place, (cost, damage) in pairs]


def _pareto_front(cost: Tensor, damage: Tensor) -> Tensor:
    """The places of the choices that are better than all that are as cheap; where these are many, one of each few."""
    order = damage.sort(stable=True).indices
    order = order[cost[order].sort(stable=True).indices]
    least = damage[order].cummin(0).values
    better = torch.ones(len(order), dtype=torch.bool)
    better[1:] = least[1:] < least[:-1]
    order = order[better]
    if len(order) <= _POINTS:
        return order
    low, high = cost[order[0]], cost[order[-1]]
    group = ((_POINTS - 2) * (cost[order] - low) / (high - low)).ceil()
    last = torch.ones(len(order), dtype=torch.bool)  # the last of a group damages least
    last[:-1] = group[1:] != group[:-1]
    return order[last]
