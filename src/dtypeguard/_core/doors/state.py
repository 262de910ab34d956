"""`guard(state=)`: what a model holds is checked at its first call, and at the first call after a change.

A change is what converts a module or loads into it: `_apply`, which `.to()` and its like call, and `load_state_dict`.
It puts a hook on the model that checks and takes itself off, so other calls cost what they cost without it.
"""

import ctypes
import os
import threading
import weakref
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from ..base.compiler import unseen
from ..base.config import Mode, current_mode
from ..base.errors import ContractWarning
from ..base.frames import caller, hide_frames, place, warn_at
from ..base.modules import walk
from ..base.patches import Patches
from ..state.contents import Contents, load
from ..state.differences import differences, state_error
from ..state.reading import read

_patches = Patches()
_models: dict[int, weakref.ref[nn.Module]] = {}  # those that are looked after, by id
_lock = threading.RLock()  # a model may end while it is held
_here = threading.local()


@dataclass(eq=False)
class Holder:
    """What one model must hold; as a hook, it checks that.

    Attributes:
        contents: of the manifest.
        mode: that of the guard, None for the one in force.
        file: where `guard` was called.
        changes: the lines that changed what the model holds, since it was last checked.
    """

    contents: Contents
    mode: Mode | None
    file: str | None
    changes: list[str] = field(default_factory=list)

    def arm(self, module: nn.Module, line: str = "") -> None:
        """Check at the next call."""
        self.changes += [line] if line and line not in self.changes else []
        if self not in module._forward_pre_hooks.values():
            module.register_forward_pre_hook(self, prepend=True)

    def disarm(self, module: nn.Module) -> None:
        for key, hook in [*module._forward_pre_hooks.items()]:
            if hook is self:
                del module._forward_pre_hooks[key]

    def __call__(self, module: nn.Module, args: Any) -> None:
        __tracebackhide__ = True
        if torch.compiler.is_dynamo_compiling():
            _look_once(id(self), id(module))
            return
        self.look(module)
        self.disarm(module)
        self.changes.clear()

    def look(self, module: nn.Module) -> None:
        """Check now: strict mode raises, lenient mode and `warn` warn."""
        __tracebackhide__ = True
        mode = current_mode(self.mode, self.file)
        if mode is Mode.OFF:
            return
        shapes, devices = map(self.contents.asks, ("shape", "device"))
        found = differences(self.contents, read(module, shapes=shapes, devices=devices))
        if not found:
            return
        error = state_error(found, self.changes)
        if mode is Mode.STRICT:
            hide_frames()
            raise error
        warning = ContractWarning(error.args[0])
        warning.code = error.code
        warn_at(caller(), warning)


unseen(Holder.__call__, inside=True)  # of a compiled model it runs as it is; in a compiled function, Dynamo traces it


def _look_once(holder: int, module: int) -> None:
    """The check while Dynamo traces, which it does anew when a dtype has changed."""
    ctypes.cast(holder, ctypes.py_object).value.look(ctypes.cast(module, ctypes.py_object).value)


vars(_look_once)["_dynamo_marked_constant"] = True  # it runs at once; objects are no constants before torch 2.13


class HasContents(Protocol):
    """A manifest."""

    contents: Contents


# As the user knows it; its own class is further up in the package.
HasContents.__module__, HasContents.__qualname__ = "dtypeguard.results", "Manifest"

State = str | os.PathLike[str] | HasContents


def holder_of(state: State, mode: Mode | None, file: str | None) -> Holder:
    """What `guard(state=)` holds a model to.

    Raises:
        TypeError: it is no manifest, and no path of one.
        OSError, ValueError: the file cannot be read, or is none.
    """
    contents = load(state) if isinstance(state, str | os.PathLike) else getattr(state, "contents", None)
    if not isinstance(contents, Contents):
        raise TypeError(
            f"state={state!r} is no manifest, and no path of one: write dtypeguard.manifest(model).save(...)"
        )
    return Holder(contents, mode, file)


def look_after(module: nn.Module, holder: Holder) -> None:
    """Have a model checked at its first call, and after changes."""
    key = id(module)
    with _lock:
        if key not in _models:
            _patches.instead(nn.Module, "_apply", _changed)
            _patches.instead(nn.Module, "load_state_dict", _changed)
            _models[key] = weakref.ref(module)
            weakref.finalize(module, _forget, key).atexit = False
        if not _patches.listens_here:
            _patches.enter_thread()
    holder.arm(module)


def leave_alone(module: nn.Module, holder: Holder) -> None:
    """No more, of either."""
    holder.disarm(module)
    _forget(id(module))


def _forget(key: int) -> None:
    with _lock:
        if _models.pop(key, None) is not None and not _models:
            _patches.undo()


def _changed(following: Any, self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """`_apply` and `load_state_dict`, of any module; a module calls those of the modules inside of it."""
    __tracebackhide__ = True
    if getattr(_here, "inside", False):
        return following(self, *args, **kwargs)
    _here.inside = True
    try:
        return following(self, *args, **kwargs)
    finally:
        _here.inside = False
        for ref in [*_models.values()]:
            model = ref()
            card = None if model is None else vars(model).get("_dtypeguard")
            if model is not None and card is not None and card.holder is not None and _is_in(self, model):
                card.holder.arm(model, place(caller()) or "")


def _is_in(module: nn.Module, model: nn.Module) -> bool:
    return module is model or any(one is module for _, one in walk(model))
