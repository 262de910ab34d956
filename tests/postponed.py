"""Forms whose annotations are strings, as `from __future__ import annotations` makes them."""

# ruff: noqa: UP037  (axes are no forward references)

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import InitVar, dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Float, Float32
from torch import Tensor, nn

from dtypeguard import enforce

Row = Float32[Tensor, "n"]


@enforce
def function(x: Row, y: Row) -> Row:
    return x + y


@enforce
def forward_reference(x: DefinedBelow, y: DefinedBelow) -> DefinedBelow:
    return x + y


class Plain:
    Own = Float32[Tensor, "n"]

    @enforce
    def method(self, x: Own, y: Plain.Own) -> Own:
        return x + y


@enforce
class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Float[Tensor, "n"], y: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
        return self.scale * x + y


@enforce
@dataclass
class Data:
    x: Row
    y: Row = field(default_factory=lambda: torch.zeros(3))


@dataclass
class Base:
    """For a subclass in another module, where `Row` means nothing."""

    x: Row


@enforce
@dataclass
class Init:
    x: Row
    y: InitVar[Row]

    def __post_init__(self, y: Tensor) -> None:
        self.total = self.x + y


@dataclass
class Node:
    x: Row
    next: Node | None = None


@enforce
def generator(x: Row, y: Row) -> Iterator[Row]:
    yield x + y


@enforce
async def stream(x: Row, y: Row) -> AsyncIterator[Row]:
    await asyncio.sleep(0)
    yield x + y


@enforce
class Named(NamedTuple):
    x: Row
    y: Row


def local() -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """Forms that are written inside a function, whose names no module has."""
    Local = Float32[Tensor, "n"]

    @enforce
    def function(x: Local, y: Local) -> Local:
        return x + y

    class Inner:
        @enforce
        def method(self, x: Local, y: Local) -> Local:
            return x + y

    @enforce
    class Module(nn.Module):
        def forward(self, x: Local, y: Local) -> Local:
            return x + y

    @enforce
    @dataclass
    class Rows:
        x: Local
        y: Local

    @enforce
    class Tuple(NamedTuple):
        x: Local
        y: Local

    @dataclass
    class Batch:
        x: Local
        y: Local

    @enforce
    def batched(batch: Batch) -> Local:
        return batch.x + batch.y

    return {
        "function in a function": function,
        "class in a function": Inner().method,
        "module class in a function": Module(),
        "dataclass in a function": lambda x, y: Rows(x, y).y,
        "NamedTuple in a function": lambda x, y: Tuple(x, y).y,
        "local dataclass as argument": lambda x, y: batched(Batch(x, y)),
    }


DefinedBelow = Float32[Tensor, "n"]
