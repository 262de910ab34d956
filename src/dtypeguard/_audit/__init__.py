"""`audit`: a whole program watched for dtype mistakes, with the line where each dtype was born."""

from .._report.report import AuditReport as AuditReport
from .._report.report import Cast as Cast
from .audit import audit as audit
