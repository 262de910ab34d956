"""What is known about a function before a call, and what is found out during one.

Plain data, and the few functions that write a violation down.
"""

import dataclasses
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .._base.config import Autocast, Mode, Verify, current_casting, current_mode
from .._base.dtypes import BY_NAME, TABLE, Casting, Kind, lowest_rung, may_cast, name_of
from .._base.errors import DtypeError, HintError, ShapeError, Violation, plain, quoted
from .anchor import Anchor
from .spec import Spec, TensorSpec, UnpackedSpec

Step = tuple[str, Any]  # ("item", 57), ("attr", "img"), or ("member", "item 2") of what has no index
Path = tuple[Any, ...]  # the argument's name, then steps


@dataclass(slots=True, eq=False, repr=False)
class Param:
    """One parameter of a function; `spec` None means unannotated."""

    name: str
    kind: Any
    spec: Spec | None = None
    default: Any = inspect.Parameter.empty
    skip: bool = False


@dataclass(slots=True, eq=False, repr=False)
class Contract:
    """Everything that is known about a function before it is called."""

    function: str
    params: tuple[Param, ...]
    returns: Spec | None = None
    yields: Spec | None = None  # of a generator: what each item must be
    file: str | None = None  # where it is written; of a guard each module knows by itself
    mode: Mode | None = None
    casting: Casting | None = None
    anchor: str | None = None  # "self": follow the first argument if it is a module; else an argument's name
    autocast: Autocast = Autocast.IGNORE
    modules_only: bool = False  # "follow" holds only if the first argument is an nn.Module
    verify: Verify = Verify.FIRST
    mutates: frozenset[str] = frozenset()
    guarded: bool = False  # unannotated floating tensors follow the anchor too
    sides: bool = False  # but where one of them has the anchor's dtype, the others are the author's business
    masks: frozenset[str] = frozenset()  # attention masks: float32 is right beside half, where PyTorch takes it
    key: Any = None  # of the generated class that a guard's contract belongs to
    dtype: torch.dtype | None = None
    device: torch.device | None = None
    output_dtype: torch.dtype | None = None
    move_args: frozenset[str] = frozenset()
    skip_args: frozenset[str] = frozenset()
    non_blocking: bool = False
    body: Any = None
    scoped: bool = False  # `isinstance` is asked while the body runs, so it runs in jaxtyping's scope
    checker: bool = (
        False  # of jaxtyping's decorator, which runs the body itself: in its scope, with the caller's values
    )
    wrapper: Any = None  # the function that checks and calls the body; None for one that is suspended and resumed
    plans: list[Any] = field(default_factory=list)  # repairs made before

    def file_for(self, values: tuple[Any, ...]) -> str | None:
        """Where the contract of a call with these values is written; None if nobody knows."""
        return getattr(values[0].__dict__.get("_dtypeguard"), "file", None) if self.guarded else self.file

    def mode_for(self, values: tuple[Any, ...]) -> Mode:
        """The mode in force for a call with these values."""
        return current_mode(self.mode, self.file_for(values))


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
class Call:
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
    evident: bool | None = None  # whether an argument shows that the caller knows the anchor's dtype; None: not asked
    sides: list[tuple[Path, Tensor]] = field(default_factory=list)  # what is of another dtype in such a call
    twins: list[tuple[Any, dict[Step, Any], Any]] = field(default_factory=list)  # container, what is new in it, rebuilt
    passive: bool = False  # mode "off": nothing is looked at
    copies: list[tuple[str, Tensor, Tensor, int]] = field(default_factory=list)  # argument, source, copy, its _version
    records: list[Any] = field(default_factory=list)  # CastRecords of the repairs made
    first: set[Any] = field(default_factory=set)  # the kinds of repair that this call is the first to make
    rebuilt: list[Any] = field(default_factory=list)  # `_replay.Rebuilt` of each container

    @property
    def mode(self) -> Mode:
        return self.contract.mode_for(self.values)

    @property
    def casting(self) -> Casting:
        return current_casting(self.contract.casting, self.contract.file_for(self.values))

    def arguments(self) -> dict[str, Any]:
        return {param.name: value for param, value in zip(self.contract.params, self.values, strict=True)}

    def attempt(self) -> "Call":
        """The same state, to try one option of a union on."""
        return dataclasses.replace(self, violations=[], edits={}, owners=dict(self.owners))

    def adopt(self, trial: "Call") -> None:
        self.axes, self.variadics, self.owners = trial.axes, trial.variadics, trial.owners
        self.violations += trial.violations
        self.edits.update(trial.edits)


def given(contract: Contract, values: tuple[Any, ...]) -> Iterator[tuple[Param, Path, Any]]:
    """The values that a contract looks at, each under the path that names it."""
    for param, value in zip(contract.params, values, strict=True):
        if param.skip or value is param.default:
            continue
        if isinstance(param.spec, UnpackedSpec):
            yield param, (param.name,), value
        elif param.kind is inspect.Parameter.VAR_POSITIONAL:
            for i, item in enumerate(value):
                if not (isinstance(param.name, Rest) and param.name.label(i) in contract.skip_args):
                    yield param, (param.name, ("item", i)), item
        elif param.kind is inspect.Parameter.VAR_KEYWORD:
            for key, item in value.items():
                if key not in contract.skip_args:
                    yield param, (param.name, ("item", key)), item
        else:
            yield param, (param.name,), value


