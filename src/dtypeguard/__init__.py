"""dtype, shape and device contracts for PyTorch."""

import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _TYPE_CHECKING:
    from . import amp, distributed, results
    from . import testing as testing
    from ._core.base.config import get_mode, mode, set_mode
    from ._core.base.errors import AmpError as AmpError
    from ._core.base.errors import AmpWarning as AmpWarning
    from ._core.base.errors import AnnotationError as AnnotationError
    from ._core.base.errors import CastError as CastError
    from ._core.base.errors import CastWarning as CastWarning
    from ._core.base.errors import CompareError as CompareError
    from ._core.base.errors import ContractWarning as ContractWarning
    from ._core.base.errors import DeviceError as DeviceError
    from ._core.base.errors import DtypeError as DtypeError
    from ._core.base.errors import DtypeGuardError as DtypeGuardError
    from ._core.base.errors import DtypeGuardWarning as DtypeGuardWarning
    from ._core.base.errors import HintError as HintError
    from ._core.base.errors import InplaceOnCastWarning as InplaceOnCastWarning
    from ._core.base.errors import RankError as RankError
    from ._core.base.errors import ShapeError as ShapeError
    from ._core.base.errors import StateError as StateError
    from ._core.doors.enforce import check, enforce
    from ._core.doors.guard import GuardedModule, guard, is_guarded, unguard
    from ._core.doors.guarded import guarded
    from ._core.doors.hook import install_import_hook
    from ._core.repair.records import casts, reset_casts
    from ._tools.audit import audit
    from ._tools.compare import compare
    from ._tools.describe import describe
    from ._tools.diff import capture, diff
    from ._tools.dryrun import dryrun
    from ._tools.manifest import manifest

__version__ = "0.1.0"

__all__ = [  # a star import loads all of it, but not `testing`, which needs hypothesis
    "AmpError", "AmpWarning", "AnnotationError", "CastError", "CastWarning", "CompareError", "ContractWarning",
    "DeviceError", "DtypeError", "DtypeGuardError", "DtypeGuardWarning", "GuardedModule", "HintError",
    "InplaceOnCastWarning", "RankError", "ShapeError", "StateError", "amp", "audit", "capture", "casts", "check",
    "compare", "describe", "diff", "distributed", "dryrun", "enforce", "get_mode", "guard", "guarded",
    "install_import_hook", "is_guarded", "manifest", "mode", "reset_casts", "results", "set_mode", "unguard",
]  # fmt: skip


_MODULES = ("amp", "distributed", "results", "testing")
_HOMES = {
    "_tools.audit": ("audit",),
    "_core.base.config": ("get_mode", "mode", "set_mode"),
    "_core.base.errors": (
        "AmpError", "AmpWarning", "AnnotationError", "CastError", "CastWarning", "CompareError", "ContractWarning",
        "DeviceError", "DtypeError", "DtypeGuardError", "DtypeGuardWarning", "HintError", "InplaceOnCastWarning",
        "RankError", "ShapeError", "StateError",
    ),
    "_tools.compare": ("compare",),
    "_tools.describe": ("describe",),
    "_tools.diff": ("capture", "diff"),
    "_core.doors.enforce": ("check", "enforce"),
    "_core.doors.guard": ("GuardedModule", "guard", "is_guarded", "unguard"),
    "_core.doors.guarded": ("guarded",),
    "_core.doors.hook": ("install_import_hook",),
    "_tools.dryrun": ("dryrun",),
    "_tools.manifest": ("manifest",),
    "_core.repair.records": ("casts", "reset_casts"),
}  # fmt: skip
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> _Any:
    """Each name is imported when it is first asked for, and torch with the first of them (PEP 562)."""
    if name in _MODULES:
        return _importlib.import_module(f".{name}", __name__)
    if name not in _HOME:
        from ._core.base.pyproject import near

        meant = "" if name.startswith("_") else near(name, __all__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{meant}")
    found = globals()[name] = getattr(_importlib.import_module(f".{_HOME[name]}", __name__), name)
    return found


def __dir__() -> list[str]:
    names = {*globals(), *_HOME, *_MODULES}
    return sorted(name for name in names if name[:1] != "_" or name[:2] == "__")
