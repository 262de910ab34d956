"""`manifest`: what every tensor that a model holds is, as a file that is committed and checked."""

from .manifest import Manifest as Manifest
from .manifest import StateDiff as StateDiff
from .manifest import manifest as manifest

for _public in (Manifest, StateDiff):
    _public.__module__ = "dtypeguard.results"
