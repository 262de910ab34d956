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
from .origins import Marks, Names, Origins, names_of
from .rounding import rounded
from .table import WHOLE, Format

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
_KERNELS = (
    "mkldnn_rnn", "_thnn_", "_cudnn_rnn", "miopen_rnn", "_transformer_encoder_layer_fwd", "_native_multi_head",
    "_trilinear",
)  # fmt: skip
_ALIGNED = 16  # what a kernel's results must be divisible by


class Told(Protocol):
    """Who is told of forward."""

    def rounded(self, tensor: Tensor, found: Tensor, weight: bool) -> None:
        """A tensor, and what it was rounded to."""

    def multiplied(self, out: Tensor, exact: Tensor) -> None:
        """A product of rounded operands, and that of the operands as they were."""


@dataclass(slots=True)
class Weights:
    """The weights of a module's products."""

    sizes: dict[str, int] = field(default_factory=dict)  # of each parameter that they are made of
    shapes: set[tuple[int, int]] = field(default_factory=set)  # how many numbers a product sums, how many come out
    convolves: bool = False  # whether one is a convolution

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


class Products(Mode):
    """Rounds the operands of matrix products, by the module that computes them.

    A product has a weight if one operand is a parameter, or computed from parameters alone; others are attention's.
    """

    def __init__(
        self, model: nn.Module, formats: Mapping[str, Format], where: Callable[[], str | None],
        attention: Format | None = None, told: Told | None = None, seed: int = 0,
    ) -> None:  # fmt: skip
        """Round for these modules, of which `where` names the one that runs, and for attention where it has a format.

        `told` is told of what is rounded in forward; `seed` is that of stochastic rounding.
        """
        super().__init__()
        self._formats, self._where, self._attention, self._told = formats, where, attention, told
        self.origins = Origins(model)  # of the tensors of this run
        self.weights: dict[str, Weights] = {}  # of each module that has products with weights
        self.kernels: set[str] = set()  # modules that compute products in one kernel with other things
        self._model, self._sizes = model, {name: p.numel() for name, p in model.named_parameters()}
        self._activations = Marks[Names]()  # of the modules that multiply them
        self._nodes: dict[int, Format] = {}  # of the graph, by number: the format of their products
        self._used: dict[Names, Format] = {}  # by the parameters of a weight
        self._below = False  # whether what runs was called below autograd
        self._seed, self._generators = seed, dict[torch.device, torch.Generator]()
        self._last = _Last()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, op = kwargs or {}, operator_of(func)
        given = operands(args, kwargs)
        if not all(map(native, given)):
            return func(*args, **kwargs)
        whole = self._below or torch.is_inference_mode_enabled()  # there, operators come before they are taken apart
        if whole and (apart := getattr(func, "decompose", None)) is not None:
            with self.on():
                out = apart(*args, **kwargs)
            if out is not NotImplemented:
                return out
        if op.name == "convolution_backward":
            return self._convolution_backward(op, args, kwargs)
        if op.name in _PRODUCTS:
            return self._product(op, args, kwargs)
        if op.attends and self._attention is not None and not _in_backward():
            return self._attend(op, args, kwargs)
        out = func(*args, **kwargs)
        if op.name.startswith(_KERNELS) and (name := self._where()) is not None:
            self.kernels.add(name)
        self.origins.follow(op, given, out)
        return out

    # ------------------------------------------------------------ forward

    def _product(self, op: Operator, args: Any, kwargs: Any) -> Any:
        first, axis, second, other = _PRODUCTS[op.name]
        one, two = args[first], args[second]
        groups, back = 1, _in_backward()
        if op.name == "convolution":
            groups, other = args[_GROUPS], 0 if args[_TRANSPOSED] else 1
        made_of = self._weighed(one, two) if not back else None
        to = self._of_node(one, two) if back else self._format(one, two, axis, other, made_of)
        given = args
        if to is not None:
            args = list(args)
            args[first] = self._operand(one, to, axis, groups, self._role(one, back), back)
            role, kernel = self._role(two, back), op.name == "convolution"
            args[second] = self._operand(two, to, other, groups if other == 0 else 1, role, back, kernel)
        out = op.func(*args, **kwargs)
        if back:
            return out
        if to is not None and self._told is not None:
            with private.without_keys(private.MODES_AND_AUTOCAST):
                exact = op.func(*given, **kwargs)
            self._told.multiplied(out, exact)
        name = self._where()
        if made_of is None or name is None:
            self.origins.follow(op, [one, two], out)
        else:
            self.origins.products.set(out, Names([name]))
        return out

    def _weighed(self, one: Tensor, two: Tensor) -> int | None:
        """Which operand is the weight; None where there is none, or where two make another one."""
        weights = [self.origins.weight(tensor) is not None for tensor in (one, two)]
        if not any(weights):
            return None
        states = [self.origins.state.get(tensor) is not None for tensor in (one, two)]
        if not all(states) or not all(weights):
            return None if all(states) and not self._is_own(two if weights[1] else one) else weights.index(True)
        return 1 if self._is_own(two) else None

    def _is_own(self, tensor: Tensor) -> bool:
        """Whether a tensor is the weight of the layer that runs: what that multiplies is no weight, but a query."""
        name = self._where()
        own = getattr(self._model.get_submodule(name), "weight", None) if name else None
        return isinstance(own, Tensor) and own.untyped_storage()._cdata == tensor.untyped_storage()._cdata

    def _format(self, one: Tensor, two: Tensor, axis: int, other: int, made_of: int | None) -> Format | None:
        """In which format a product of forward is."""
        name = self._where()
        if name is None or not one.is_floating_point():
            return None
        if made_of is None:  # attention multiplies what comes from weights, on both sides
            to = self._attention if self.origins.products.get(one) and self.origins.products.get(two) else None
        else:
            weight, sums = (two, other) if made_of else (one, axis)
            origins, to = self.origins.weight(weight) or Names(), self._formats.get(name)
            held = self.weights.setdefault(name, Weights())
            held.sizes.update((origin, self._sizes[origin]) for origin in origins)
            held.convolves |= weight is two and axis == 1 and weight.ndim > 2
            held.shapes.add((weight.shape[sums], weight.shape[_other(sums)] if weight.ndim > 1 else 1))
            if to is not None:
                self._used[origins] = to
        if to is not None:
            if torch.is_grad_enabled() and (one.requires_grad or two.requires_grad):
                self._nodes[private.next_sequence() - 1] = to
            for place, tensor in enumerate((one, two)):
                if place != made_of:
                    self._activations.set(tensor, Names([name]))
        return to

    def _role(self, tensor: Tensor, back: bool) -> str:
        if self.origins.weight(tensor) is not None and self._activations.get(tensor) is None:
            return "weight"
        return "activation" if not back or self._activations.get(tensor) is not None else "gradient"

    def _operand(
        self, tensor: Tensor, to: Format, axis: int, groups: int, role: str, back: bool, kernel: bool = False
    ) -> Tensor:
        """An operand as a format has it."""
        if not to.activations:
            if role != "weight":
                return tensor
            axis = _other(axis) if back else axis  # it is stored as forward reads it
        with private.without_keys(private.MODES_AND_AUTOCAST):
            once = _once(tensor)
            if role == "activation" and not back and not to.stochastic and not once.is_inference():
                found = self._last.of(once, (to, axis, groups), lambda: self._rounded(once, to, axis, groups, role))
            else:
                found = self._rounded(once, to, axis, groups, role, kernel)
        if self._told is not None and not back:
            self._told.rounded(once, found, role == "weight")
        return found.expand(tensor.shape)

    def _rounded(self, tensor: Tensor, to: Format, axis: int, groups: int, role: str, kernel: bool = False) -> Tensor:
        noise = self._noise(tensor.device) if to.stochastic else None
        parts = torch.unflatten(tensor, axis, (groups, -1)) if groups > 1 else tensor
        along = axis + 1 if groups > 1 else axis
        if kernel and to.block == (1, WHOLE):  # a row of a convolution's matmul has all places of its kernel
            rows = parts.movedim(along, -1)
            whole = rounded(rows.flatten(2 if groups > 1 else 1), to, -1, role, noise)
            found = whole.view(rows.shape).movedim(-1, along)
        else:
            found = rounded(parts, to, along, role, noise)
        return found.flatten(axis, axis + 1) if groups > 1 else found

    def _attend(self, op: Operator, args: Any, kwargs: Any) -> Any:
        """Attention in one kernel, by its two products; what the kernel gives besides is its own."""
        out = op.func(*args, **kwargs)
        mask = op.argument(args, kwargs, "attn_mask", op.argument(args, kwargs, "attn_bias"))
        causal, scale = op.argument(args, kwargs, "is_causal", False), op.argument(args, kwargs, "scale")
        math: Any = torch.ops.aten._scaled_dot_product_attention_math.default
        query, key, value = args[:3]
        grouped, self._below = query.shape[-3] != key.shape[-3], True
        try:
            with self.on():
                found = math.decompose(query, key, value, mask, 0.0, causal, scale=scale, enable_gqa=grouped)[0]
        finally:
            self._below = False
        return (found, *out[1:]) if isinstance(out, tuple) else found

    def _noise(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]

    # ------------------------------------------------------------ backward

    def _convolution_backward(self, op: Operator, args: Any, kwargs: Any) -> Any:
        """Two products: the input's gradient sums over what came out, the weight's over batch and places."""
        gradient, given, weight = args[:3]
        to = self._of_node(gradient, weight) if _in_backward() else None
        if to is None:
            return op.func(*args, **kwargs)
        mask, groups, turned = list(args[-1]), args[_GROUPS + 1], args[_TRANSPOSED + 1]

        def part(wanted: int, *operands: Tensor) -> Any:
            asked = [wants and place == wanted for place, wants in enumerate(mask)]
            return op.func(*operands, *args[3:-1], asked)[wanted] if any(asked) else None

        axis = 1 if turned else 0
        out = self._operand(gradient, to, 1, groups, "gradient", True)
        wide = self._operand(weight, to, axis, 1 if axis else groups, "weight", True, True)
        return (
            part(0, out, given, wide),
            part(1, self._places(gradient, to, "gradient"), self._places(given, to, "activation"), weight),
            part(2, gradient, given, weight),
        )

    def _of_node(self, one: Tensor, two: Tensor) -> Format | None:
        """The format of a product of backward: that of its node; in the user's own code that of what it multiplies."""
        node = private.current_node()
        to = self._nodes.get(node._sequence_nr())
        if to is None and isinstance(node, torch.autograd.function.BackwardCFunction):
            weights = (self.origins.weight(tensor) for tensor in (one, two))
            to = next((self._used[origins] for origins in weights if origins in self._used), None)
            names = names_of(self._activations, [one, two])
            to = to or next((self._formats[name] for name in sorted(names) if name in self._formats), None)
        return to

    def _places(self, tensor: Tensor, to: Format, role: str) -> Tensor:
        """Channels in rows, of which each sums over the batch and all places."""
        rows = tensor.movedim(1, 0)
        return self._operand(rows.flatten(1), to, -1, 1, role, True).view(rows.shape).movedim(0, 1)


class _Last:
    """What was made of the tensor that was last asked for: queries, keys and values are products of one tensor."""

    def __init__(self) -> None:
        self._ref: Callable[[], Any] = lambda: None
        self._key: Any = None
        self._made: Any = None

    def of(self, tensor: Tensor, how: Any, make: Callable[[], Tensor]) -> Tensor:
        storage, layout = tensor.untyped_storage(), (tensor.size(), tensor.stride(), tensor.storage_offset())
        key = layout, tensor._version, how
        if self._ref() is not storage or self._key != key:
            self._ref, self._key, self._made = weakref.ref(storage), key, make()
        found: Tensor = self._made
        return found


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
