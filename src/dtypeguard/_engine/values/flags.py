"""Values that are not finite: where they come from.

Each storage has a flag: how many of its values are not finite, and at which line they became so. A flag is inherited;
only where finite values went in and others came out, something was born. On the CPU it is known at once; elsewhere
flags stay on the device, and are read some hundred operations later, so that no operation waits.
"""

import cmath
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ..._core.base.dtypes import HALF
from ..ops import Operator, Way
from .rows import Row

_READ = 256  # operations, after which flags on other devices are read


class Flag:
    """The values of one storage."""

    __slots__ = ("bad", "count", "dead", "nan", "parents", "row", "seen", "source")

    def __init__(self, row: Row | None, look: tuple[Any, Any], count: int, parents: tuple["Flag", ...]) -> None:
        self.row, self.count, self.parents = row, count, parents
        self.bad, self.nan = look  # how many are not finite, and how many of these are NaN
        self.source: Row | None = None  # where the first of them was born
        self.seen = False  # by another operation
        self.dead = False  # its storage is gone


_NONE = (0, 0)
_FLOATS = frozenset([float, complex])
_CLEAN = Flag(None, _NONE, 0, ())


class Flags:
    """The flags of the storages that are alive."""

    def __init__(self, left: Callable[[Row], None]) -> None:
        self._of: dict[int, tuple[weakref.ref[Any], Flag]] = {}
        self._left = left  # told of values that are not finite, and that no operation has read
        self._waiting: list[Flag] = []

    def after(self, op: Operator, args: Any, kwargs: Any, tensors: list[Tensor], out: list[Tensor], row: Any) -> None:
        """An operation has run, which is no constant: its values are seen where they are read.

        `row` gives the operation's row, where it is asked for.
        """
        if not out:  # integers, or a number
            self.looked_at(tensors)
            return
        odd = _odd(args) or (bool(kwargs) and _odd(kwargs.values()))
        fills = op.way is Way.FILL
        parents: tuple[Flag, ...] = ()
        for tensor in tensors if not fills or odd else ():
            flag = self._flag(tensor, row)
            if flag is not _CLEAN and flag not in parents:
                parents = (*parents, flag)
                flag.seen = True
        passes = (fills or (op.exact and not op.rounds(tensors, out[0].dtype))) and not parents and not odd
        for tensor in out[:1] if op.attends else out:  # the second is the kernel's own, padded with infinities
            look = _NONE if passes else _count_bad(tensor)
            if not parents and look is _NONE:
                self._set_flag(tensor, _CLEAN)
            else:
                flag = Flag(None if odd else row(tensor), look, tensor.numel(), parents)
                self._set_flag(tensor, flag)
                self._waiting.append(flag)
        if self._waiting and (len(self._waiting) > _READ or isinstance(self._waiting[-1].bad, int)):
            self.read()

    def looked_at(self, tensors: list[Tensor]) -> None:
        """An operation has read them, and made no floats of them."""
        for flag in map(self._get, tensors):
            if flag is not None:
                flag.seen = True

    def written(self, tensor: Tensor, inputs: list[Tensor], row: Callable[[], Row]) -> None:
        """A tensor was written to from others, past the operations that were seen."""
        look = _count_bad(tensor.detach())
        if look is _NONE:
            self._set_flag(tensor, _CLEAN)
            return
        known = [self._get(one) for one in (tensor, *inputs)]
        flag = Flag(row(), look, tensor.numel(), tuple(one for one in known if one is not None))
        self._set_flag(tensor, flag)
        self._waiting.append(flag)

    def read(self) -> None:
        """Find out what was born in the operations since."""
        waiting, self._waiting = self._waiting, []
        _fetch([flag for flag in waiting if not isinstance(flag.bad, int)])
        for flag in waiting:
            sources = [parent for parent in flag.parents if parent.bad]
            flag.parents = ()
            flag.source = next((parent.source for parent in sources if parent.source is not None), None)
            turned = flag.nan and not any(parent.nan for parent in sources)  # infinities of a mask, into NaN
            if flag.bad and flag.source is None and flag.row is not None and (turned or not sources):
                flag.source = flag.row
                flag.row.born += flag.nan if sources else flag.bad
                flag.row.of += flag.count
            if flag.dead:
                self._over(flag)

    def source(self, tensor: Tensor) -> Row | None:
        """Where values that are not finite were born, if there are any."""
        self.read()
        flag = self._get(tensor)
        return flag.source if flag is not None and flag.bad and int(_count_bad(tensor)[0]) else None

    def has_nan(self, tensor: Tensor) -> bool:
        """Whether there is NaN in the storage of a tensor."""
        self.read()
        flag = self._get(tensor)
        return flag is not None and bool(flag.nan)

    def rest(self) -> None:
        """From now on operations are not seen: of values that are spoilt it is still known where that was."""
        self.read()
        for key in [key for key, (_, flag) in self._of.items() if not flag.bad]:
            del self._of[key]

    def clear(self) -> None:
        """What nobody has read by now never will be."""
        self.read()
        while self._of:
            self._over(self._of.popitem()[1][1])

    def _over(self, flag: Flag) -> None:
        if not isinstance(flag.bad, int):  # on another device: it is told when it is read
            flag.dead = True
        elif flag.bad and not flag.seen and flag.source is not None:
            self._left(flag.source)

    def _get(self, tensor: Tensor) -> Flag | None:
        storage = tensor.untyped_storage()
        found = self._of.get(storage._cdata)
        return found[1] if found is not None and found[0]() is storage else None

    def _flag(self, tensor: Tensor, row: Any) -> Flag:
        """Of an input; one that was not met before is looked at. Infinities are a mask's; NaN is nobody's wish."""
        flag = self._get(tensor)
        if flag is None:
            flag, look = _CLEAN, _count_bad(tensor)
            if look is not _NONE:
                given = row(tensor, given=True) if not isinstance(look[1], int) or look[1] else None
                flag = Flag(given, look, tensor.numel(), ())
                self._waiting.append(flag)
            self._set_flag(tensor, flag)
        return flag

    def _set_flag(self, tensor: Tensor, flag: Flag) -> None:
        storage = tensor.untyped_storage()
        key, of = storage._cdata, self._of
        known = of.get(key)
        if known is not None and known[0]() is storage:
            if known[1] is not flag and (flag is not _CLEAN or tensor.nbytes == storage.nbytes()):
                of[key] = known[0], flag
            return

        def gone(ref: "weakref.ref[Any]") -> None:
            found = of.get(key)
            if found is not None and found[0] is ref:
                del of[key]
                self._over(found[1])

        of[key] = weakref.ref(storage, gone), flag


