"""`describe`: what a guard holds a model to."""

from .describe import describe as describe
from .description import Description as Description
from .held import HeldArgument as HeldArgument
from .held import HeldModule as HeldModule
