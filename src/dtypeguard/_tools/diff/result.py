"""What `diff` found."""

import inspect
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from ..._core.base.dtypes import name_of
from ..._core.base.frames import internal, shown
from ..._show.result import Result, Row
from ..._show.text import cut, wrapped
from .backward import BACKWARD, Gradient, apart_of
from .compiled import BITS, Compiled
from .distances import Verdict, verdict_of, worse
from .match import Match
from .measure import Found
from .points import Point, between
from .tokens import Token
from .words import count, number, short

_COLUMNS, _SHOWN = 80, 12
_COLUMNS_SAY = (
    "roundings: the errors of a and of b, where 1 is that of rounding each number once. adds: how far this module "
    "alone takes a and b apart; outputs: how far apart its results are"
)
_COUNTED = 1e4  # roundings: more are told as an error


@dataclass(frozen=True, slots=True)
class DiffRow(Row):
    """One module of b, and what it adds to the distance of the two programs.

    Attributes:
        name: the module of b; the model itself has none.
        a: the modules of a that it stands for.
        how: what they were matched by: "name", "names" (as `diff` was told), "weights", "what is in it", "order".
        verdict: the verdict on this module alone, on a's inputs; with a capture, "not judged" behind the first that
            parts, as each module then has its own program's inputs.
        at: the place: a module that gets other inputs, with the argument; nothing where it is the result.
        site: the line of b.
        apart: the distance in float64, in parts of the norm.
        bound: how much of that rounding explains.
        error_a: the distance of a's module to float64.
        error_b: that of b's.
        roundings: how many roundings of each number these errors are.
        adds: the distance of the two as they are, on the same inputs; None where it is not judged.
        outputs: the distance of the module's results, each on its own inputs.
        state: parameters, buffers and attributes of b's module that differ from those of a's.
        call: the number of the call, where each call of the module stands for another module of a; else 0.
    """

    name: str
    a: tuple[str, ...]
    how: str
    verdict: Verdict | Literal["not judged"]
    at: str
    site: str
    apart: float
    bound: float
    error_a: float
    error_b: float
    roundings: tuple[float, float]
    adds: float | None
    outputs: float | None
    state: tuple[str, ...] = ()
    call: int = 0

    def __str__(self) -> str:
        return f"{self.place} ({self.site})" if self.site else self.place

    @property
    def title(self) -> str:
        """The name, with the number of the call where there are several."""
        return f"{self.name} (call {self.call})" if self.call else self.name

    @property
    def place(self) -> str:
        """The module, or the part of its own code that differs."""
        name = self.title or "the model itself"
        if self.at == BACKWARD:
            return f"the backward of {name}"
        return f"{name}, before {self.at}" if self.at else name


def _named(place: str) -> str:
    """A place in a sentence, where `1` alone would be a number, and `a` one of the two programs."""
    return f"{'module ' * (place[:1].isdigit() or place in ('a', 'b'))}{place}"


