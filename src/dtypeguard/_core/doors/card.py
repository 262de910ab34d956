"""What a guarded instance knows about its guard."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..base.errors import plain
from ..check.sides import is_wrong_inside, refused
from ..contract.anchor import LOSSES
from .forward import Key, Options
from .inside import Opened, doors_of, modules_of
from .state import Holder


@dataclass
class Card:
    """What an instance knows about its guard: where it stands, and how to take the guard off."""

    path: str
    key: Key
    shadow: tuple[str, Any, Any] | None = None  # what hides the class's forward: its name, as it was, as guarded
    hooks: tuple[Any, ...] = ()  # of a GraphModule, whose class cannot be swapped
    file: str | None = None  # where `guard` was called
    maker: str = "dtypeguard.guard(model, {})"  # what took its options, for advice
    skip: tuple[Any, ...] = ()  # submodules to leave alone
    follows: bool = False  # whether side inputs are repaired where PyTorch's own modules inside would refuse them
    known: tuple[list[nn.Module], Opened] | None = None  # the modules inside, and the doors among them
    holder: Holder | None = None  # of what the model must hold

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "known": None}

    def opened(self, module: nn.Module) -> Opened:
        """The doors inside, for the time of a call with side inputs."""
        inside, known = modules_of(module)[1:], self.known  # without the module: no cycle
        if known is None or known[0] != inside or not known[1].fits():
            none: frozenset[str] = frozenset()  # `skip_args` and `move_args` name the model's own arguments
            told = inner(self.key.options)
            options = dataclasses.replace(told, dtype=None, device=None, skip_args=none, move_args=none)
            doors = doors_of(module, self.path, options, self.file, self.skip)
            known = self.known = inside, Opened(doors)
        return known[1]

    def keep_open(self, module: nn.Module) -> bool:
        """Have the doors inside stand until `unguard`, for compiled code; whether one did not stand before."""
        return self.opened(module).put()

    def advice(self, module: nn.Module, error: BaseException) -> str:
        """What to write when torch's own error comes out of a body."""
        if isinstance(module, LOSSES):
            odd = [f"`{name}` is {plain(buffer.dtype)}" for name, buffer in module.named_buffers()]
            return f"; of its buffers {', '.join(odd)}" if odd else ""
        told = refused(error, module)
        if told:
            return told
        if self.key.options.depth == "all" or not is_wrong_inside(error, module):
            return ""
        return '; guard(model, depth="all") also checks tensors that the model creates'


def inner(options: Options) -> Options:
    """The options of a guard, for a module inside of the model."""
    return dataclasses.replace(options, output_dtype=None)