def _fetch(flags: list[Flag]) -> None:
    """Read numbers from other devices, all at once."""
    devices: dict[Any, list[Flag]] = {}
    for flag in flags:
        devices.setdefault(flag.bad.device, []).append(flag)
    for there in devices.values():
        numbers = torch.stack([one for flag in there for one in (flag.bad, flag.nan)]).tolist()
        for flag, bad, nan in zip(there, numbers[::2], numbers[1::2], strict=True):
            flag.bad, flag.nan = int(bad), int(nan)


def _count_bad(tensor: Tensor) -> tuple[Any, Any]:
    """How many values are not finite, and are NaN: numbers, or tensors on another device that will say so."""
    if not tensor.is_cpu:
        wide = torch.float32 if tensor.dtype in HALF else None
        return torch.linalg.vector_norm(tensor - tensor, 0, dtype=wide), (tensor != tensor).sum()  # of few kernels
    if cmath.isfinite(tensor.sum().item()):
        return _NONE
    bad = int((~tensor.isfinite()).sum())
    return (bad, int(tensor.isnan().sum())) if bad else _NONE


def _odd(values: Iterable[Any]) -> bool:
    """Whether an argument is itself a number that is not finite."""
    return any(type(value) in _FLOATS and not cmath.isfinite(value) for value in values)
