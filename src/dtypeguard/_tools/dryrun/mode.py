"""The dispatch mode of a dry run: small things are computed, of large ones only dtypes and sizes.

A tensor either has the values that the program gives it, or it is a ghost. What is computed of ghosts is a ghost, and
what is too large becomes one. So whoever asks a tensor for a number gets the program's own, or the run ends there.
"""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from ..._core.base.dtypes import name_of
from ..._core.base.modes import Mode
from ..._core.base.numbers import drawn
from ..._engine.operands import operands
from ..._engine.ops import Operator, operator_of
from ..._engine.watch.recorder import Recorder
from ..._engine.watch.sites import here
from .ghosts import Ghosts
from .paths import Decisions, unknown
from .sizes import check_sizes, on_meta, sized
from .verdicts import Answer, Region, alone, answer, is_listed

SMALL = 2**18  # elements of a tensor that is computed


def birth(what: str, site: object, dtype: torch.dtype) -> str:
    """The birth of a dtype at a line, as results tell it."""
    return f"{what} at {site}: {name_of(dtype)}"


def _kind(tensor: Tensor) -> str:
    return "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")


class Imagining(Mode):
    """Computes what is small, and imagines the rest."""

    def __init__(
        self, ghosts: Ghosts, decisions: Decisions, recorder: Recorder, parameters: torch.dtype | None
    ) -> None:  # fmt: skip
        super().__init__()
        self.ghosts, self.decisions = ghosts, decisions
        self.modules: dict[str, dict[torch.dtype, None]] = {}
        self.births: dict[str, None] = {}  # where tensors are made of nothing, of another dtype than the parameters'
        self._recorder, self._parameters = recorder, parameters

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        __tracebackhide__ = True
        kwargs = kwargs or {}
        out = self._call(func, args, kwargs)
        if self._recorder.running and not self._recorder.local.paused:
            self._note(func, args, out)
        return out

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensors = operands(args, kwargs)
        ghostly = [tensor for tensor in tensors if tensor in self.ghosts]
        if not isinstance(func, torch._ops.OpOverload):
            if ghostly:
                raise unknown(f"{func}, an operator of higher order, is not followed")
            return func(*args, **kwargs)
        operation = operator_of(func)
        if operation.view or not (ghostly or self._is_large(func, args, kwargs, tensors)):
            region = self._region()
            if operation.view or region is None or is_listed(func, region[0]):
                return drawn(func, args, kwargs)
            with self._keeping_region(), alone(region):  # which kernels ask for that call others
                return drawn(func, args, kwargs)
        odd = next((t for t in tensors if t.is_nested or t.layout is not torch.strided), None) if ghostly else None
        if odd is not None:
            raise unknown(f"{func} of {_kind(odd)} tensors is not followed")
        if ghostly and operation.reads:
            return self._read(func, args, kwargs, ghostly)
        return self._imagine(operation, args, kwargs)

    def _region(self) -> Region:
        """The autocast region that the program is in; below a mode none is on."""
        return self._recorder.region() if self._recorder.autocast() else None

    @contextlib.contextmanager
    def _keeping_region(self) -> Iterator[None]:
        """A region that is entered in here to ask a kernel ends none of the program's."""
        regions = self._recorder.local.regions
        before = {**regions}
        try:
            yield
        finally:
            regions.update(before)

    def _note(self, func: Any, args: Any, out: Any) -> None:
        """What dtypes a module computes in, and where one is born."""
        trait = operator_of(func)
        if trait.same or trait.cast:
            return
        path = self._recorder.module() or ""
        for tensor in operands([out], {}):
            if tensor.is_floating_point():
                self.modules.setdefault(path, {})[tensor.dtype] = None
                if tensor.dtype is not self._parameters and not operands(args, {}):
                    site = here()
                    self.births[birth(site.expression, site, tensor.dtype)] = None

    def _read(self, func: Any, args: Any, kwargs: Any, ghostly: list[Tensor]) -> Any:
        """A number of Python of tensors that have no values: yes or no is decided, all else is not known."""
        self._answer(func, args, kwargs)
        if str(func._schema.returns[0].type) == "bool" or ghostly[0].dtype is torch.bool:
            return self.decisions.decide(here())
        raise unknown("asks for a value that is not computed")

    def _is_large(self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> bool:
        """Whether an operation gives, or takes, more than is computed."""
        bound = math.prod(max(tensor.numel(), 1) for tensor in tensors)
        if tensors and bound <= SMALL and not any(type(a) is list for a in args):
            return False
        if any(tensor.numel() > SMALL for tensor in tensors):
            return True
        out = on_meta(func, args, kwargs)
        return not isinstance(out, Exception) and any(t.numel() > SMALL for t in operands(_pytree.tree_leaves(out), {}))

    def _imagine(self, operation: Operator, args: Any, kwargs: Any) -> Any:
        """What comes out of an operation that is not computed; the exception of its kernel, if it raises one."""
        func = operation.func
        found = self._answer(func, args, kwargs)
        if not operation.returned:
            return None
        leaves, spec = _pytree.tree_flatten(sized(func, args, kwargs, self.ghosts))
        last = found.outputs[-1:] * len(leaves)  # of a list, which may be shorter at size 1
        kinds = (*found.outputs, *last)
        made = [
            self._ghost(leaf, kind) if isinstance(leaf, Tensor) else leaf
            for leaf, kind in zip(leaves, kinds, strict=False)
        ]
        return self._returned(operation, args, kwargs, _pytree.tree_unflatten(made, spec))

    def _answer(self, func: Any, args: Any, kwargs: Any) -> Answer:
        with self._keeping_region():
            found = answer(func, args, kwargs, self._region(), lambda tensor: tensor not in self.ghosts)
        if found is None:
            check_sizes(func, args, kwargs)
            raise unknown(f"{func} cannot be tried with small tensors")
        if found.error is not None:
            kind, text = found.error
            raise kind(text)
        return found

    def _ghost(self, shape: Tensor, kind: Any) -> Tensor:
        if shape.is_nested or shape.layout is not torch.strided:
            raise unknown(f"{_kind(shape)} tensors are not followed")
        dtype, device = kind if kind is not None else (shape.dtype, torch.device("cpu"))
        return self.ghosts.of(shape, dtype, device)

    def _returned(self, operation: Operator, args: Any, kwargs: Any, made: Any) -> Any:
        """The results; those that are arguments, written to, are these, and have no values any more."""
        given = {**dict(enumerate(args)), **{operation.names.index(key): value for key, value in kwargs.items()}}
        for number in operation.writes:
            for tensor in operands([given.get(number)], {}):
                self.ghosts.spoil(tensor)
        if not any(number is not None for number in operation.returned):
            return made
        several = made if len(operation.returned) > 1 else (made,)
        results = [m if n is None else given[n] for n, m in zip(operation.returned, several, strict=True)]
        return tuple(results) if len(results) > 1 else results[0]
