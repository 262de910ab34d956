"""dtype, shape and device as a contract at the doors of a PyTorch model."""

from ._cast import CastRecord, casts, reset_casts
from ._config import get_mode, mode, set_mode
from ._enforce import check, enforce
from ._errors import (
    AmpError,
    AnnotationError,
    CastError,
    CastWarning,
    ContractWarning,
    DeviceError,
    DtypeError,
    DtypeGuardError,
    DtypeGuardWarning,
    HintError,
    InplaceOnCastWarning,
    ShapeError,
)
from ._guard import GuardedModule, guard, is_guarded, unguard

__version__ = "0.1.0"

__all__ = [
    "AmpError",
    "AnnotationError",
    "CastError",
    "CastRecord",
    "CastWarning",
    "ContractWarning",
    "DeviceError",
    "DtypeError",
    "DtypeGuardError",
    "DtypeGuardWarning",
    "GuardedModule",
    "HintError",
    "InplaceOnCastWarning",
    "ShapeError",
    "casts",
    "check",
    "enforce",
    "get_mode",
    "guard",
    "is_guarded",
    "mode",
    "reset_casts",
    "set_mode",
    "unguard",
]
