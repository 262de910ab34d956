"""`dryrun`: in which dtypes does a model run, and what comes out."""

from .cells import DryrunCell as DryrunCell
from .dryrun import dryrun as dryrun
from .table import DryrunTable as DryrunTable

for _public in (DryrunCell, DryrunTable, dryrun):
    _public.__module__ = "dtypeguard.results"
