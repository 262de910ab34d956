"""One call of a model: what goes in, what comes out, and whether two calls came to the same.

A call starts from the same random numbers as every other, gets its own copies of the inputs, and leaves
nothing behind: not in the caller's tensors, nor in the registry of repairs, and nothing that another thread would feel.
"""

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .._core.base import config as _config
from .._core.base import private
from .._core.base.config import mode
from .._core.base.dtypes import FLOATING
from .._core.base.errors import DeviceError, summary
from .._core.base.frames import let_go
from .._core.base.numbers import Numbers, Seeded, seed
from .._core.base.options import kind_of
from .._core.base.patches import Patches
from .._core.base.quiet import hearing, quiet
from .._core.contract.containers import children, leaves
from .._core.contract.model import Path, written
from .._core.repair import records as _records
from .._core.repair.containers import rebuild
from .._core.repair.records import CastRecord, casts, reset_casts

Change = Callable[[str, Tensor], Tensor]
_METHODS = {torch.float64: "double", torch.float32: "float", torch.float16: "half", torch.bfloat16: "bfloat16"}


# ---------------------------------------------------------------- inputs


@dataclass(frozen=True, eq=False, repr=False)
class Leaf:
    """A tensor among the inputs: its path as Python writes it, and whether what holds it can be rebuilt."""

    path: str
    tensor: Tensor
    rebuildable: bool = True

    @property
    def argument(self) -> str:
        return self.path.partition("[")[0].partition(".")[0]


@dataclass(frozen=True, eq=False, repr=False)
class Inputs:
    """The arguments of a call, and the name under which a message knows each."""

    signature: inspect.Signature
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def arguments_by_name(self) -> dict[str, Any]:
        return self._bound().arguments

    def _bound(self) -> inspect.BoundArguments:
        return self.signature.bind(*self.args, **self.kwargs)

    def floats(self) -> list[Leaf]:
        """The floating tensors: what can be of a wrong dtype."""
        return [leaf for leaf in self.tensors() if leaf.tensor.dtype in FLOATING]

    def tensors(self) -> list[Leaf]:
        return [leaf for name, value in self.arguments_by_name().items() for leaf in _tensors(value, (name,), True)]

    def map(self, change: Change) -> "Inputs":
        """The same with other tensors; one that stands in two places is changed once, if it becomes the same."""
        known: dict[Any, tuple[Tensor, Tensor]] = {}
        bound = self._bound()
        bound.arguments = {name: _mapped(value, (name,), change, known) for name, value in bound.arguments.items()}
        return Inputs(self.signature, bound.args, bound.kwargs)

    def fresh(self) -> "Inputs":
        return Inputs(self.signature, *copy.deepcopy((self.args, self.kwargs)))

    def __str__(self) -> str:
        return ", ".join(f"{name} = {summary(value)}" for name, value in self.arguments_by_name().items())


def _tensors(value: Any, path: Path, rebuildable: bool) -> Iterator[Leaf]:
    if isinstance(value, Tensor):
        yield Leaf(written(path), value, rebuildable)
        return
    parts = children(value)
    for step, child in leaves(value) if parts is None else parts:
        yield from _tensors(child, (*path, step), rebuildable and parts is not None)


def _mapped(value: Any, path: Path, change: Change, known: dict[Any, tuple[Tensor, Tensor]]) -> Any:
    if isinstance(value, Tensor):
        other = change(written(path), value)
        key = id(value), other is value, other.dtype, other.device
        return known.setdefault(key, (value, other))[1]  # kept, or another tensor may get its id
    parts = children(value)
    if parts is not None:
        new = {step: _mapped(child, (*path, step), change, known) for step, child in parts}
        changed = {step: new[step] for step, child in parts if new[step] is not child}
        return rebuild(value, changed) if changed else value
    if type(value) in private.PYTREES:
        node = private.PYTREES[type(value)]
        held, context = node.flatten_fn(value)
        items = [_mapped(child, (*path, ("item", n)), change, known) for n, child in enumerate(held)]
        return node.unflatten_fn(items, context)
    return value


