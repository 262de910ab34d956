"""`audit`: find dtype mistakes in a program, with the line where each dtype begins."""

from ..._show.report.report import AuditReport as AuditReport
from ..._show.report.report import Cast as Cast
from .audit import audit as audit
