"""Property tests of dtypes: hypothesis strategies from annotations, and checks of a whole model."""

try:
    import hypothesis as _hypothesis  # noqa: F401  (it makes the data)
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError("dtypeguard.testing needs hypothesis: pip install 'dtypeguard[hypothesis]'") from _error

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
