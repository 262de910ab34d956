"""A model whose forwards round the operands of its matrix products: hooks that copy, pickle and train with it."""

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..._core.base.patches import Patches
from .products import Products
from .table import Format


class _Running(threading.local):
    """The calls of one thread: what the outermost has turned on, and the names of the modules that run."""

    def __init__(self) -> None:
        self.on: list[contextlib.ExitStack] = []
        self.names: list[str] = []


class _Emulation:
    """What all hooks of one model share."""

    def __init__(self, formats: Mapping[str, Format], attention: Format | None) -> None:
        self.formats, self.attention, self.running = dict(formats), attention, _Running()
        self.forwards = 0  # so that stochastic rounding is another one in each

    def __getstate__(self) -> Any:
        return self.formats, self.attention

    def __setstate__(self, state: Any) -> None:
        self.__init__(*state)  # type: ignore[misc]  # a copy runs by itself

    def name(self) -> str | None:
        return self.running.names[-1] if self.running.names else None


class _Enter:
    """Before the forward of a module; the model's own turns the rounding on."""

    def __init__(self, emulation: _Emulation, name: str) -> None:
        self.emulation, self.name = emulation, name

    def __call__(self, module: nn.Module, args: Any) -> None:
        running = self.emulation.running
        if not self.name:
            with contextlib.ExitStack() as stack:
                attention = self.emulation.attention
                if attention is not None:
                    stack.enter_context(apart())
                products = Products(
                    module, self.emulation.formats, self.emulation.name, attention, seed=self.emulation.forwards
                )
                self.emulation.forwards += 1
                stack.enter_context(products.on())
                running.on.append(stack.pop_all())
        running.names.append(self.name)


class _Leave(_Enter):
    """After the forward of a module, whether it returns or raises."""

    def __call__(self, module: nn.Module, args: Any, result: Any = None) -> None:
        running = self.emulation.running
        if running.names:  # a forward that began before the hooks were there has turned nothing on
            running.names.pop()
            if not self.name and running.on:
                running.on.pop().close()


def emulate(model: nn.Module, formats: Mapping[str, Format], attention: Format | None) -> None:
    """Round in each forward of a model, in place of what was applied to it before."""
    emulation = _Emulation(formats, attention)
    for name, module in model.named_modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key in [key for key, hook in hooks.items() if isinstance(hook, _Enter)]:
                del hooks[key]
        module.register_forward_pre_hook(_Enter(emulation, name), prepend=True)
        module.register_forward_hook(_Leave(emulation, name), always_call=True)


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Attention in here is two products and what is between them, not one kernel."""
    patches = Patches()
    try:
        patches.instead(F, "scaled_dot_product_attention", _by_products)
        patches.enter_thread()
        yield
    finally:
        patches.undo()


def _by_products(following: Any, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
                 dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
                 enable_gqa: bool = False) -> Any:  # fmt: skip
    math: Any = torch.ops.aten._scaled_dot_product_attention_math
    return math(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)[0]
