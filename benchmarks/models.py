"""The models that are guarded here, and the two other ways to check their inputs."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float32
from torch import Tensor, nn

import dtypeguard

Cache = tuple[tuple[Tensor, Tensor], ...]


class Pass(nn.Module):
    """Owns a Linear and returns its input: what a call costs without work."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x


class Cached(Pass):
    """The same with a key/value cache."""

    def forward(self, x: Tensor, past: Cache) -> Tensor:  # type: ignore[override]
        return x


class Block(nn.Module):
    """A feed-forward block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return out


class Net(nn.Module):
    """Two blocks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(width), Block(width))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.blocks(x)
        return out


class EnforcedNet(Net):
    """The same with annotations that are checked."""

    @dtypeguard.enforce
    def forward(self, x: Float32[Tensor, "b width"]) -> Float32[Tensor, "b width"]:
        out: Tensor = self.blocks(x)
        return out


# ---------------------------------------------------------------- peers of guard


class Wrapper(nn.Module):
    """Checks the dtype, then calls the module it holds."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.check = inner, check_of(inner)

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        out: Tensor = self.inner(x)
        return out


def check_of(module: nn.Module) -> Callable[[Tensor], None]:
    """The cheapest check by hand: the first parameter's dtype, or anything under autocast."""
    weight = next(module.parameters())

    def check(value: Tensor) -> None:
        if isinstance(value, Tensor) and value.dtype is not weight.dtype and not torch.is_autocast_enabled("cpu"):
            raise TypeError(f"input is {value.dtype}, the parameters are {weight.dtype}")

    return check


def hooked(module: nn.Module) -> nn.Module:
    """The module with a forward pre-hook that makes the same check."""
    weight = next(module.parameters())

    def check(module: nn.Module, args: tuple[Any, ...]) -> None:
        for value in args:
            if isinstance(value, Tensor) and value.dtype is not weight.dtype and not torch.is_autocast_enabled("cpu"):
                raise TypeError(f"input is {value.dtype}, the parameters are {weight.dtype}")

    module.register_forward_pre_hook(check)
    return module


# ---------------------------------------------------------------- 48 layers


LAYERS, WIDTH = 48, 256


def stack(weights: list[nn.Linear], around: Callable[[nn.Module], nn.Module] = lambda layer: layer) -> nn.Sequential:
    """Linear and ReLU in turn; all stacks share their weights, so that caches treat them alike."""
    layers: list[nn.Module] = []
    for source in weights:
        layer = nn.Linear(1, 1)
        layer.weight, layer.bias = source.weight, source.bias
        layers += [around(layer), nn.ReLU()]
    return nn.Sequential(*layers)


def stacks() -> dict[str, nn.Module]:
    """The same stack unguarded and checked in three ways."""
    weights = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    return {
        "unguarded": stack(weights),
        "guard": dtypeguard.guard(stack(weights), depth="all"),
        "forward pre-hooks": stack(weights, hooked),
        "wrapper modules": stack(weights, Wrapper),
    }
