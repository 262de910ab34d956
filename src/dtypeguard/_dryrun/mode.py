"""The dispatch mode of a dry run: small things are computed, of large ones only dtypes and sizes.

A tensor either has the values that the program gives it, or it is a ghost. What is computed of ghosts is a ghost, and
what is too large becomes one. So whoever asks a tensor for a number gets the program's own, or the run ends there.
"""

import contextlib
import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .._base.dtypes import name_of
from .._watch.operations import trait_of
from .._watch.recorder import Recorder
from .._watch.sites import here
from .ghosts import Ghosts
from .paths import Decisions, Unknown
from .verdicts import AFFORDABLE, Answer, Region, alone, answer, is_about_dtypes, ordinary

_READERS = ("tolist", "numpy", "__array__")  # methods that give the numbers to Python, and no operation does it
SMALL = 2**18  # elements of a tensor that is computed


@dataclass(frozen=True, slots=True)
class _Operation:
    func: Any
    view: bool
    written: tuple[int, ...]  # which arguments it writes to
    returned: tuple[int | None, ...]  # of each result: the argument that it is
    reads: bool  # it makes a number of Python of a tensor


_operations: dict[int, _Operation] = {}


def _operation(func: Any) -> _Operation:
    known = _operations.get(id(func))
    if known is None:
        known = _operations[id(func)] = _look(func)
    return known


def _look(func: Any) -> _Operation:
    schema = func._schema
    names = {tuple(a.alias_info.before_set): n for n, a in enumerate(schema.arguments) if _writes(a)}
    returned = [names.get(tuple(r.alias_info.before_set)) if _writes(r) else None for r in schema.returns]
    aliases = [r.alias_info is not None for r in schema.returns]
    return _Operation(
        func=func,
        view=any(aliases) and not names,
        written=tuple(names.values()),
        returned=tuple(returned),
        reads=torch.Tag.data_dependent_output in func.tags,
    )


def _writes(slot: Any) -> bool:
    return slot.alias_info is not None and slot.alias_info.is_write


class Births:
    """Where floating dtypes are born that the parameters of a cell do not have."""

    def __init__(self, usual: torch.dtype | None) -> None:
        self._usual = usual
        self._found: dict[str, None] = {}

    def born(self, dtype: torch.dtype) -> None:
        """A tensor of that dtype was made of nothing."""
        if dtype is not self._usual:
            site = here()
            self._found[f"{site.expression} at {site}: {name_of(dtype)}"] = None

    def lines(self, recorder: Recorder) -> tuple[str, ...]:
        """These, and where the program casts, or operands promote each other."""
        rows = [cast for cast, _ in recorder.findings.casts() if cast.kind in ("explicit", "promotion")]
        for cast in rows:
            if cast.to_dtype is not self._usual and cast.to_dtype.is_floating_point:
                text = f"{cast.op} of {name_of(cast.from_dtype)} at {cast.site}: {name_of(cast.to_dtype)}"
                self._found[text] = None
        return tuple(self._found)


def _kind(tensor: Tensor) -> str:
    return "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")


