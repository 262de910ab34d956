"""Matrix products whose operands are rounded, in forward and in backward: a dispatch mode.

A product of a wider dtype whose operands were rounded is what low-bit hardware computes, up to the order of its sums.
The backward of a product is two others, each of which sums along another axis, so its operands are rounded there.
"""

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..._core.base import private
from ..._core.base.modes import Mode
from ..._engine.operands import native, operands
from ..._engine.ops import Operator, operator_of
from .rounding import rounded
from .table import Format

# The places of both operands of a product, and the axes along which it sums.
_PRODUCTS: dict[str, tuple[int, int, int, int]] = {
    "mm": (0, -1, 1, -2),
    "bmm": (0, -1, 1, -2),
    "_grouped_mm": (0, -1, 1, -2),
    "addmm": (1, -1, 2, -2),
    "baddbmm": (1, -1, 2, -2),
    "addbmm": (1, -1, 2, -2),
    "mv": (0, -1, 1, -1),
    "addmv": (1, -1, 2, -1),
    "dot": (0, -1, 1, -1),
    "convolution": (0, 1, 1, 1),
}
_TRANSPOSED, _GROUPS = 6, 8  # arguments of a convolution; in its backward one further
# These compute products together with other things.
_KERNELS = ("mkldnn_rnn", "_thnn_", "_cudnn_rnn", "miopen_rnn", "_transformer_encoder_layer_fwd", "_native_multi_head")
_CHOOSE = frozenset("topk argmax argmin sort argsort multinomial max min".split())  # they give places
_NOBODY: frozenset[str] = frozenset()
_ALIGNED = 16  # what a kernel's results must be divisible by


class Told(Protocol):
    """Who is told of forward."""

    def rounded(self, tensor: Tensor, found: Tensor, weight: bool) -> None:
        """A tensor, and what it was rounded to."""

    def multiplied(self, out: Tensor, exact: Tensor) -> None:
        """A product of rounded operands, and that of the operands as they were."""


@dataclass(slots=True)
class Weights:
    """The weights of a module's products.

    Attributes:
        sizes: how many numbers each has, by its storage.
        shapes: of each product: over how many numbers it sums, and how many come out.
        convolves: whether one is a convolution.
    """

    sizes: dict[int, int] = field(default_factory=dict)
    shapes: set[tuple[int, int]] = field(default_factory=set)
    convolves: bool = False

    @property
    def count(self) -> int:
        """How many numbers they have."""
        return sum(self.sizes.values())

    def refusal(self, to: Format) -> str | None:
        """Why kernels of a format do not take these weights; None if they do."""
        if self.convolves and to.block[0] > 1:
            return "a convolution"
        for sums, out in sorted(self.shapes):
            if sums % to.multiple:
                return f"{sums:,} input{'s' * (sums != 1)}, not divisible by {to.multiple}"
            if to.multiple > 1 and to.activations and out % _ALIGNED:
                return f"{out:,} output{'s' * (out != 1)}, not divisible by {_ALIGNED}"
        return None


