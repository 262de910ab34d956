"""Filters of warnings that stand while somebody needs them, beside those of the program."""

import threading
import warnings
from typing import Any

_lock = threading.Lock()


class Filter:
    """A filter of the whole process; `text` and `module` have a method `match`, which can ask for the thread."""

    def __init__(self, action: str, text: Any = None, module: Any = None) -> None:
        self._entry: Any = action, text, Warning, module, 0
        self._needed: list[object] = []  # those who need it

    def begin(self, who: object) -> None:
        """Set it first; what was warned of once is not forgotten, as it would be after a change by `warnings`."""
        filters: Any = warnings.filters
        with _lock:
            self._needed.append(who)
            filters.insert(0, self._entry)

    def end(self, who: object) -> bool:
        """Take it back; returns whether nobody needs it any more. The program may have set other filters meanwhile.

        It can be called again, where an exception came in between.
        """
        filters: Any = warnings.filters
        with _lock:
            if who in self._needed:
                self._needed.remove(who)
            places = [place for place, one in enumerate(filters) if one is self._entry]
            for place in reversed(places[: len(places) - len(self._needed)]):
                del filters[place]
            return not self._needed
