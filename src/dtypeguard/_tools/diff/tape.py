"""What the modules of a program got and returned; and the same program with what another one's got and returned.

In a run that is forced, each module gets what the first program's got, and what it returns is given back as what the
first program's returned. So each difference is seen where it is added, and nowhere else.
"""

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from ..._core.base import private
from ..._core.base.frames import caller, shown
from ..._core.base.modes import Mode
from ..._core.base.modules import unwrapped, walk
from ..._core.contract.containers import children
from ..._core.repair.containers import rebuild
from ..._engine.ops import operator_of
from .wide import Wide

P = ParamSpec("P")
T = TypeVar("T")
_LARGE = 1e4  # what masks hold is larger
Key = tuple[str, int]  # a module's path, and the number of its call
Named = list[tuple[str, Tensor]]


@dataclass(slots=True)
class Passage:
    """One call of a module.

    Attributes:
        inputs: the tensors that it got, by the names of its arguments.
        outputs: those that it returned.
        parent: the call of the module in which it was called.
        site: the line that calls it.
        bounds: of inputs and outputs, in a wide run: the roundings that they may differ by, and what narrow
            values had lost before.
        times: when it was entered and left.
        grads: the gradients of inputs (0) and outputs (1), by their names, where there is a backward.
        followed: the inputs and outputs that a gradient may come to.
        shared: the inputs that the call of the other program gets too; None for all.
    """

    key: Key
    parent: Key | None
    site: str
    inputs: Named = field(default_factory=list)
    outputs: Named = field(default_factory=list)
    bounds: tuple[tuple[float, float], tuple[float, float]] = ((1.0, 0.0), (1.0, 0.0))
    times: tuple[int, int] = (0, 0)
    grads: dict[tuple[int, str], Tensor] = field(default_factory=dict)
    followed: set[tuple[int, str]] = field(default_factory=set)
    shared: set[str] | None = None

    def follow(self, place: int, tensors: Named) -> None:
        """Keep the gradients of tensors when they come."""
        for name, tensor in tensors:
            if tensor.requires_grad:
                self.followed.add((place, name))
                keep: Any = functools.partial(self._came, (place, name))
                tensor.register_hook(keep)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def _came(self, where: tuple[int, str], grad: Tensor) -> None:
        self.grads[where] = grad.detach()


class Tape(Mode):
    """Passages in the order of their calls. A tensor is copied before an operation writes to it."""

    def __init__(self, passages: dict[Key, Passage] | None = None) -> None:
        super().__init__()
        self.passages: dict[Key, Passage] = passages or {}
        self._held: dict[int, list[tuple[Named, int]]] = {}

    def keep(self, place: Named, tensors: Named) -> None:
        for name, tensor in tensors:
            place.append((name, tensor.detach()))
            self._held.setdefault(_storage(tensor), []).append((place, len(place) - 1))

    def loosen(self, tensor: Tensor) -> None:
        """What is kept of a tensor that will be written to becomes a copy."""
        for place, number in self._held.pop(_storage(tensor), ()):
            place[number] = place[number][0], place[number][1].clone()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for n in operator_of(func).writes:
            target = args[n] if n < len(args) else None
            for tensor in target if isinstance(target, list | tuple) else (target,):
                if isinstance(tensor, Tensor):
                    self.loosen(tensor)
        return func(*args, **(kwargs or {}))


def _storage(tensor: Tensor) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # a subclass without one
        return id(tensor)


def _bare(hook: Callable[P, T]) -> Callable[P, T]:
    """A hook that runs below all modes: what it does is not of the program."""

    @functools.wraps(hook)
    def bare(*args: P.args, **kwargs: P.kwargs) -> T:
        with private.without_modes():
            return hook(*args, **kwargs)

    return bare


