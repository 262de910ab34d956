"""`audit`: a whole program watched for dtype mistakes, with the line where each dtype was born."""

from ._audit import audit as audit
from ._report import AuditReport as AuditReport
from ._report import Cast as Cast
