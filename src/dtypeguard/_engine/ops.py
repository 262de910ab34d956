"""The one table of torch's operators: one row for each that is met, made when it is met first."""

import enum
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._core.base import private

NARROW = frozenset([torch.uint8, torch.int8, torch.int16, torch.int32])  # integers that wrap around soon

# Besides what torch tags as pointwise, these promote their operands; `huber_loss` fails in backward instead. It was
# measured over all of torch's own samples: tests/op_mixing.json.
_PROMOTING = frozenset(
    """
    addr binary_cross_entropy_with_logits block_diag cat dist floor_divide huber_loss mse_loss rsub smooth_l1_loss stack
    """.split()
)
# So do these, which come whole in inference mode only.
_PROMOTING |= frozenset(
    """
    column_stack cosine_embedding_loss cosine_similarity cov cross_entropy_loss cumulative_trapezoid diff dstack einsum
    hstack inner kl_div kron l1_loss margin_ranking_loss outer pairwise_distance poisson_nll_loss stft trapezoid trapz
    triplet_margin_loss vstack
    """.split()
)
_SUMS = frozenset(["add", "sub", "lerp"])
_WRITES = frozenset(["copy_", "index_put_", "_foreach_copy_"])
# `to` and autocast's own come as they are in inference mode.
_CASTS = frozenset("_to_copy to type_as _autocast_to_reduced_precision _autocast_to_full_precision".split())
# These give what they got, and get no line of their own in a chain.
_SAME = frozenset("detach lift clone alias _unsafe_view contiguous _reshape_alias lift_fresh".split())
# These turn scores into probabilities; attention does it inside.
SOFTMAX = (
    "softmax", "log_softmax", "_softmax", "_log_softmax", "_safe_softmax", "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
)  # fmt: skip

# Their results are constants, random numbers or what a file has, and have no error.
FRESH = frozenset(
    """
    empty empty_like empty_strided empty_permuted new_empty new_empty_strided zeros zeros_like new_zeros ones ones_like
    new_ones full full_like new_full eye scalar_tensor lift_fresh lift_fresh_copy _efficientzerotensor rand rand_like
    randn randn_like randint randint_like randperm normal bernoulli tril_indices triu_indices from_file
    """.split()
)
# So are the values that these write.
_FILLS = frozenset(
    """
    zero_ fill_ uniform_ normal_ bernoulli_ exponential_ random_ log_normal_ cauchy_ geometric_ _foreach_zero_
    """.split()
)
# These come whole in inference mode, and may copy though their schema says that they give a view.
_COPIES = frozenset("to contiguous reshape reshape_as flatten ravel resolve_conj resolve_neg".split())
# These change what a tensor stands on.
_MOVES = frozenset("set_ resize_ resize_as_ _resize_output_ resize_as_sparse_".split())
# What these read besides tensors has the layout of one dtype's kernel: in another one they would read past its end.
_KERNELS = ("mkldnn_", "_mkldnn", "cudnn_", "_cudnn", "miopen_", "_amp_", "quantize", "fake_quant")
# But these are computed by the operations that they stand for.
FUSED = frozenset("_grouped_mm mkldnn_rnn_layer mkldnn_rnn_layer_backward _cudnn_rnn _cudnn_rnn_backward".split())
# And these by the one that computes the same for every device.
NORMS = frozenset("cudnn_batch_norm cudnn_batch_norm_backward miopen_batch_norm miopen_batch_norm_backward".split())
# Whatever comes in is a whole number afterwards: the shadow goes on with the program's.
_ROUNDS = frozenset("round floor ceil trunc sign sgn fix heaviside floor_divide histc histogram".split())
# Nobody decides with these: they compare for equality, or look for what is not finite.
_TESTS = frozenset(  # those of `unique` stand in an order of their own
    "isfinite isnan isinf isposinf isneginf equal signbit is_nonzero nonzero logical_not _unique _unique2 "
    "unique_dim unique_consecutive unique_dim_consecutive".split()
)
KEEPS = "torchvision::nms"  # gives the places that stay
_DECIDES = frozenset(["gt", "lt", "ge", "le", "greater", "less", "argmax", "argmin", "searchsorted", "bucketize"])
_DECIDES |= {"_to_copy", "to", KEEPS}
# Values and their places: the shadow takes its values at the program's places. The argument that says the axis.
_PICKS = frozenset("topk sort max min median nanmedian kthvalue mode cummax cummin".split())
_KEEP_AXIS = frozenset("topk sort cummax cummin".split())
# Without an error in its inputs there is none in the result, where the dtype stays or becomes wider.
_EXACT = frozenset(
    """
    clone _to_copy copy_ neg abs relu relu_ max min amax amin maximum minimum cat stack index index_select gather select
    where masked_fill masked_fill_ masked_select masked_scatter embedding flip roll constant_pad_nd repeat
    slice_backward select_backward index_put index_put_ scatter scatter_ index_copy index_copy_ topk sort tril triu
    tril_ triu_ diag diagonal_copy permute_copy transpose_copy view_copy expand_copy unsqueeze_copy slice_scatter
    select_scatter take _foreach_copy_ _foreach_neg _foreach_abs _reshape_copy split_with_sizes_copy
    max_pool2d_with_indices reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d threshold_backward
    channel_shuffle pixel_shuffle cummax cummin
    """.split()
)
# A batch norm in training writes to its running statistics, whatever its schema says. They are no result.
BESIDES = dict.fromkeys(
    ["native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm", "miopen_batch_norm"], (3, 4)
)
_LEFT_ALONE = frozenset(["state_steps", "found_inf", "grad_scale", "inv_scale"])  # arguments of fused kernels