class Rest(str):
    """The name of `*args` or `**kwargs` of a decorator, behind which the parameters called `labels` stand."""

    labels: tuple[str, ...]

    def __new__(cls, name: str, labels: tuple[str, ...] = ()) -> "Rest":
        rest = super().__new__(cls, name)
        rest.labels = labels
        return rest

    def label(self, key: Any) -> str:
        if isinstance(key, int):
            return self.labels[key] if key < len(self.labels) else f"{self}[{key}]"
        return str(key)


def argument_of(path: Path) -> str:
    """The name of the argument that a path starts with; behind a decorator's `*args`, of the one inside."""
    name = path[0]
    return name.label(path[1][1]) if isinstance(name, Rest) and len(path) > 1 else str(name)


def written(path: Path) -> str:
    """A path as Python writes it: `cond['pooled']`, `out.img`, `batch[57]`."""
    text, steps = str(path[0]), path[1:]
    if isinstance(path[0], Rest) and steps:
        text, steps = path[0].label(steps[0][1]), steps[1:]
    for kind, key in steps:
        if kind == "member":  # of what has no index: a set, the keys of a dict
            text += f".<{key}>"
        else:
            text += f"[{quoted(key)}]" if kind == "item" else f".{key}"
    return text


# ---------------------------------------------------------------- reports


def edit_at(call: Call, path: Path, value: Any) -> Edit:
    return call.edits.setdefault(path, Edit(path, value))


def report(
    call: Call,
    path: Path,
    error: Any,
    value: Any,
    actual: Any,
    expected: Any,
    reason: str,
    hint: str,
    like: tuple[str, Any] | None = None,
    fix: str = "",
    fixed: bool = False,
) -> None:
    """Write a violation down; `fixed` if it can be repaired, unless the body writes to it or would not get it."""
    fixed = fixed and path[0] not in call.contract.mutates and not call.contract.checker
    call.violations.append(Violation(error, written(path), value, actual, expected, reason, hint, like, fix, fixed))


def report_shape(call: Call, path: Path, value: Any, spec: TensorSpec, actual: str, reason: str) -> None:
    fix = f"give `{written(path)}` the axes of {spec.hint}"
    report(call, path, ShapeError, value, actual, spec.hint, reason, spec.hint, fix=fix)


def report_kind(call: Call, path: Path, value: Any, hint: str, count: bool = False, *missing: str) -> None:
    """The value is of another kind than its hint; with `count` the text says how long a tuple is."""
    actual = f"is a {type(value).__qualname__}"
    if count and isinstance(value, tuple):
        actual = f"is a tuple of {len(value)}"
    if missing:
        actual = f"has no {', '.join(map(repr, missing))}"
    report(call, path, HintError, value, actual, hint, f"the annotation wants {hint}", hint, fix=f"pass {hint}")


# What to write instead of a cast that the default rule refuses, by the kinds involved.
_ADVICE: dict[tuple[Kind, Kind], str] = {
    (Kind.INT, Kind.FLOAT): "{x}.to({target}), scaled as the model expects",
    (Kind.BOOL, Kind.FLOAT): "{x}.to({target})",
    (Kind.FLOAT, Kind.INT): "{x}.round().to({target})",
    (Kind.FLOAT, Kind.BOOL): "{x} != 0 (a float mask is added, a bool mask hides)",
    (Kind.INT, Kind.BOOL): "{x} != 0",
    (Kind.COMPLEX, Kind.FLOAT): "{x}.real or {x}.abs()",
}


def report_dtype(
    call: Call,
    path: Path,
    value: Any,
    target: torch.dtype | None,
    hint: str,
    anchor: Anchor | None = None,
    family: bool = False,
) -> None:
    """The value's dtype is not `target`, which the anchor, else the annotation, wants; of a family it is an example."""
    source, casting = value.dtype, call.casting
    if not isinstance(source, torch.dtype):
        source = BY_NAME.get(name_of(source), source)
    like = anchor.like if anchor is not None else None
    allowed = target is not None and isinstance(source, torch.dtype) and may_cast(source, target, casting)
    expected: Any = target if target is not None else hint
    such = f" {hint.partition('[')[0]}, such as" if family and anchor is None and target is not None else ""
    reason = f"{anchor.reason if anchor is not None else f'the annotation wants{such}'} {plain(expected)}"
    quantized = isinstance(value, Tensor) and value.is_quantized
    fix = _advice(written(path) + ".dequantize()" * quantized, source, target, isinstance(value, Tensor))
    report(call, path, DtypeError, value, source, expected, reason, hint, like, fix, allowed)
    if target is not None:
        edit_at(call, path, value).dtype = target


def _advice(x: str, source: Any, target: torch.dtype | None, tensor: bool) -> str:
    if target is None:
        return ""
    if not tensor:
        return f"{x}.astype({name_of(target)!r})"
    pattern = _ADVICE.get((TABLE[source].kind, TABLE[target].kind), "{x}.to({target})")
    advice, rung = pattern.format(x=x, target=target), lowest_rung(source, target)
    return advice if rung <= Casting.PRECISION else f'{advice}, or casting="{rung.name.lower()}"'