def call_of(batch: Any, tool: str, name: str = "batch", more: str = "") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments that a batch stands for: everywhere the same.

    A dict is keyword arguments, a tuple positional ones; a named tuple is one argument, like a tensor. `(value,)` is
    one argument, whatever the value is. `name` and `more` are for the error: what it is called, and what the tool takes
    too.

    Raises:
        TypeError: if it is no tensor, no tuple and no dict.
    """
    if isinstance(batch, inspect.BoundArguments):
        return batch.args, batch.kwargs
    if isinstance(batch, Mapping):
        return (), dict(batch)
    if type(batch) is tuple:
        return batch, {}
    if isinstance(batch, Tensor | tuple):  # such as a PackedSequence
        return (batch,), {}
    raise TypeError(
        f"{tool}: `{name}` is {kind_of(batch)}: pass a tensor, a tuple of arguments or a dict of keyword "
        f"arguments{more}; (value,) for one argument of another kind"
    )


def check_values(tool: str, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Raises DeviceError for an argument that is on meta, where the tool runs the model."""
    for name, tensor in tensors:
        if tensor.is_meta:
            raise DeviceError(f"{tool}: argument {name} is on meta, and has no values: create it where the model is")


def read_as(batch: Any) -> str:
    """How `call_of` reads it, and how else it can be meant: for the error about arguments that do not fit."""
    if isinstance(batch, Mapping):
        return "; a dict is read as keyword arguments: where it is one argument, write ({...},)"
    if type(batch) is tuple:
        return "; a tuple is read as positional arguments: where it is one argument, write ((...,),)"
    if isinstance(batch, tuple):
        return "; a named tuple is read as one argument: where it holds several, write tuple(...)"
    return ""


def inputs_of(tool: str, root: nn.Module, batch: Any) -> Inputs:
    """A batch as the arguments of a model's forward.

    Raises:
        TypeError: it is no batch, or the forward does not take it.
    """
    signature, (args, kwargs) = inspect.signature(root.forward), call_of(batch, tool)
    check_fit(tool, f"{type(root).__name__}.forward", signature, batch)
    return Inputs(signature, args, kwargs)


def check_call(tool: str, program: Any, batch: Any, name: str = "this batch") -> None:
    """Raises TypeError if a model or a function does not take a batch."""
    module = isinstance(program, nn.Module)
    with contextlib.suppress(ValueError):  # a builtin has no signature
        signature = inspect.signature(program.forward if module else program)
        title = f"{type(program).__name__}.forward" if module else getattr(program, "__name__", "the function")
        check_fit(tool, title, signature, batch, name)


def check_fit(tool: str, title: str, signature: inspect.Signature, batch: Any, name: str = "this batch") -> None:
    """Raises TypeError if a signature does not take a batch."""
    args, kwargs = call_of(batch, tool)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        several = "; a list is several batches: write a tuple of the arguments of one" * name.startswith("batch[")
        told = f"{title}{signature} does not take {name}: {error}{read_as(batch) or several}"
        raise TypeError(f"{tool}: {told}") from None


def leaf(tensor: Tensor) -> Tensor:
    """The caller's tensor without its history, which could not be copied."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def widened(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The model itself, in a wide dtype; `Module.to` would drop the imaginary parts of what is complex."""

    def wide(tensor: Tensor) -> Tensor:
        kept = tensor.dtype if not tensor.is_floating_point() else dtype
        return tensor.to(dtype.to_complex() if tensor.is_complex() else kept)

    model._apply(wide)  # type: ignore[no-untyped-call]  # torch's
    return model


def converted(model: nn.Module, dtype: torch.dtype | None, device: torch.device) -> nn.Module:
    """The model in a dtype, by the methods that leave complex parameters alone."""
    model = model.to(device)
    method: Any = getattr(model, _METHODS[dtype]) if dtype is not None else lambda: model
    return method()  # type: ignore[no-any-return]  # the model itself


# ---------------------------------------------------------------- calls


