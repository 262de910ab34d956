"""Functions of torch that are replaced for the time of an audit, each put back as it was."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class _Patch:
    owner: Any
    name: str
    original: Any
    replacement: Any
    inherited: bool

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
    """What was replaced, so that it can be undone."""

    def __init__(self) -> None:
        self._patches: list[_Patch] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Set `owner.name` to `make(original)`. An attribute that `owner` inherits is taken off again at the end."""
        own = vars(owner)
        inherited = name not in own
        original = own.get(name, getattr(owner, name, None))
        if original is None:
            return
        replacement = make(getattr(owner, name) if isinstance(original, staticmethod) else original)
        setattr(owner, name, replacement)
        self._patches.append(_Patch(owner, name, original, replacement, inherited))

    def undo(self) -> None:
        while self._patches:
            patch = self._patches.pop()
            if patch.stands:
                patch.undo()

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