_FROM_INTEGERS = frozenset("to _to_copy copy_ cat stack where maximum minimum".split())  # their values, not places
_DIFFERENCES = frozenset("add sub rsub add_ sub_".split())
ACCUMULATES = _DIFFERENCES | frozenset(
    "lerp lerp_ addcmul addcmul_ addcdiv_ index_add_ scatter_add_ mul mul_ div div_ _foreach_add_ _foreach_lerp_ "
    "_foreach_mul_".split()
)
FLUSHES = frozenset("to _to_copy mul div square pow".split())  # what they make of values that are not zero is not zero
_PRODUCTS = frozenset("mul mul_ mm bmm addmm baddbmm mv dot convolution".split())
_CARRY = frozenset(
    """
    neg _to_copy remainder clone where index gather cat stack abs relu threshold_backward index_select select_backward
    slice_backward masked_fill masked_fill_ copy_ native_dropout embedding embedding_dense_backward constant_pad_nd lerp
    lerp_ addcmul addcmul_ _foreach_add_ _foreach_mul_ _foreach_lerp_ _foreach_addcmul_ cumsum index_add index_add_
    scatter_add scatter_add_ repeat convolution_backward index_put index_put_ max min amax amin sort topk
    linalg_vector_norm nansum avg_pool2d maximum minimum
    """.split()
)


class Cancels(enum.Enum):
    """What an operation does to cancellation: how much larger subtracted operands were than the difference."""

    LOST = enum.auto()  # the error is judged by the values themselves
    CARRIED = enum.auto()
    DIFFERENCE = enum.auto()
    LOSS = enum.auto()  # a difference inside: of a loss, a distance, a deviation
    PRODUCT = enum.auto()
    NUMERATOR = enum.auto()
    SUM = enum.auto()
    SQUARE = enum.auto()
    ROOT = enum.auto()  # of squares that is a norm, which is judged as what was squared


ADDS_UP = frozenset(  # one number after the other, each total rounded to the dtype; `sum` adds half values in float32
    "segment_reduce index_add index_put put index_reduce scatter_add scatter_reduce".split()
)
SUMS = frozenset("sum mean _to_copy clone".split())  # of squares they are squares
_CANCELLATIONS = {
    **dict.fromkeys(_DIFFERENCES, Cancels.DIFFERENCE),
    **dict.fromkeys(_PRODUCTS, Cancels.PRODUCT),
    **dict.fromkeys(_CARRY, Cancels.CARRIED),
    **dict.fromkeys(("div", "div_"), Cancels.NUMERATOR),
    **dict.fromkeys(("sum", "mean"), Cancels.SUM),
    **dict.fromkeys(("square", "pow"), Cancels.SQUARE),
    "sqrt": Cancels.ROOT,
    **dict.fromkeys("mse_loss l1_loss smooth_l1_loss huber_loss".split(), Cancels.LOSS),
    **dict.fromkeys("dist cdist _cdist_forward var std".split(), Cancels.LOSS),
    **dict.fromkeys(
        [f"{name}_backward" for name in "mse_loss l1_loss smooth_l1_loss huber_loss".split()], Cancels.LOSS
    ),
}