class ProgramDiff(Result):
    """Where two programs part, and whether it is rounding. `print` shows it.

    Attributes:
        verdict (str): "same", bit for bit; "rounding", of one function; "a rounds worse" or "b rounds worse";
            "another function", which is what still differs in float64.
        where (DiffRow | None): the row of the first module that parts as the verdict says; None where nothing does.
        rows (list[DiffRow]): one for each module of b that was matched, what adds most first.
        error_a (float): the distance of a's outputs to float64, in parts of their norm.
        error_b (float): that of b's.
        distance (float): the distance of the two outputs.
        gradients (tuple[Gradient, ...]): of `loss=`, a `Gradient` for each parameter of b.
        tokens (tuple[Token, ...]): where the outputs are logits of tokens, a `Token` for each one whose probability is
            known.
        unmatched (tuple[list[str], list[str]]): modules of a, and of b, that stand for none of the other.
        notes (list[str]): what limits the result.
        runs (tuple[int, int]): how often a and b ran.
    """

    kind = "diff"

    def __init__(self, titles: tuple[str, str], rows: list[DiffRow], first: DiffRow | None, verdict: Verdict,
                 found: Found) -> None:  # fmt: skip
        self.titles: tuple[str, str] = titles
        self._found = found
        self.runs: tuple[int, ...] = (0, 0)
        self.where: DiffRow | None = first
        self.verdict: Verdict = verdict
        self.order: list[DiffRow] = rows
        self.rows: list[DiffRow] = sorted(rows, key=_added)
        self.error_a: float = found.errors[0]
        self.error_b: float = found.errors[1]
        self.distance: float = found.distance
        self.unmatched: tuple[list[str], list[str]] = found.alone
        self.notes: list[str] = found.notes
        self._compiled: Compiled | None = None
        self._behind = False  # whether the verdict is one on gradients alone
        self.gradients: tuple[Gradient, ...] = ()
        self.tokens: tuple[Token, ...] = ()

    def add_compiled(self, compiled: Compiled) -> None:
        """What a compiler has made of one of the two; nothing, where they are two functions anyway."""
        side, own = compiled.side.name, compiled.errors[1]
        if side == "a":
            self.error_a = own
        else:
            self.error_b = own
        other = self._found.outputs["ba".index(side)]
        self.distance = between(compiled.outputs, other)
        if self.verdict == "another function":
            return
        if compiled.verdict == "another function":
            name = compiled.where or ""
            row = next((row for row in self.order if row.name == name), None)
            self.verdict, self.where, self._compiled = compiled.verdict, row, compiled
        elif compiled.verdict != "same" and self.verdict == "same":
            self.verdict = compiled.verdict

    def add_gradients(self, gradients: tuple[Gradient, ...]) -> None:
        """Gradients of a loss; where nothing else says so, those of one may round worse, by more than three bits."""
        self.gradients = gradients
        worst = [row for row in gradients if row.verdict.endswith("worse") and _is_far(row.error_a, row.error_b)]
        if self.verdict != "another function" and any(row.verdict == "another function" for row in gradients):
            self.verdict, self.where, self._behind = "another function", None, True
        elif worst and self.verdict in ("same", "rounding"):
            self.verdict, self._behind = verdict_of(False, worst[0].verdict[0]), True

    @property
    def felt(self) -> bool:
        """Whether the outputs of one are further from float64 than the other's."""
        return bool(worse(*self._found.output_roundings))

    def told(self) -> Iterator[str]:
        """The lines that stand before the rows."""
        first = self.where
        if self.verdict == "same":
            yield "same: the outputs are equal, bit for bit"
        elif self._compiled is not None:
            side, (eager, own) = self._compiled.side, self._compiled.errors
            yield f"another function: what the compiler makes of {first.place if first else side.title} in {side.name}"
            yield f"  {number(own)} from float64, and {number(eager)} uncompiled; found by {side.runs} runs"
        elif self.verdict == "another function" and first is not None:
            yield f"another function: first in {_named(first.place)}"
            lacks = math.isinf(first.apart) and first.at == BACKWARD
            far = f"in float64 {number(first.apart)} apart, of which rounding explains {number(first.bound)}"
            if first.bound or not math.isinf(first.apart):
                yield "  gradients of one of the two end there" if lacks else f"  {far}"
        elif not self.order:
            yield f"{self.verdict}: of log probabilities"
        elif self._behind:
            same = (
                "in float64 they are the same" if self.verdict.endswith("worse") else "the outputs are of one function"
            )
            yield f"{self.verdict}: in the gradients; {same}"
        elif self.verdict == "rounding" or first is None:
            yield f"{self.verdict}: in float64 both compute the same"
        else:
            yield f"{self.verdict}: first in {_named(first.place)}"
            turn = 1 if first.verdict.startswith("a ") else -1
            to = [f" to {name_of(dtype)}" for dtype in self._found.dtypes or ()] or ["", ""]
            mine, other = [f"{count(n)}{dtype}" for n, dtype in zip(first.roundings, to, strict=True)][::turn]
            if max(first.roundings) > _COUNTED:
                mine, other = [number(error) for error in (first.error_a, first.error_b)][::turn]
            yield f"  its error is {mine}, the other's {other}; in float64 both compute the same"
        if first is not None:
            if first.site:
                yield f"  {first.site}"
            yield from (f"  {line}" for line in first.state)
        if self._found.dtypes is not None:
            a, b = map(name_of, self._found.dtypes)
            yield (
                f"a computes in {a} and b in {b}: the roundings of each are to its own dtype. What the lower one "
                "costs, and where, is measured by compare"
            )
        wide = name_of(self._found.precision)
        yield (f"outputs {number(self.distance)} apart; from {wide} a {number(self.error_a)}, b {number(self.error_b)}")
        if self.verdict.endswith("worse") and not self._behind and self._found.dtypes is None and not self.felt:
            yield "the outputs do not feel it: both are as far from float64"

    def __str__(self) -> str:
        lines = [part for line in self.told() for part in _folded(line)]
        table = [("module", "in float64", "roundings a, b", "adds", "outputs")]
        own = [row for row in self.rows if row.verdict != "same"]
        table += [
            (row.title or "(the model)", apart_of(row.at, row.apart) + "!" * (row.verdict == "another function"),
             f"{short(row.roundings[0])}, {short(row.roundings[1])}", number(row.adds), number(row.outputs))
            for row in own[:_SHOWN]
        ]  # fmt: skip
        if own:
            widths = [max(len(row[n]) for row in table) for n in range(1, 5)]
            room = min(_COLUMNS - sum(widths) - 10, max(len(row[0]) for row in table))
            lines += [
                "  ".join(
                    [f"  {cut(row[0], room):<{room}}", *(f"{c:>{w}}" for c, w in zip(row[1:], widths, strict=True))]
                )
                for row in table
            ]
        if own[_SHOWN:]:
            lines.append(f"  {len(own) - _SHOWN} more")
        lines += [part for note in (*self._extra(), *self.notes) for part in _folded(note)]
        return "\n".join(lines)

    def _extra(self) -> Iterator[str]:
        if any(row.verdict != "same" for row in self.order):
            marked = any(row.verdict == "another function" for row in self.order)
            yield "!: more than rounding explains. " * marked + _COLUMNS_SAY
        if self.gradients:
            yield from Gradient.summary(self.gradients)
        if self.tokens:
            yield from Token.summary(self.tokens)
        if how := Counter(row.how for row in self.order if row.name):
            yield "modules matched: " + ", ".join(f"{n} by {kind}" for kind, n in how.items())
        if any(row.verdict == "not judged" for row in self.order):
            yield (
                "each program ran on its own inputs, so errors and roundings are of all that came before, and what "
                "lies behind the first that parts is not judged"
            )
        for side, names in zip("ab", self.unmatched, strict=True):
            if names:
                some = ", ".join(names[:3]) + ", ..." * (len(names) > 3)
                one = len(names) == 1
                who = f"{len(names)} module{'' if one else 's'} of {side} {'has' if one else 'have'} no partner"
                yield f"{who}, and {'is' if one else 'are'} a part of what is around: {some}"

    def __repr__(self) -> str:
        return f"<ProgramDiff of {self.titles[0]} and {self.titles[1]}: {self.verdict}>"

    def _data(self) -> dict[str, Any]:
        names = ("verdict", "where", "error_a", "error_b", "distance", "rows", "gradients", "tokens", "notes", "runs")
        return {
            "a": self.titles[0], "b": self.titles[1], **{name: getattr(self, name) for name in names},
            "unmatched": {"a": self.unmatched[0], "b": self.unmatched[1]}, "reference": self._found.precision,
        }  # fmt: skip

    def _cell(self) -> tuple[Any, ...]:
        from .page import parts_of

        return parts_of(self)


