"""`amp.watch`: find mistakes with autocast, GradScaler and optimizers during training."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from .._core.base.pyproject import no_attribute as _no_attribute
from ._watch import watch as watch

if not _TYPE_CHECKING:  # or checkers would take each name for one that is there

    def __getattr__(name: str) -> None:
        raise _no_attribute(__name__, name)
