"""Where functions of torch are replaced, their warnings are shown at the program's line, as without it.

`warnings` goes by the frame that calls a function, which is a replacement of ours.
"""

import re
import sys
import warnings
from typing import Any

from .filters import Filter
from .frames import is_own

_filter = Filter("always", module=re.compile(__name__.partition(".")[0] + r"(\.|$)"))
_show: Any = getattr(warnings, "_showwarnmsg", None)  # what C calls with a warning that no filter ignores


def begin(who: object) -> None:
    if _show is not None:
        _filter.begin(who)
        warnings._showwarnmsg = _show_at_program  # type: ignore[attr-defined]


def end(who: object) -> None:
    if _show is not None and _filter.end(who):
        warnings._showwarnmsg = _show  # type: ignore[attr-defined]


def _show_at_program(warning: Any) -> None:
    """Show a warning at the line that called the replacement, if the filters of the program let it pass there."""
    frame = sys._getframe(1) if is_own(warning.filename) else None
    while frame is not None and frame.f_code.co_filename != warning.filename:
        frame = frame.f_back
    while frame is not None and is_own(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        _show(warning)
        return
    names, file = frame.f_globals, frame.f_code.co_filename
    registry = names.setdefault("__warningregistry__", {})
    module = names.get("__name__") or "<string>"
    warnings.warn_explicit(
        warning.message, warning.category, file, frame.f_lineno, module, registry, source=warning.source
    )
