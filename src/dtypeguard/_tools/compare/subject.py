"""The model that is compared: its copies in other dtypes, and what they return for each batch."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..._core.base.dtypes import FLOATING, name_of
from ..._core.base.errors import CompareError
from ..._core.base.modules import copy_of, root_of
from ..._core.base.numbers import Numbers
from ..._core.base.progress import tell
from ..._core.contract.containers import tensors_in
from ..calls import widened
from .batches import Batch
from .draws import Draws, drawing

Loss = Callable[..., Any]
# What PyTorch raises for operands of dtypes that it does not take, and models that look at the dtype themselves.
REFUSALS = (RuntimeError, TypeError, ValueError, AssertionError)


@dataclass(eq=False)
class Subject:
    """A model, the dtype or the autocast region to compare, and the batches."""

    model: nn.Module
    batches: list[Batch]
    dtype: torch.dtype | None  # to convert the model to; None for a region
    region: torch.dtype | None  # the dtype of an autocast region; None where the model is converted
    device: torch.device
    loss: Loss | None  # of the model's output and the batch
    compiled: Callable[[nn.Module], nn.Module] | None = None  # compiles a copy as the caller's model is, if that is
    runs: int = 0  # how often the model has run, in any dtype
    at_loss: bool = False  # whether the last run has come as far as the loss
    precision: torch.dtype = torch.float64  # of the reference
    apart: float | None = None  # the error of the model as it is against float64, where that is no reference for this
    advice: ClassVar[str] = "pass loss=, a function"  # how other tensors than the model's are compared
    widens: ClassVar[bool] = True  # whether keeping a module in float32 has others compute in float32 too
    _references: dict[int, list[Tensor]] = field(default_factory=dict)
    _wide: nn.Module | None = None

    def __post_init__(self) -> None:
        self.draws: list[Draws] = [Draws() for _ in self.batches]
        self._numbers = Numbers.taken(self.device)
        self._mark = self._numbers.mark()
        self._state = dict(self._marks())

    def _marks(self) -> Iterator[tuple[str, Any]]:
        """What changes where a parameter is written to, converted or replaced."""
        for name, parameter in self.model.named_parameters():
            version = 0 if parameter.is_inference() else parameter._version
            yield name, (parameter.dtype, parameter.untyped_storage()._cdata, version)

    def check_unchanged(self) -> None:
        """Raises CompareError if the model is another one than was compared."""
        now = dict(self._marks())
        name = next((name for name in {**self._state, **now} if self._state.get(name) != now.get(name)), None)
        if name is None:
            return
        if name not in now:
            what = f"has no parameter {name} any more"
        elif name not in self._state:
            what = f"has a new parameter, {name}"
        else:
            was, dtype = self._state[name][0], now[name][0]
            what = f"{name} was written to" if was is dtype else f"{name} was {name_of(was)}, and is {name_of(dtype)}"
        raise CompareError(f"keep: the model has changed since it was compared: {what}; call compare again")

    @property
    def low(self) -> torch.dtype:
        dtype = self.dtype or self.region
        assert dtype is not None
        return dtype

    @property
    def title(self) -> str:
        return name_of(self.low) if self.region is None else f"{name_of(self.low)} autocast"

    def copy(self) -> nn.Module:
        """A copy of the model as it is."""
        return copied(self.model, "compare runs a copy of the model", f"this {type(self.model).__name__}")

    def lowered(self) -> nn.Module:
        """A copy of the model in the low dtype."""
        model = self.copy()
        return model if self.dtype is None else model.to(self.dtype)

    def reference(self, number: int) -> list[Tensor]:
        """The outputs of the model in float64 for one batch; in float32 where an operation refuses float64."""
        if number not in self._references:
            if self._wide is None:
                self._wide = widened(self.copy(), self.precision)
            try:
                with torch.no_grad():
                    found = self.run(self._wide, number, self.batches[number].to(self.precision), low=False)
            except REFUSALS:
                if self.precision is torch.float32:
                    raise
                self.precision, self._wide = torch.float32, None
                self._references.clear()
                return self.reference(number)
            self._references[number] = [tensor.detach() for tensor in found]
        return self._references[number]

    def refer(self) -> None:
        """Run the reference first, as it needs most room; the first to draw random numbers is the low dtype."""
        for number, draws in enumerate(self.draws):
            self.reference(number)
            if draws.forget():
                del self._references[number]
        self.forget()

    def refer_to_own(self, apart: float) -> None:
        """From now on the reference is the model as it is."""
        self.precision, self.apart, self._wide = widest(self.model), apart, None
        self._references.clear()

    def forget(self) -> None:
        """Give the wide model back."""
        self._wide = None

    def own(self) -> list[Tensor]:
        """The outputs of the model as it is, for the first batch."""
        with torch.no_grad():
            return self.run(self.copy(), 0, self.batches[0].to(None), low=False)

    def low_outputs(
        self, model: nn.Module, dtype: torch.dtype | None, given: frozenset[int] = frozenset()
    ) -> Iterator[list[Tensor]]:  # fmt: skip
        """The outputs of a copy in the low dtype, or under autocast, for each batch in a dtype, but for `given`."""
        for number, batch in enumerate(self.batches):
            with torch.no_grad():
                yield self.run(model, number, batch.to(dtype, given))

    def fast_outputs(self) -> Iterator[list[Tensor]]:
        """The outputs in the low dtype on the fast path of PyTorch's own layers; none where no layer takes it."""
        layers = (m for m in self.model.modules() if isinstance(m, nn.TransformerEncoderLayer | nn.MultiheadAttention))
        if self.widens and torch.backends.mha.get_fastpath_enabled() and any(not m.training for m in layers):
            yield from self.low_outputs(self.lowered(), self.dtype)

    def compiled_outputs(self, model: nn.Module, dtype: torch.dtype | None) -> Iterator[list[Tensor]]:
        """As `low_outputs`, of a compiled model: a mode that hands out random numbers would have it run uncompiled."""
        for batch in self.batches:
            self.runs += 1
            with torch.no_grad(), self._region(True):
                batch = batch.to(dtype)
                out = model(*batch.args, **batch.kwargs)
                yield list(tensors_in(out if self.loss is None else self.loss(out, batch)))

    def run(self, model: nn.Module, number: int, batch: Batch, low: bool = True, mode: Any = None) -> list[Tensor]:
        """The tensors that one run returns, with the random numbers of the first run of the same batch."""
        self.runs += 1
        tell(lambda: f"run {self.runs}")
        drawn: Any = drawing(self._numbers, self._mark, self.draws[number])
        if low and mode is None and self.widens and self.draws[number].none:  # as it is used, on any fast path
            drawn = contextlib.nullcontext()
        on = mode.on() if mode else contextlib.nullcontext()
        with self._region(low), drawn, on, self.around(model, low, mode):
            self.at_loss = False
            out = model(*batch.args, **batch.kwargs)
            if self.loss is not None:
                self.at_loss = True
                out = self.loss(out, batch)
        return list(tensors_in(out))

    def prepare(self) -> None:
        """Before the first low run."""

    def around(self, model: nn.Module, low: bool, mode: Any) -> Any:
        """What else is on in a run."""
        return contextlib.nullcontext()

    def _region(self, low: bool) -> Any:
        """The region to compare; one that the caller is in has no part in it."""
        enabled = low and self.region is not None
        return torch.autocast(self.device.type, dtype=self.region if enabled else None, enabled=enabled)


def copied(model: nn.Module, why: str, name: str) -> nn.Module:
    """A copy of a model; raises CompareError with why there must be one."""
    try:
        return copy_of(model)
    except Exception as error:
        raise CompareError(f"{why}, and copy.deepcopy cannot copy {name}: {type(error).__name__}: {error}") from error


def compiling(model: nn.Module) -> Callable[[nn.Module], nn.Module] | None:
    """What compiles another model as this one is compiled: by `torch.compile`, or by `model.compile`."""
    settings: Any = getattr(model, "dynamo_ctx", None)
    wrapper: Any = type(model)
    if settings is not None and root_of(model) is not model:
        return lambda other: wrapper(other, settings)
    if model._compiled_call_impl is None:
        return None

    def compiled(other: nn.Module) -> nn.Module:
        other.compile()
        return other

    return compiled


def widest(model: nn.Module) -> torch.dtype:
    """The widest floating dtype of a model's parameters."""
    dtypes = {p.dtype for p in model.parameters() if p.dtype in FLOATING} or {torch.get_default_dtype()}
    return min(dtypes, key=lambda dtype: torch.finfo(dtype).eps)
