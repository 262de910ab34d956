"""When to look at what a line computes: a look costs something, and a line may run a million times."""

from typing import Any


class Looks:
    """How often each line was asked for."""

    def __init__(self) -> None:
        self._counts: dict[Any, int] = {}
        self._close: set[Any] = set()

    def due(self, *key: Any) -> bool:
        """Whether to look: the first few times that it is asked, and then at powers of two."""
        count = self._counts[key] = self._counts.get(key, 0) + 1
        step = 1 << max(0, count.bit_length() - (4 if key in self._close else 1))
        return count <= 4 or count % step == 0

    def closely(self, *key: Any) -> None:
        """Look eight times between two powers of two: what grows with the calls is about to become a mistake."""
        self._close.add(key)

    def clear(self) -> None:
        """Forget the counts."""
        self._counts.clear()
