"""How often a line was met: what costs something is done at the first few times, and then at powers of two."""

from dataclasses import dataclass, field
from typing import Any

LARGEST = 10**6  # elements that are looked at in full


@dataclass
class Looks:
    counts: dict[Any, int] = field(default_factory=dict)

    def due(self, *key: Any) -> bool:
        count = self.counts[key] = self.counts.get(key, 0) + 1
        return count <= 4 or count & (count - 1) == 0
