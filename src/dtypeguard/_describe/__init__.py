"""`describe`: what a guard holds a model to."""

from .describe import describe as describe
from .description import Description as Description
from .description import HeldArgument as HeldArgument
from .description import HeldModule as HeldModule
