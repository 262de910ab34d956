"""A model in formats of 8 or 4 bits: the modules that go to them, and runs in which operands are rounded."""

import contextlib
import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..._core.base.dtypes import HALF
from ..._core.base.errors import CompareError
from ..._core.base.modules import copy_of
from ..._engine.operands import native
from ..._show.text import modules_shown
from ..formats.emulation import apart, restore
from ..formats.products import Products, Weights
from ..formats.table import FORMATS, Format, format_of
from .batches import Batch
from .reach import Modules
from .subject import Loss, Subject, widest
from .text import grouped

_OTHERS = HALF | {torch.float64}
ROUTER = "a router: a choice reads its results"
NOTHING = "it computes no matrix product with a parameter, as linear layers and convolutions do"
KERNEL = "its products are in one kernel with other things"


@dataclass(eq=False)
class Formatted(Subject):
    """A model, the formats to compare, and the batches."""

    formats: Sequence[Format] = ()  # the first is what the low run has
    attention: bool = False  # whether products without a weight are in the format too
    gradients: Loss | None = None  # the loss whose gradients are compared too
    given: torch.dtype = torch.float32  # in which the model was given

    advice = "put it into a module"  # with a format, `loss=` is for gradients
    widens = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.weights: dict[str, Weights] = {}  # of each module that has products with them, in the order of their calls
        self.stays: dict[str, str] = {}  # why a module computes as it is in any format, by its name
        self.exact: list[dict[str, Tensor]] = []  # the gradients of the model as it is, of each batch
        self.impossible: dict[str, str] = {}  # of several formats those that no module goes to, and why
        self._assigned: Mapping[str, Format] = {}
        self._scouted: list[Tensor] = []

    def copy(self) -> nn.Module:
        """A copy of the model that rounds nothing, whatever was applied to it."""
        model = super().copy()
        restore(model)
        return model

    def own(self) -> list[Tensor]:
        return self._scouted

    def of(self, to: Format) -> "Formatted":
        """The same for one format; its runs are counted by themselves."""
        other = copy.copy(self)
        other.formats, other.runs, other.impossible = (to,), 0, {}
        other._assigned = other.assigned(to)
        return other

    @property
    def width(self) -> int:
        """Bits of a number in the model's own dtype."""
        return 8 * self.given.itemsize

    @property
    def low(self) -> torch.dtype:
        return torch.bfloat16  # so that a shadow in float32 is wide enough

    @property
    def title(self) -> str:
        return self.formats[0].name

    def prepare(self) -> None:
        """Run the model as it is, to see which modules have products; raises CompareError if none goes to a format."""
        model = self.copy()
        stack = Modules(model, doors=False)
        products = Products(model, {}, lambda: stack.now.name)
        for number, batch in enumerate(self.batches):
            with torch.no_grad():
                out = self.run(model, number, batch.to(self.dtype), low=False, mode=products)
            self._scouted = self._scouted or out
            self.draws[number].forget()
        stack.remove()
        self.weights = products.weights
        for name in sorted(products.kernels):
            own = self.model.get_submodule(name).named_parameters(recurse=False)
            self.weights[name] = Weights({f"{name}.{key}": parameter.numel() for key, parameter in own})
            self.stays[name] = KERNEL
        self.stays |= {name: ROUTER for name in self.weights if name in products.origins.choosers}
        for to in self.formats:
            if not self.assigned(to):
                why = "; ".join(reasons(self.refusals(to), self.weights)) or NOTHING
                if not all(map(native, self.model.parameters())):
                    why = "its weights are tensors of another class, as those that are quantized already"
                self.impossible[to.name] = f"no module of {type(self.model).__name__} goes to {to.name}: {why}"
        possible = [to for to in self.formats if to.name not in self.impossible]
        if not possible or (self.attention and possible[0] is not self.formats[0]):  # whose format attention has
            raise CompareError(f"compare: {next(iter(self.impossible.values()))}")
        self.formats = possible
        self._assigned = self.assigned(self.formats[0])

    def refusals(self, to: Format) -> dict[str, str]:
        """The modules that stay as they are, each with the reason."""
        own = {name: why for name, held in self.weights.items() if (why := held.refusal(to)) is not None}
        return {**own, **self.stays}

    def assigned(self, to: Format) -> dict[str, Format]:
        """All modules that go to a format."""
        stay = self.refusals(to)
        return {name: to for name in self.weights if name not in stay}

    @contextlib.contextmanager
    def rounding(self, assigned: Mapping[str, Format]) -> Iterator[None]:
        """Low runs in here have these formats by modules."""
        before, self._assigned = self._assigned, assigned
        try:
            yield
        finally:
            self._assigned = before

    @contextlib.contextmanager
    def around(self, model: nn.Module, low: bool, mode: Any) -> Iterator[None]:
        attention = self.formats[0] if self.attention else None
        with apart() if self.attention else contextlib.nullcontext():
            if not low:
                yield
                return
            modules = Modules(model, doors=False) if mode is None else mode.modules
            try:
                with Products(model, self._assigned, lambda: modules.now.name, attention, mode).on():
                    yield
            finally:
                if mode is None:
                    modules.remove()


def reasons(stays: Mapping[str, str], modules: Iterable[str]) -> list[str]:
    """The modules that stay, one line a reason: `lm_head (61 outputs, not divisible by 16)`."""
    found = grouped((why, name) for name, why in stays.items())
    return [f"{', '.join(modules_shown(names, modules))} ({why})" for why, names in found.items()]


def formatted(
    model: nn.Module, batches: Sequence[Batch], formats: Any, device: torch.device, loss: Loss | None,
    compiled: Any, attention: bool,
) -> Formatted:  # fmt: skip
    """A model to compare in formats: in float32, which holds the values of all that is narrower."""
    formats = formats.split(",") if isinstance(formats, str) else formats
    names = formats if isinstance(formats, tuple | list) else (formats,)
    if not names:
        raise ValueError("compare: format=() names no format: use " + ", ".join(FORMATS))
    rows = [*{row.name: row for row in map(format_of, names)}.values()]
    if attention and not rows[0].activations:
        raise ValueError(f"compare: attention=True rounds activations, and {rows[0].name} rounds weights alone")
    own = widest(model)
    if any(tensor.dtype in _OTHERS for tensor in (*model.parameters(), *model.buffers())):
        model = copy_of(model).float()
    given = [batch.map(lambda t: t.float() if t.dtype in _OTHERS else t) for batch in batches]
    options: dict[str, Any] = {"formats": rows, "attention": attention, "gradients": loss, "given": own}
    return Formatted(model, given, torch.float32, None, device, None, compiled, **options)
