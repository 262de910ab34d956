"""Functions of torch that are replaced for the time of an audit, each put back as it was."""

from collections.abc import Callable
from typing import Any


class Patches:
    """What was replaced, so that it can be undone."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Set `owner.name` to `make(original)`. An attribute that `owner` inherits is taken off again at the end."""
        own = vars(owner)
        inherited = name not in own
        original = own.get(name, getattr(owner, name, None))
        if original is None:
            return
        replacement = make(getattr(owner, name) if isinstance(original, staticmethod) else original)
        setattr(owner, name, replacement)

        def undo() -> None:
            if vars(owner).get(name) is not replacement:
                return  # somebody else replaced it meanwhile, and holds ours
            if inherited:
                delattr(owner, name)
            else:
                setattr(owner, name, original)

        self._undo.append(undo)

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()
