"""Functions of torch that are replaced for the time of an audit, each put back as it was."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from .compiler import unseen

_jit: Any = torch.jit  # which torch leaves untyped
_builtins: Any = _jit._builtins
_lock = threading.RLock()
# Of each place, those that stand one on another: audits may end in another order than they began.
_stacks: dict[tuple[int, str], list["_Patch"]] = {}


@dataclass(slots=True, eq=False)
class _Patch:
    owner: Any
    name: str
    original: Any
    replacement: Any
    inherited: bool
    over: bool = False

    @property
    def stands(self) -> bool:
        """Not where somebody else replaced it meanwhile, and holds ours."""
        return vars(self.owner).get(self.name) is self.replacement

    def undo(self) -> None:
        if self.inherited:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.original)


class Patches:
    """What one audit replaced, so that it can be undone."""

    def __init__(self) -> None:
        self._patches: list[_Patch] = []
        self._scripted: list[int] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Set `owner.name` to `make(original)`. An attribute that `owner` inherits is taken off again at the end."""
        with _lock:
            own = vars(owner)
            inherited = name not in own
            original = own.get(name, getattr(owner, name, None))
            if original is None:
                return
            replacement = make(getattr(owner, name) if isinstance(original, staticmethod) else original)
            unseen(replacement)
            self._stand_in(owner, name, original, replacement)
            setattr(owner, name, replacement)
            patch = _Patch(owner, name, original, replacement, inherited)
            self._patches.append(patch)
            _stacks.setdefault((id(owner), name), []).append(patch)

    def _stand_in(self, owner: Any, name: str, original: Any, replacement: Any) -> None:
        """A function written in C is found by TorchScript by its identity, and pickled by its name."""
        op = _builtins._find_builtin(original)
        if op is not None and isinstance(owner, ModuleType):
            _builtins._register_builtin(replacement, op)
            self._scripted.append(id(replacement))
            replacement.__module__, replacement.__qualname__ = owner.__name__, name

    def undo(self) -> None:
        with _lock:
            while self._scripted:
                _builtins._get_builtin_table().pop(self._scripted.pop(), None)
            while self._patches:
                patch = self._patches.pop()
                patch.over = True
                stack = _stacks[id(patch.owner), patch.name]
                while stack and stack[-1].over:
                    last = stack.pop()
                    if last.stands:
                        last.undo()
                if not stack:
                    del _stacks[id(patch.owner), patch.name]

    @contextlib.contextmanager
    def lifted(self) -> Iterator[None]:
        """In here everything is as it was."""
        lifted = [patch for patch in reversed(self._patches) if patch.stands]
        for patch in lifted:
            patch.undo()
        try:
            yield
        finally:
            for patch in reversed(lifted):
                setattr(patch.owner, patch.name, patch.replacement)
