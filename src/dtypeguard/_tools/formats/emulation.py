"""A model whose forwards round the operands of its matrix products, and that copies, pickles and trains with it."""

import contextlib
import threading
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import BaseTorchFunctionMode

from ..._core.base.compiler import unseen
from ..._core.base.errors import CompareError
from ..._core.base.patches import Patches
from .products import Products
from .table import Format


class _Running(threading.local):
    """The calls of one thread: the names of the modules that run."""

    def __init__(self) -> None:
        self.names: list[str] = []


class _Emulation:
    """What all forwards of one model share."""

    def __init__(self, model: nn.Module, formats: Mapping[str, Format], attention: Format | None) -> None:
        self.model, self.formats, self.attention, self.running = model, dict(formats), attention, _Running()
        self.forwards = 0  # so that stochastic rounding is another one in each

    def __getstate__(self) -> Any:
        return self.model, self.formats, self.attention

    def __setstate__(self, state: Any) -> None:
        self.__init__(*state)  # type: ignore[misc]  # a copy runs by itself

    @contextlib.contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """A module runs; the outermost one turns the rounding on."""
        names = self.running.names
        names.append(name)
        try:
            with contextlib.ExitStack() as stack:
                if len(names) == 1:
                    if self.attention is not None:
                        stack.enter_context(apart())
                    seed, self.forwards = self.forwards, self.forwards + 1
                    products = Products(self.model, self.formats, lambda: names[-1], self.attention, seed=seed)
                    stack.enter_context(products.on())
                    stack.enter_context(BaseTorchFunctionMode())  # beside one, a whole layer is not one kernel
                yield
        finally:
            names.pop()


class _Rounded:
    """The forward of one module. A hook would not be told of an interrupt, nor of a call past the model's forward."""

    def __init__(self, emulation: _Emulation, name: str, module: nn.Module) -> None:
        self.emulation, self.name, self.module = emulation, name, module
        self.own = module.__dict__.get("forward")  # that of an instance, as some libraries set it

    @property
    def __wrapped__(self) -> Any:
        return types.MethodType(type(self.module).forward, self.module) if self.own is None else self.own

    @property
    def __code__(self) -> types.CodeType:  # which torch.export reads
        code: types.CodeType = self.__wrapped__.__code__
        return code

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        traced: Any = torch.jit
        if traced.is_tracing() or torch.compiler.is_exporting():
            raise CompareError(
                "the formats that `apply` put on this model are emulated, and a graph that is traced or exported would "
                "not round: trace the model without them, after kept.remove(model)"
            )
        with self.emulation.inside(self.name):
            return self.__wrapped__(*args, **kwargs)


# A compiled model runs it as it is, where it meets it, and in what it calls.
unseen(_Rounded.__call__, inside=True)
_Rounded.__call__._torchdynamo_disable = True  # type: ignore[attr-defined]  # what `torch.compiler.disable` sets


def emulate(model: nn.Module, formats: Mapping[str, Format], attention: Format | None) -> None:
    """Round in the forwards of a model and of its modules, in place of what was applied before."""
    restore(model)
    emulation = _Emulation(model, formats, attention)
    for name, module in model.named_modules():
        if not isinstance(module, torch.jit.ScriptModule):
            module.__dict__["forward"] = _Rounded(emulation, name, module)


def restore(model: nn.Module) -> None:
    """Take off what `emulate` has put on a model, or on one around it."""
    for module in model.modules():
        forward = module.__dict__.get("forward")
        if isinstance(forward, _Rounded):
            del module.__dict__["forward"]
            if forward.own is not None:
                module.__dict__["forward"] = forward.own


def emulated(model: nn.Module) -> bool:
    """Whether a model, or a part of it, rounds."""
    return any(isinstance(module.__dict__.get("forward"), _Rounded) for module in model.modules())


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Attention in here is two products and what is between them, not one kernel."""
    with Patches().for_a_block() as patches:
        patches.instead(F, "scaled_dot_product_attention", _by_products)
        patches.enter_thread()
        yield


def _by_products(following: Any, *args: Any, **kwargs: Any) -> Any:
    math: Any = torch.ops.aten._scaled_dot_product_attention_math
    return math(*args, **kwargs)[0]
