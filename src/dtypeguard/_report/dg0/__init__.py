"""The texts of the pages about contracts, family DG0, with programs that have a mistake, and that are right."""

from . import others, repairs, values
from ._explanation import Explanation as Explanation

_ALL = [*values.EXPLANATIONS, *repairs.EXPLANATIONS, *others.EXPLANATIONS]
EXPLANATIONS: dict[str, Explanation] = {one.mistake.id: one for one in sorted(_ALL, key=lambda one: one.mistake.id)}
