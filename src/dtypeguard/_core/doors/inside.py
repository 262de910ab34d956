"""Doors at PyTorch's own modules inside a model, where a side input is repaired that they would refuse.

A door stands for the time of the model's call: the module has a `forward` of its own then, which checks. No class
changes, nothing stays, and what other threads and models pass through a door goes on unchecked.
"""

import threading
import types
import weakref
from typing import Any, NamedTuple

from torch import nn

from ..check.sides import again, running
from ..contract.anchor import slots
from ..contract.model import Contract
from ..wrap.build import build, sign, signed
from .choose import owners, refuses_wider
from .forward import Key, Options, contract_of

_lock = threading.Lock()
_standing: dict[int, int] = {}  # how many calls a door stands for, by the module's id
_made: weakref.WeakKeyDictionary[type, dict[Any, Any]] = weakref.WeakKeyDictionary()


class Door(NamedTuple):
    """What a module inside of a model is held to, while the model runs."""

    module: nn.Module
    path: str
    forward: Any  # the class's
    check: types.MethodType  # what stands before that
    contract: Contract


def doors_of(root: nn.Module, path: str, options: Options, file: str | None, skip: tuple[Any, ...]) -> dict[int, Door]:
    """The doors of a model, by the ids of the modules that they stand at."""
    found = {}
    for name, child in owners(root, skip):
        # A door would stand in the way of accelerate's hooks, which bring the weights.
        if not {"_dtypeguard", "_hf_hook"} & child.__dict__.keys() and refuses_wider(child):
            forward, key = type(child).forward, Key(options, slots(child))
            made = _check_of(type(child), forward, key, file)
            found[id(child)] = Door(
                child, f"{path}.{name}", forward, types.MethodType(made, child), made.__dtypeguard__[1]
            )
    return found


def _check_of(cls: Any, forward: Any, key: Key, file: str | None) -> Any:
    """The function that checks, then calls the forward of a class; one for all modules that are alike."""
    known = _made.setdefault(cls, {})
    facts = (forward, key, file)
    if facts not in known:
        contract = contract_of(cls, forward, key)
        contract.door, contract.file = True, file
        made = build(forward, contract, anchor=key.slots)
        sign(made, forward, contract)
        known[facts] = made
    return known[facts]


class Opened:
    """A context manager: the doors stand, and are this thread's."""

    __slots__ = ("_doors",)

    def __init__(self, doors: dict[int, Door]) -> None:
        self._doors = doors

    def fits(self) -> bool:
        """Whether all modules still are as they were: another author may have given one a forward since."""
        for module, _, forward, check, _ in self._doors.values():
            own = module.__dict__.get("forward")
            if type(module).forward is not forward or not (own is None or own is check or is_door(own)):
                return False
        return True

    def put(self) -> bool:
        """Have the doors stand for one more call; returns whether one did not stand before."""
        new = False
        with _lock:
            for address, door in self._doors.items():
                if address not in _standing:
                    _standing[address] = 0
                    door.module.__dict__["forward"] = door.check
                    new = True
                _standing[address] += 1
        return new

    def __enter__(self) -> None:
        self.put()
        running.doors = (*running.doors, self._doors)

    def __exit__(self, *_: object) -> None:
        running.doors = running.doors[:-1]
        stay = again or ()  # to ask an empty one costs as much as all else
        with _lock:
            for address, door in self._doors.items():
                _standing[address] -= 1
                if not _standing[address]:
                    del _standing[address]
                    own = door.module.__dict__.get("forward")
                    ours = own is door.check or is_door(own)  # also that of another model, which has left before
                    if ours and door.module not in stay:
                        del door.module.__dict__["forward"]


def take(module: nn.Module) -> None:
    """Take a door away, unless another forward stands in its place by now."""
    own = module.__dict__.get("forward")
    if is_door(own):
        del module.__dict__["forward"]


def is_door(forward: Any) -> bool:
    """Whether an instance's forward is a door."""
    note = signed(forward.__func__) if isinstance(forward, types.MethodType) else None
    return note is not None and note[1].door


def modules_of(root: nn.Module) -> list[nn.Module]:
    """All modules of a model, each once; quicker than `modules()`."""
    found = [root]
    seen = {root}
    for module in found:
        for child in module._modules.values():
            if child is not None and child not in seen:
                seen.add(child)
                found.append(child)
    return found
