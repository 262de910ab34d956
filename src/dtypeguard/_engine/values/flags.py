"""Values that are not finite: where they come from.

Each storage has a flag: how many of its values are not finite, and at which line they became so. A flag is inherited;
only where finite values went in and others came out, something was born. On the CPU it is known at once; elsewhere
flags stay on the device, and are read some hundred operations later, so that no operation waits.
"""

import cmath
import math
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ..operands import all_values
from ..ops import Operator, Way
from .rows import Row

LOGS = frozenset(["log", "log2", "log10"])
_WRITTEN = frozenset(["zeros", "zeros_like", "new_zeros", "eye", "tensor"])
_READ = 256  # operations, after which flags on other devices are read


# Numbers of values; or of a tensor on another device the largest, until somebody waits for it.
Look = tuple[Any, Any]


class Flag:
    """The values of one storage."""

    __slots__ = ("asked", "bad", "count", "dead", "nan", "parents", "row", "seen", "source", "storage")

    def __init__(self, row: Row | None, look: Look, count: int, parents: tuple["Flag", ...]) -> None:
        self.row, self.count, self.parents = row, count, parents
        self.bad, self.nan = look  # how many are not finite, and how many of these are NaN
        self.storage: weakref.ref[Any] | None = None
        self.source: Row | None = None  # where the first of them was born
        self.seen = False  # by another operation
        self.asked = False  # whether it is finite
        self.dead = False  # its storage is gone


def is_indicator(node: Any, values: Tensor) -> bool:
    """Whether values were made of booleans, or written down: the logarithm of what is impossible is -inf, and meant."""
    if node is None or not node.parents:
        return node is not None and node.op in _WRITTEN and bool(values.any())
    return bool(node.parents[0].dtype is torch.bool)


_NONE = (0, 0)
_FLOATS = frozenset([float, complex])
_PADS = frozenset(["_ctc_loss", "_cudnn_ctc_loss"])
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
        odd = odd or (fills and _odd(one.item() for one in args[1:] if _is_number(one)))
        found: dict[int, Flag] = {}
        for tensor in tensors if not fills or odd else ():
            flag = self._flag(tensor, row)
            if not isinstance(flag.bad, int) or flag.bad:
                found[id(flag)] = flag
                flag.seen = True
        parents = tuple(found.values())
        passes = (fills or (op.exact and not op.rounds(tensors, out[0].dtype))) and not parents and not odd
        if op.attends or op.name in _PADS:
            out = out[:1]  # the second is the kernel's own, padded with infinities
        for tensor, look in zip(out, [_NONE] * len(out) if passes else _looks(out), strict=True):
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

    def asked(self, tensors: list[Tensor]) -> None:
        """The program has asked whether they are finite."""
        for flag in map(self._get, tensors):
            if flag is not None and flag is not _CLEAN:
                flag.asked = True

    def written(
        self, tensors: list[Tensor], inputs: Callable[[Tensor], list[Tensor]], row: Callable[[Tensor], Row]
    ) -> None:
        """Tensors were written to from others, past the operations that were seen."""
        for tensor, look in zip(tensors, _looks([tensor.detach() for tensor in tensors]), strict=True):
            if look is _NONE:
                self._set_flag(tensor, _CLEAN)
                continue
            known = [self._get(one) for one in (tensor, *inputs(tensor))]
            flag = Flag(row(tensor), look, tensor.numel(), tuple(one for one in known if one is not None))
            self._set_flag(tensor, flag)
            self._waiting.append(flag)

    def read(self) -> None:
        """Find out what was born in the operations since."""
        waiting, self._waiting = self._waiting, []
        there = _fetch([flag for flag in waiting if not isinstance(flag.bad, int)])
        parents: tuple[Flag, ...] = ()
        sources: list[Flag] = []
        for flag in waiting:
            if flag.parents is not parents:  # all results of an operation have the same
                parents, sources = flag.parents, [parent for parent in flag.parents if parent.bad]
            flag.parents = ()
            flag.source = next((parent.source for parent in sources if parent.source is not None), None)
            turned = flag.nan and not any(parent.nan for parent in sources)  # infinities of a mask, into NaN
            if flag.bad and flag.source is None and flag.row is not None and (turned or not sources):
                flag.source = flag.row
                if flag in there:
                    self._count(flag)
                flag.row.is_born(flag.nan if sources else flag.bad, flag.count)
            if flag.dead:
                self._over(flag)

    def _count(self, flag: Flag) -> None:
        """The numbers of values on another device, where they are still there."""
        storage = None if flag.storage is None else flag.storage()
        found = None if storage is None else self._of.get(storage._cdata)
        if found is None or found[1] is not flag or flag.row is None:
            flag.count = 0
            return
        values = all_values(storage, flag.row.dtype)
        flag.bad, flag.nan, flag.count = *_counts(values), values.numel()

    def source(self, tensor: Tensor) -> Row | None:
        """Where values that are not finite were born, if there are any."""
        self.read()
        flag = self._get(tensor)
        return flag.source if flag is not None and flag.bad and _counts(tensor)[0] else None

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
            flag, (look,) = _CLEAN, _looks([tensor])
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
                if flag is not _CLEAN:
                    flag.storage = known[0]
            return

        def gone(ref: "weakref.ref[Any]") -> None:
            found = of.get(key)
            if found is not None and found[0] is ref:
                del of[key]
                if not found[1].asked:  # the program knows, and goes on without it
                    self._over(found[1])

        of[key] = ref, _ = weakref.ref(storage, gone), flag
        if flag is not _CLEAN:
            flag.storage = ref


def _fetch(flags: list[Flag]) -> set[Flag]:
    """Read numbers from other devices, all at once."""
    devices: dict[Any, list[Flag]] = {}
    for flag in flags:
        devices.setdefault(flag.bad.device, []).append(flag)
    for there in devices.values():
        for flag, number in zip(there, torch.stack([flag.bad for flag in there]).cpu(), strict=True):
            largest = float(number)
            flag.bad, flag.nan = int(not math.isfinite(largest)), int(largest != largest)
    return set(flags)


def _looks(tensors: list[Tensor]) -> list[Look]:
    """What of their values is not finite; one kernel says it of all results of `torch._foreach_add` on a GPU."""
    if len(tensors) < 2 or any(tensor.is_cpu or not tensor.numel() for tensor in tensors):
        return [_look(tensor) for tensor in tensors]
    return [(largest, largest) for largest in torch._foreach_norm(tensors, math.inf)]


def _look(tensor: Tensor) -> Look:
    if not tensor.numel():
        return _NONE
    if not tensor.is_cpu:
        largest = torch.linalg.vector_norm(tensor, math.inf)
        return largest, largest
    return _NONE if cmath.isfinite(tensor.sum().item()) else _counts(tensor)


def _counts(tensor: Tensor) -> tuple[int, int]:
    """How many values are not finite, and how many of these are NaN."""
    bad = int((~tensor.isfinite()).sum())
    return (bad, int(tensor.isnan().sum())) if bad else _NONE


def _is_number(value: Any) -> bool:
    """Whether a value is a number that came as a tensor, as that of `mask[0] = float("-inf")`."""
    return isinstance(value, Tensor) and not value.ndim and value.device.type == "cpu"


def _odd(values: Iterable[Any]) -> bool:
    """Whether an argument is itself a number that is not finite."""
    return any(type(value) in _FLOATS and not cmath.isfinite(value) for value in values)
