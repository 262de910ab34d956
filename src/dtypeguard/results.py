"""The classes of results: what the tools return, for annotations and `isinstance`.

Each of them prints, and has `to_dict()`, `to_json(path=None)` and `to_html(path=None)`; a notebook shows it as a table.

>>> import torch, dtypeguard
>>> from dtypeguard.results import Description
>>> isinstance(dtypeguard.describe(torch.nn.Linear(3, 1)), Description)
True
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from ._core.base.pyproject import no_attribute as _no_attribute
from ._core.doors.hook import ImportHook
from ._core.repair.records import CastRecord, Casts
from ._core.state.differences import Difference
from ._engine.watch.findings import Cast
from ._engine.watch.rule import Finding
from ._engine.watch.spots import Spot
from ._show.report.edits import Block, Edit, EditError, Replacement
from ._show.report.findings import Report
from ._show.report.ranges import Range, Ranges
from ._show.report.report import AuditReport
from ._tools.compare.by_format import FormatComparison
from ._tools.compare.kept import Kept
from ._tools.compare.placed import Placed
from ._tools.compare.result import Comparison, Layer, Line
from ._tools.describe.description import Description
from ._tools.describe.held import HeldArgument, HeldModule
from ._tools.diff.backward import Gradient
from ._tools.diff.result import DiffRow, ProgramDiff
from ._tools.diff.tokens import Token
from ._tools.dryrun.cells import DryrunCell
from ._tools.dryrun.table import DryrunTable
from ._tools.manifest.manifest import Manifest, StateDiff
from .amp._history import History, Moment
from .amp._metrics import Metrics
from .amp._watch import Watch

__all__ = [
    "AuditReport", "Block", "Cast", "CastRecord", "Casts", "Comparison", "Description", "DiffRow", "Difference",
    "DryrunCell", "DryrunTable", "Edit", "EditError", "Finding", "FormatComparison", "Gradient", "HeldArgument",
    "HeldModule", "History", "ImportHook", "Kept", "Layer", "Line", "Manifest", "Metrics", "Moment", "Placed",
    "ProgramDiff", "Range", "Ranges", "Replacement", "Report", "Spot", "StateDiff", "Token", "Watch",
]  # fmt: skip

if not _TYPE_CHECKING:  # or checkers would take each name for one that is there

    def __getattr__(name: str) -> None:
        raise _no_attribute(__name__, name)
