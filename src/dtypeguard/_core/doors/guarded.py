"""`guarded`: a guard for the length of a block."""

import contextlib
from collections.abc import Iterator

from typing_extensions import Unpack

from ..base.modules import root_of
from .choose import refuse
from .guard import M, guard, guards_of, restore
from .options import GuardOptions


@contextlib.contextmanager
def guarded(model: M, /, **options: Unpack[GuardOptions]) -> Iterator[M]:
    """Guard a model inside a `with` block. Afterwards it has no guard, or the guard that it had before.

    `with guarded(model) as model` gives the same object. Blocks may be nested, and the guard of the inner one counts
    inside. The end of a block restores what was there at its beginning, after an exception too. The guard is one of the
    model: other threads that use the model meanwhile meet it too, and blocks of several threads on one model must
    not overlap otherwise than by nesting.

    Args:
        model: the module, as for `guard`.
        options: those of `guard`.

    Returns:
        A context manager, which gives the same model.

    Raises:
        TypeError, ValueError: as `guard` does, when the block begins.

    >>> import torch, dtypeguard
    >>> layer = torch.nn.Linear(3, 1)
    >>> with dtypeguard.guarded(layer, mode="strict") as model:
    ...     model is layer, dtypeguard.is_guarded(layer)
    (True, True)
    >>> dtypeguard.is_guarded(layer)
    False
    """
    refuse(root_of(model), "guarded")
    before = guards_of(root_of(model))
    guard(model, **options)
    try:
        yield model
    finally:
        restore(root_of(model), before)
