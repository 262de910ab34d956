"""Forms whose annotations are strings, as `from __future__ import annotations` makes them."""

# ruff: noqa: UP037  (axes are no forward references)

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
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


@enforce
class Named(NamedTuple):
    x: Row
    y: Row


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


def local_alias(x: Tensor, y: Tensor) -> Tensor:
    Local = Float32[Tensor, "n"]

    @enforce
    def inner(x: Local, y: Local) -> Local:
        return x + y

    return inner(x, y)


def local_class(x: Tensor, y: Tensor) -> Tensor:
    Local = Float32[Tensor, "n"]

    class Inner:
        @enforce
        def method(self, x: Local, y: Local) -> Local:
            return x + y

    return Inner().method(x, y)


def local_module(x: Tensor, y: Tensor) -> Tensor:
    Local = Float32[Tensor, "n"]

    @enforce
    class Inner(nn.Module):
        def forward(self, x: Local, y: Local) -> Local:
            return x + y

    return Inner()(x, y)


def local_dataclass(x: Tensor, y: Tensor) -> Tensor:
    Local = Float32[Tensor, "n"]

    @enforce
    @dataclass
    class Inner:
        x: Local
        y: Local

    inner = Inner(x, y)
    return inner.x + inner.y


def local_named_tuple(x: Tensor, y: Tensor) -> Tensor:
    Local = Float32[Tensor, "n"]

    @enforce
    class Inner(NamedTuple):
        x: Local
        y: Local

    inner = Inner(x, y)
    return inner.x + inner.y


def local_dataclass_argument(x: Tensor, y: Tensor) -> Tensor:
    Local = Float32[Tensor, "n"]

    @dataclass
    class Batch:
        x: Local
        y: Local

    @enforce
    def inner(batch: Batch) -> Local:
        return batch.x + batch.y

    return inner(Batch(x, y))


DefinedBelow = Float32[Tensor, "n"]
