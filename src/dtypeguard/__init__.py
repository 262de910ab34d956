"""dtype, shape and device contracts for PyTorch."""

import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from ._base.config import get_mode, mode, set_mode
from ._base.errors import (
    AmpError,
    AmpWarning,
    AnnotationError,
    CastError,
    CastWarning,
    CompareError,
    ContractWarning,
    DeviceError,
    DtypeError,
    DtypeGuardError,
    DtypeGuardWarning,
    HintError,
    InplaceOnCastWarning,
    RankError,
    ShapeError,
)
from ._doors.enforce import check, enforce
from ._doors.guard import GuardedModule, guard, is_guarded, unguard
from ._doors.guarded import guarded
from ._repair.records import CastRecord, casts, reset_casts

if _TYPE_CHECKING:
    from . import amp as amp
    from . import distributed as distributed
    from . import testing as testing
    from ._audit import AuditReport as AuditReport
    from ._audit import audit as audit
    from ._compare import Comparison as Comparison
    from ._compare import Kept as Kept
    from ._compare import Layer as Layer
    from ._compare import Line as Line
    from ._compare import compare as compare
    from ._describe import Description as Description
    from ._describe import HeldArgument as HeldArgument
    from ._describe import HeldModule as HeldModule
    from ._describe import describe as describe
    from ._doors.hook import ImportHook as ImportHook
    from ._doors.hook import install_import_hook as install_import_hook
    from ._dryrun import DryrunCell as DryrunCell
    from ._dryrun import DryrunTable as DryrunTable
    from ._dryrun import dryrun as dryrun

__version__ = "0.1.0"

__all__ = [  # a star import loads all of it, but not `testing`, which needs hypothesis
    "AmpError",
    "AmpWarning",
    "AnnotationError",
    "AuditReport",
    "CastError",
    "CastRecord",
    "CastWarning",
    "CompareError",
    "Comparison",
    "ContractWarning",
    "Description",
    "DeviceError",
    "DryrunCell",
    "DryrunTable",
    "DtypeError",
    "DtypeGuardError",
    "DtypeGuardWarning",
    "GuardedModule",
    "HeldArgument",
    "HeldModule",
    "HintError",
    "ImportHook",
    "InplaceOnCastWarning",
    "Kept",
    "Layer",
    "Line",
    "RankError",
    "ShapeError",
    "amp",
    "audit",
    "casts",
    "check",
    "compare",
    "describe",
    "distributed",
    "dryrun",
    "enforce",
    "get_mode",
    "guard",
    "guarded",
    "install_import_hook",
    "is_guarded",
    "mode",
    "reset_casts",
    "set_mode",
    "unguard",
]


_MODULES = ("amp", "distributed", "testing")
_LATER = {
    **dict.fromkeys(("audit", "AuditReport"), "._audit"),
    **dict.fromkeys(("compare", "Comparison", "Kept", "Layer", "Line"), "._compare"),
    **dict.fromkeys(("describe", "Description", "HeldArgument", "HeldModule"), "._describe"),
    **dict.fromkeys(("dryrun", "DryrunCell", "DryrunTable"), "._dryrun"),
    **dict.fromkeys(("install_import_hook", "ImportHook"), "._doors.hook"),
}


def __getattr__(name: str) -> _Any:
    if name in _MODULES:  # what not every program needs is imported when it is asked for
        return _importlib.import_module(f".{name}", __name__)
    if name in _LATER:
        return getattr(_importlib.import_module(_LATER[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER, *_MODULES})
