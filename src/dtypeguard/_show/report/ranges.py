"""The range of values by module, against the limits of the dtypes that are narrower."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..fragment import table
from ..result import Drawn, plain
from ..result import Row as Part
from ..svg import Axis, Bars, Limit, Row
from ..text import cut, limit, spark

_MOST = 60  # rows of a picture
_EDGES = 0.01  # of the values on each side, which a bar leaves out
_FIRST, _WIDTH = -40, 32  # of a text: the power of two at the left, and letters of two powers each
_NAME = 26
_COUNTED = "module", "what", "dtype", "values", "zeros", "not_finite", "largest"
_WORKED_OUT = "smallest", "low", "high", "below"
_HALF = torch.finfo(torch.float16)
_SMALLEST = _HALF.smallest_normal * _HALF.eps


@dataclass(frozen=True, slots=True)
class Range(Part):
    """How large the values of one module are.

    Attributes:
        module: its path.
        what: "output", or "gradient" of its parameters, as an optimizer's step uses it.
        dtype: the dtype of these values, as "float32".
        values: how many were looked at: of each tensor about 4,000, evenly chosen.
        zeros: how many of them are zero.
        not_finite: how many are infinite or NaN.
        largest: the largest magnitude that is finite, of all values.
        exponents: how many have a magnitude from 2^n to 2^(n+1), by n.
    """

    module: str
    what: str
    dtype: str
    values: int
    zeros: int
    not_finite: int
    largest: float
    exponents: Mapping[int, int] = field(default_factory=dict)

    @property
    def low(self) -> float:
        """The magnitude that 99 % of the values that are not zero reach, to a power of two."""
        return 2.0 ** self._exponent(_EDGES)

    @property
    def high(self) -> float:
        """The magnitude that 99 % of them are below, to a power of two."""
        return min(2.0 ** (1 + self._exponent(1 - _EDGES)), self.largest)

    @property
    def smallest(self) -> float:
        """A magnitude below all of them, to a power of two; 0 if all are zero."""
        return 2.0 ** min(self.exponents) if self.exponents else 0.0

    @property
    def below(self) -> float:
        """The share of values (0 to 1) that float16 rounds to zero."""
        return sum(count for n, count in self.exponents.items() if n < -25) / max(1, self.values)

    @property
    def beyond(self) -> bool:
        """Whether a value is larger than float16's largest."""
        return self.largest > _HALF.max

    def _exponent(self, share: float) -> int:
        total, ordered = sum(self.exponents.values()), sorted(self.exponents.items())
        sums = itertools.accumulate(count for _, count in ordered)
        return next((n for (n, _), below in zip(ordered, sums, strict=True) if below > share * total), 0)


class Ranges(Drawn):
    """The range of values by module: `report.ranges`, of an audit with `values=`.

    Attributes:
        rows (tuple[Range, ...]): one for each module, kind of tensor and dtype, in the order in which they ran.
    """

    kind = "ranges"

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self.rows: tuple[Range, ...] = tuple(map(range_of, rows))

    def __iter__(self) -> Iterator[Range]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"<ranges of {len(self.rows)} rows>"

    def __str__(self) -> str:
        return "\n".join(_lines(self.rows))

    def _data(self) -> dict[str, Any]:
        return {"rows": self.data()}

    def data(self) -> list[dict[str, Any]]:
        """The rows, as they are in a report."""
        worked_out = ({name: getattr(row, name) for name in _WORKED_OUT} for row in self.rows)
        rows = zip(self.rows, worked_out, strict=True)
        return [plain(row) | more | {"exponents": {str(n): c for n, c in row.exponents.items()}} for row, more in rows]

    def _picture(self) -> Bars:
        return picture_of(self.rows)

    def _cell(self) -> tuple[Any, ...]:
        head = ("module", "what", "dtype", "smallest", "1 %", "99 %", "largest", "0 in float16")
        rows = [
            (r.module, r.what, r.dtype, limit(r.smallest), limit(r.low), limit(r.high), limit(r.largest), _lost(r))
            for r in self.rows
        ]
        return "range of values by module", table("", head, rows, "range")


def range_of(data: Mapping[str, Any]) -> Range:
    """A row from what an engine has counted, or from a report's data."""
    exponents = {int(exponent): count for exponent, count in data["exponents"].items()}
    return Range(**{name: data[name] for name in _COUNTED}, exponents=exponents)


def _lost(row: Range) -> str:
    """What float16 would do to the values."""
    share = f"{100 * row.below:.2g} %" if row.below else ""
    return share + (", " if share and row.beyond else "") + "inf" * row.beyond


# --- as a picture -----------------------------------------------------------------------------------------------------


def picture_of(rows: Sequence[Range]) -> Bars:
    """A bar from the smallest to the largest value, solid for 98 % of them; red where float16 does not hold them."""
    shown = [row for row in rows if row.exponents]
    far = sorted(range(len(shown)), key=lambda n: min(shown[n].low / _SMALLEST, _HALF.max / shown[n].largest))
    return Bars(
        "range of values by module",
        [_bar(shown[n]) for n in sorted(far[:_MOST])],
        Axis("magnitude", log=10),
        [Limit(_SMALLEST, "6e-8", "above", "x"), Limit(_HALF.max, "65504", "above", "x")],
        [("f0", "98 % of the values"), ("unknown", "all of them"), ("above", "0 or inf in float16")],
    )


def _bar(row: Range) -> Row:
    whole, middle = (row.smallest, row.largest), (row.low, row.high)
    pieces = [(*whole, "unknown"), (*middle, "f0")]
    pieces += [(low, min(high, _SMALLEST), "above") for low, high in (middle,) if low < _SMALLEST]
    pieces += [(max(low, _HALF.max), high, "above") for low, high in (whole,) if high > _HALF.max]
    told = f"{row.module}, {row.what}: {limit(row.smallest)} to {limit(row.largest)}"
    return Row(row.module, pieces, f"{row.what}, {row.dtype}", told=told)


# --- as text ----------------------------------------------------------------------------------------------------------


def _lines(rows: Sequence[Range]) -> Iterator[str]:
    """A line for each: how many of its values are at each two powers of two, below the limits of float16."""
    if not rows:
        yield "no module has returned values"
    for what, some in itertools.groupby(rows, lambda row: row.what):
        yield f"range of values by module: {what}s"
        yield f"{'':{_NAME}} {'':8} {_scale()}  largest".rstrip()
        for row in some:
            yield f"{cut(row.module, _NAME):{_NAME}} {row.dtype:8} {_strip(row)}  {limit(row.largest)}"


def _scale() -> str:
    marks = [" "] * _WIDTH
    for exponent, said in ((-24, "6e-8"), (0, "1"), (16, "65504")):
        start = (exponent - _FIRST) // 2 - len(said) // 2
        marks[start : start + len(said)] = said
    return "".join(marks)


def _strip(row: Range) -> str:
    counts = [0] * _WIDTH
    for exponent, count in row.exponents.items():
        counts[min(max((exponent - _FIRST) // 2, 0), _WIDTH - 1)] += count
    return spark(count / max(counts) for count in counts)


for _public in (Range, Ranges):
    _public.__module__ = "dtypeguard.results"
