"""What most rules are written with, from where it lives."""

from .._core.base.dtypes import HALF as HALF
from .._core.base.dtypes import name_of as name_of
from .._engine.sample import LARGEST as LARGEST
from .._engine.sample import of as of
from .._engine.sample import some as some
from .._engine.sample import thin as thin
from .._engine.watch.events import Call as Call
from .._engine.watch.events import Conversion as Conversion
from .._engine.watch.events import Op as Op
from .._engine.watch.events import Suspect as Suspect
from .._engine.watch.events import on as on
from .._engine.watch.events import readable as readable
from .._engine.watch.lineage import Node as Node
from .._engine.watch.patches import around as around
from .._engine.watch.recorder import Recorder as Recorder
from .._engine.watch.rule import Finding as Finding
from .._engine.watch.rule import Rule as Rule
from .._engine.watch.rule import Severity as Severity
from .._engine.watch.rule import listed as listed
from .._engine.watch.sites import Site as Site
from .._engine.watch.spots import Step as Step
from .._engine.watch.spots import asked_for as asked_for
from .._engine.watch.text import human as human
from .._engine.watch.text import limit as limit
from .._engine.watch.text import size_of as size_of
