"""Mixed precision watched while it trains: autocast, GradScaler and the optimizer."""

from .._rules import Finding as Finding
from .._rules import Report as Report
from ._watch import Watch as Watch
from ._watch import watch as watch
