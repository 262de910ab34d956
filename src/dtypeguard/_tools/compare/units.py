"""The modules of a model that can be kept in float32, and what keeping them costs: their parameters."""

import functools
import operator
from collections.abc import Iterable, Mapping

from torch import Tensor, nn

from .text import grouped

_BORDER = 0.05  # of the average module's parameters: what the casts at the borders of one module cost, at least


def inside(name: str, other: str) -> bool:
    """Whether a module is in another one."""
    return name != other and (not other or name.startswith(f"{other}."))


def within(name: str, other: str) -> bool:
    """Whether a module is another one, or in it."""
    return name == other or inside(name, other)


def in_any(name: str, others: Iterable[str]) -> bool:
    """Whether a module is one of others, or in one."""
    return any(within(name, other) for other in others)


def _names_around(name: str) -> list[str]:
    """The names of all modules around one, the model's first."""
    parts = name.split(".") if name else []
    return [".".join(parts[:n]) for n in range(len(parts))]


def _held(module: nn.Module) -> dict[int, Tensor]:
    """Its floating parameters; its buffers where it has none, as a table of frequencies."""
    parameters = {id(p): p for p in module.parameters() if p.is_floating_point()}
    return dict(parameters) or {id(b): b for b in module.buffers() if b.is_floating_point()}


class Units:
    """The modules that can be kept: those that were called, and have floating parameters, or at least buffers."""

    def __init__(self, modules: Mapping[str, nn.Module], called: Iterable[str], bits: Mapping[str, int]) -> None:
        called = set(called)
        self._modules = modules
        self._all = {id(p): p for p in modules[""].parameters() if p.is_floating_point()}
        self._total = sum(p.numel() for p in self._all.values())
        self._held = {name: _held(module) for name, module in modules.items() if name in called}
        self.names = [name for name, held in self._held.items() if held]  # in the model's order
        self.holders = {name: [other for other in _names_around(name) if self._held.get(other)] for name in self.names}
        self.parts = grouped((other, name) for name, holders in self.holders.items() for other in holders)
        self.leaves = [name for name in self.names if name not in self.parts]  # which have no other in them
        self._sharing = self._shared()
        self.bits = {  # with those of modules that share parameters with one
            name: functools.reduce(operator.or_, (bits[other] for other in self._sharing.get(name, ())), bits[name])
            for name in modules
        }
        # What one module costs in any case, in parameters.
        self.border = _BORDER * self._size(self.names) / max(len(self.leaves), 1)

    def share(self, names: Iterable[str]) -> float:
        """The share of the model's parameters that several modules hold; buffers are none."""
        return sum(p.numel() for p in self._parameters_of(names).values()) / max(self._total, 1)

    def bytes(self, names: Iterable[str], narrower: int | None) -> float:
        """The share of the parameters' bytes that several modules hold, if those of others take so many each."""
        kept = self._parameters_of(names)
        wide = sum(p.nbytes for p in kept.values())
        rest = sum(p.numel() * (narrower or p.itemsize) for key, p in self._all.items() if key not in kept)
        return wide / max(wide + rest, 1)

    def price(self, names: Iterable[str]) -> float:
        """What keeping several modules costs, in parameters."""
        names = list(names)
        return self._size(names) + self.border * len(names)

    def closed(self, names: Iterable[str]) -> tuple[str, ...]:
        """With those that share parameters with them, in the model's order; what is inside of another is left out."""
        chosen, new = set[str](), set(names)
        while new:
            chosen |= new
            new = {other for name in new for other in self._sharing.get(name, ())} - chosen
        return tuple(
            name for name in self._modules if name in chosen and not any(inside(name, other) for other in chosen)
        )

    def direct(self, name: str) -> list[str]:
        """The modules in one, but for those in others of them."""
        inner = self.parts.get(name, [])
        return [one for one in inner if not any(within(one, other) for other in inner if other != one)]

    def outermost(self) -> list[str]:
        """Those that are in no other but the model itself."""
        return [name for name in self.names if name and not any(self.holders[name])]

    def _parameters_of(self, names: Iterable[str]) -> dict[int, Tensor]:
        return {key: p for name in names for key, p in self._held[name].items() if key in self._all}

    def _size(self, names: Iterable[str]) -> int:
        """How many numbers several modules hold, those of buffers where there are no parameters."""
        return sum({key: t.numel() for name in names for key, t in self._held[name].items()}.values())

    def _shared(self) -> dict[str, list[str]]:
        """By module, the smallest others that hold one of its parameters too."""
        own = ((name, parameter) for name in self.names for parameter in self._modules[name]._parameters.values())
        holders = grouped((id(parameter), name) for name, parameter in own if parameter is not None)
        shared: dict[str, list[str]] = {}
        for several in holders.values():
            for name in several if len(several) > 1 else ():
                for around in (name, *self.holders[name]):
                    shared.setdefault(around, []).extend(
                        other for other in several if other != around and not inside(other, around)
                    )
        return shared
