"""`amp.watch`: find mistakes with autocast, GradScaler and optimizers during training."""

from .._report.findings import Report as Report
from .._watch.rule import Finding as Finding
from ._watch import Watch as Watch
from ._watch import watch as watch
