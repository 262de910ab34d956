"""What most rules are written with, from where it lives."""

from .._base.dtypes import HALF as HALF
from .._base.dtypes import name_of as name_of
from .._watch.events import Call as Call
from .._watch.events import Conversion as Conversion
from .._watch.events import Op as Op
from .._watch.events import Suspect as Suspect
from .._watch.events import on as on
from .._watch.events import readable as readable
from .._watch.lineage import Node as Node
from .._watch.patches import around as around
from .._watch.recorder import Recorder as Recorder
from .._watch.rule import Rule as Rule
from .._watch.rule import Severity as Severity
from .._watch.rule import listed as listed
from .._watch.sites import Site as Site
from .._watch.text import LARGEST as LARGEST
from .._watch.text import human as human
from .._watch.text import size_of as size_of
