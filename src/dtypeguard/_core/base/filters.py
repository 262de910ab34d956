"""Filters of warnings that stand while somebody needs them, beside those of the program."""

import threading
import warnings
from typing import Any

_lock = threading.Lock()


class Filter:
    """A filter of the whole process; `text` and `module` have a method `match`, which can ask for the thread."""

    def __init__(self, action: str, text: Any = None, module: Any = None) -> None:
        self._entry: Any = action, text, Warning, module, 0
        self._needed = 0

    def begin(self) -> None:
        """Set it first; what was warned of once is not forgotten, as it would be after a change by `warnings`."""
        filters: Any = warnings.filters
        with _lock:
            self._needed += 1
            filters.insert(0, self._entry)

    def end(self) -> bool:
        """Take it back; returns whether nobody needs it any more. The program may have set other filters meanwhile."""
        filters: Any = warnings.filters
        with _lock:
            self._needed -= 1
            place = next((place for place, one in enumerate(filters) if one is self._entry), None)
            if place is not None:
                del filters[place]
            return not self._needed
