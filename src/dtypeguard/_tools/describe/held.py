"""What the inputs of one module are held to, and what one argument of its forward must be."""

from dataclasses import dataclass

import torch

from ..._show.result import Row


@dataclass(frozen=True, slots=True)
class HeldArgument(Row):
    """What one argument of a forward must be; of an annotation with several arrays there is one for each.

    Attributes:
        name: the name of the argument.
        annotation: the jaxtyping annotation of the array, with its axes; None if the argument has none.
        dtypes: the dtypes that a tensor may have; of an argument without an annotation the floating ones, as integer
            and bool tensors keep theirs. None if the argument is not checked for dtype.
        autocast: the same within an autocast region.
        device: where a tensor must be; None for anywhere.
        moves: whether that holds for integer and bool tensors on the CPU, too.
        skipped: why it is not checked, or None.
        holds: what its name and its hint say of an argument without a jaxtyping annotation: 'ids' of an embedding,
            'integers' (masks and whole numbers, which keep their dtype), 'numbers' of Python, 'labels', of which
            a half dtype has too few digits for a loss, or 'values', which are all others.
    """

    name: str
    annotation: str | None
    dtypes: tuple[torch.dtype, ...] | None
    autocast: tuple[torch.dtype, ...] | None
    device: torch.device | None
    moves: bool
    skipped: str | None
    holds: str = "values"


@dataclass(frozen=True, slots=True)
class HeldModule(Row):
    """What the inputs of one module are held to.

    Attributes:
        path: the name of the module, as in `named_modules()`; "" is the model itself.
        kind: the name of its class.
        by: 'guard'; 'border' for a guard of `Kept.apply`, which casts in every mode; 'enforce' for a forward that is
            decorated.
        anchor: the name of the parameter or buffer that stands for the module; None if there is none, or `dtype=` of
            the guard stands in its place.
        dtype: what floating inputs must be; None if the module has none for them.
        device: where inputs must be; None for anywhere.
        reason: why there is no dtype, or None.
        arguments: one `HeldArgument` for each argument, without `self`.
        result: what the result is checked against, or None.
        sides: whether arguments may differ beside one that has the dtype, as side inputs.
        autocast: 'follow', 'ignore' or 'disable'.
        also: the other paths of a module that is shared.
    """

    path: str
    kind: str
    by: str
    anchor: str | None
    dtype: torch.dtype | None
    device: torch.device | None
    reason: str | None
    arguments: tuple[HeldArgument, ...]
    result: str | None
    sides: bool
    autocast: str
    also: tuple[str, ...]
