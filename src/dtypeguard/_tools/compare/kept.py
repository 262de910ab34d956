"""Modules that stay in float32: what a search has found, to apply to a model."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import nn

from ..._core.base.dtypes import BY_NAME, name_of
from ..._core.base.modules import root_of
from ..._core.base.options import explained, kind_of, refuse_no_module
from ..._show.result import Drawn
from ..._show.svg import Chart
from ..._show.text import modules_shown, percent, wrapped
from .borders import check_fits, convert, keep_wide
from .pictures import of_kept
from .subject import widest
from .text import of_whole, verified

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class Kept(Drawn):
    """Modules that stay in float32, and what the rest of the model in the low dtype then costs.

    Attributes:
        names: the names of the modules; `""` is the whole model.
        error: the error of the outputs, measured by running the model so.
        runs: how many such runs it took to find them; 0 where the whole model in the low dtype is good enough.
        dtype: the dtype of the rest of the model; None for autocast.
        narrow: those among the modules whose results are cast to the low dtype, as an operation that follows refuses
            float32 beside it.
        cast: modules of the rest whose inputs are cast to the low dtype, as they refuse float32 beside it.
        parameters: the share of the model's parameters that stay in float32.
        bytes: their share of the bytes of all parameters, of the model as it is kept.
        curve: what other sets would cost and give: shares of the parameters, and the errors that are expected, or
            were measured.
        notes: what limits the result.
        wide: the dtype of the model that was compared, in which the modules stay.
    """

    kind: ClassVar[str] = "kept"

    names: tuple[str, ...]
    error: float
    runs: int
    dtype: torch.dtype | None
    narrow: tuple[str, ...] = ()
    cast: tuple[str, ...] = ()
    parameters: float = 0.0
    bytes: float = 0.0
    curve: tuple[tuple[float, float], ...] = ()
    notes: tuple[str, ...] = ()
    wide: torch.dtype = torch.float32

    @explained
    def apply(self, model: M) -> M:
        """Convert a model in float32 to the low dtype, except for these modules. Returns the same model.

        Casts at the borders are made in every mode and without a warning, guarded or not;
        `dtypeguard.unguard(model, borders=True)` takes them off.
        `state_dict` has the same keys as before. For autocast nothing is converted: these modules run outside of the
        region.

        Args:
            model: the one that was compared, or one that is built alike, in float32. One in float64 is
                converted first.

        Returns:
            The same model.

        Raises:
            CompareError: if the model lacks one of the modules, or its weights are in half precision already.

        >>> import torch, dtypeguard
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
        >>> result = dtypeguard.compare(model, torch.randn(4, 8), dtype=torch.bfloat16)
        >>> kept = result.keep(error=1e-6)
        >>> kept.apply(model)(torch.randn(4, 8)).dtype
        torch.float32
        """
        refuse_no_module("apply", model)
        held = root_of(model)
        check_fits(held, self.names, self.dtype, self.wide, (*self.narrow, *self.cast))
        if widest(held) is not self.wide:
            convert(held, self.wide)
        keep_wide(held, self.names, self.narrow, self.dtype, self.cast)
        return model

    def told(self, modules: Iterable[str], low: str = "") -> Iterator[str]:
        """What is kept, in lines; names are made short by those of all modules, and `low` is what the rest is in."""
        names = ", ".join(modules_shown(self.names, modules)) or (
            "no module (`kept.apply` casts the batch)" if self.runs else "nothing"
        )
        if self.names == ("",):
            names = "the whole model, as no part of it that was tried is enough"
        cost = f"; {of_whole(self.parameters)} of the parameters" if self.names else ""
        low = low or ("autocast" if self.dtype is None else name_of(self.dtype))
        how = verified(self.runs, low)
        yield f"keep in {name_of(self.wide)}: {names} -> {percent(self.error)} ({how}{cost})"
        for note in self.notes:
            yield f"note: {note}"

    def __str__(self) -> str:
        return "\n".join(line for one in self.told(()) for line in wrapped(one))

    def _data(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def _picture(self) -> Chart:
        return of_kept(self.to_dict())

    def _cell(self) -> tuple[Any, ...]:
        from .page import parts_of_kept

        return parts_of_kept(self.to_dict())

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Kept":
        """The inverse of `to_dict`, for what was written to a file.

        Args:
            data: what `to_dict` gave, or `json.load` of what `to_json` wrote.

        Returns:
            The same modules.

        Raises:
            TypeError, ValueError: for anything else.

        >>> import torch, dtypeguard
        >>> kept = dtypeguard.results.Kept(("encoder",), 1e-3, 2, torch.bfloat16)
        >>> dtypeguard.results.Kept.from_dict(kept.to_dict()) == kept
        True
        """
        if not isinstance(data, Mapping):
            raise TypeError(f"from_dict: {kind_of(data)} is no dict: pass what `to_dict` of a `Kept` gave")
        lacks = [field.name for field in dataclasses.fields(cls) if field.name not in data]
        if lacks:
            raise ValueError(f"from_dict: there is no {lacks[0]!r} in it: pass what `to_dict` of a `Kept` gave")
        dtype = None if data["dtype"] is None else BY_NAME[data["dtype"]]
        names, narrow, cast, notes = (tuple(data[name]) for name in ("names", "narrow", "cast", "notes"))
        curve = tuple((float(share), float(error)) for share, error in data["curve"])
        cost = float(data["parameters"]), float(data["bytes"])
        wide = BY_NAME[data["wide"]]
        return cls(names, float(data["error"]), int(data["runs"]), dtype, narrow, cast, *cost, curve, notes, wide)
