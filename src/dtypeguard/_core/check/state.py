"""What is found out about one call: the axes bound so far, the violations, and the repairs that would mend them."""

import contextlib
import dataclasses
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..base.config import Mode
from ..base.dtypes import Casting
from ..base.errors import AnnotationError, DeviceError, DtypeError, Violation
from ..contract.anchor import Anchor
from ..contract.containers import children, leaves
from ..contract.dims import DimKind
from ..contract.model import Contract, Path, PathStep, argument_of
from ..contract.spec import TensorSpec, walk

_returned: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()


def note_returned(module: Any, result: Any) -> None:
    """Remember what a module returned from a call that was repaired: as a state it may come in again.

    Its dtype does not show that the caller knows the model's. Storages are remembered, since states are detached.
    """
    if isinstance(result, Tensor):
        with contextlib.suppress(NotImplementedError, RuntimeError, TypeError):  # sparse tensors, some subclasses
            _returned[result.untyped_storage()] = weakref.ref(module)
    elif isinstance(result, list | tuple | dict) or dataclasses.is_dataclass(result):
        for _, item in children(result) or leaves(result):
            note_returned(module, item)


def is_returned(module: Any, value: Tensor) -> bool:
    """Whether a tensor is what a repaired call of a module returned, or a view of it."""
    if torch.compiler.is_compiling() or not _returned:
        return False
    with contextlib.suppress(NotImplementedError, RuntimeError, TypeError):
        owner = _returned.get(value.untyped_storage())
        return owner is not None and owner() is module
    return False


@dataclass(slots=True, eq=False, repr=False)
class Edit:
    """The repair of one leaf: where, what, and what it must become."""

    path: Path
    value: Any
    dtype: Any = None
    device: torch.device | None = None
    convert: bool = False  # NumPy array -> tensor
    array_type: Any = Tensor  # what the annotation wants it to be


@dataclass(slots=True, eq=False, repr=False)
class CallState:
    """The state of one check: axes bound so far, violations found so far."""

    contract: Contract
    values: tuple[Any, ...]
    anchor: Anchor | None = None
    axes: dict[str, int] = field(default_factory=dict)
    variadics: dict[str, tuple[bool, tuple[int, ...]]] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)
    edits: dict[Path, Edit] = field(default_factory=dict)
    open: list[Any] = field(default_factory=list)
    # Axes that cannot be computed: the names that it fails for, and whether nothing before it was wrong.
    faults: list[tuple[AnnotationError, frozenset[str], bool]] = field(default_factory=list)
    earlier: list[Violation] = field(default_factory=list)  # before the result, or the option that is tried
    sides_pass: bool | None = None  # whether the caller shows that it knows the anchor's dtype; None: not asked
    masks_pass: bool = False  # whether masks do, beside ids
    sides: list[tuple[Path, Tensor]] = field(default_factory=list)  # what is of another dtype in such a call
    twins: list[tuple[Any, dict[PathStep, Any], Any]] = field(
        default_factory=list
    )  # the caller's container, its replaced items by path, the rebuilt container
    leaving: str = ""  # "return" or "yield", where it is the result that is checked
    passive: bool = False  # mode "off": nothing is looked at
    copies: list[tuple[str, Path, Tensor, Tensor, int]] = field(
        default_factory=list
    )  # argument, its kind, source, copy, its _version
    records: list[Any] = field(default_factory=list)  # CastRecords of the repairs made
    first: set[Any] = field(default_factory=set)  # the kinds of repair that this call is the first to make
    rebuilt: list[Any] = field(default_factory=list)  # `Rebuilt` of each container

    @property
    def mode(self) -> Mode:
        return self.contract.mode_for(self.values)

    @property
    def casting(self) -> Casting:
        return self.contract.casting_for(self.values)

    @property
    def unbound(self) -> AnnotationError | None:
        """The first axis that cannot be computed because the annotation is wrong.

        A wrong value binds no axes, and is no size: then that is told, and no annotation is blamed.
        """
        if not self.faults:
            return None
        lost: set[str] = set()
        for violation in (*self.earlier, *self.violations):
            if violation.error not in (DtypeError, DeviceError):  # these bind their axes
                lost |= {argument_of(violation.path), *_axes_of(self.contract, violation.path[0])}
        return next((error for error, names, _ in self.faults if not names & lost), None)

    def arguments(self) -> dict[str, Any]:
        return {param.name: value for param, value in zip(self.contract.params, self.values, strict=True)}

    def edit(self, path: Path, value: Any) -> Edit:
        """The repair of the leaf at a path, which may have several reasons."""
        return self.edits.setdefault(path, Edit(path, value))

    def attempt(self) -> "CallState":
        """The same state, to try one option of a union on."""
        before = [*self.earlier, *self.violations]
        return dataclasses.replace(self, violations=[], earlier=before, edits={}, faults=[], owners=dict(self.owners))

    def adopt(self, trial: "CallState") -> None:
        self.axes, self.variadics, self.owners = trial.axes, trial.variadics, trial.owners
        self.violations += trial.violations
        self.edits.update(trial.edits)
        self.faults += trial.faults


def _axes_of(contract: Contract, name: Any) -> set[str]:
    """The axes that an argument binds; under no argument's name those of the result."""
    specs = [param.spec for param in contract.params if param.name == name] or [contract.returns]
    held = [part for spec in specs for part in walk(spec) if isinstance(part, TensorSpec)]
    return {dim.text for part in held for dim in part.dims if dim.kind is DimKind.NAMED}
