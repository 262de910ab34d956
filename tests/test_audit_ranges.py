"""`report.ranges`: how large the values of each module are, against the limits of float16; the course of a total."""

import math
import re

import pytest
import torch
from support import BF16, F32, F64
from torch import nn

import dtypeguard
from dtypeguard import audit

TINY, HUGE = 2.0**-30, 2.0**17


class Scales(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor


def ranges(program, *args, values="range", every=None):
    with audit(values=values, every=every) as report:
        program(*args)
    return report.ranges


# What a module returns, and: counts by power of two, zeros, values that are not finite, the largest.
COUNTED = {
    "powers": ([1.0, 1.5, -2.0, 0.25], {0: 2, 1: 1, -2: 1}, 0, 0, 2.0),
    "zeros": ([0.0, -0.0, 3.0], {1: 1}, 2, 0, 3.0),
    "not finite": ([math.inf, math.nan, 5.0], {2: 1}, 0, 2, 5.0),
    "subnormal": ([1e-45], {-149: 1}, 0, 0, pytest.approx(1.4e-45)),
    "nothing but zero": ([0.0], {}, 1, 0, 0.0),
}


@pytest.mark.parametrize("values", ["range", True])
@pytest.mark.parametrize("name", COUNTED)
def test_values_are_counted_by_their_power_of_two(name, values):
    given, exponents, zeros, odd, largest = COUNTED[name]
    (row,) = ranges(nn.Identity(), torch.tensor(given), values=values)
    assert (row.module, row.what, row.dtype, row.values) == ("Identity", "output", "float32", len(given))
    assert (row.exponents, row.zeros, row.not_finite) == (exponents, zeros, odd)
    assert row.largest == (largest if odd == 0 else pytest.approx(largest, abs=5.0))


@pytest.mark.parametrize("dtype", [F32, F64, BF16])
def test_each_dtype_has_a_row_of_its_own(dtype):
    model = nn.Sequential(Scales(2.0), Scales(3.0))
    rows = ranges(lambda: (model(torch.ones(4)), model(torch.ones(4, dtype=dtype))))
    assert {row.dtype for row in rows} == {"float32", str(dtype)[6:]}
    assert [row.module for row in rows if row.dtype == "float32"] == ["Sequential.0", "Sequential.1"]


def test_a_module_that_returns_what_its_last_child_did_has_no_row_and_another_one_has():
    inner = nn.Sequential(Scales(2.0), Scales(0.5))
    assert [row.module for row in ranges(inner, torch.ones(3))] == ["Sequential.0", "Sequential.1"]

    class Doubles(nn.Sequential):
        def forward(self, x):
            return 2 * super().forward(x)

    assert [row.module for row in ranges(Doubles(nn.ReLU()), torch.ones(3))] == ["Doubles.0", "Doubles"]


def test_gradients_are_those_that_a_step_uses():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        (model(torch.ones(2, 4)).sum() * TINY).backward()
        optimizer.step()

    rows = [row for row in ranges(step) if row.what == "gradient"]
    assert [row.module for row in rows] == ["Sequential.0", "Sequential.1"]
    assert all(row.largest < 2.0**-24 and row.values > 0 for row in rows)
    assert rows[1].below > 0.1


def test_what_float16_does_not_hold():
    small, large, fits = ranges(nn.Sequential(Scales(TINY), Scales(HUGE / TINY), Scales(1 / HUGE)), torch.ones(8))
    assert [(row.below, row.beyond) for row in (small, large, fits)] == [(1.0, False), (0.0, True), (0.0, False)]
    assert (small.low, small.high, large.smallest) == (TINY, TINY, HUGE)


def test_a_text_has_a_strip_for_each_module_below_the_limits():
    text = str(ranges(nn.Sequential(Scales(2.0**-24), Scales(2.0**40)), torch.ones(8)))
    head, scale, small, large = text.splitlines()
    assert head == "range of values by module: outputs"
    assert small.index("\u2588") == scale.index("6e-8") + 2
    assert large.index("\u2588") == scale.index("65504") + 2
    assert max(map(len, text.splitlines())) <= 80


def test_a_terminal_without_blocks_gets_letters(monkeypatch):
    class Narrow:
        encoding = "ascii"

    rows = ranges(nn.Identity(), torch.ones(8))
    monkeypatch.setattr("sys.stdout", Narrow())
    assert str(rows).splitlines()[-1].split()[2] == "@"


def test_steps_that_are_not_looked_at_count_nothing():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run():
        for step in range(8):
            (model(torch.ones(1, 4) * 4.0**step).sum()).backward()
            optimizer.step()
            optimizer.zero_grad()

    output, gradient = ranges(run, every=4)
    assert (output.values, gradient.values) == (2, 10)


def test_without_values_there_are_no_ranges():
    report = audit(nn.Identity(), torch.ones(3))
    assert len(report.ranges) == 0
    assert "no module" in str(report.ranges)
    assert report.to_dict()["ranges"] == []


def test_a_large_output_is_sampled_in_all_its_columns():
    values = torch.ones(64, 1024)
    values[:, ::2] = 2.0**-8
    (row,) = ranges(nn.Identity(), values)
    assert row.values < values.numel()
    assert row.exponents[0] == pytest.approx(row.exponents[-8], rel=0.05)


# --- a total and its shadow -------------------------------------------------------------------------------------------


def counts(dtype):
    total = torch.zeros(4, dtype=dtype)
    for _ in range(600):
        total += 1
    return total


def test_the_course_of_a_total_shows_where_it_stands():
    with audit(values=True) as report:
        counts(BF16)
    (finding,) = report.findings
    writes, moved, should = map(list, zip(*finding.course, strict=True))
    assert writes == sorted(writes)
    assert moved == sorted(moved)
    assert max(moved) == moved[-1] == pytest.approx(2 * 255, abs=4)  # the norm of four values
    assert should[-1] > 2 * moved[-1]
    assert [a for a, b in zip(moved, should, strict=True) if a == b][-1] == moved[-1]  # until 256 they are the same
    assert "how far the values of `add_` have moved" in report.to_html()


def test_a_page_shows_the_ranges():
    with audit(values="range") as report:
        nn.Sequential(Scales(TINY), Scales(HUGE))(torch.ones(8))
    page = report.to_html()
    assert re.search('<svg[^>]*aria-label="range of values by module"', page)
    assert report.ranges.to_dict()["rows"] == report.to_dict()["ranges"]
    assert isinstance(report.ranges, dtypeguard.results.Ranges)
