"""What is known about a function before a call, and the paths that name its arguments."""

import inspect
import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..base.config import Autocast, Mode, Verify, current_casting, current_mode
from ..base.dtypes import Casting
from ..base.errors import quoted
from .spec import Spec, UnpackedSpec

PathStep = tuple[str, Any]  # ("item", 57), ("attr", "img"), or ("member", "item 2") of what has no index
Path = tuple[Any, ...]  # the argument's name, then steps


class Omitted:
    """What stands for an argument that was not given."""


# The default of a parameter behind a decorator's `*args, **kwargs`: what the caller leaves out is left out there.
OMITTED: Any = Omitted()


@dataclass(slots=True, eq=False, repr=False)
class Param:
    """One parameter of a function; `spec` None means unannotated."""

    name: str
    kind: Any
    spec: Spec | None = None
    default: Any = inspect.Parameter.empty
    skip: bool = False


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
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
    named: bool = False  # by the user: then a value that is no tensor and no module is an error
    autocast: Autocast = Autocast.IGNORE
    uncast: bool = False  # autocast does not cast for this module on the CPU
    modules_only: bool = False  # "follow" holds only if the first argument is an nn.Module
    verify: Verify = Verify.FIRST
    mutates: frozenset[str] = frozenset()
    guarded: bool = False  # unannotated floating tensors follow the anchor too
    sides: bool = False  # but if one of them has the anchor's dtype, those of another dtype pass as side inputs
    masks: frozenset[str] = frozenset()  # attention masks: float32 is right beside half, where PyTorch takes it
    door: bool = False  # of a module inside of a model, where side inputs are repaired; it holds for the model's calls
    border: bool = False  # its casts are meant: they are made in every mode, and nobody is warned of them
    key: Any = None  # of the generated class that a guard's contract belongs to
    dtype: torch.dtype | None = None
    device: torch.device | None = None
    output_dtype: torch.dtype | None = None
    move_args: frozenset[str] = frozenset()
    skip_args: frozenset[str] = frozenset()
    non_blocking: bool = False
    body: Any = None
    scoped: bool = False  # `isinstance` is asked while the body runs, so it runs in jaxtyping's scope
    hooked: bool = False  # written by nobody: `install_import_hook` enforces the function
    checker: bool = False  # of jaxtyping's decorator, which runs the body in its own scope, with the caller's values
    wrapper: Any = None  # the function that checks and calls the body; None for one that is suspended and resumed
    plans: list[Any] = field(default_factory=list)  # repairs made before

    @property
    def specs(self) -> list[Spec]:
        """What is asked of the arguments, and of what comes out."""
        asked = [*(param.spec for param in self.params), self.returns, self.yields]
        return [spec for spec in asked if spec is not None]

    def file_for(self, values: tuple[Any, ...]) -> str | None:
        """The file in which the contract of a call with these values is written; None if it is not known."""
        known = self.guarded and not self.door
        return getattr(values[0].__dict__.get("_dtypeguard"), "file", None) if known else self.file

    def mode_for(self, values: tuple[Any, ...]) -> Mode:
        """The mode in force for a call with these values."""
        if self.border:
            return Mode.LENIENT
        return current_mode(self.mode, self.file_for(values))

    def casting_for(self, values: tuple[Any, ...]) -> Casting:
        """Which casts a repair of a call with these values may make."""
        return current_casting(self.casting, self.file_for(values))


def checked_values(contract: Contract, values: tuple[Any, ...]) -> Iterator[tuple[Param, Path, Any]]:
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


# A key of a dict that names its item, and a number that counts items of that name: `mask`, `image2`.
_WORD = re.compile(r"([^\W\d]+)\d*")


def alike(contract: Contract, path: Path, value: Any) -> Path:
    """The path that one kind of repair has, below an argument of this value: what is named is told apart, but no items.

    However long a list is, and however many keys there are: all items of a list share one path, and those of a dict
    whose keys are no words, or differ in a number at the end. What a call passes by name is an argument of its own.
    """
    steps = [path[0]]
    named = any(param.name == path[0] and param.kind is inspect.Parameter.VAR_KEYWORD for param in contract.params)
    for kind, key in path[1:]:
        listed, mapped = isinstance(value, (list, deque)), isinstance(value, Mapping)
        shared = key
        if kind == "member" or (kind == "item" and listed):
            shared = ...
        elif kind == "item" and mapped and not named:
            word = _WORD.fullmatch(key) if isinstance(key, str) else None
            shared = word[1] if word else ...
        steps.append((kind, shared))
        named = False
        try:
            value = value[key] if kind == "item" else getattr(value, key)
        except (LookupError, TypeError, AttributeError):  # of a set, or of a pytree that only torch looks into
            value = None
    return tuple(steps)


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
