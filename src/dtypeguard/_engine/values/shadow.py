"""The shadow of a program: each operation once more, with what its inputs would be in a wider dtype.

The program's own operation has run by then, as it was written; nothing of it is changed, and no random number is drawn
again. What is shadowed of an operation is kept always; how large its error is, is measured at the first, second,
fourth, eighth ... time that its line runs.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from ..._core.base.dtypes import HALF, WIDER
from ..operands import in_order, operands, shadowed
from ..ops import ACCUMULATES, BESIDES, KEEPS, Cancels, Operator, Way
from ..sample import some
from . import moves
from .cancellation import are_squares, as_before, beside, cancellation_of, digits_left, is_rounding, is_shown, prepares
from .choices import WHOLE, Choices, at_places, decidable, may_be_beside
from .incoming import Given, Incoming, all_incoming, builds_up, leads_in, look_at, loops, suspicion, wrong
from .kernels import VECTORS, composite, turned
from .measure import error_of, flushed, norm
from .memory import DOUBLE, SINGLE, Memory, ShadowStorage
from .rows import OF_A_COUNT, Row

# Results do not change if these are scaled by 1/4 to 4: measured on the programs of DG9 and the healthy cases.
_EQUAL = 100.0  # a cancellation of what was subtracted though it is nearly equal
_FAR = 2.0  # factor over the largest incoming cancellation
_MADE = 2  # a tensor written more than twice (created, changed) is a running total
_WRONG = 0.25  # an error of what is written, for which it may go another way
_RIGHT = 1e-3  # an error of what is added to a total in float32 that does not matter
_GROWN = 2.0  # times the error of what is added
_ODD = frozenset(2 * 8**n + 1 for n in range(10))
_DIFFERENCES = frozenset(["sub", "add", "rsub"])
_OFTEN = 32  # visits of a running total between two measurements
_BUILT_UP = {True: 0.02, False: 0.1}  # an error that has grown in a loop, of half precision or of a wide state

RowOf = Callable[[Operator, torch.dtype], Row]


@dataclass(slots=True)
class Writing:
    """What is known of an operation that writes to its arguments before it runs."""

    row: Row
    look: bool
    incoming: list[Incoming]
    values: Tensor | None  # what it writes to, as it was
    shadow: Tensor | None


class Shadow:
    """The shadows of a program's tensors, and how far these are from them."""

    def __init__(self, memory: Memory, measure: bool = True) -> None:
        self.memory = memory
        self._measures = measure
        self._due = _due if measure else lambda row: False
        self.opaque: Counter[str] = Counter()  # operations that have no shadow, though their inputs have
        self.operations = 0  # that were done once more
        self.spoil: set[Row] = set()  # rows that spoiled values when they were measured; no other one is a culprit
        self.choices = Choices(memory, self.spoil)
        self.node_of: Callable[[Tensor], Any] = _no_node  # the line that a tensor comes from
        self.totals: set[Row] | None = None  # of totals that are kept over steps, where some steps are not looked at

    # ------------------------------------------------------------ before the program's operation

    def before(self, op: Operator, args: Any, kwargs: Any, row_of: RowOf) -> Writing | None:
        if not op.writes or op.way in (Way.FILL, Way.OPAQUE, Way.NONE):
            return None
        given = operands(args, kwargs)
        targets = [tensor for tensor in written(op, args, kwargs) if self.memory.takes(tensor, given)]
        if not targets:
            return None
        if op.exact and not any(map(self.memory.find, given)) and not op.rounds(given, targets[0].dtype):
            return None
        row = row_of(op, targets[0].dtype)
        row.visits += 1
        look = self._due(row)
        helds = [self.memory.hold(tensor) for tensor in targets]
        for tensor, held in zip(targets, helds, strict=True) if self._measures else ():
            held.writes += 1
            look = moves.begin(tensor, held) or look
        incoming = [Incoming.of(tensor, held) for tensor, held in zip(targets, helds, strict=True)]
        if look:  # before they are written to
            look_at(incoming)
        first = targets[0]
        values, shadow = (some(one).clone() if look else None for one in (first, incoming[0].held.like(first)))
        return Writing(row, look, incoming, values, shadow)

    # ------------------------------------------------------------ after it

    def after(
        self, op: Operator, args: Any, kwargs: Any, inputs: list[Tensor], out: Any, writing: Writing | None,
        row_of: RowOf,
    ) -> None:  # fmt: skip
        """The program's operation has run; `inputs` are the tensors that it took."""
        memory, way = self.memory, op.way_for(args, kwargs)
        if way is Way.FILL:
            for tensor in written(op, args, kwargs):
                held = memory.find(tensor)
                if held is not None:
                    held.write(tensor, tensor)
                    held.path = None
            return
        given: Given = {}
        for tensor in inputs:
            if tensor.dtype in DOUBLE:
                held = memory.find(tensor)
                if held is not None or (self.choices.rounds and self.choices.before_rounding(tensor)):
                    given[id(tensor)] = tensor, held
            elif shadowed(tensor):
                held = memory.get(tensor)
                if held is not None and (held.path is not None or held.merged is not None):
                    moves.arrive(tensor, held)
                given[id(tensor)] = tensor, held
        if way is Way.OPAQUE:
            self._drop_shadows(op, args, kwargs, given)
            return
        if way is Way.MATCH:
            if given and isinstance(out, Tensor) and not kwargs.get("invert"):
                of = next(iter(given.values()))[0].dtype
                self.choices.matched(op, args, out, lambda: row_of(op, of), self._due, self.node_of)
            return
        self.choices.bounded(op, args, kwargs, out)
        self.choices.counted(op, args, kwargs, out)
        made = new_results(memory, out, given)
        if writing is None and not made:
            if op.decides and given and not (isinstance(out, Tensor) and out.is_floating_point()):
                self._decision(op, args, kwargs, inputs, given, out, row_of)
            return
        fresh = all(held is None for _, held in given.values())
        if fresh and op.exact and writing is None and not (made and op.rounds(inputs, made[0].dtype)):
            return
        if writing is not None:
            row, look = writing.row, writing.look
        else:
            row = row_of(op, made[0].dtype)
            row.visits += 1
            look = self._due(row)
        if way is Way.ROUND and writing is None:
            if look and op.name in WHOLE and isinstance(out, Tensor):
                self.choices.rounded(op, args, out)
            return
        incoming = all_incoming(given, [] if writing is None else writing.incoming)
        try:
            shadows = self._compute_shadows(op, args, kwargs, inputs, given, out, made, writing)
        except Exception as error:
            if isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error):
                raise
            self.opaque[op.name] += 1
            for tensor in written(op, args, kwargs):
                memory.drop(tensor)
            return
        self.operations += 1
        befores = reversed(incoming) if op.name == "copy_" else incoming  # it keeps nothing of what it writes to
        row.previous = next((one.row for one in befores if shadows and one.tensor.shape == shadows[0][0].shape), None)
        pairs = []
        data = writing is None and prepares(op, args, incoming)
        integers = self.choices.integers(op, row, inputs, (one.held for one in incoming), look)
        kept = moves.kept_beside(op, incoming)
        for tensor, shadow in shadows:
            held = memory.get(tensor) if shadow is None else memory.set(tensor, shadow, row)
            if held is not None:
                held.row, held.read = row, moves.is_hidden(op, incoming)
                held.integers, held.data, held.beside = integers, data, kept
                pairs.append((tensor, held))
                own = look and writing is None and is_rounding(op, args, incoming, tensor, held)
                if own or (self._measures and self.choices.is_rounding(op, args, self.node_of)):
                    held.write(tensor, tensor)
        if row.visits == 1:  # of a total what it was before
            row.exact = op.exact and not op.rounds(inputs, row.dtype)
            operands = inputs if op.several else args
            first = next((one for one in operands if isinstance(one, Tensor) and one.dtype is row.dtype), None)
            row.node = None if first is None else self.node_of(first)
        if look and pairs:
            for spoilt in look_at(incoming if writing is None else incoming[len(writing.incoming) :], pairs[:1], row):
                self.spoils(spoilt)
            self._measure(op, args, kwargs, row, pairs, incoming, writing)
            if row.cause is not None:
                self.spoils(row)
        elif pairs:
            cancellation, floor = as_before(op, args, row, incoming)
            for _, held in pairs:
                held.error, held.cancellation, held.floor = row.error, cancellation, max(held.floor, floor)
                held.whole = row.whole
                held.origin = next((one.held.origin for one in incoming if one.held.origin is not None), None)
        if way is Way.PICK and _due(row):
            self.choices.picked(op, args, kwargs, out, row, self.node_of(args[0]))

    def spoils(self, row: Row) -> None:
        self.spoil.add(row)
        row.since = min(row.since, self.operations)

    def _drop_shadows(self, op: Operator, args: Any, kwargs: Any, given: Given) -> None:
        if any(held is not None for _, held in given.values()):
            self.opaque[op.name] += 1
        for tensor in written(op, args, kwargs):
            if isinstance(tensor, Tensor) and tensor.layout is torch.strided:
                self.memory.drop(tensor)

    def _compute_shadows(
        self, op: Operator, args: Any, kwargs: Any, inputs: list[Tensor], given: Given, out: Any, made: list[Tensor],
        writing: Writing | None,
    ) -> list[tuple[Tensor, Tensor | None]]:  # fmt: skip
        """Results of the program with their shadows; None for one that was written in place."""
        if op.way is Way.DROPOUT:
            share = args[1]
            return [(out[0], self._value(args[0], given) * out[1] * (1 / (1 - share) if share < 1 else 0.0))]
        if op.way is Way.PICK and writing is None:
            return [(out[0], at_places(op, args, kwargs, out, self._value(args[0], given)))]
        results = self._wider(op, args, kwargs, inputs, given, writing)
        if writing is None:
            return _pairs(out, turned(op.name, out, results) if op.name in VECTORS else results, made)
        if op.way is Way.ROUND:
            for one in writing.incoming:
                one.held.write(one.tensor, one.tensor)
        changed, results = [(one.tensor, None) for one in writing.incoming], _pairs(out, results, made) if made else []
        return [*results, *changed] if op.name in BESIDES else [*changed, *results]  # the first one is rated

    def _wider(
        self, op: Operator, args: Any, kwargs: Any, inputs: list[Tensor], given: Given, writing: Writing | None = None
    ) -> Any:
        """The operation with the shadows of its inputs."""
        wider = self.memory.wider
        if writing is not None:
            double = wider[writing.incoming[0].tensor.dtype] in DOUBLE
        else:
            dtypes = {wider.get(tensor.dtype, tensor.dtype) for tensor in inputs}
            dtypes |= {wider[v] for v in (*args, *kwargs.values()) if isinstance(v, torch.dtype) and v in wider}
            double = not (dtypes & SINGLE) or bool(dtypes & DOUBLE)
        real, imaginary = (torch.float64, torch.complex128) if double else (torch.float32, torch.complex64)
        known: dict[int, Tensor] = {}
        for key, (tensor, held) in given.items():
            if held is not None:
                held.read, tensor = True, held.like(tensor)
            known[key] = tensor.to(imaginary if tensor.is_complex() else real)
        if not known and op.promotes:  # a quotient of integers is in the default dtype, whatever they are
            known = {id(tensor): tensor.to(real) for tensor in inputs if tensor.dtype is not torch.bool}
        for one in () if writing is None else writing.incoming:  # as they were before
            known[id(one.tensor)] = one.held.target(one.tensor)
        for tensor in written(op, args, kwargs):  # one that has no shadow stays as the program has it
            if known.get(id(tensor), tensor) is tensor:
                known[id(tensor)] = tensor.clone()
        wide = [v if op.left_alone(place) else _widened(v, known, real, imaginary) for place, v in enumerate(args)]
        if "half_to_float" in op.names and len(wide) > op.names.index("half_to_float"):
            wide[op.names.index("half_to_float")] = False
        named = {key: v if op.left_alone(key) else _widened(v, known, real, imaginary) for key, v in kwargs.items()}
        if not inputs and "dtype" in op.names and named.get("dtype") is None:  # of a default dtype that is half
            named["dtype"] = real
        return self._call(op, wide, named)

    def _call(self, op: Operator, args: Any, kwargs: Any) -> Any:
        """The operation with arguments in the wider dtype."""
        results = composite(op, args, kwargs)
        return op.func(*args, **kwargs) if results is None else results

    def _value(self, tensor: Tensor, given: Given) -> Tensor:
        """A tensor in the wider dtype."""
        held = given[id(tensor)][1]
        if held is None:
            return tensor.to(self.memory.wider[tensor.dtype])
        held.read = True
        return held.like(tensor)

    # ------------------------------------------------------------ errors

    def _measure(
        self, op: Operator, args: Any, kwargs: Any, row: Row, pairs: list[tuple[Tensor, ShadowStorage]],
        incoming: list[Incoming], writing: Writing | None,
    ) -> None:  # fmt: skip
        tensor, held = pairs[0]
        shadow = held.like(tensor)
        if op.name.rstrip("_") == "remainder" and not row.backward:  # an angle of 0 is one of 2 pi
            turn = shadow.new_tensor(args[1]) if not isinstance(args[1], Tensor) else args[1].to(shadow.dtype)
            shadow = shadow + turn * ((tensor.to(shadow.dtype) - shadow) / turn).round().nan_to_num()
            error = error_of(tensor, shadow)
        else:
            error = held.error_of(tensor)
        cancellation, floor = cancellation_of(op, args, kwargs, row, incoming, error)
        relative = error.relative(floor, of_a_row=True)
        effective, whole = relative / cancellation, error.relative(floor) / cancellation
        row.cancellation, row.terms = min(row.cancellation, cancellation), max(row.terms, cancellation * error.size)
        rounds = builds_up(op, row, incoming)
        row.counts = row.counts or (rounds and moves.counts(op, args, row, incoming, shadow))
        rounds = rounds or moves.outgrown(op, args, row, incoming, shadow, error)
        least = OF_A_COUNT * row.half_ulp if row.counts else _BUILT_UP[row.dtype in HALF]
        grown = rounds and least < relative < math.inf
        again = grown or (rounds and writing is not None and relative == math.inf)  # a total that overflows stays so
        suspects = [one for one in incoming if not (again and loops(one.row, row))]
        likely = suspicion if self.choices.whole else attrgetter("error")
        source = max(suspects, key=likely, default=None)
        squares = are_squares(op, args, incoming)
        shown = is_shown(op, args, incoming, error)
        lost = op.cancels is Cancels.LOST or (op.cancels is Cancels.ROOT and not squares) or shown
        if lost and incoming:  # from here on a difference is judged by itself
            source = max(incoming, key=lambda one: one.error * one.cancellation)
            for one in incoming:
                if one.cancellation > 1 and one.held.origin is not None and effective:
                    by_itself = one.error * one.cancellation, one.held.whole * one.cancellation
                    if one.held.origin.convict(*by_itself, one.row):
                        self.spoils(one.held.origin)
        carried = 0.0 if source is None else source.error * (source.cancellation if lost else 1.0)
        origin = None if source is None or cancellation == 1 else source.held.origin
        if cancellation > _FAR * max((one.cancellation for one in incoming), default=1.0):
            origin = row
        for _, other in pairs:
            other.cancellation, other.floor, other.error, other.origin = cancellation, floor, effective, origin
            other.whole, other.squared = whole, squares and op.cancels is not Cancels.ROOT
        # Judge a mean's error relative to the standard deviation.
        if op.name in BESIDES and writing is not None and len(writing.incoming) > 1:
            mean, variance = writing.incoming[:2]
            mean.held.floor = norm(variance.held.like(variance.tensor).abs().sqrt())
        if row.backward:
            row.digits = max(row.digits, min(digits_left(op, args, error), effective))
        if grown and row.dtype in HALF:  # it rounds by itself, whatever it is computed from
            source = max(incoming, key=likely)
        if row.measured(error, effective, carried, leads_in(source, suspects, row)) and tensor.numel():
            row.whole, row.builds_up = whole, grown
            row.shows(tensor, shadow)
            if op.name in _DIFFERENCES and len(incoming) == 2:
                row.against = next(one.row for one in incoming if one is not source)
            if math.isinf(carried):
                others = (one for one in incoming if one is not source and math.isinf(one.error))
                row.beside = tuple(one.row for one in others if one.row is not None)
        may_flush = (tensor.dtype is torch.float16 and not op.exact) or op.name == "_to_copy"
        if may_flush and carried < 0.5 < error.relative():
            row.flushed += flushed(tensor, shadow, ((one.tensor, one.held.like(one.tensor)) for one in incoming))
        if error.distance and writing is None:
            held.beside = held.beside or beside(op, args, kwargs, row, incoming)  # it is no data any more then
            held.data &= held.beside is None
        if error.distance:
            self._note_movement(op, args, row, tensor, shadow, incoming, writing)
        elif writing is not None:
            target = writing.incoming[0]
            moves.follows(target.tensor, target.held, row)
            if target.held.trained:
                row.trained[id(target.held)] = False
        if error.distance:
            wide = rounds and row.dtype not in HALF  # then it is its factor that is wrong
            if cancellation <= _EQUAL and not wide:  # a strongly cancelled result is no total, it compensates
                self._stalls(op, args, row, effective, tensor, shadow, incoming, writing)
            self.choices.collides(row, some(tensor).to(shadow.dtype), some(shadow), carried, error)

    def _stalls(
        self, op: Operator, args: Any, row: Row, error: float, tensor: Tensor, shadow: Tensor,
        incoming: list[Incoming], writing: Writing | None,
    ) -> None:  # fmt: skip
        """An accumulation whose values stay where they are, while the shadow moves."""
        if op.name not in ACCUMULATES:
            return
        total = next((one for one in incoming if one.tensor.shape == tensor.shape and loops(one.row, row)), None)
        others = max((one.error for one in incoming if one is not total), default=0.0)
        if row.dtype not in HALF and others < _RIGHT:  # it may be computed from the total
            others = 0.0
        if total is None and self.totals and row in self.totals and writing is None:
            same = (one for one in args if isinstance(one, Tensor) and one.shape == tensor.shape)
            left = (one for one in same if one.dtype is tensor.dtype and self.memory.get(one) is None)
            values = next(left, None)  # as the last step left it
            if values is None:
                return
            values, old = some(values), some(values).to(shadow.dtype)
        elif total is None or (self.totals is None and error <= _GROWN * others):
            return  # there is no total, or what is added was as wrong
        elif writing is not None:
            if writing.values is None or writing.shadow is None or total.tensor is not tensor:
                return
            values, old = writing.values, writing.shadow
        else:
            values, old = some(total.tensor), some(total.held.like(total.tensor))
        moved = some(shadow) != old
        stalled = float(((some(tensor) == values) & moved).sum()) / max(1, moved.numel())
        if stalled > row.stalled and not wrong(one for one in incoming if one is not total):
            row.stalled = stalled

    def _note_movement(
        self, op: Operator, args: Any, row: Row, tensor: Tensor, shadow: Tensor, incoming: list[Incoming],
        writing: Writing | None,
    ) -> None:  # fmt: skip
        """Whether what is written to moves with its shadow, and what is added is not lost."""
        if writing is None:
            row.absorbed = moves.absorbed(op, args, tensor, shadow)
            moves.merge(op, args, row, tensor, self.memory.get(tensor))
            return
        target = writing.incoming[0]
        others = [one for one in incoming[len(writing.incoming) :] if not one.comes_of(row)]
        target.held.merged = others[0].held.merged if op.name == "copy_" and others else None
        inherits = max((one.error for one in others), default=0.0) > _WRONG
        stuck = 0
        if not inherits and not row.backward and op.name not in BESIDES:
            stuck = max(moves.stands(one.tensor, one.held, row) for one in writing.incoming)
            if stuck and wrong(others, target.held.error_of(tensor).relative() if op.name == "copy_" else 1.0):
                stuck = 0
            if target.held.path is not None:
                row.course = target.held.path.courses.get(row, [])
        row.stuck = stuck
        if target.held.trained:
            row.trained[id(target.held)] = bool(stuck)
        lives = target.held.writes > _MADE or target.held.trained
        if lives and (factor := moves.scaled(op, args, row.half_ulp)) is not None:
            row.factor, stay = factor, int((tensor != 0).sum())
            row.unmoved = row.unmoved[0] + stay, row.unmoved[1] + stay
        elif target.held.writes > _MADE:
            row.follows = row.follows or not stuck
        elif row.module is None:
            stay, of = moves.unmoved(op, args, writing.values, tensor)
            row.unmoved = row.unmoved[0] + stay, row.unmoved[1] + of

    # ------------------------------------------------------------ choices

    def _decision(
        self, op: Operator, args: Any, kwargs: Any, inputs: list[Tensor], given: Given, out: Any, row_of: RowOf
    ) -> None:
        held, first = [one for _, one in given.values() if one is not None], next(iter(given.values()))[0]
        before = self.choices.before_rounding(first) if op.name == "_to_copy" else None
        for one in held:
            one.read = True
        two, clear = may_be_beside(op, args), bool(held or before) and decidable(held)
        if not (two or clear) or not isinstance(out, Tensor) or not out.numel():
            return
        row = row_of(op, first.dtype)
        row.visits += 1
        if not _due(row) and (out.ndim or out.dtype is not torch.bool):  # one number may be what a loop ends with
            return
        if (two and self.choices.beside(op, args, out, row)) or not clear:
            return
        if held:
            row.parent = max(held, key=lambda one: one.error).row
        if op.name in ("argmax", "argmin"):
            self.choices.extreme(op, args, kwargs, out, row)
            return
        if before is not None:
            func, exact, row.parent = before
            other = func(exact)
        else:
            other = self._wider(op, args, kwargs, inputs, given)
            exact = self.memory.read(first, self.memory.wider[first.dtype])
        if op.name == KEEPS:  # fewer or more places
            out, other = (torch.zeros_like(first[:, 0], dtype=torch.bool).index_fill(0, i, True) for i in (out, other))
        if isinstance(other, Tensor) and other.shape == out.shape:
            self.choices.whole_numbers(row, out, other.to(out.dtype), exact, any(one.integers for one in held))
            if row.flipped and out.dtype is torch.bool and held:
                row.compared = max(row.compared, max(one.error for one in held))
                self.choices.ranks(inputs, out, other, row)