@dataclass(eq=False, repr=False)
class Outcome:
    """What a call came to.

    Attributes:
        results: of each of the calls in a row that one instance had; its state goes on from one to the next.
        error: what the first of them raised that raised.
        said: dtypeguard's own warnings.
        casts: the repairs.
        grads: of inputs and parameters, by name, if they were asked for.
        wrote: paths of the inputs that were changed in place.
    """

    results: list[Any] = field(default_factory=list)
    error: Exception | None = None
    said: list[Warning] = field(default_factory=list)
    casts: list[CastRecord] = field(default_factory=list)
    grads: dict[str, Tensor | None] = field(default_factory=dict)
    wrote: list[str] = field(default_factory=list)

    @property
    def raised(self) -> str | None:
        """The exception's type and the first line of its text."""
        return None if self.error is None else f"{type(self.error).__name__}: {self.error}".partition("\n")[0]

    def outputs(self) -> dict[str, torch.dtype]:
        """The dtypes of the first call's floating results."""
        first = flat(self.results[0]) if self.results else ()
        return {path: leaf.dtype for path, leaf in first if _is_floating(leaf)}

    def numbers(self) -> set[str]:
        """Those of them that are one number, as losses are."""
        first = flat(self.results[0]) if self.results else ()
        return {path for path, leaf in first if _is_floating(leaf) and not leaf.ndim}


def _is_floating(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())


def run(
    model: nn.Module,
    inputs: Inputs,
    guarded: _config.ModeName,
    *,
    by_hand: Change | None = None,
    region: tuple[str, torch.dtype] | None = None,
    grads: bool = False,
    compiled: bool = False,
) -> Outcome:
    """Call a model that nobody else has: twice in a row, or once and back.

    Args:
        guarded: the mode; 'off' for what bare PyTorch does.
        by_hand: changes the inputs on their way, as the caller could have done.
        region: an autocast region's device type and dtype.
        grads: one call, and the gradients of its floating inputs and of the parameters.
        compiled: whether it is; its graphs draw by themselves.
    """
    outcome = Outcome()
    seed(0)
    reset_casts()
    with (
        hearing() as said,
        contextlib.nullcontext() if compiled else Seeded().on(),
        under(guarded),
        autocast(region),
        torch.set_grad_enabled(grads or torch.is_grad_enabled()),  # it acts when it is called
    ):
        try:
            for _ in range(1 if grads else 2):
                _call(model, inputs.fresh(), by_hand, grads, outcome)
        except Exception as error:
            outcome.error = error
    let_go(outcome.error)
    outcome.said = list(said)
    outcome.casts = casts()
    return outcome


def _call(model: nn.Module, given: Inputs, by_hand: Change | None, grads: bool, outcome: Outcome) -> None:
    tensors = {leaf.path: leaf.tensor for leaf in given.floats()}
    if grads:
        for tensor in tensors.values():
            tensor.requires_grad_()
    passed = given if by_hand is None else given.map(by_hand)
    before = [(leaf.path, leaf.tensor, leaf.tensor._version) for leaf in passed.tensors()]
    result = model(*passed.args, **passed.kwargs)
    outcome.wrote += [path for path, tensor, version in before if tensor._version != version]
    outcome.results.append(result)
    if grads:
        roots = [_number(leaf) for _, leaf in flat(result) if _is_floating(leaf) and leaf.requires_grad]
        ends = {**tensors, **{name: p for name, p in model.named_parameters() if p.requires_grad}}
        if roots and ends:
            found = torch.autograd.grad(roots, list(ends.values()), allow_unused=True)
            outcome.grads = dict(zip(ends, found, strict=True))


def _number(tensor: Tensor) -> Tensor:
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).sum()


def under(name: _config.ModeName) -> contextlib.AbstractContextManager[Any]:
    """A mode for all contracts that name none themselves; 'off' is above those that do."""
    stack = contextlib.ExitStack()
    stack.enter_context(_config.apart(_config.base().but(mode="off") if name == "off" else _config.base()))
    stack.enter_context(mode(name))
    return stack


def autocast(region: tuple[str, torch.dtype] | None) -> contextlib.AbstractContextManager[Any]:
    """A region, or none."""
    return contextlib.nullcontext() if region is None else torch.autocast(region[0], dtype=region[1])


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """What is run in here has random numbers, a base mode, a registry of repairs and a log of its own, in this thread.

    Nothing that other threads share is changed: no number of threads, no default dtype, no generator.
    """
    off = [torch.autocast(kind, enabled=False) for kind in ("cpu", "cuda")]  # the caller's region is no cell's
    with _default_dtype(), _config.apart(_config.alike()), _records.apart(), quiet(), Numbers().here(), off[0], off[1]:
        yield


