"""Functions of torch that an audit replaces."""

import functools
import sys
from collections.abc import Callable
from typing import Any

from ..._core.base.compiler import unseen
from ..._core.base.patches import Make
from ..._core.base.patches import Patches as _Patches
from .rule import Rule

Around = Callable[..., Any]
_AROUND: list[tuple[Any, str, Rule | None, bool, Around]] = []


def around(owner: Any, *names: str, rule: Rule | None = None, always: bool = False) -> Callable[[Around], Around]:
    """Call the function in place of functions of torch: `function(audit, original, *args, **kwargs)`.

    Args:
        owner: a class or module; the name of a module that may be imported later.
        names: of its functions.
        rule: that needs it; where that is not wanted, torch's own function stays. None: it is always replaced.
        always: call it in what the audit does itself, too, and in threads of torch's own.
    """

    def register(function: Around) -> Around:
        unseen(function)
        _AROUND.extend((owner, name, rule, always, function) for name in names)
        return function

    return register


def _link(audit: Any, function: Around, always: bool, following: Any) -> Any:
    """Calls the function of an audit in place of what follows."""
    local = audit.local

    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if (not local.paused and (local.on or audit.records_here) and audit.running) or (always and audit.listens_here):
            return function(audit, following, *args, **kwargs)
        return following(*args, **kwargs)

    return call


class Patches(_Patches):
    """Those of one audit."""

    def __init__(self, audit: Any) -> None:
        super().__init__()
        self.audit = audit
        self._makes: dict[Around, Make] = {}
        self._rows: set[int] = set()  # of `around` that are replaced

    def begin(self, audit: Any) -> None:
        """Replace all that `around` names, and that is imported by now."""
        for row, (place, name, rule, always, function) in enumerate(_AROUND):
            owner = sys.modules.get(place) if isinstance(place, str) else place
            wanted = rule is None or rule.id in audit.findings.wanted
            if row not in self._rows and wanted and owner is not None and hasattr(owner, name):
                self._rows.add(row)
                make = self._makes.setdefault(function, functools.partial(_link, audit, function, always))
                audit.guarded(self.replace, owner, name, make)

    def undo(self) -> None:
        self._rows.clear()
        super().undo()