class Way(enum.Enum):
    """How an operation's shadow comes to be."""

    NONE = enum.auto()  # a view, a constant, a random number
    FILL = enum.auto()  # what was written is a constant
    AGAIN = enum.auto()  # the operation once more, with wider inputs
    PICK = enum.auto()  # the wider values at the program's places
    DROPOUT = enum.auto()  # with the program's mask
    TEST = enum.auto()  # no values come out
    MATCH = enum.auto()  # the same, but a value may be looked up by it
    ROUND = enum.auto()  # the program's own values
    OPAQUE = enum.auto()  # nobody knows


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """One row.

    Attributes:
        func: the operator, which the row keeps alive.
        name: `mul`, as in `aten.mul.Tensor`; with its library, where that is not torch's own. A cast is `_to_copy`.
        cast: whether it converts.
        write: whether it writes its second argument into its first.
        same: whether the result is the argument, seen otherwise.
        lifted: whether it makes a tensor of data of Python or NumPy.
        updates: whether it writes to its first argument.
        promotes: whether it promotes operands of several dtypes.
        sums: whether it may add what is new to an average.
        pure: whether it can be done again: it is torch's own, not random, and writes to nothing.
        several: whether it is fused or foreach, on lists, or has no tensors.
        view: whether its results are views of its arguments.
        way: how its shadow comes to be.
        writes: the positions of the arguments that it writes to.
        returned: of each result, the position of the argument that it is, or None.
        reads: whether it makes a number of Python of a tensor.
        names: of its arguments.
        exact: whether its result has no error of its own.
        decides: whether its result is a choice: a place, an order, a comparison, a whole number.
        keeps_axis: whether a choice has an axis for its places.
        cancels: what it does to the cancellation of its inputs.
        attends: whether it is attention in one kernel.
        composite: whether it is made of other operations of torch, on every device.
    """

    func: Any
    name: str
    cast: bool
    write: bool
    same: bool
    lifted: bool
    updates: bool
    promotes: bool
    sums: bool
    pure: bool
    several: bool
    view: bool
    way: Way
    writes: tuple[int, ...]
    returned: tuple[int | None, ...]
    reads: bool
    names: tuple[str, ...]
    exact: bool
    decides: bool
    keeps_axis: bool
    cancels: Cancels
    attends: bool
    composite: bool

    def argument(self, args: Any, kwargs: Any, name: str, default: Any = None) -> Any:
        """The value of an argument by its name."""
        if name in kwargs:
            return kwargs[name]
        position = self.names.index(name) if name in self.names else len(args)
        return args[position] if position < len(args) else default

    def way_for(self, args: Any, kwargs: Any) -> Way:
        """The way of one call: attention draws random numbers only where it drops something out."""
        if self.way is Way.OPAQUE and "dropout_p" in self.names and not self.argument(args, kwargs, "dropout_p"):
            return Way.AGAIN
        return self.way

    def left_alone(self, argument: int | str) -> bool:
        """Whether the kernel wants this argument, by its position or name, in its own dtype."""
        if isinstance(argument, int):
            argument = self.names[argument] if argument < len(self.names) else ""
        return argument in _LEFT_ALONE

    def rounds(self, tensors: Iterable[Tensor], dtype: torch.dtype) -> bool:
        """Whether an exact operation loses digits of these inputs, for its result is of another dtype."""
        return any(
            tensor.dtype is not dtype
            and tensor.dtype is not torch.bool
            and (tensor.is_floating_point() or tensor.is_complex() or self.name in _FROM_INTEGERS)
            and not _holds(dtype, tensor.dtype)
            for tensor in tensors
        )


