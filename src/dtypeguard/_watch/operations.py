"""What is known of torch's operations: one row for each that is met, made when it is met first."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

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


@dataclass(frozen=True, slots=True)
class Trait:
    func: Any
    name: str  # `mul`, as in `aten.mul.Tensor`; with its library, where that is not torch's own
    cast: bool
    write: bool  # of its second argument into its first
    same: bool  # the result is the argument, seen otherwise
    lifted: bool  # a tensor made from data of Python or NumPy
    updates: bool  # its first argument, in place
    promotes: bool
    sums: bool  # what may be an average with what is new
    pure: bool  # it can be done again: torch's own, not random, and writes to nothing
    several: bool  # a fused or foreach operation on lists, or one without tensors


_traits: dict[int, Trait] = {}  # by id of the operation, which a trait keeps alive: to hash one costs a call


def trait_of(func: Any) -> Trait:
    trait = _traits.get(id(func))
    if trait is None:
        trait = _traits[id(func)] = _look(func)
    return trait


def again(func: Any, args: Any, kwargs: Any, wider: Callable[[Any], Any]) -> Any:
    """What a pure operation gives for wider arguments."""
    return func(*map(wider, args), **{key: wider(value) for key, value in kwargs.items()})


def widened(value: Any) -> Any:
    """A narrow integer tensor as int64; anything else as it is."""
    return value.long() if isinstance(value, Tensor) and value.dtype in NARROW else value


def _look(func: Any) -> Trait:
    schema = getattr(func, "_schema", None)  # higher-order operators have none
    library, _, name = ("", "", str(func)) if schema is None else str(schema.name).rpartition("::")
    if library != "aten":
        name = f"{library}::{name}"
    arguments = [] if schema is None else schema.arguments
    alias = arguments[0].alias_info if arguments else None
    updates = alias is not None and bool(alias.is_write)
    tags = getattr(func, "tags", ())
    writes = any(a.alias_info is not None and a.alias_info.is_write for a in arguments)
    pointwise = torch.Tag.pointwise in tags
    return Trait(
        func=func,
        name="_to_copy" if name in _CASTS else name,
        cast=name in _CASTS,
        write=name in _WRITES,
        same=(name in _SAME or bool(getattr(func, "is_view", False))) and not updates and name not in _CASTS,
        lifted=name == "lift_fresh",
        updates=updates,
        promotes=pointwise or name in _PROMOTING,
        sums=name in _SUMS,
        pure=library == "aten" and not writes and torch.Tag.nondeterministic_seeded not in tags,
        several=name.startswith(("_foreach", "_fused", "_amp_foreach", "profiler::")),
    )