class Wires:
    """Hooks on modules that fill a tape, and put in what another tape has; `Side.run` explains the arguments."""

    def __init__(self, model: nn.Module, tape: Tape, paths: Collection[str] | None = None,
                 given: Callable[[Key], tuple[Named, Named] | None] = lambda key: None,
                 wide: Wide | None = None) -> None:  # fmt: skip
        self._tape, self._given, self._wide = tape, given, wide
        self._open: list[tuple[Passage, list[tuple[Tensor, Tensor, int]]]] = []
        self._count: dict[str, int] = {}
        self._time = 0
        self._hooks = []
        for path, module in walk(model):
            name = unwrapped(path)
            if (paths is None or name in paths) and not isinstance(module, torch.jit.ScriptModule):
                before, after = self._on_call(name), self._on_return
                self._hooks.append(module.register_forward_pre_hook(before, with_kwargs=True))
                self._hooks.append(module.register_forward_hook(after, with_kwargs=True))

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        try:
            with self._tape.on():
                yield
        finally:
            for hook in self._hooks:
                hook.remove()

    def _on_call(self, name: str) -> Callable[..., Any]:
        @_bare
        def before(module: nn.Module, args: Any, kwargs: Any) -> Any:
            number = self._count[name] = self._count.get(name, -1) + 1
            parent = self._open[-1][0].key if self._open else None
            passage = Passage((name, number), parent, _site())
            bound = self._bound()
            self._tape.passages[passage.key] = passage
            labelled = [*zip(_labels(module, len(args)), args, strict=False), *kwargs.items()]
            tensors = list(_tensors(labelled))
            self._tape.keep(passage.inputs, tensors)
            passage.bounds = bound, bound
            passage.times = self._tick(), 0
            if self._wide is not None:
                self._wide.enter()
            replaced: list[tuple[Tensor, Tensor, int]] = []
            self._open.append((passage, replaced))
            found = self._given(passage.key)
            if found is None:
                return self._followed(passage, labelled, len(args))
            partner = paired(passage.inputs, found[0])
            known: dict[int, Tensor] = {}

            def other(name: str, value: Any) -> Any:
                if type(value) is tuple:
                    return tuple(other(f"{name}[{n}]", item) for n, item in enumerate(value))
                place = partner.get(name) if isinstance(value, Tensor) else None
                if place is None:
                    return value
                if id(value) not in known:  # one tensor that stands in two places is one again
                    known[id(value)] = _like(found[0][place][1], value)
                    replaced.append((known[id(value)], value, version_of(known[id(value)])))
                return known[id(value)]

            return (
                tuple(other(name, value) for name, value in labelled[: len(args)]),
                {name: other(name, value) for name, value in kwargs.items()},
            )

        return before

    def _followed(self, passage: Passage, labelled: list[tuple[str, Any]], count: int) -> Any:
        """The arguments as views of their own, so that a gradient is of this module alone; nothing without a graph."""
        views = {
            name: value.view_as(value) for name, value in labelled
            if isinstance(value, Tensor) and value.requires_grad and torch.is_grad_enabled() and is_dense(value)
        }  # fmt: skip
        passage.follow(0, [(name, tensor) for name, tensor in _tensors(labelled) if name not in views])
        if not views:
            return None
        passage.follow(0, list(views.items()))
        given = [(name, views.get(name, value)) for name, value in labelled]
        return tuple(value for _, value in given[:count]), dict(given[count:])

    @_bare
    def _on_return(self, module: nn.Module, args: Any, kwargs: Any, out: Any) -> Any:
        passage, replaced = self._open.pop()
        passage.bounds = passage.bounds[0], self._bound()
        passage.times = passage.times[0], self._tick()
        if self._wide is not None:
            self._wide.leave()
        for new, own, version in replaced:
            if version_of(new) != version:  # what the module writes to an argument is written to the caller's
                self._tape.loosen(own)
                own.copy_(new)
        tensors = list(_tensors([("result", out)]))
        self._tape.keep(passage.outputs, tensors)
        passage.follow(1, tensors)
        found = self._given(passage.key)
        if found is None:
            return None
        partner = paired(passage.outputs, found[1])

        def other(name: str, value: Any) -> Any:
            if isinstance(value, Tensor):
                return _like(found[1][partner[name]][1], value) if name in partner else value
            held = children(value)
            return value if held is None else rebuild(value, {s: other(f"{name}{_step(s)}", v) for s, v in held})

        return other("result", out)

    def _tick(self) -> int:
        self._time += 1
        return self._time

    def _bound(self) -> tuple[float, float]:
        return (1.0, 0.0) if self._wide is None else (self._wide.ulps[-1], self._wide.narrow[-1])


def version_of(tensor: Tensor) -> int:
    """How often a tensor was written to; one of inference mode does not count."""
    return 0 if tensor.is_inference() else tensor._version


def _like(tensor: Tensor, other: Tensor) -> Tensor:
    """A tensor of another one's dtype, device and shape, with its own storage."""
    return tensor.to(other.device, other.dtype, copy=True).reshape(other.shape)


def _labels(module: nn.Module, count: int) -> list[str]:
    try:
        names = list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):
        names = []
    return [names[n] if n < len(names) else f"argument {n}" for n in range(count)]


def _step(step: Any) -> str:
    return f"[{step[1]!r}]" if step[0] == "item" else f".{step[1]}"


def _tensors(values: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors in values, in containers too, by their paths."""
    for name, value in values:
        if isinstance(value, Tensor):
            if is_dense(value):
                yield name, value
        else:
            yield from _tensors((f"{name}{_step(step)}", item) for step, item in children(value) or ())


def is_dense(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested


def kind_of(tensor: Tensor) -> str:
    if tensor.is_floating_point() or tensor.is_complex():
        return "complex" if tensor.is_complex() else "float"
    return "bool" if tensor.dtype is torch.bool else "int"


def paired(mine: Named, other: Named) -> dict[str, int]:
    """Which tensor of another list stands for which of mine: by name, else in order; of one kind and size.

    The first arguments may have any two names; others that are named otherwise have values that are alike.
    """
    if len(mine) == len(other) and all(_may_pair(a, b) for (_, a), (_, b) in zip(mine, other, strict=True)):
        return {name: n for n, (name, _) in enumerate(mine)}
    found, left = {}, dict(enumerate(other))
    for same in (True, False):
        for name, tensor in mine:
            if name not in found:
                first = name == mine[0][0]
                fits = (
                    n for n, (its, b) in left.items()
                    if _may_pair(tensor, b) and (its == name or (not same and ((first and not n) or _alike(tensor, b))))
                )  # fmt: skip
                if (place := next(fits, None)) is not None:
                    found[name] = place
                    del left[place]
    return found


def _may_pair(a: Tensor, b: Tensor) -> bool:
    return kind_of(a) == kind_of(b) and a.numel() == b.numel() and _packed(a) == _packed(b)


def _alike(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are nearer to each other than to zero; what masks hold is what masks hold."""
    x, y = (
        torch.view_as_real(t) if t.is_complex() else t
        for t in (one.detach().cpu().reshape(b.shape) for one in (a, b))
    )  # fmt: skip
    x, y = (t.double().nan_to_num().clamp(-_LARGE, _LARGE) for t in (x, y))
    return bool(torch.linalg.vector_norm(x - y) <= torch.linalg.vector_norm(y))


def _packed(tensor: Tensor) -> list[int]:
    return [size for size in tensor.shape if size != 1]


def _site() -> str:
    frame = caller(sys._getframe(1))
    while frame is not None and frame.f_code.co_name == "__call__":  # a class that calls `forward` in its own way
        frame = caller(frame.f_back)
    return "" if frame is None else f"{shown(frame.f_code.co_filename)}:{frame.f_lineno}"
