"""What an audit does with values, at each operation of the program; and what comes of it."""

import functools
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from ..._core.base import private
from ..._core.base.dtypes import HALF
from ..._core.base.progress import tell
from ..operands import all_values, plain, shadowed, summed
from ..ops import ADDS_UP, FLUSHES, Operator, Way
from ..sample import LARGEST
from ..watch.mode import CASTING
from ..watch.recorder import Recorder
from ..watch.sites import Site
from .flags import LOGS, Flags, is_indicator
from .incoming import loops
from .kept import LOST as LOST_OF_TOTAL
from .kept import UNMOVED, Kept, Totals
from .leaving import PARAMETER, TRAINS, begin
from .measure import error_of
from .memory import Memory, ShadowStorage, measure
from .ranges import Ranges
from .rows import LOST, OF_A_COUNT, TOTAL, Cause, Row, Rows
from .shadow import Shadow, Writing, written

RANGE, SHADOW = "range", True
_SEQUENCES = 50_000
_PLACES = frozenset("argmax argmin topk".split())
_SELDOM = 64  # operations between two looks at the clock, where each costs next to nothing
# Measured: with a quarter of it, a half, twice or four times as much no program of DG9 and no healthy case comes out
# otherwise; only `_DIFFUSE` may not be 0.4, nor `_ULPS` 32.
_DIFFUSE = 0.1  # an error of a result that one line is to blame for
_FED_BACK = 0.1  # error of what a comparison in float32 was given, as of a system that is not stable
_DOUBT = 0.02  # an error of a result that acquits nobody
_ULPS = 8  # and of one in which little else is wrong
_NOISE = 0.1  # of the error that came into the line, which a result has from elsewhere anyway
_DIGITS = 0.2  # of a gradient that is the difference of rounded probabilities
_current_node = private.current_node


@dataclass(eq=False)
class Harm:
    """What a line has done to values, where that is felt.

    Attributes:
        row: the line.
        cause: what it does.
        felt: where its values left the program: what, and the line.
        error: there.
    """

    row: Row
    cause: Cause
    felt: dict[tuple[str, Site | None], float] = field(default_factory=dict)

    @property
    def error(self) -> float:
        return max(self.felt.values(), default=0.0)


_SOLVER = torch.optim.LBFGS.__init__.__code__.co_filename
_COMPARES = frozenset(["eq", "ne", "equal"])
_ALL, _TOTALS, _COLLIDED = frozenset(Cause), frozenset([Cause.STALLED]), frozenset([Cause.COLLIDED])
_GROUPS = frozenset("_unique _unique2 unique_dim unique_consecutive unique_dim_consecutive".split())


def _is_answer(out: Any, args: Any) -> bool:
    """Whether it says yes or no to the program: it is no tensor, or compares one value with a number."""
    if isinstance(out, bool):
        return True
    one = isinstance(out, Tensor) and out.dtype is torch.bool and out.numel() == 1
    return one and len(args) > 1 and not isinstance(args[1], Tensor)


def _are_alike(op: Operator, args: Any) -> bool:
    """Whether values are compared with as many others, one by one."""
    pair = args[:2]
    return op.name in _COMPARES and all(isinstance(one, Tensor) for one in pair) and pair[0].shape == pair[-1].shape


def _nowhere(tensor: Tensor, given: bool = False) -> None:
    """The row of values that are as they are meant to be."""


