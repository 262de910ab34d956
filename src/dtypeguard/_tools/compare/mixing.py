"""Formats for layers: what each costs and damages, and the choices of which none is cheaper and better."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_POINTS = 2048  # choices that are kept: of those that cost nearly the same, the best


@dataclass(frozen=True, slots=True)
class Option:
    """A format for one layer: None for that of the model.

    Attributes:
        cost: bits of all its weights.
        damage: the square of the error that it makes in the outputs.
    """

    format: str | None
    cost: float
    damage: float


@dataclass(frozen=True, slots=True)
class Choice:
    """A format for each layer."""

    cost: float
    damage: float
    _last: tuple[Any, str, str | None] | None

    @property
    def formats(self) -> dict[str, str | None]:
        """By the name of the layer, in order."""
        found: list[tuple[str, str | None]] = []
        last = self._last
        while last is not None:
            before, name, chosen = last
            found.append((name, chosen))
            last = before
        return dict(reversed(found))


def choices(options: Mapping[str, Sequence[Option]]) -> list[Choice]:
    """All choices of which none is cheaper and better, the cheapest first: a multiple-choice knapsack, by layers.

    Damages are added: errors of layers are independent, and small.
    """
    front = [Choice(0.0, 0.0, None)]
    for name, several in options.items():
        front = _front(
            Choice(one.cost + option.cost, one.damage + option.damage, (one._last, name, option.format))
            for one in front
            for option in several
        )
    return front


def _front(found: Iterable[Choice]) -> list[Choice]:
    """The choices that are better than all that are as cheap; where these are many, one of each few."""
    best: list[Choice] = []
    for one in sorted(found, key=lambda choice: (choice.cost, choice.damage)):
        if not best or one.damage < best[-1].damage:
            best.append(one)
    if len(best) <= _POINTS:
        return best
    low, high = best[0].cost, best[-1].cost
    thin: dict[int, Choice] = {}
    for one in best:
        thin[math.ceil((_POINTS - 2) * (one.cost - low) / (high - low))] = one  # the last of a group damages least
    return list(thin.values())
