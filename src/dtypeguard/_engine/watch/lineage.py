"""Where the dtype of a tensor comes from.

A node is a line at which a tensor came to be; its parents are the lines of what it was computed from. Nodes hold no
tensors, tensors hold no nodes: a table of weak references stands between them. Chains are cut at a length, so a long
run keeps a bounded number of nodes.
"""

import abc
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..._core.base import private
from ..._core.base.dtypes import name_of
from ..ops import FRESH
from ..sample import LARGEST
from .sites import Site
from .spots import Step

_LONG = 32  # lines between a birth and now
_SHOWN = 6
_SWEEP = 10_000
_DEBTS = 32
_WHOLE = 0.5
FIRST = "first seen"  # of what is older than the audit, or was made past torch
COPIED = "deepcopy"  # of a parameter
CONVERTED = "Module."  # what follows has given parameters and buffers their dtype
_LIKE = FRESH | {COPIED}


class Cause(abc.ABC):
    """Why tensors have the dtype, or the device, that they have; harmless until something comes of it."""

    met = False  # whether something of it met other dtypes, while new tensors were still born of it

    @abc.abstractmethod
    def blame(self, audit: Any, effect: str) -> None:
        """Something came of it."""


class Debt:
    """A suspicion that a later operation confirms or settles: nodes carry it along until then."""

    settled = False

    def refused(self, final: bool) -> None:
        """Somebody refused a tensor that has it; `final` is whether that ends the program."""


class Node:
    """A line at which a tensor of one dtype came to be."""

    __slots__ = ("birth", "cause", "debts", "depth", "dtype", "module", "named", "op", "parents", "site")

    def __init__(
        self,
        op: str,
        site: Site,
        dtype: torch.dtype,
        parents: tuple["Node", ...] = (),
        module: str | None = None,
        cause: Any = None,
        named: bool = False,  # a parameter or buffer: `op` says which
    ) -> None:
        self.named: bool = named
        self.depth: int
        self.parents: tuple[Node, ...]
        self.op: str = op
        self.site: Site = site
        self.dtype: torch.dtype = dtype
        self.module: str | None = module
        self.cause: Any = cause
        self.debts: tuple[Debt, ...] = ()
        depth = 1
        for parent in parents:
            if parent.debts:
                self.owes(parent.debts)
            if parent.depth >= depth:
                depth = parent.depth + 1
        first = next(iter(parents), None)
        same = first is not None and first.dtype is dtype and cause is None
        if depth > _LONG:
            parents = (first.birth,) if first is not None and same and first.birth.depth < _LONG else ()
            depth, same = 1 + len(parents), bool(parents)
        self.parents, self.depth = parents, depth
        self.birth: Node = first.birth if first is not None and same else self

    @property
    def conversion(self) -> "Node | None":
        """Of a parameter or buffer, the line that has converted its module, if that was seen."""
        return next((one for one in self.parents if self.named and one.op.startswith(CONVERTED)), None)

    def __str__(self) -> str:
        if self.named:
            return f"{self.op}: {name_of(self.dtype)}"
        if self.op == FIRST:
            return f"first seen at {self.site}: {name_of(self.dtype)}"
        return f"{self.site.expression or self.op} at {self.site}: {name_of(self.dtype)}"

    def owes(self, debts: tuple[Debt, ...]) -> None:
        """Take over what is still open; however long the chain grows, it is not lost."""
        self.debts = tuple(dict.fromkeys((*self.debts, *(debt for debt in debts if not debt.settled))))[:_DEBTS]

    def ancestors(self, most: int = 64, own_dtype: bool = False) -> Iterator["Node"]:
        """The node and what it came from, each once, nearest first; or only what had its dtype all the way."""
        seen: set[int] = set()
        queue: list[Node] = [self]
        for node in queue:
            if len(seen) >= most:
                return
            if id(node) not in seen:
                seen.add(id(node))
                yield node
                real = self.dtype.to_real()
                queue.extend(one for one in node.parents if not own_dtype or one.dtype.to_real() is real)

    def sources(self, most: int = 64) -> list["Node"]:
        """The lines at which its dtype was born, nearest first: a sum of two that have it has two."""
        dtype, found = self.dtype.to_real(), []
        queue: list[Node] = [self]
        for node in queue:
            same = [one for one in node.parents if one.dtype.to_real() is dtype and one not in queue]
            if not any(one.dtype.to_real() is dtype for one in node.parents):
                found.append(node)
            queue += same[: most - len(queue)]
        return found

    def step(self, born: bool, edit: bool = True) -> Step:
        """The line as a step of an origin, which may be the one where the dtype is born, and the one to edit."""
        if self.named or not born:
            return Step(str(self))
        how = "is first seen" if self.op == FIRST else "since" if self.op.startswith(CONVERTED) else "is born"
        return Step(str(self), self.site, f"{name_of(self.dtype)} {how} here", edit)

    def made(self, edit: bool = True) -> Step | None:
        """The line to change, if `edit`, for another dtype of a tensor that is written to; None for none.

        One that was made like another (`torch.zeros_like`, a copy of a model), or of a parameter, was made there; where
        the dtype is that of a conversion of a module, it has it from there.
        """
        like = self.op in _LIKE or (self.birth.named and not self.named)
        node, how = self if edit and like else self.birth, "is born"
        if node.op == FIRST:
            how, edit = "first seen", False
        if node.named:  # by a conversion of its module, if that was seen
            node, how = next(iter(node.parents), node), "since"
        return None if node.named else Step(str(node), node.site, f"{name_of(self.dtype)} {how} here", edit)

    def target(self) -> tuple[str, ...]:
        """The lines from birth to here of what is written to."""
        made, lines = self.made(), [str(step) for step in self.line()]
        return tuple(lines) if made is None else (made, *(step for step in lines if step != made))

    def line(self, edit: bool = True) -> tuple[str, ...]:
        """The lines from birth to here; what lies between the first and the last ones is left out.

        `edit` is whether the line of the birth is the one to edit.
        """
        lines: list[Step] = []
        node: Node | None = self
        born = 0
        while node is not None:
            text = node.step(node is self.birth or node is self.birth.conversion, edit)
            if not lines or lines[-1] != text:
                lines.append(text)
            if node is self.birth:
                born = len(lines)
            alike = [parent for parent in node.parents if parent.birth is node.birth]  # operands of one birth
            node = min(alike, key=lambda parent: parent.depth) if alike else next(iter(node.parents), None)
        lines.reverse()
        last, born = len(lines) - _SHOWN + 3, len(lines) - born
        kept = [lines[born]] if 2 <= born < last else []
        if (left := last - 2 - len(kept)) > 1:
            lines[2:last] = [Step(f"... {left} more lines"), *kept]
        return tuple(lines)