def _no_node(tensor: Tensor) -> None:
    """Where nobody keeps lines."""


def _due(row: Row) -> bool:
    """Whether to measure: at powers of two, and in a running total more often, which may stand still between them.

    Two callers of a line may take turns, so some odd visits are among them.
    """
    visits = row.visits
    if visits & (visits - 1) == 0 or visits in _ODD or (row.counts and visits < _OFTEN):
        return True
    return visits % _OFTEN == 0 and loops(row.previous, row)


def written(op: Operator, args: Any, kwargs: Any) -> Iterator[Tensor]:
    for place in op.writes:
        value = args[place] if place < len(args) else kwargs.get(op.names[place])
        for one in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(one, Tensor):
                yield one


def new_results(memory: Memory, out: Any, given: Given) -> list[Tensor]:
    """The results that are new tensors, of a dtype that has a shadow."""
    storages = {tensor.untyped_storage()._cdata for tensor, _ in given.values()}
    inputs = [tensor for tensor, _ in given.values()]
    new = [tensor for tensor in in_order(out) if isinstance(tensor, Tensor) and memory.takes(tensor, inputs)]
    return [tensor for tensor in new if tensor.untyped_storage()._cdata not in storages]


def _pairs(out: Any, results: Any, made: list[Tensor]) -> list[tuple[Tensor, Tensor | None]]:
    ids = {id(tensor) for tensor in made}
    return [
        (tensor, other) for tensor, other in zip(in_order(out), in_order(results), strict=False)
        if id(tensor) in ids and isinstance(other, Tensor) and other.shape == tensor.shape
    ]  # fmt: skip


def _widened(value: Any, known: dict[int, Tensor], real: torch.dtype, imaginary: torch.dtype) -> Any:
    """An argument in the wider dtype; `known` has the tensors by id."""
    if isinstance(value, Tensor):
        return known.get(id(value), value)
    if isinstance(value, (list, tuple)):
        return [_widened(one, known, real, imaginary) for one in value]
    if isinstance(value, torch.dtype) and value in WIDER:
        return imaginary if value.is_complex else real
    return value