@functools.cache
def _holds(dtype: torch.dtype, other: torch.dtype) -> bool:
    """Whether a dtype has every value of another one; float8 is promoted to nothing, so PyTorch is not asked."""
    if not (other.is_floating_point and dtype.is_floating_point) and not (other.is_complex and dtype.is_complex):
        return False
    wide, narrow = torch.finfo(dtype), torch.finfo(other)
    return wide.eps <= narrow.eps and wide.max >= narrow.max and wide.tiny <= narrow.tiny


_rows: dict[int, Operator] = {}  # by id of the operator, which its row keeps alive: to hash one costs a call


def operator_of(func: Any) -> Operator:
    """The row of an operator."""
    row = _rows.get(id(func))
    if row is None:
        row = _rows[id(func)] = _make_operator(func)
    return row


def again(func: Any, args: Any, kwargs: Any, wider: Callable[[Any], Any]) -> Any:
    """What a pure operation gives for wider arguments."""
    return func(*map(wider, args), **{key: wider(value) for key, value in kwargs.items()})


def widened(value: Any) -> Any:
    """A narrow integer tensor as int64; anything else as it is."""
    return value.long() if isinstance(value, Tensor) and value.dtype in NARROW else value


def _make_operator(func: Any) -> Operator:
    schema = getattr(func, "_schema", None)  # higher-order operators have none
    library, _, name = ("", "", str(func)) if schema is None else str(schema.name).rpartition("::")
    own = library == "aten"
    name = name if own else f"{library}::{name}"
    arguments, results = ([], []) if schema is None else (schema.arguments, schema.returns)
    places = {tuple(a.alias_info.before_set): n for n, a in enumerate(arguments) if _writes(a)}
    writes = tuple(n for n, a in enumerate(arguments) if _writes(a)) + tuple(BESIDES.get(name, ()))
    tags, cast = getattr(func, "tags", ()), name in _CASTS
    updates = bool(arguments) and _writes(arguments[0])
    return Operator(
        func=func,
        name="_to_copy" if cast else name,
        cast=cast,
        write=name in _WRITES,
        same=(name in _SAME or bool(getattr(func, "is_view", False))) and not updates and not cast,
        lifted=name == "lift_fresh",
        updates=updates,
        promotes=torch.Tag.pointwise in tags or name in _PROMOTING,
        sums=name in _SUMS,
        pure=own and not places and torch.Tag.nondeterministic_seeded not in tags,
        several=name.startswith(("_foreach", "_fused", "_amp_foreach", "profiler::")),
        view=any(r.alias_info is not None for r in results) and not places,
        way=_way(own, name, results, bool(writes), tags),
        writes=writes,
        returned=tuple(places.get(tuple(r.alias_info.before_set)) if _writes(r) else None for r in results),
        reads=torch.Tag.data_dependent_output in tags,
        names=tuple(argument.name for argument in arguments),
        exact=name in _EXACT or name in _COPIES,
        decides=name in _DECIDES or (name in _PICKS and len(results) == 2),
        keeps_axis=name in _KEEP_AXIS,
        cancels=_CANCELLATIONS.get(name, Cancels.LOST),
        attends=name.startswith("_scaled_dot_product_") and bool(arguments) and arguments[0].name == "query",
        composite=own and private.has_parts(func),
    )


def _writes(slot: Any) -> bool:
    return slot.alias_info is not None and bool(slot.alias_info.is_write)


def _way(own: bool, name: str, results: Any, writes: bool, tags: Any) -> Way:
    view = (
        name not in _COPIES
        and not writes
        and any(r.alias_info is not None and not r.alias_info.is_write for r in results)
    )
    if view or name in FRESH:
        return Way.NONE
    if (
        (not own and name not in _DECIDES)
        or name in _MOVES
        or (name.startswith(_KERNELS) and name not in FUSED | NORMS)
    ):
        return Way.OPAQUE
    if name in _FILLS:
        return Way.FILL
    if name == "native_dropout":
        return Way.DROPOUT
    drawn = torch.Tag.nondeterministic_seeded in tags and name not in FUSED
    if drawn:  # to draw again would change the program's random numbers
        return Way.OPAQUE
    if name in _TESTS:
        return Way.TEST
    if name in ("eq", "ne", "isin"):
        return Way.MATCH
    if name in _ROUNDS or name.removesuffix("_") in _ROUNDS:
        return Way.ROUND
    return Way.PICK if name in _PICKS and len(results) == 2 else Way.AGAIN
