"""A model under test in one cell with one input: what bare PyTorch does, what it does by hand, what a guard does.

Everything is computed when a property asks for it, once.
"""

import contextlib
import copy
import inspect
import re
import types
from collections.abc import Callable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from .._core.base.config import Autocast, ModeName, current_casting
from .._core.base.dtypes import AUTOCAST, FLOATING, may_cast
from .._core.base.numbers import Seeded, seed
from .._core.base.options import kind_of
from .._core.check.names import is_called_mask, is_mask
from .._core.check.reference import check, only_masks_differ, same_device
from .._core.check.verify import changed, compact
from .._core.contract.anchor import Anchor, anchor_of, is_count
from .._core.contract.model import Contract
from .._core.doors.guard import guard, unguard
from .._core.wrap.build import signed
from .._tools.calls import Inputs, Leaf, Outcome, converted, difference, run
from ._matrix import Cell, Guarding, Status

# What the cells themselves say, or what would change the results.
_NOT_TAKEN_OVER = {"mode", "dtype", "device", "output_dtype", "border"}


class Bench:
    """Fresh models of one factory, bare and guarded, in any dtype and on any device."""

    def __init__(self, factory: Callable[[], nn.Module], compiler: str | None) -> None:
        self._factory, self.compiler = factory, compiler
        self._made: dict[tuple[torch.dtype | None, torch.device], nn.Module] = {}
        self._options: dict[str, Any] = {}
        model = self.make()
        self.name, self.signature = type(model).__name__, inspect.signature(model.forward)
        anchor = anchor_of(model)
        self.floating, self.dtype = anchor is not None, anchor.dtype if anchor is not None else None
        note = signed(type(self.guard(model, "strict")).forward)
        self.contract = Contract(self.name, (), autocast=Autocast.FOLLOW) if note is None else note[1]

    def make(self, number: int = 0) -> nn.Module:
        """A new model, whose random numbers start from `number`; a guard of its own is taken off, and remembered."""
        seed(number)
        with Seeded().on():
            model: Any = self._factory()
        with contextlib.suppress(Exception):  # what cannot be copied is made anew each time
            model = copy.deepcopy(model)  # the caller may keep it
        if not isinstance(model, nn.Module):
            raise TypeError(f"factory: it gives {kind_of(model)}, not an nn.Module: let it return the model")
        card = vars(model).get("_dtypeguard")
        if card is not None:
            names = [name for name in card.key.options.__slots__ if name not in _NOT_TAKEN_OVER]
            skipped = [path for path, module in model.named_modules() if path and "_dtypeguard" not in vars(module)]
            self._options = {name: getattr(card.key.options, name) for name in names} | {"skip_modules": skipped}
        return unguard(model)

    def template(self, dtype: torch.dtype | None, device: torch.device) -> nn.Module:
        """The model that others are copies of; dtype None: as it is made."""
        if (dtype, device) not in self._made:
            self._made[dtype, device] = converted(self.make(), dtype, device)
        return self._made[dtype, device]

    def bare(self, dtype: torch.dtype | None, device: torch.device) -> nn.Module:
        """A model that nobody has called."""
        try:
            return copy.deepcopy(self.template(dtype, device))
        except Exception:  # tensors with a history, as pruned weights are
            return converted(self.make(), dtype, device)

    def anew(self, dtype: torch.dtype | None, device: torch.device) -> nn.Module:
        """A model that other random numbers went into."""
        return converted(self.make(1), dtype, device)

    def guard(self, model: nn.Module, mode: ModeName) -> nn.Module:
        return guard(model, **self._options, mode=mode)

    def compiled(self, model: nn.Module, whole: bool) -> Any:
        """A compiled call of a model; Dynamo counts the graphs of each code, and all models of a class share theirs."""

        def call(*args: Any, **kwargs: Any) -> Any:
            return model(*args, **kwargs)

        own: Any = types.FunctionType(call.__code__.replace(), globals(), "call", None, call.__closure__)
        return torch.compile(own, backend=_drawing_apart(self.compiler or ""), fullgraph=whole)


def _drawing_apart(name: str) -> Callable[..., Any]:
    """A backend whose graphs draw from the numbers of this tool."""

    def backend(graph: Any, inputs: Any) -> Callable[..., Any]:
        ready = torch._dynamo.lookup_backend(name)(graph, inputs)

        def call(*args: Any) -> Any:
            with Seeded().on():
                return ready(*args)

        return call

    return backend