def rows_of(
    found: Found, model: nn.Module | None, behind: Point | None = None
) -> tuple[list[DiffRow], DiffRow | None, Verdict]:
    """One row for each match in the order of b, the first that parts, and the verdict; `behind` is of the backwards."""
    if behind is not None:
        found.points.append(behind)
    every: dict[Match, list[Point]] = {match: [] for match, _ in found.calls.values()}
    several = Counter(match.b for match in every)
    numbers = {match: number + 1 for (_, number), (match, _) in found.calls.items() if several[match.b] > 1}
    for point in found.points:
        every[point.match].append(point)
    verdict, first = _verdict(found)
    modules = {} if model is None else dict(model.named_modules())
    order = {id(point): n for n, point in enumerate(found.points)}
    parted = min((order[id(p)] for p in found.points if p.differs or p.worse), default=len(order))
    rows, told = [], None
    for match, points in every.items():
        if not points:
            continue
        point = first if first is not None and first.match == match else max(points, key=_weight)
        alone = _verdict_of(point)
        known = not found.unforced or point is first or order[id(point)] <= parted or alone == "same"
        row = DiffRow(
            name=match.b, a=match.a, how=match.how, verdict=alone if known else "not judged",
            at=point.before, site=_line(point, modules.get(match.b)), apart=point.apart, bound=point.bound,
            error_a=point.errors[0], error_b=point.errors[1], roundings=point.roundings,
            adds=point.distance if known else None,
            outputs=found.growth.get(match.b), call=numbers.get(match, 0),
            state=(*found.states.get(match.b, ()), *found.settings.get(match.b, ())),
        )  # fmt: skip
        rows.append(row)
        if point is first:
            told = row
    return rows, told, verdict


def _is_far(a: float, b: float) -> bool:
    return max(a, b) > BITS * min(a, b)


def _verdict(found: Found) -> tuple[Verdict, Point | None]:
    another = next((point for point in found.points if point.differs), None)
    if another is not None:
        return "another function", another
    sides = {side: next((p for p in found.points if p.worse == side), None) for side in "ab"}
    both = all(sides.values())
    side = worse(*found.output_roundings) if both else next((s for s, point in sides.items() if point), "")
    if side:
        return verdict_of(False, side), sides[side]
    if not found.distance and not any(point.distance for point in found.points):
        return "same", None
    return "rounding", None


def _verdict_of(point: Point) -> Verdict:
    same = not (point.differs or point.worse or point.distance)
    return "same" if same else verdict_of(point.differs, point.worse)


def _weight(point: Point) -> tuple[Any, ...]:
    more = abs(point.roundings[1] - point.roundings[0])
    return point.differs, point.apart if point.differs else 0.0, bool(point.worse), more, point.distance


def _added(row: DiffRow) -> tuple[bool, float, bool, float]:
    another, more = row.verdict == "another function", row.verdict.endswith("worse")
    return not another, -row.apart if another else 0.0, not more, -(row.adds or 0.0)


def _line(point: Point, module: nn.Module | None) -> str:
    """Where the code is: of the module's forward for a result, else the line that calls."""
    forward: Any = getattr(type(module), "forward", None)
    code = getattr(inspect.unwrap(forward), "__code__", None)  # below decorators
    if point.before or code is None or internal(code.co_filename):
        return point.site
    return f"{shown(code.co_filename)}:{code.co_firstlineno}"


def _folded(text: str) -> list[str]:
    return wrapped(text, " " * (len(text) - len(text.lstrip()) + 4))


for _public in (ProgramDiff, DiffRow, Gradient, Token):
    _public.__module__ = "dtypeguard.results"
