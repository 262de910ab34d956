"""Functions of torch that are replaced for the time of an audit, each put back as it was."""

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ClassMethodDescriptorType, ModuleType
from typing import Any

import torch

from .compiler import unseen
from .rule import Rule

_jit: Any = torch.jit  # which torch leaves untyped
_builtins: Any = _jit._builtins
_lock = threading.RLock()
# Of each place, those that stand one on another: audits may end in another order than they began.
_stacks: dict[tuple[int, str], list["_Patch"]] = {}
Around = Callable[..., Any]
_AROUND: list[tuple[Any, str, Rule | None, bool, Around]] = []


def around(owner: Any, *names: str, rule: Rule | None = None, always: bool = False) -> Callable[[Around], Around]:
    """Call the function in place of functions of torch: `function(audit, original, *args, **kwargs)`.

    Args:
        owner: a class or module; the name of a module that may be imported later.
        names: of its functions.
        rule: that needs it; where that is not wanted, torch's own function stays. None: it is always replaced.
        always: call it in threads that take no part too, and in what the audit does itself.
    """

    def register(function: Around) -> Around:
        unseen(function)
        _AROUND.extend((owner, name, rule, always, function) for name in names)
        return function

    return register


def _stand_in(audit: Any, function: Around, always: bool, original: Any) -> Any:
    """What calls the function in place of the original."""
    of_class = isinstance(original, classmethod | ClassMethodDescriptorType)  # C's, from torch 2.15 on
    local, inner = audit.local, original.__func__ if isinstance(original, classmethod) else original

    @functools.wraps(inner)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if always or (audit.running and local.on and not local.paused):
            return function(audit, inner, *args, **kwargs)
        return inner(*args, **kwargs)

    return classmethod(call) if of_class else call


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
        self._around: set[int] = set()  # rows that are replaced
        self._made: dict[tuple[int, int], Any] = {}
        self._scripted: list[int] = []

    def begin(self, audit: Any) -> None:
        """Replace all that `around` names, and that is imported by now."""
        for row, (place, name, rule, always, function) in enumerate(_AROUND):
            owner = sys.modules.get(place) if isinstance(place, str) else place
            if row not in self._around and owner is not None and (rule is None or rule.id in audit.findings.wanted):
                self._around.add(row)
                audit.guarded(self.replace, owner, name, functools.partial(self._instead, audit, function, always))

    def _instead(self, audit: Any, function: Around, always: bool, original: Any) -> Any:
        key = id(function), id(original)  # torch.from_dlpack stands in two places
        if key not in self._made:
            self._made[key] = _stand_in(audit, function, always, original)
        return self._made[key]

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Set `owner.name` to `make(original)`. An attribute that `owner` inherits is taken off again at the end."""
        with _lock:
            own = vars(owner)
            inherited = name not in own
            original = getattr(owner, name) if inherited else own[name]
            replacement = make(getattr(owner, name) if isinstance(original, staticmethod) else original)
            unseen(replacement)
            self._pass_for(owner, name, original, replacement)
            setattr(owner, name, replacement)
            patch = _Patch(owner, name, original, replacement, inherited)
            self._patches.append(patch)
            _stacks.setdefault((id(owner), name), []).append(patch)

    def _pass_for(self, owner: Any, name: str, original: Any, replacement: Any) -> None:
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