class _Marks:
    """What is known of storages, as long as they live."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[Any, frozenset[str]]] = {}

    def get(self, tensor: Tensor) -> frozenset[str] | None:
        storage = tensor.untyped_storage()
        ref, mark = self._of.get(storage._cdata, (None, _NOBODY))
        return mark if ref is not None and ref() is storage else None

    def set(self, tensor: Tensor, mark: frozenset[str] = _NOBODY) -> None:
        storage = tensor.untyped_storage()
        self._of[storage._cdata] = weakref.ref(storage), mark


class Products(Mode):
    """Rounds the operands of matrix products, by the module that computes them.

    A product has a weight if one operand is a parameter, or computed from parameters alone; others are attention's.

    Attributes:
        weights: of each module that has products with weights.
        choosers: modules whose results are what a choice reads, as those of routers.
        kernels: modules that compute products in one kernel with other things.
    """

    def __init__(
        self, model: nn.Module, formats: Mapping[str, Format], where: Callable[[], str | None],
        attention: Format | None = None, told: Told | None = None, seed: int = 0,
    ) -> None:  # fmt: skip
        """Round for these modules, and where `attention` is given its products too.

        Args:
            where: gives the name of the module that runs.
            told: what is rounded in forward.
            seed: of stochastic rounding.
        """
        super().__init__()
        self._formats, self._where, self._attention, self._told = formats, where, attention, told
        self.weights: dict[str, Weights] = {}
        self.choosers: set[str] = set()
        self.kernels: set[str] = set()
        self._nodes: dict[int, Format] = {}  # of the graph, by number: the format of their products
        self._seed, self._generators = seed, dict[torch.device, torch.Generator]()
        # Weights; what has met one; the modules whose products a tensor comes from; those that its places come from.
        self._are_weights, self._are_activations, self._come_from, self._are_places = (_Marks() for _ in range(4))
        for parameter in model.parameters():
            if native(parameter):
                self._are_weights.set(parameter)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, op = kwargs or {}, operator_of(func)
        given = operands(args, kwargs)
        if not all(map(native, given)):
            return func(*args, **kwargs)
        if torch.is_inference_mode_enabled() and (apart := getattr(func, "decompose", None)) is not None:
            with self.on():  # there, operators come before they are taken apart
                out = apart(*args, **kwargs)
            if out is not NotImplemented:
                return out
        if op.name == "convolution_backward":
            return self._convolution_backward(op, args, kwargs)
        if op.name in _PRODUCTS:
            return self._product(op, args, kwargs)
        out = func(*args, **kwargs)
        if op.name.startswith(_KERNELS) and (name := self._where()) is not None:
            self.kernels.add(name)
        self._follow(op, given, out)
        return out

    def _follow(self, op: Operator, given: list[Tensor], out: Any) -> None:
        """What is computed from weights alone is a weight; what reads places has chosen by the products before them."""
        if op.view or not given:
            return
        made = operands((out,), {})
        if all(self._are_weights.get(tensor) is not None for tensor in given):
            for tensor in made:
                self._are_weights.set(tensor)
            return
        if places := self._all(self._are_places, given):
            if op.cast or op.name == "clone":
                for tensor in made:
                    self._are_places.set(tensor, places)
                return
            self.choosers |= places
        if names := self._all(self._come_from, given):
            for tensor in made:
                if tensor.is_floating_point() or tensor.is_complex():
                    self._come_from.set(tensor, names)
                elif op.name in _CHOOSE:
                    self._are_places.set(tensor, names)

    @staticmethod
    def _all(marks: _Marks, given: list[Tensor]) -> frozenset[str]:
        return frozenset().union(*(marks.get(tensor) or _NOBODY for tensor in given))

    # ------------------------------------------------------------ forward

    def _product(self, op: Operator, args: Any, kwargs: Any) -> Any:
        first, axis, second, other = _PRODUCTS[op.name]
        one, two = args[first], args[second]
        groups, back = 1, _in_backward()
        if op.name == "convolution":
            groups, other = args[_GROUPS], 0 if args[_TRANSPOSED] else 1
        to = self._nodes.get(private.current_node()._sequence_nr()) if back else self._format(one, two, axis, other)
        given = args
        if to is not None:
            args = list(args)
            args[first] = self._operand(one, to, axis, groups, back)
            args[second] = self._operand(two, to, other, groups if other == 0 else 1, back)
        out = op.func(*args, **kwargs)
        if to is not None and self._told is not None and not back:
            with private.without_keys(private.MODES_AND_AUTOCAST):
                exact = op.func(*given, **kwargs)
            self._told.multiplied(out, exact)
        if not back:
            weighs = any(self._are_weights.get(tensor) is not None for tensor in (one, two))
            name = self._where()
            names = frozenset([name]) if weighs and name is not None else self._all(self._come_from, [one, two])
            self._come_from.set(out, names)
        return out

    def _format(self, one: Tensor, two: Tensor, axis: int, other: int) -> Format | None:
        """In which format a product of forward is."""
        name = self._where()
        if name is None or not one.is_floating_point():
            return None
        are_weights = [self._are_weights.get(tensor) is not None for tensor in (one, two)]
        if all(are_weights):  # a weight that is made of others
            return None
        to = self._formats.get(name)
        if not any(are_weights):  # attention multiplies what has met weights, on both sides
            to = self._attention if self._come_from.get(one) and self._come_from.get(two) else None
        else:
            weight, sums = (one, axis) if are_weights[0] else (two, other)
            held = self.weights.setdefault(name, Weights())
            held.sizes[weight.untyped_storage()._cdata] = _once(weight).numel()
            held.convolves |= weight is two and axis == 1 and weight.ndim > 2
            held.shapes.add((weight.shape[sums], weight.shape[_other(sums)] if weight.ndim > 1 else 1))
        if to is not None and torch.is_grad_enabled() and (one.requires_grad or two.requires_grad):
            self._nodes[private.next_sequence() - 1] = to
            for tensor, is_weight in zip((one, two), are_weights, strict=True):
                if not is_weight:
                    self._are_activations.set(tensor)
        return to

    def _operand(self, tensor: Tensor, to: Format, axis: int, groups: int, back: bool) -> Tensor:
        """An operand as a format has it."""
        weight = self._are_weights.get(tensor) is not None
        if not to.activations:
            if not weight:
                return tensor
            axis = _other(axis) if back else axis  # it is stored as forward reads it
        seen = not back or self._are_activations.get(tensor) is not None
        role = "weight" if weight else "activation" if seen else "gradient"
        with private.without_keys(private.MODES_AND_AUTOCAST):
            once, noise = _once(tensor), self._noise(tensor.device) if to.stochastic else None
            if groups > 1:
                parts = torch.unflatten(once, axis, (groups, -1))
                found = rounded(parts, to, axis + 1, role, noise).flatten(axis, axis + 1)
            else:
                found = rounded(once, to, axis, role, noise)
        if self._told is not None and not back:
            self._told.rounded(once, found, weight)
        return found.expand(tensor.shape)

    def _noise(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]

    # ------------------------------------------------------------ backward

    def _convolution_backward(self, op: Operator, args: Any, kwargs: Any) -> Any:
        """Two products: the input's gradient sums over what came out, the weight's over batch and places."""
        to = self._nodes.get(private.current_node()._sequence_nr()) if _in_backward() else None
        if to is None:
            return op.func(*args, **kwargs)
        gradient, given, weight = args[:3]
        mask, groups, turned = list(args[-1]), args[_GROUPS + 1], args[_TRANSPOSED + 1]

        def parts(wanted: tuple[int, ...], *operands: Tensor) -> Any:
            asked = [wants and place in wanted for place, wants in enumerate(mask)]
            return op.func(*operands, *args[3:-1], asked) if any(asked) else (None, None, None)

        axis = 1 if turned else 0
        out = self._operand(gradient, to, 1, groups, True)
        one = parts((0,), out, given, self._operand(weight, to, axis, 1 if axis else groups, True))
        two = parts((1, 2), self._places(gradient, to), self._places(given, to), weight)
        return one[0], two[1], two[2]

    def _places(self, tensor: Tensor, to: Format) -> Tensor:
        """Channels in rows, of which each sums over the batch and all places."""
        rows = tensor.movedim(1, 0)
        return self._operand(rows.flatten(1), to, -1, 1, True).view(rows.shape).movedim(0, 1)


def _once(tensor: Tensor) -> Tensor:
    """Without the repetitions of an expanded tensor in front of a matrix."""
    for axis in range(tensor.ndim - 2):
        if tensor.stride(axis) == 0 and tensor.size(axis) > 1:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


def _other(axis: int) -> int:
    """The other axis of a matrix: of the first two, or of the last."""
    return 1 - axis if axis >= 0 else -3 - axis


def _in_backward() -> bool:
    """Whether a node of a graph runs; what a checkpoint does again in it is forward."""
    return private.current_node() is not None and not torch.is_grad_enabled()
