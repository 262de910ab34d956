"""The classes of results: what the tools return, for annotations and `isinstance`.

Each of them prints, and has `to_dict()`, `to_json(path=None)` and `to_html(path=None)`; a notebook shows it as a table.

>>> import torch, dtypeguard
>>> from dtypeguard.results import Description
>>> isinstance(dtypeguard.describe(torch.nn.Linear(3, 1)), Description)
True
"""

from ._compare.keep import Kept
from ._compare.result import Comparison, Layer, Line
from ._describe.description import Description
from ._describe.held import HeldArgument, HeldModule
from ._doors.hook import ImportHook
from ._dryrun.cells import DryrunCell
from ._dryrun.table import DryrunTable
from ._repair.records import CastRecord, Casts
from ._report.findings import Report
from ._report.report import AuditReport
from ._watch.findings import Cast
from ._watch.rule import Finding
from .amp._watch import Watch

__all__ = [
    "AuditReport", "Cast", "CastRecord", "Casts", "Comparison", "Description", "DryrunCell", "DryrunTable", "Finding",
    "HeldArgument", "HeldModule", "ImportHook", "Kept", "Layer", "Line", "Report", "Watch",
]  # fmt: skip