class Values:
    """The values of a program that is audited."""

    def __init__(self, audit: Recorder, how: Any) -> None:
        self._audit = audit
        self.rows, self.flags = Rows(), Flags(self._unread)
        self.shadow = self._shadow = Shadow(Memory(self._left_unread)) if how is SHADOW else None
        self.over: str | None = None  # why there is no shadow any more
        if self.shadow is not None:
            self.shadow.node_of = audit.lineage.get
        self.harms: dict[Row, Harm] = {}
        self.leaving: dict[tuple[str, int], float] = {}  # by line, file and number: the error of what has left there
        self._doubted: set[Row] = set()  # lines that spoil results less than what is a harm
        self.ranges = Ranges()
        self.scaled = False  # whether a GradScaler looks at gradients before they are used
        self._totals = Totals(self._step)  # over steps that are not looked at
        self._lines: dict[int, tuple[Site, str | None]] = {}  # in forward, by autograd's sequence number

    @property
    def opaque(self) -> Counter[str]:
        """Operations that were not shadowed, and how often."""
        return Counter() if self._shadow is None else self._shadow.opaque

    def errors(self) -> dict[tuple[str, int], float] | None:
        """By line, file and number, the largest error of its values; None where these have no shadow."""
        found: dict[tuple[str, int], float] = {}
        if self._shadow is None:
            return None
        for row in self.rows:
            place = row.site.file, row.site.line
            found[place] = max(row.error, found.get(place, 0.0))
        return found

    def summary(self) -> dict[str, Any]:
        """For the report."""
        steps, shadow = self._audit.steps, self._shadow
        found: dict[str, Any] = {"how": RANGE}
        if shadow is not None:
            missing = dict(self.opaque.most_common())
            found = {"how": "shadow", "shadowed": shadow.operations, "not_shadowed": missing, "over": self.over}
        if steps is not None:
            found |= {"every": steps.every, "steps": steps.number - bool(steps.trained), "looked_at": steps.looked}
        with self._audit.paused():
            found["ranges"] = list(self.ranges.rows())
        return found

    # ------------------------------------------------------------ operations

    def before(self, op: Operator, args: Any, kwargs: Any, frame: FrameType) -> Writing | None:
        """An operation is about to write to some of its arguments."""
        if self.shadow is None:
            return None
        try:
            return self.shadow.before(op, args, kwargs, lambda op, dtype: self._row(op, dtype, frame))
        except Exception as error:
            self._fault(error)
            return None

    def after(
        self, op: Operator, args: Any, kwargs: Any, inputs: list[Tensor], out: Any, writing: Writing | None,
        frame: FrameType,
    ) -> None:  # fmt: skip
        """An operation has run that is no view and no constant; `inputs` are the tensors that it took."""
        tensors = [tensor for tensor in inputs if summed(tensor)]
        if True in [tensor.requires_grad for tensor in tensors]:
            self.remember(frame)
        results = list(written(op, args, kwargs)) if op.writes else []
        if isinstance(out, Tensor):
            results.append(out)
        elif out is not None:
            results += [one for one in out if isinstance(one, Tensor)] if isinstance(out, (list, tuple)) else []
        if len(results) > 1:
            results = list({id(one): one for one in results}.values())
        results = [one for one in results if summed(one)]
        try:  # what goes wrong here must not leave a shadow behind that is older than its tensor
            if op.way is Way.MATCH:
                self.tested(op, args, tensors)
            elif tensors or results:
                values = tensors[0] if op.name in LOGS and tensors else None
                meant = values is not None and is_indicator(self._audit.lineage.get(values), values)
                row = _nowhere if meant else functools.partial(self._row_of, op, frame, inputs)
                self.flags.after(op, args, kwargs, tensors, results, row)
        except Exception as error:
            self._fault(error)
        if frame.f_code.co_filename == _SOLVER:  # two runs of it come apart anyway, as those of a training do
            for tensor in results:
                self.settle(tensor)
            return
        if op.name == "_local_scalar_dense" and tensors:
            self.felt("a number that the program reads", tensors[0], frame)
        elif op.name in _PLACES and tensors and self.flags.has_nan(tensors[0]):  # it is the largest of all
            self.felt("a choice", tensors[0], frame)
        shadow = self.shadow
        if shadow is None:
            if self._shadow is None and op.name in FLUSHES and isinstance(out, Tensor) and out.dtype is torch.float16:
                self._flushes(self._row(op, out.dtype, frame), args, out)
            if not self._audit.operations % _SELDOM:
                tell(lambda: f"{self._audit.operations:,} operations")
            return
        tell(lambda: f"{self._audit.operations:,} operations")
        try:
            shadow.after(op, args, kwargs, inputs, out, writing, lambda op, dtype: self._row(op, dtype, frame, inputs))
        except Exception as error:
            self._fault(error)
        if shadow.spoil and op.way is Way.AGAIN and _is_answer(out, args):  # right or not, a total is used
            for tensor in tensors:
                self.felt("a comparison", tensor, frame, causes=_TOTALS)

    def tested(self, op: Operator, args: Any, inputs: list[Tensor]) -> None:
        """The program has asked something about values, and computed nothing with them.

        Whether they are finite is asked by one who does not know; what is compared is used, as a mask is.
        """
        tensors, other = [tensor for tensor in inputs if summed(tensor)], args[1] if len(args) > 1 else None
        finite = other is args[0] or (isinstance(other, float) and not math.isfinite(other))
        (self.flags.looked_at if op.name in _COMPARES and not finite else self.flags.asked)(tensors)
        shadow = self.shadow
        for tensor in tensors:
            if (held := None if shadow is None else shadow.memory.get(tensor)) is not None:
                held.read = True
                if held.row is not None:
                    held.row.ends(tensor, held.like)
        what = "groups of equal values" if op.name in _GROUPS else "a comparison" if _are_alike(op, args) else ""
        if tensors and shadow is not None and op.name in _GROUPS:
            shadow.choices.tell_apart(tensors[0])
        if tensors and shadow is not None and shadow.spoil and what:
            self.felt(what, tensors[0], site=self._audit.here(), causes=_COLLIDED)

    def _flushes(self, row: Row, args: Any, out: Tensor) -> None:
        """Without a shadow: a product, quotient or power is zero, and nothing that it was computed from is."""
        row.visits += 1
        if row.visits & (row.visits - 1) or any(value == 0 for value in args if isinstance(value, (int, float))):
            return
        given = [value for value in args if isinstance(value, Tensor)]
        if not all(map(plain, (out, *given))) or any(one.device != out.device and one.ndim for one in given):
            return
        row.count += out.numel()
        gone = functools.reduce(torch.logical_and, [t.isfinite() & (t != 0) for t in given], out == 0)
        row.flushed += int(gone.sum())

    def _fault(self, error: Exception) -> None:
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error):
            self.over = f"out of memory at {self._audit.here()}"
            if self.shadow is not None:
                self.shadow.memory.forget()
            self.shadow = None
        else:
            self._audit.fault(error)

    def remember(self, frame: FrameType | None) -> None:
        """The line of an operation that autograd keeps, for what its node does in backward."""
        if frame is None or _current_node() is not None:
            return
        lines = self._lines
        if len(lines) > _SEQUENCES:
            for key in list(lines)[: _SEQUENCES // 2]:
                del lines[key]
        number = private.next_sequence() - 1
        if number not in lines:  # else it made no node
            lines[number] = (self._audit.line(frame), self._audit.module())

    def _row_of(self, op: Operator, frame: FrameType, inputs: Any, tensor: Tensor, given: bool = False) -> Row:
        """The row of a result; or the one for an input whose values came in from outside."""
        if not given:
            return self._row(op, tensor.dtype, frame, inputs)
        row = self.rows.at("given", self._audit.line(frame), self._audit.module(), tensor.dtype, False)
        row.given = True
        return row

    def _row(self, op: Operator, dtype: torch.dtype, frame: FrameType, inputs: Iterable[Tensor] = ()) -> Row:
        node, line, place = _current_node(), None, 0
        if node is not None and not isinstance(node, BackwardCFunction):  # which is code of the user's
            line = self._lines.get(number := node._sequence_nr())
            place = self.rows.place_in(number, op.name, self._audit.operations)
        site, module = line or (self._audit.line(frame), self._audit.module())
        moves = op.exact and (not op.decides or any(tensor.dtype is not dtype for tensor in inputs))
        source = self.shadow.memory.source(inputs) if moves and self.shadow is not None else None
        row = self.rows.at(op.name, site, module, dtype, node is not None, source, place)
        if not row.visits and dtype in HALF and self._audit.autocast():
            nodes = map(self._audit.lineage.get, inputs)
            cast = site.calls not in CASTING if op.cast else any(one and one.cause == "autocast" for one in nodes)
            row.autocast = self._audit.region()[0] if cast else None
        return row

    # ------------------------------------------------------------ where values enter

    def made(self, data: Any, out: Tensor) -> None:
        """A tensor of numbers that have more digits than it holds: its shadow has them all."""
        if self.shadow is None or not shadowed(out) or isinstance(data, Tensor) or not 0 < out.numel() <= LARGEST:
            return
        if out.is_complex() or not (isinstance(data, (list, tuple, int, float)) or hasattr(data, "__array__")):
            return
        exact = torch.tensor(data, dtype=torch.float64, device=out.device)
        if exact.shape != out.shape or torch.equal(exact, out.detach().double()):
            return
        row = self.rows.at("tensor", self._audit.here(), self._audit.module(), out.dtype, False)
        held = self.shadow.memory.set(out, exact, row)
        error = error_of(out.detach(), held.like(out))
        held.error, held.whole, held.read = error.relative(of_a_row=True), error.relative(), True
        held.data = True
        if row.measured(error, held.error, 0.0, None):
            row.shows(out.detach(), held.like(out))
        self.shadow.choices.collides(row, out.detach().double(), held.like(out), 0.0, error)
        if row.cause is not None:
            self.shadow.spoils(row)

    # ------------------------------------------------------------ where values leave

    def felt(
        self, what: str, tensor: Any, frame: FrameType | None = None, site: Site | None = None,
        causes: frozenset[Cause] = _ALL,
    ) -> None:  # fmt: skip
        """Values leave the program here; what is wrong with them has done harm, if it is of one of these causes."""
        if isinstance(tensor, Tensor) and summed(tensor):
            with private.no_dispatch():
                self._felt(what, tensor.detach(), site or (None if frame is None else self._audit.line(frame)), causes)

    def together(self, tensors: Iterable[Any]) -> None:
        """Measure tensors that leave one after the other: a device is waited for once."""
        if self.shadow is not None:
            tensors = [tensor.detach() for tensor in tensors if isinstance(tensor, Tensor) and summed(tensor)]
            helds = ((tensor, self.shadow.memory.get(tensor)) for tensor in tensors)
            with private.no_dispatch():
                measure([(tensor, held) for tensor, held in helds if held is not None and held.row is not None])

    def _felt(self, what: str, tensor: Tensor, site: Site | None, causes: frozenset[Cause]) -> None:
        source = self.flags.source(tensor)
        if source is not None and Cause.BORN in causes and not (source.given and what not in TRAINS):
            self._harm(source, Cause.BORN, what, site, float("inf"))
        shadow = self.shadow
        held = None if shadow is None else shadow.memory.get(tensor)
        if held is None or held.row is None:
            return
        held.read = True
        error = held.error_of(tensor)
        held.row.ends(tensor, held.like)
        largest = max(error.level, TOTAL * held.row.largest)
        share = error.level / largest if error.level and largest else 1.0
        relative = error.relative(held.floor) * share / held.cancellation
        self._leaves(site or held.row.site, relative)
        self._blame(what, site, held.row, relative, causes)

    def _leaves(self, site: Site, error: float) -> None:
        place = site.file, site.line
        self.leaving[place] = max(error, self.leaving.get(place, 0.0))

    def stepped(self, parameters: list[Tensor], name: str, site: Site) -> None:
        """An optimizer has written to parameters, whose values are right from now on as they are."""
        parameters = [parameter for parameter in parameters if summed(parameter)]

        def gradients(parameter: Tensor) -> list[Tensor]:
            return [tensor for tensor in (parameter.grad,) if tensor is not None and summed(tensor)]

        def row(parameter: Tensor) -> Row:
            return self.rows.at(name, site, None, parameter.dtype, False)

        with private.no_dispatch():
            self.flags.written(parameters, gradients, row)
        self.together(parameters)  # after all were written
        for parameter in parameters:
            self.felt(PARAMETER, parameter, site=site)

    def settle(self, tensor: Any) -> None:
        """From now on the values are right as they are."""
        if self.shadow is not None and isinstance(tensor, Tensor) and summed(tensor):
            self.shadow.memory.drop(tensor)

    def _left_unread(self, held: ShadowStorage) -> None:
        """A result that no operation has read: the program has it."""
        if held.row is not None and held.error and not (held.row.backward or held.is_rest):
            storage = held.ref()  # is there still, where the program has ended
            if storage is not None and held.buffer.numel() == 1:  # else it may have gaps
                held.row.ends(all_values(storage, held.dtype), held.like)
            self._leaves(held.row.site, held.whole)
            dropped = any(row.backward for row in held.row.chain())  # gradients: the program has skipped their step
            self._blame("a result", None, held.row, held.whole, _ALL - {Cause.BORN} if dropped else _ALL)

    def _unread(self, source: Row) -> None:
        if source.backward:
            source.unread = True
        elif not source.given:
            self._harm(source, Cause.BORN, "a result", None, float("inf"))

    def _blame(
        self, what: str, site: Site | None, last: Row, error: float, causes: frozenset[Cause] = _ALL
    ) -> Cause | None:
        """Find the line that is to blame for an error, if it is one of these causes; returns the cause."""
        shadow = self._shadow
        if shadow is None or not shadow.spoil or shadow.spoil.isdisjoint(last.chain()):
            return None
        for row in last.culprits():
            cause, enough = row.cause, _ULPS * row.half_ulp
            if cause is Cause.COLLIDED and not last.scales(row):
                enough = 0.0
            elif row.stuck:  # what has built up in it is more than that already
                enough = row.half_ulp
            elif row.counts:
                enough = OF_A_COUNT * row.half_ulp
            elif cause is Cause.BORN and row.backward:
                enough = _DOUBT  # it was infinite in another step, perhaps, which the program has skipped
            elif row.incoming < row.half_ulp and (row.builds_up or row.name in ADDS_UP):
                enough = _DOUBT  # what is added has all its digits, the total has not
            elif cause is Cause.AMPLIFIED:
                enough = min(_DIFFUSE, max(_ULPS * last.half_ulp, _NOISE * row.incoming, _DIFFUSE * (row.whole < LOST)))
                if not any(step.dtype in HALF for step in row.chain()):  # where two digits are left, five are gone
                    enough = min(enough, _DOUBT)
            if cause is not None and cause in causes and error > enough:
                self._harm(row, cause, what, site, error)
                if cause is Cause.BORN:
                    for other in last.born_beside():
                        self._harm(other, cause, what, site, error)
                return cause
            if cause is not None and error > _DOUBT:
                self._doubted.add(row)
        return None

    def _told(self, row: Row) -> bool:
        """Whether a line is named for the same values: the sum of an average, whose factor is a part of it."""
        rows = [harm.row for harm in self.harms.values() if harm.cause is Cause.STALLED]
        return any(row in one.chain() or loops(one, row) for one in rows)

    def _harm(self, row: Row, cause: Cause, what: str, site: Site | None, error: float) -> None:
        harm = self.harms.get(row)
        if harm is None:
            harm = self.harms[row] = Harm(row, cause)
        if harm.cause is Cause.AMPLIFIED:  # what lost a little in each round may stand still by now
            harm.cause = cause
        harm.felt[what, site] = max(error, harm.felt.get((what, site), 0.0))

    # ------------------------------------------------------------ life

    def begin(self) -> None:
        begin(self._audit)
        if self.shadow is not None and self._audit.steps is not None:
            self.shadow.totals = set()

    def rest(self) -> None:
        """A step has ended that was looked at, and the next one is not: values are not followed any more."""
        self.flags.rest()
        shadow = self.shadow
        if shadow is not None:
            self._stand(self._totals.rest(shadow.memory))
            shadow.memory.clear()

    def wake(self) -> None:
        """A step begins that is looked at."""
        for row in self.rows:
            row.visits = 0  # the first time that a line runs in it is measured
        if self.shadow is not None:
            self._totals.wake(self.shadow.memory)
            self.shadow.totals = self._totals.rows

    def _step(self) -> int:
        """How many steps have ended."""
        steps = self._audit.steps
        return 0 if steps is None else steps.number - 1

    def _stand(self, totals: list[Kept]) -> None:
        """Totals that have lost much, while most of their values stood still."""
        for kept in totals:
            row, share = kept.row, kept.share
            if row.stalled > UNMOVED and share > LOST_OF_TOTAL:
                row.error = max(row.error, share)
                row.shows(kept.values, kept.values.double() + kept.drift)
                self._harm(row, Cause.STALLED, "what the program keeps over steps", None, share)

    def close(self) -> None:
        """The program has ended: what is left is its result."""
        self.flags.clear()
        if self.shadow is not None:
            if self._audit.steps is not None:
                self._stand(self._totals.close())
            self.shadow.memory.clear()
        for row in self.rows:
            if row.born and not row.given and row not in self.harms:
                self.harms[row] = Harm(row, Cause.BORN)
            elif row.digits > _DIGITS and row.cause is Cause.AMPLIFIED:
                self._harm(row, Cause.AMPLIFIED, "a gradient", None, row.error)
            elif (row.stays or row.absorbed) and not (row.factor and self._told(row)):
                gone, of = row.absorbed or row.unmoved
                self._harm(row, Cause.STALLED, "a parameter" if row.absorbed else "the tensor itself", None, gone / of)
            elif any(row.trained.values()):
                self._harm(row, Cause.STALLED, "a parameter", None, sum(row.trained.values()) / len(row.trained))
            elif self._shadow is None and row.flushed > row.count / 2:
                self.harms.setdefault(row, Harm(row, Cause.FLUSHED))
        for row in self.rows:
            if not row.compared or row.parent is None:
                continue
            if not any(step.dtype in HALF for step in row.chain()):
                if row.compared > _FED_BACK and all(step.cause is None for step in row.chain()):
                    row.flipped = 0  # roundings of float32 alone become so much where results are fed back many times
                continue
            cause = self._blame("a comparison", row.site, row.parent, row.compared)
            if cause is Cause.BORN or (cause is not None and row.looked_up):
                row.flipped = 0  # what was compared is gone: the comparison is as it should be
        for harm in sorted(self.harms.values(), key=lambda harm: -harm.error):
            self._audit.emit("harmed", harm)
        for row in self.rows:
            if row.flipped:
                self._audit.emit("decided", row)
            if row.cause is Cause.AMPLIFIED and row not in self.harms:
                self._audit.emit("amplified", row)
        if self.shadow is not None:
            spoilt = [harm.row for harm in self.harms.values() if harm.felt] + [row for row in self.rows if row.flipped]
            spoilt += self._doubted
            self._audit.findings.acquit({step.site.key for row in spoilt for step in row.chain()})
        self._audit.findings.confirm()