@contextlib.contextmanager
def _default_dtype() -> Iterator[None]:
    """Where what runs in here sets the default dtype, it is set back at the end."""
    before: list[torch.dtype] = []

    def setting(following: Any, dtype: Any) -> None:
        before.append(torch.get_default_dtype())
        following(dtype)

    try:
        with Patches().for_a_block() as patches:
            patches.instead(torch, "set_default_dtype", setting)
            patches.enter_thread()
            yield
    finally:
        if before:
            torch.set_default_dtype(before[0])


# ---------------------------------------------------------------- sameness


def flat(value: Any, path: Path = ("result",), *outer: Any) -> Iterator[tuple[str, Any]]:
    """Everything in a value that holds nothing itself, with its path; the attributes of plain objects too."""
    parts = None if isinstance(value, Tensor) else children(value)
    if parts is None and type(value) in private.PYTREES:
        parts = list(leaves(value))
    if parts is None and _is_plain_object(value):
        parts = [(("attr", name), item) for name, item in vars(value).items()]
    if parts is None or any(value is container for container in outer):
        yield written(path), value
        return
    for step, child in parts:
        yield from flat(child, (*path, step), *outer, value)


def _is_plain_object(value: Any) -> bool:
    """An object that compares by identity: a cache, a distribution; no code, no tensor."""
    skipped = isinstance(value, Tensor | nn.Module | type) or callable(value)
    return not skipped and hasattr(value, "__dict__") and _by_identity(value)


def _by_identity(value: Any) -> bool:
    kind: Any = type(value)
    return kind.__eq__ is object.__eq__


def difference(got: Outcome, expected: Outcome) -> tuple[str, str] | None:
    """Where two outcomes are not the same, bit for bit: what was got, and what was expected."""
    if got.error is not None or expected.error is not None:
        if type(got.error) is type(expected.error):
            return None
        return (got.raised or "it computes"), (expected.raised or "what the bare model gives")
    for n, (a, b) in enumerate(zip(got.results, expected.results, strict=True)):
        found = _unlike(a, b, "result")
        if found is not None:
            return (f"{found[0]}, at the second call", found[1]) if n else found
    for name, b in expected.grads.items():
        found = _unlike(got.grads.get(name), b, f"{name}.grad")
        if found is not None:
            return found
    return None


def _unlike(got: Any, expected: Any, path: str) -> tuple[str, str] | None:
    mine, other = list(flat(got, (path,))), list(flat(expected, (path,)))
    if type(got) is not type(expected) or [name for name, _ in mine] != [name for name, _ in other]:
        return f"{path} = {summary(got)}", summary(expected)
    for (name, a), (_, b) in zip(mine, other, strict=True):
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            if _kind_of(a) != _kind_of(b):
                return f"`{name}` is {summary(a)}", summary(b)
            if not equal(a, b):
                return f"`{name}`, {summary(a)}, has other numbers", "the same, bit for bit"
        elif not _is_equal(a, b):
            return f"`{name}` is {summary(a)}", summary(b)
    return None


def _kind_of(tensor: Tensor) -> tuple[Any, ...]:
    shape = None if tensor.is_nested else tensor.shape  # a nested one has none, or a new symbol each time
    return type(tensor), tensor.dtype, shape, tensor.device


def equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one dtype and shape hold the same numbers; NaN is NaN."""
    if a.is_nested:
        parts = a.unbind(), b.unbind()
        return [x.shape for x in parts[0]] == [y.shape for y in parts[1]] and all(map(equal, *parts))
    if a.layout is not torch.strided:
        a, b = a.to_dense(), b.to_dense()
    if a.is_complex():  # complex32 has no ==
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    if a.dtype.itemsize == 1 and not a.is_floating_point():  # integers of some bits have no == in some versions
        a, b = a.view(torch.uint8), b.view(torch.uint8)
    if a.is_meta or torch.equal(a, b):
        return True
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _is_equal(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if a is b or _by_identity(a):  # which is another one after every call
        return True
    try:
        return bool(a == b) or bool(a != a and b != b)
    except Exception:  # arrays, and others that have no one answer
        return repr(a) == repr(b)
