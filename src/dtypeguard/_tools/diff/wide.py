"""A program in float64, whatever it casts to: so what two programs still differ by is no rounding."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from ..._core.base.modes import Mode
from ..._engine.ops import operator_of

_COMPLEX = {torch.float64: torch.complex128, torch.float32: torch.complex64}
_ADDRESSED = frozenset(["view", "view_as", "set_", "set_data"])  # a dtype says here how bits are read


class Wide(Mode):
    """Floating tensors and casts are widened at each operation.

    Attributes:
        ulps: how many roundings the operations of the innermost module have added up to: by each operation the length
            of its sums. https://doi.org/10.1137/1.9780898718027, section 3.1
        narrow: what rounding has changed in narrow values that took part and have digits to lose, added up; one for
            each module.
        seen: the same by the digest of the value, where these are wanted.
    """

    def __init__(self, dtype: torch.dtype, apart: bool = True, digests: bool = False) -> None:
        super().__init__()
        self.dtype: torch.dtype = dtype
        self._apart = apart
        self.eps: float = torch.finfo(dtype).eps
        self.ulps: list[float] = [1.0]
        self.narrow: list[float] = [0.0]
        self._digests = digests
        self.seen: dict[int, float] = {}

    def enter(self) -> None:
        """A module begins; where modules run on each other's results, it goes on with their roundings."""
        self.ulps.append(1.0 if self._apart else self.ulps[-1])
        self.narrow.append(0.0 if self._apart else self.narrow[-1])

    def leave(self) -> None:
        """A module ends."""
        ulps, narrow = self.ulps.pop(), self.narrow.pop()
        if not self._apart:
            self.ulps[-1], self.narrow[-1] = ulps, narrow

    def wider(self, dtype: torch.dtype) -> torch.dtype:
        """What stands for a dtype here."""
        if dtype.is_complex:
            wide = _COMPLEX[self.dtype]
            return wide if wide.itemsize > dtype.itemsize else dtype
        return self.dtype if dtype.is_floating_point and dtype.itemsize < self.dtype.itemsize else dtype

    def widened(self, value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return self.wider(value)
        if not isinstance(value, Tensor) or (wide := self.wider(value.dtype)) is value.dtype:
            return value
        if not (value.to(torch.bfloat16) == value).all():  # one of few digits has lost none
            changed = torch.finfo(value.dtype).eps / 2
            self.narrow[-1] += changed
            if self._digests:
                key = digest(value)
                self.seen[key] = self.seen.get(key, 0.0) + changed
        return value.to(wide)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, row = kwargs or {}, operator_of(func)
        if row.name in _ADDRESSED and any(isinstance(value, torch.dtype) for value in args):
            return func(*args, **kwargs)
        given = tree_map(self.widened, (args, kwargs))
        out = func(*given[0], **given[1])
        written = [n for n in row.writes if n < len(args) and given[0][n] is not args[n]]
        for n in written:  # what was narrow stays it, as others may hold it
            args[n].copy_(given[0][n])
        out = args[written[0]] if written and row.returned[:1] == (written[0],) else tree_map(self.widened, out)
        self.ulps[-1] += length(func, given, out)
        return out


def digest(tensor: Tensor) -> int:
    """A number for the values of a tensor."""
    return hash((tensor.dtype, tuple(tensor.shape), raw(tensor)))


def raw(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().flatten().view(torch.uint8).numpy().tobytes()


def length(func: Any, given: Any, out: Any) -> float:
    """How many numbers are summed for one number of the result."""
    results = [t for t in tree_leaves(out) if isinstance(t, Tensor) and t.is_floating_point() and t.numel()]
    if not results:
        return 0.0
    counted = flop_registry.get(func.overloadpacket) if hasattr(func, "overloadpacket") else None
    if counted is not None:
        return float(counted(*given[0], **given[1], out_val=out)) / (2 * results[0].numel())
    sizes = [t.numel() for t in tree_leaves(given) if isinstance(t, Tensor)]
    return max(1.0, max(sizes, default=1) / max(t.numel() for t in results))