class _Held:
    """A tensor that a module has: found there, for PyTorch swaps no tensor that has weak references."""

    def __init__(self, module: nn.Module, key: str) -> None:
        self._module, self._key = weakref.ref(module), key

    def __call__(self) -> Tensor | None:
        module = self._module()
        if module is None:
            return None
        parameter = module._parameters.get(self._key)
        return module._buffers.get(self._key) if parameter is None else parameter


class Lineage:
    """The nodes of the tensors that are alive.

    Attributes:
        results: by line, file and number, the dtype of what was computed there last; None: nobody asks.
        off: by how much float32 rounds float64 that was born at a line, at most, if that is much: see `off_by`.
    """

    def __init__(self) -> None:
        self.off: dict[tuple[str, int], float] = {}
        self.results: dict[tuple[str, int], torch.dtype] | None = None
        self._of: dict[int, tuple[Callable[[], Tensor | None], Node]] = {}
        self._limit = _SWEEP

    def causes(self, tensors: Iterable[Tensor], most: int) -> Iterator[Any]:
        """The causes of tensors and of what each came from, up to `most` nodes, nearest first."""
        for node in map(self.get, tensors):
            if node is not None:
                yield from [ancestor.cause for ancestor in node.ancestors(most)]

    def get(self, tensor: Tensor) -> Node | None:
        entry = self._of.get(id(tensor))
        if entry is None or entry[0]() is not tensor or entry[1].dtype is not tensor.dtype:  # changed in place
            return None
        return entry[1]

    def mark(self, tensor: Tensor, cause: Any) -> None:
        """Why the tensor has the dtype that it has."""
        node = self.get(tensor)
        if node is not None:
            node.cause = cause

    def measure(self, node: Node, values: Tensor) -> None:
        """Note by how much float32 rounds what is born here."""
        if off := off_by(values):
            self.off[node.site.key] = max(off, self.off.get(node.site.key, 0.0))

    def forget(self, *tensors: Tensor) -> None:
        """Drop the weak references to tensors."""
        for tensor in tensors:
            self._of.pop(id(tensor), None)

    def set(self, tensor: Tensor, node: Node) -> None:
        if self.results is not None:
            self.results[node.site.key] = node.dtype
        kind = type(tensor)
        if kind is Tensor or (kind is nn.Parameter and not _swaps()) or (kind not in _TORCHS and _is_plain(tensor)):
            known = self._of
            known[id(tensor)] = (weakref.ref(tensor), node)
            if len(known) > self._limit:
                self._sweep()

    def hold(self, module: nn.Module, key: str, tensor: Tensor, node: Node) -> None:
        """The same for a parameter or buffer of a module."""
        self._of[id(tensor)] = (_Held(module, key), node)

    def alone(self) -> "Lineage":
        """The lines, without why: causes hold what rules know of the program."""
        nodes = [node for _, node in self._of.values()]
        seen: set[int] = set()
        while nodes:
            node = nodes.pop()
            if id(node) not in seen:
                seen.add(id(node))
                node.cause, node.debts = None, ()
                nodes += [*node.parents, node.birth]
        return self

    def origin_of(self, tensor: Tensor) -> tuple[str, ...]:
        """The lines from the birth of a tensor to now."""
        node = self.get(tensor)
        return () if node is None else node.line()

    def since(self, parameter: Tensor) -> tuple[str, ...]:
        """The line that has converted the module of a parameter, if that was seen."""
        node = self.get(parameter)
        return () if node is None or node.conversion is None else node.line()

    def _sweep(self) -> None:
        known = self._of
        for key in [key for key, (ref, _) in list(known.items()) if ref() is None]:
            known.pop(key, None)
        self._limit = max(_SWEEP, 2 * len(known))

    def __len__(self) -> int:
        return len(self._of)


def off_by(tensor: Tensor) -> float:
    """By how much float32 rounds values of float64, where that is half of a whole number or more, as of times."""
    if tensor.dtype is not torch.float64 or not 0 < tensor.numel() <= LARGEST:
        return 0.0
    off = float((tensor.detach() - tensor.detach().float()).abs().nan_to_num(posinf=0).max())
    return off if off >= _WHOLE else 0.0


_TORCHS = (Tensor, nn.Parameter)


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor of a subclass is one in all but its class, and no parameter, which torch may swap."""
    kind: Any = type(tensor)
    return kind.__torch_dispatch__ is private.NO_DISPATCH and not isinstance(tensor, nn.Parameter)


def _swaps() -> bool:
    """Whether modules are converted by swapping tensors, which weak references forbid."""
    return torch.__future__.get_swap_module_params_on_conversion()
