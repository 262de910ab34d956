"""A list of findings that prints."""

from .._watch.rule import Finding
from .causes import causes_of
from .text import Style, paragraphs


class Report(list[Finding]):
    """A list of findings, in the order in which they were found; it prints them by cause, the worst first."""

    def __str__(self) -> str:
        return "\n".join(paragraphs(causes_of(self), Style.of())) or "nothing found"

    __repr__ = __str__


Report.__module__ = "dtypeguard.amp"
