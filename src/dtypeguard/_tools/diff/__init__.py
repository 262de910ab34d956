"""`diff`: where two programs part, and whether it is rounding."""

from .diff import capture as capture
from .diff import diff as diff