class Trial:
    """One cell with one input. `only` names the one argument that is of the cell's input dtype; else all are."""

    def __init__(self, bench: Bench, cell: Cell, inputs: Inputs, only: str | None = None) -> None:
        self.bench, self.cell, self.inputs, self.only = bench, cell, inputs, only

    def alone(self, path: str) -> "Trial":
        return Trial(self.bench, self.cell, self.inputs, path)

    # ------------------------------------------------------------ inputs

    @cached_property
    def anchor(self) -> Anchor | None:
        return anchor_of(self.bench.template(self.cell.parameter_dtype, self.cell.parameter_device))

    @cached_property
    def right(self) -> Inputs:
        """The inputs as the model wants them."""
        dtype = self.anchor.dtype if self.anchor is not None else self.cell.input_dtype
        first = self.inputs.map(lambda _, t: moved(t, dtype, self.cell.parameter_device))
        pins = self._pins(first)
        return first.map(lambda path, t: moved(t, pins.get(path), self.cell.parameter_device))

    def _pins(self, inputs: Inputs) -> dict[str, torch.dtype]:
        """What an annotation wants that names a dtype itself."""
        contract = self.bench.contract
        if all(param.spec is None for param in contract.params):
            return {}
        found = check(contract, self._values(inputs)).violations
        return {v.argument: v.expected for v in found if isinstance(v.expected, torch.dtype)}

    def _values(self, inputs: Inputs | None = None) -> tuple[Any, ...]:
        """The values of a call in the order of the contract's parameters, the module first."""
        inputs, params = self.inputs if inputs is None else inputs, self.bench.contract.params
        model = self.bench.template(self.cell.parameter_dtype, self.cell.parameter_device)
        if not params:  # nothing is guarded
            return (model,)
        # By the parameters of the contract: a decorator's are `*args, **kwargs`, whatever the model's are.
        taken = [inspect.Parameter(str(param.name), param.kind, default=param.default) for param in params]
        bound = inspect.Signature(taken).bind(model, *inputs.args, **inputs.kwargs)
        bound.apply_defaults()
        return tuple(bound.arguments.values())

    @cached_property
    def given(self) -> Inputs:
        """The inputs of this cell."""
        cell, right = self.cell, {leaf.path: leaf.tensor for leaf in self.right.tensors()}
        if cell.input_dtype in (None, self.anchor_dtype) and cell.input_device == cell.parameter_device:
            return self.right

        def change(path: str, tensor: Tensor) -> Tensor:
            taken = tensor.dtype in FLOATING and self.only in (None, path)
            return moved(tensor, cell.input_dtype, cell.input_device) if taken else right[path]

        return self.inputs.map(change)

    @property
    def anchor_dtype(self) -> torch.dtype | None:
        return None if self.anchor is None else self.anchor.dtype

    @cached_property
    def differs(self) -> dict[str, Leaf]:
        """The inputs that are not as the model wants them, each as it should be."""
        wanted = {leaf.path: leaf for leaf in self.right.floats()}
        return {
            leaf.path: wanted[leaf.path]
            for leaf in self.given.floats()
            if self._dtype_differs(leaf, wanted[leaf.path].tensor.dtype) or self._is_elsewhere(leaf)
        }

    def _dtype_differs(self, leaf: Leaf, wanted: torch.dtype) -> bool:
        """A number beside half parameters may stay float32, and autocast casts between three dtypes itself."""
        dtype = leaf.tensor.dtype
        follows = self.cell.region is not None and self.bench.contract.autocast is Autocast.FOLLOW
        by_autocast = follows and {dtype, wanted} <= AUTOCAST and wanted in (torch.float32, self.anchor_dtype)
        counts = not self._is_annotated(leaf) and is_count(leaf.tensor, self.anchor_dtype)
        return dtype is not wanted and not by_autocast and not counts

    def _is_annotated(self, leaf: Leaf) -> bool:
        return any(p.spec is not None for p in self.bench.contract.params if p.name == leaf.argument)

    def _is_elsewhere(self, leaf: Leaf) -> bool:
        number = leaf.tensor.is_cpu and not leaf.tensor.dim()
        return not number and not same_device(leaf.tensor.device, self.cell.parameter_device)

    @cached_property
    def wrong(self) -> dict[str, Leaf]:
        """Of these the ones that a guard must not let pass: norms take narrower inputs, and some are side inputs."""
        if self.mixed:
            return {}
        contract, accepts = self.bench.contract, self.anchor.accepts if self.anchor is not None else ()
        given = {leaf.path: leaf for leaf in self.given.floats() if leaf.argument not in contract.skip_args}
        sides = contract.sides
        shown = sides and any(leaf.tensor.dim() and leaf.tensor.dtype is self.anchor_dtype for leaf in given.values())
        masks = sides and not shown and only_masks_differ(contract, self._values(self.given), self.anchor_dtype)
        taken = {
            path
            for path, leaf in given.items()
            if leaf.tensor.dtype in accepts
            or ((shown or (masks and _is_mask(path))) and not self._is_annotated(leaf))
            or is_mask(contract, (leaf.argument,), leaf.tensor.dtype, self.anchor_dtype, self._values())
        }
        return {
            path: leaf
            for path, leaf in self.differs.items()
            if path in given and (path not in taken or self._is_elsewhere(given[path]))
        }

    @cached_property
    def mixed(self) -> bool:
        """Parameters of several dtypes: the model as a whole asks for none."""
        return self.anchor is not None and self.anchor.dtype is None

    @property
    def matched(self) -> bool:
        return not self.differs

    # ------------------------------------------------------------ outcomes

    def fresh(self, mode: ModeName = "off") -> nn.Module:
        """A model that nobody has called; 'off' is a bare one."""
        model = self.bench.bare(self.cell.parameter_dtype, self.cell.parameter_device)
        return model if mode == "off" else self.bench.guard(model, mode)

    def call(
        self,
        mode: ModeName = "off",
        cast_by_hand: Mapping[str, Leaf] = MappingProxyType({}),
        model: nn.Module | None = None,
        grads: bool = False,
        compiled: bool = False,
    ) -> Outcome:
        """A call of a fresh model, or of the one given."""

        def by_hand(path: str, tensor: Tensor) -> Tensor:
            leaf = cast_by_hand.get(path)
            return tensor if leaf is None else cast(tensor, leaf.tensor.dtype, leaf.tensor.device)

        cell, region = self.cell, None
        disabled = mode == "off" and self.bench.contract.autocast is Autocast.DISABLE
        if cell.region is not None and not disabled:
            region = cell.parameter_device.type, cell.region
        model = self.fresh(mode) if model is None else model
        change = by_hand if cast_by_hand else None
        return run(model, self.given, mode, by_hand=change, region=region, grads=grads, compiled=compiled)

    @cached_property
    def bare(self) -> Outcome:
        """What PyTorch does with the inputs as they are."""
        return self.call()

    @cached_property
    def by_hand(self) -> Outcome:
        """What it does after the caller has cast what a guard must not let pass."""
        return self.call(cast_by_hand=self.wrong) if self.wrong else self.bare

    @cached_property
    def ideal(self) -> Outcome:
        """What it does with inputs as the model wants them."""
        return self.by_hand if len(self.wrong) == len(self.differs) else self.call(cast_by_hand=self.differs)

    @cached_property
    def strict(self) -> Outcome:
        return self.call("strict")

    @cached_property
    def lenient(self) -> Outcome:
        return self.call("lenient")

    # ------------------------------------------------------------ verdicts

    def _repairs(self) -> list[tuple[Tensor, Leaf]]:
        """The wrong inputs, each with what it should be."""
        return [(leaf.tensor, self.wrong[leaf.path]) for leaf in self.given.floats() if leaf.path in self.wrong]

    @cached_property
    def loses(self) -> bool:
        """Whether a repair makes a finite value infinite, or another number of a whole one."""
        readable = [(old, right) for old, right in self._repairs() if old.layout is torch.strided and not old.is_nested]
        pairs = [(old, cast(old, right.tensor.dtype, old.device)) for old, right in readable]
        return any(bool((new.isinf() & old.isfinite()).any()) or changed(old, new) is not None for old, new in pairs)

    @cached_property
    def forbidden(self) -> bool:
        """Whether the rules leave a wrong input alone: the ladder, opaque containers, what forward may write to."""
        contract = self.bench.contract
        casting = current_casting(contract.casting)
        return any(
            not may_cast(old.dtype, right.tensor.dtype, casting)
            or not right.rebuildable
            or right.argument in contract.mutates
            for old, right in self._repairs()
        )

    @property
    def trap(self) -> bool:
        """Whether PyTorch takes the wrong dtype, and computes something else, in silence."""
        return not self.matched and self.bare.error is None and difference(self.bare, self.ideal) is not None

    @property
    def guard(self) -> Guarding:
        """What lenient mode does."""
        if not self.wrong and not self.lenient.casts:
            return "accepts"
        return "repairs" if self.lenient.error is None else "refuses"

    @property
    def status(self) -> Status:
        if self.trap:
            return "trap"
        if self.ideal.error is not None:
            return "unsupported"
        became: dict[Guarding, Status] = {"accepts": "same", "repairs": "cast", "refuses": "refused"}
        return became[self.guard]


def moved(tensor: Tensor, dtype: torch.dtype | None, device: torch.device) -> Tensor:
    """Another leaf, of a dtype if it is floating, on a device."""
    fresh = cast(tensor.detach(), dtype if dtype and tensor.dtype in FLOATING else tensor.dtype, device)
    return fresh.requires_grad_(tensor.requires_grad)


def cast(tensor: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`.to()` that keeps expanded axes expanded: kernels go other ways for other strides."""
    small = compact(tensor)
    fresh = small.to(dtype=dtype, device=device)
    return fresh if small is tensor else fresh.expand(tensor.shape)


def _is_mask(path: str) -> bool:
    """Whether a tensor is a mask by its name, which its last place in a list is not."""
    return is_called_mask(tuple(word for word in re.split(r"\W+", path) if word and not word.isdigit())[-1:])