@contextlib.contextmanager
def unread(ghosts: Ghosts) -> Iterator[None]:
    """Whoever reads the memory of a ghost past the dispatcher is stopped too; other tensors are read as ever."""

    def stopped(original: Any) -> Any:
        @functools.wraps(original)
        def read(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if tensor in ghosts:
                raise _unknown("asks for values that are not computed")
            return original(tensor, *args, **kwargs)

        return read

    own = {name: vars(Tensor).get(name) for name in _READERS}
    for name in _READERS:
        setattr(Tensor, name, stopped(getattr(Tensor, name)))
    try:
        yield
    finally:
        for name, function in own.items():
            if function is None:
                delattr(Tensor, name)
            else:
                setattr(Tensor, name, function)


def _unknown(why: str) -> Unknown:
    return Unknown(f"{here()}: {why}")


class Mode(TorchDispatchMode):
    """Computes what is small, and imagines the rest."""

    supports_higher_order_operators = True

    def __init__(self, ghosts: Ghosts, decisions: Decisions, recorder: Recorder | None, births: "Births") -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.ghosts, self.decisions, self.births = ghosts, decisions, births
        self.modules: dict[str, dict[torch.dtype, None]] = {}
        self._recorder = recorder

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # which would import all of Dynamo; nothing is compiled during an audit

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        __tracebackhide__ = True
        kwargs = kwargs or {}
        out = self._call(func, args, kwargs)
        recorder = self._recorder
        if recorder is not None and recorder.running and not recorder.local.paused:
            self._note(recorder, func, args, out)
        return out

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensors = list(_tensors((*args, *kwargs.values())))
        ghostly = [tensor for tensor in tensors if tensor in self.ghosts]
        if not isinstance(func, torch._ops.OpOverload):
            if ghostly:
                raise _unknown(f"{func}, an operator of higher order, is not followed")
            return func(*args, **kwargs)
        operation = _operation(func)
        if operation.view or not (ghostly or self._is_large(func, args, kwargs, tensors)):
            return func(*args, **kwargs)
        odd = next((t for t in tensors if t.is_nested or t.layout is not torch.strided), None) if ghostly else None
        if odd is not None:
            raise _unknown(f"{func} of {_kind(odd)} tensors is not followed")
        if ghostly and operation.reads:
            return self._read(func, args, kwargs, ghostly)
        return self._imagine(operation, args, kwargs)

    def _region(self) -> Region:
        """The autocast region that the program is in; below a mode none is on."""
        recorder = self._recorder
        return recorder.region() if recorder is not None and recorder.autocast() else None

    def _note(self, recorder: Recorder, func: Any, args: Any, out: Any) -> None:
        """What dtypes a module computes in, and where one is born."""
        trait = trait_of(func)
        if trait.same or trait.cast:
            return
        path = recorder.module() or ""
        for tensor in _tensors([out]):
            if tensor.is_floating_point():
                self.modules.setdefault(path, {})[tensor.dtype] = None
                if not any(True for _ in _tensors(args)):
                    self.births.born(tensor.dtype)

    def _read(self, func: Any, args: Any, kwargs: Any, ghostly: list[Tensor]) -> Any:
        """A number of Python of tensors that have no values: yes or no is decided, all else is not known."""
        self._answer(func, args, kwargs)
        if str(func._schema.returns[0].type) == "bool" or ghostly[0].dtype is torch.bool:
            return self.decisions.decide(here())
        raise _unknown("asks for a value that is not computed")

    def _is_large(self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> bool:
        """Whether an operation gives, or takes, more than is computed."""
        bound = 1
        for tensor in tensors:
            bound *= max(tensor.numel(), 1)
        if tensors and bound <= SMALL and not any(type(a) is list for a in args):
            return False
        if any(tensor.numel() > SMALL for tensor in tensors):
            return True
        out = self._shapes(func, args, kwargs)
        return not isinstance(out, Exception) and any(t.numel() > SMALL for t in _tensors(_pytree.tree_leaves(out)))

    def _imagine(self, operation: _Operation, args: Any, kwargs: Any) -> Any:
        """What comes out of an operation that is not computed; the exception of its kernel, if it raises one."""
        func = operation.func
        found = self._answer(func, args, kwargs)
        if not operation.returned:
            return None
        shapes = self._shapes(func, args, kwargs)
        if isinstance(shapes, Exception):
            shapes = self._sizes(func, args, kwargs, shapes)
        leaves, spec = _pytree.tree_flatten(shapes)
        last = found.outputs[-1:] * len(leaves)  # of a list, which may be shorter at size 1
        kinds = (*found.outputs, *last)
        made = [
            self._ghost(leaf, kind) if isinstance(leaf, Tensor) else leaf
            for leaf, kind in zip(leaves, kinds, strict=False)
        ]
        return self._returned(operation, args, kwargs, _pytree.tree_unflatten(made, spec))

    def _answer(self, func: Any, args: Any, kwargs: Any) -> Answer:
        found = answer(func, args, kwargs, self._region(), lambda tensor: tensor not in self.ghosts)
        if found is None:
            shapes = self._shapes(func, args, kwargs)
            if isinstance(shapes, Exception) and not _is_metas_own(shapes):
                raise shapes  # wrong sizes are the program's own error
            raise _unknown(f"{func} cannot be tried with small tensors")
        if found.error is not None:
            kind, text = found.error
            raise kind(text)
        return found

    def _ghost(self, shape: Tensor, kind: Any) -> Tensor:
        if shape.is_nested or shape.layout is not torch.strided:
            raise _unknown(f"{_kind(shape)} tensors are not followed")
        dtype, device = kind if kind is not None else (shape.dtype, torch.device("cpu"))
        return self.ghosts.of(shape, dtype, device)

    def _returned(self, operation: _Operation, args: Any, kwargs: Any, made: Any) -> Any:
        """The results; those that are arguments, written to, are these, and have no values any more."""
        names = [argument.name for argument in operation.func._schema.arguments]
        given = {**dict(enumerate(args)), **{names.index(key): value for key, value in kwargs.items()}}
        for number in operation.written:
            for tensor in _tensors([given.get(number)]):
                self.ghosts.spoil(tensor)
        if not any(number is not None for number in operation.returned):
            return made
        several = made if len(operation.returned) > 1 else (made,)
        results = [m if n is None else given[n] for n, m in zip(operation.returned, several, strict=True)]
        return tuple(results) if len(results) > 1 else results[0]

    def _shapes(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What comes out, on meta; or the exception, where it depends on values, has no kernel, or sizes are wrong."""
        error: Any = None
        for like in (ordinary, lambda dtype: dtype):  # kernels on meta ask for dtypes of their own

            def moved(value: Any, like: Any = like) -> Any:
                if isinstance(value, Tensor) and not value.is_nested:
                    return torch.empty_strided(value.size(), value.stride(), dtype=like(value.dtype), device="meta")
                if isinstance(value, torch.dtype):
                    return like(value)
                return torch.device("meta") if isinstance(value, torch.device) else value

            moved_args, moved_kwargs = _pytree.tree_map(moved, (args, kwargs))
            if not any(True for _ in _tensors((*args, *kwargs.values()))):
                moved_kwargs = {**moved_kwargs, "device": torch.device("meta")}
            try:
                with alone(None):
                    return func(*moved_args, **moved_kwargs)
            except Exception as refusal:
                error = error or refusal
        return error

    def _sizes(self, func: Any, args: Any, kwargs: Any, error: Exception) -> Any:
        """The same of the kernel itself, with zeros for ghosts and with ones: sizes may depend on other values."""
        if sum(t.numel() for t in _tensors((*args, *kwargs.values()))) > AFFORDABLE:
            if not _is_metas_own(error):
                raise error
            raise _unknown(f"the sizes of what {func} gives are not known")
        found = []
        for number in (0, 1):

            def filled(value: Any, number: int = number) -> Any:
                if not isinstance(value, Tensor):
                    return value
                dtype = ordinary(value.dtype)
                if value in self.ghosts:
                    return torch.full(value.size(), number, dtype=torch.float32, device=value.device).to(dtype)
                return value.detach().to(dtype, copy=True)

            made = _pytree.tree_map(filled, (args, kwargs))
            try:
                with alone(None):
                    found.append(func(*made[0], **made[1]))
            except Exception as refusal:
                if not _is_metas_own(error):
                    raise error from None
                raise _unknown(f"the sizes of what {func} gives are not known") from refusal
        zeros, ones = ([t.size() for t in _tensors(_pytree.tree_leaves(out))] for out in found)
        if zeros != ones:
            raise _unknown(f"the sizes of what {func} gives depend on values that are not computed")
        return found[0]


def _is_metas_own(error: Exception) -> bool:
    """Whether it says what meta tensors cannot do, or wants other dtypes, and not that sizes are wrong."""
    return isinstance(error, NotImplementedError) or "meta" in str(error) or is_about_dtypes(error)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
