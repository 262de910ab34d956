"""What docs/limits.md says of contracts, as it is: a limit that goes takes its sentence with it."""

import dataclasses
from collections.abc import Generator
from typing import NamedTuple

import pytest
import torch
from jaxtyping import Float32, print_bindings
from torch import Tensor

from dtypeguard import DtypeError, HintError, check, enforce

Row = Float32[Tensor, "n"]


def f32():
    return torch.ones(2)


def f64():
    return torch.ones(2, dtype=torch.float64)


@enforce(mode="strict")
@dataclasses.dataclass
class Batch:
    x: Row
    y: Row = dataclasses.field(default_factory=f64)
    n: int = 1

    def __post_init__(self):
        self.x = self.x.double()


@enforce(mode="strict")
class Pair(NamedTuple):
    x: Row
    n: int = 1


@enforce(mode="strict")
def join(x: Row, y: Row = torch.empty(0, dtype=torch.float64)):  # noqa: B008
    return x if y.numel() == 0 else torch.cat([x, y])


def test_a_default_may_stand_for_no_value():
    assert join(f32()).dtype is torch.float32
    with pytest.raises(DtypeError):
        join(f32(), f64())


def test_a_dataclass_is_checked_on_what_it_is_given_and_not_afterwards():
    for wrong in ({"x": f64()}, {"x": f32(), "y": f64()}):
        with pytest.raises(DtypeError):
            Batch(**wrong)
    batch = Batch(f32())
    assert (batch.x.dtype, batch.y.dtype) == (torch.float64, torch.float64)
    batch.x = f64()
    with pytest.raises(DtypeError):
        dataclasses.replace(batch, y=f32())
    with pytest.raises(DtypeError, match=r"batch\.x"):
        check(batch, Batch, name="batch", mode="strict")


def test_a_named_tuple_is_not_checked_where_it_is_built_past_its_constructor():
    with pytest.raises(DtypeError):
        Pair(f64())
    for pair in (Pair._make([f64(), 1]), Pair(f32())._replace(x=f64())):
        assert pair.x.dtype is torch.float64
        with pytest.raises(DtypeError, match=r"pair\.x"):
            check(pair, Pair, name="pair", mode="strict")


def test_fields_without_tensors_are_checked_where_they_are_built_only():
    with pytest.raises(HintError):
        Pair(f32(), "1")
    assert check(Pair(f32())._replace(n="1"), Pair, mode="strict").n == "1"


def test_what_is_sent_into_a_generator_is_not_checked():
    @enforce(mode="strict")
    def stream(x: Row) -> Generator[Row, Row, Row]:
        sent = yield x
        yield sent.float()
        yield sent

    items = stream(f32())
    next(items)
    assert items.send(f64()).dtype is torch.float32
    with pytest.raises(DtypeError):
        next(items)


def test_bindings_are_printed_only_in_a_function_that_asks_isinstance(capsys):
    @enforce
    def asks(x: Row):
        print_bindings()
        return isinstance(x, Tensor)

    @enforce
    def asks_nothing(x: Row):
        print_bindings()

    asks(f32())
    assert "n=2" in capsys.readouterr().out
    asks_nothing(f32())
    assert capsys.readouterr().out.strip() == ""
