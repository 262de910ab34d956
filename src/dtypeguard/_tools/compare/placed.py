"""Formats that a search has found for a model's layers: to apply, and to hand to the tools that make them real."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from torch import nn

from ..._core.base.errors import DtypeGuardWarning
from ..._core.base.frames import caller, warn_at
from ..._core.base.modules import root_of
from ..._core.base.options import explained, refuse_no_module
from ..._show.result import Drawn
from ..._show.svg import Chart
from ..._show.text import modules_shown, percent, wrapped
from ..formats.emulation import emulate, restore
from ..formats.table import Scale, format_of
from .borders import modules_of
from .pictures import of_placed
from .recipes import recipe
from .text import grouped, runs_of

M = TypeVar("M", bound=nn.Module)
_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Placed(Drawn):
    """Which layers go to which format, and what that costs.

    Attributes:
        names: the modules with matrix products that stay as they are.
        formats: the format of each of the others, by the module's name.
        error: the error of the outputs, measured by running the model so, with rounded operands.
        runs: how many such runs it took.
        bits: how many bits a weight of a matrix product has on average, with the scales of blocks (one of a row or a
            tensor weighs nothing); of those that stay, those of their dtype.
        gradient: the error of the gradients of all parameters, with `loss=`; else None.
        attention: the format in which attention's own products are; None where they are not rounded.
        stays: those of `names` that no search has chosen: the format refuses them, or they are routers.
        curve: bits of a weight, and the errors that are expected of the best choice with so many.
        notes: what limits the result.
        others: the classes of modules with a format that are no `nn.Linear`, by their names.
        wide: the model's dtype, in which the other modules stay.
    """

    kind: ClassVar[str] = "formats"

    names: tuple[str, ...]
    formats: Mapping[str, str]
    error: float
    runs: int
    bits: float
    gradient: float | None = None
    attention: str | None = None
    stays: Mapping[str, str] = field(default_factory=lambda: _NONE)
    curve: tuple[tuple[float, float], ...] = ()
    notes: tuple[str, ...] = ()
    others: Mapping[str, str] = field(default_factory=lambda: _NONE)
    wide: str = "the model's dtype"

    @explained
    def apply(self, model: M) -> M:
        """Round the operands of a model's matrix products in each forward, as these formats do. Returns the model.

        Parameters and `state_dict` stay as they are; gradients pass through the rounding as if it was not there.
        Applied again, or by another result, it replaces what was applied before; `remove` takes it off.

        Args:
            model: the one that was compared, or one that is built alike.

        Returns:
            The same model.

        Raises:
            CompareError: if the model lacks one of the modules.

        >>> import torch, dtypeguard
        >>> model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 32))
        >>> kept = dtypeguard.compare(model, torch.randn(4, 32), format="mxfp8").keep(error=0.5)
        >>> rounded = kept.apply(model)
        """
        refuse_no_module("apply", model)
        held = root_of(model)
        modules_of(held, (*self.formats, *self.names))
        chosen = {name: format_of(value) for name, value in self.formats.items()}
        emulate(held, chosen, None if self.attention is None else format_of(self.attention))
        return model

    @explained
    def remove(self, model: M) -> M:
        """Take off what `apply` has put on a model.

        Args:
            model: the model to which it was applied.

        Returns:
            The same model.

        >>> import torch, dtypeguard
        >>> model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 32))
        >>> kept = dtypeguard.compare(model, torch.randn(4, 32), format="mxfp8").keep(error=0.5)
        >>> model is kept.remove(kept.apply(model))
        True
        """
        refuse_no_module("remove", model)
        restore(root_of(model))
        return model

    def filter(self, module: nn.Module, name: str) -> bool:
        """Whether a linear layer goes to a format: what torchao's `quantize_` and `convert_to_float8_training` ask.

        Args:
            module: one of the model's.
            name: its name in `named_modules()`.

        Returns:
            True for a linear layer with a format of 8 bits or fewer; False with "bf16", "fp16" and "tf32", which are
            casts, and for classes other than `nn.Linear`, which these tools do not take.

        Raises:
            ValueError: for several such formats, which one filter cannot tell apart.

        >>> import torch, dtypeguard
        >>> model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 32))
        >>> kept = dtypeguard.compare(model, torch.randn(4, 32), format="mxfp8").keep(error=0.5)
        >>> [kept.filter(module, name) for name, module in model.named_modules()]
        [False, True, True]
        """
        scaled = {title for title in self.formats.values() if format_of(title).scale is not Scale.NONE}
        if len(scaled) > 1:
            told = " and ".join(sorted(scaled))
            raise ValueError(f'filter: layers go to {told}, and a filter is for one: use `to_recipe("torchao")`')
        return isinstance(module, nn.Linear) and self.formats.get(name) in scaled

    def to_recipe(self, tool: str) -> dict[str, Any]:
        """The same for a tool that makes it real, as the plain data that this tool loads.

        These tools take linear layers; others are left out, with a warning.

        Args:
            tool: "torchao", "transformers", "transformer_engine", "modelopt" or "llm-compressor".

        Raises:
            ValueError: for another tool, or a format that it does not know.

        >>> import torch, dtypeguard
        >>> model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 32))
        >>> kept = dtypeguard.compare(model, torch.randn(4, 32), format="int8").keep(error=0.5)
        >>> sorted(kept.to_recipe("torchao"))
        ['_data', '_type', '_version']
        """
        linear = {name: title for name, title in self.formats.items() if name not in self.others}
        made = recipe(tool, linear, (*self.names, *self.others))
        if self.others:
            told = ", ".join(f"{name} ({kind})" for name, kind in self.others.items())
            warn_at(caller(), DtypeGuardWarning(f"to_recipe({tool!r}) leaves out what is no nn.Linear: {told}"))
        return made

    def told(self, modules: Iterable[str]) -> Iterator[str]:
        """What was chosen, in lines."""
        chosen = grouped((title, name) for name, title in self.formats.items())
        chosen[self.wide] = [name for name in self.names if name not in self.stays]
        for title, names in chosen.items():
            if names:
                yield f"{'keep in' if title == self.wide else 'to'} {title}: {', '.join(modules_shown(names, modules))}"
        said = f"-> error {percent(self.error)}, {self.bits:.3g} bits a weight"
        if self.gradient is not None:
            said += f", gradients {percent(self.gradient)}"
        yield f"{said} (verified by {runs_of(self.runs)})"
        for note in self.notes:
            yield f"note: {note}"

    def __str__(self) -> str:
        told = self.told((*self.formats, *self.names))
        return "\n".join(line for one in told for line in wrapped(one))

    def _data(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def _picture(self) -> Chart:
        return of_placed(self.to_dict())

    def _cell(self) -> tuple[Any, ...]:
        from .formats_page import parts_of_placed

        return parts_of_placed(self.to_dict())
