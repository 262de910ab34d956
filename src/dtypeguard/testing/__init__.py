"""Property tests of dtypes: hypothesis strategies from annotations, and checks of a whole model."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

try:
    import hypothesis as _hypothesis  # noqa: F401  (it makes the data)
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError("dtypeguard.testing needs hypothesis: pip install 'dtypeguard[hypothesis]'") from _error

from .._core.base.pyproject import no_attribute as _no_attribute
from ._inputs import inputs_for, tensors
from ._matrix import Cell, CheckError, Failure, ModuleReport
from ._module import check_module
from ._violations import Breach, violations_of

__all__ = [
    "Breach",
    "Cell",
    "CheckError",
    "Failure",
    "ModuleReport",
    "check_module",
    "inputs_for",
    "tensors",
    "violations_of",
]

for _public in (Breach, Cell, CheckError, Failure, ModuleReport, check_module, inputs_for, tensors, violations_of):
    _public.__module__ = "dtypeguard.testing"

if not _TYPE_CHECKING:  # as in `amp`

    def __getattr__(name: str) -> None:
        raise _no_attribute(__name__, name)
